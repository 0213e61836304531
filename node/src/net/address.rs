//! Addresses: `IP:PORT` for people and files, multiaddr for libp2p, and `memory:N` for the transport of tests.
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use libp2p::{Multiaddr, multiaddr::Protocol};

/// `None` for anything that is not `IP:PORT` or `memory:N`.
pub(crate) fn to_multiaddr(text: &str) -> Option<Multiaddr> {
    if let Some(number) = text.strip_prefix("memory:") {
        return number.parse().ok().map(|n| Multiaddr::empty().with(Protocol::Memory(n)));
    }
    let socket: SocketAddr = text.parse().ok()?;
    let zone = zone(&socket).map(|zone| Protocol::Ip6zone(zone.to_string().into()));
    let address: Multiaddr = zone.into_iter().collect();
    Some(address.with(socket.ip().into()).with(Protocol::Tcp(socket.port())))
}

/// `None` for an address of a transport that we do not use.
pub(crate) fn from_multiaddr(address: &Multiaddr) -> Option<String> {
    let (mut ip, mut zone) = (None, 0);
    for part in address {
        match part {
            Protocol::Ip4(v4) => ip = Some(IpAddr::V4(v4)),
            Protocol::Ip6(v6) => ip = Some(IpAddr::V6(v6)),
            Protocol::Ip6zone(index) => zone = index.parse().ok()?,
            Protocol::Tcp(port) => return ip.map(|ip| socket(ip, port, zone).to_string()),
            Protocol::Memory(number) => return Some(format!("memory:{number}")),
            _ => {}
        }
    }
    None
}

fn socket(ip: IpAddr, port: u16, zone: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, zone).into(),
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, port),
    }
}

/// The index of the interface that a link-local address is on. It means something on this machine only, and until its interfaces
/// change.
pub(crate) fn zone(address: &SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
        SocketAddr::V4(_) | SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        for text in ["192.0.2.1:9400", "[2001:db8::1]:9400", "[fe80::1%3]:9400", "memory:7"] {
            assert_eq!(from_multiaddr(&to_multiaddr(text).unwrap()).as_deref(), Some(text));
        }
        for bad in ["", "host:1", "192.0.2.1", "192.0.2.1:99999", "memory:x"] {
            assert!(to_multiaddr(bad).is_none(), "{bad}");
        }
    }
}
