//! Addresses: `IP:PORT` for people and files, multiaddr for libp2p, and `memory:N` for the transport of tests.
use std::net::{IpAddr, SocketAddr};

use libp2p::{Multiaddr, multiaddr::Protocol};

/// `None` for anything that is not `IP:PORT` or `memory:N`.
pub(crate) fn to_multiaddr(text: &str) -> Option<Multiaddr> {
    if let Some(number) = text.strip_prefix("memory:") {
        return number.parse().ok().map(|n| Multiaddr::empty().with(Protocol::Memory(n)));
    }
    let socket: SocketAddr = text.parse().ok()?;
    Some(Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port())))
}

/// `None` for an address of a transport that we do not use.
pub(crate) fn from_multiaddr(address: &Multiaddr) -> Option<String> {
    let mut ip = None;
    for part in address {
        match part {
            Protocol::Ip4(v4) => ip = Some(IpAddr::V4(v4)),
            Protocol::Ip6(v6) => ip = Some(IpAddr::V6(v6)),
            Protocol::Tcp(port) => return ip.map(|ip| SocketAddr::new(ip, port).to_string()),
            Protocol::Memory(number) => return Some(format!("memory:{number}")),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        for text in ["192.0.2.1:9400", "[2001:db8::1]:9400", "memory:7"] {
            assert_eq!(from_multiaddr(&to_multiaddr(text).unwrap()).as_deref(), Some(text));
        }
        for bad in ["", "host:1", "192.0.2.1", "192.0.2.1:99999", "memory:x"] {
            assert!(to_multiaddr(bad).is_none(), "{bad}");
        }
    }
}
