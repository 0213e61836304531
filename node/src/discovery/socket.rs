//! Sockets of multicast DNS: one per interface and family, so that it is known where a packet came in and where it goes out. One
//! that fails is closed and opened again at the next look at the interfaces.
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    task::{Context, Poll},
};

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::{io::ReadBuf, net::UdpSocket};

use super::{
    beacon::PORT,
    dns::PACKET_BYTES,
    interfaces::{Interface, first_v4},
};

const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
/// Never forwarded by a router, and known to be from this network (RFC 6762 §11).
const HOPS: u32 = 255;

struct Open {
    interface: Interface,
    v6: bool,
    socket: UdpSocket,
}

/// All sockets.
#[derive(Default)]
pub(super) struct Sockets {
    open: Vec<Open>,
    /// Why there is none, by interface and family.
    problems: BTreeMap<(u32, bool), String>,
    turn: usize,
}

impl Sockets {
    /// Opens and closes until there is one for each family of each of `interfaces`.
    pub(super) fn follow<'a>(&mut self, interfaces: impl Iterator<Item = &'a Interface>) {
        let wanted: Vec<&Interface> = interfaces.collect();
        self.open.retain(|o| wanted.contains(&&o.interface));
        self.problems.retain(|(index, _), _| wanted.iter().any(|i| i.index == *index));
        for interface in wanted {
            for v6 in [false, true] {
                let has_family = interface.networks.iter().any(|n| n.ip.is_ipv6() == v6);
                let is_open = self.open.iter().any(|o| o.v6 == v6 && o.interface.index == interface.index);
                if !has_family || is_open {
                    continue;
                }
                match open(interface, v6) {
                    Ok(socket) => {
                        self.problems.remove(&(interface.index, v6));
                        self.open.push(Open { interface: interface.clone(), v6, socket });
                    }
                    Err(error) => self.failed(interface, v6, &error),
                }
            }
        }
    }

    /// Told once, until it changes.
    fn failed(&mut self, interface: &Interface, v6: bool, error: &io::Error) {
        let problem = format!("multicast {}: {error}", if v6 { "IPv6" } else { "IPv4" });
        if self.problems.get(&(interface.index, v6)) != Some(&problem) {
            tracing::info!(
                interface = interface.name,
                problem,
                "this interface is not used to find other nodes"
            );
            self.problems.insert((interface.index, v6), problem);
        }
    }

    /// What keeps an interface from speaking; `None` while one family works.
    pub(super) fn problem(&self, interface: &str) -> Option<String> {
        if self.open.iter().any(|o| o.interface.name == interface) {
            return None;
        }
        let index = nix::net::if_::if_nametoindex(interface).ok()?;
        self.problems.iter().find(|((i, _), _)| *i == index).map(|(_, problem)| problem.clone())
    }

    /// Sends on all families of an interface. What does not leave at once is lost, as packets are.
    pub(super) fn send(&mut self, index: u32, packet: &[u8]) {
        let mut broken = Vec::new();
        for (at, open) in self.open.iter().enumerate().filter(|(_, o)| o.interface.index == index) {
            let group = if open.v6 {
                SocketAddrV6::new(GROUP_V6, PORT, 0, index).into()
            } else {
                SocketAddr::from((GROUP_V4, PORT))
            };
            match open.socket.try_send_to(packet, group) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => broken.push((at, error)),
            }
        }
        for (at, error) in broken.into_iter().rev() {
            let open = self.open.swap_remove(at);
            self.failed(&open.interface, open.v6, &error);
        }
    }

    /// The next packet: index of its interface, who sent it, and its length in `buffer`. Never ends without a socket.
    pub(super) async fn next(&mut self, buffer: &mut [u8; PACKET_BYTES]) -> (u32, SocketAddr, usize) {
        std::future::poll_fn(|context| self.poll(context, buffer)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<(u32, SocketAddr, usize)> {
        let mut left = self.open.len();
        while left > 0 {
            left -= 1;
            // Each gets its turn: one that is flooded does not keep the others from being read.
            self.turn = (self.turn + 1) % self.open.len();
            let Some(open) = self.open.get(self.turn) else { break };
            let mut read = ReadBuf::new(buffer);
            match open.socket.poll_recv_from(cx, &mut read) {
                Poll::Pending => {}
                Poll::Ready(Ok(from)) => {
                    return Poll::Ready((open.interface.index, from, read.filled().len()));
                }
                Poll::Ready(Err(error)) => {
                    let open = self.open.swap_remove(self.turn);
                    self.failed(&open.interface, open.v6, &error);
                    if self.open.is_empty() {
                        break;
                    }
                }
            }
        }
        Poll::Pending
    }
}

fn open(interface: &Interface, v6: bool) -> io::Result<UdpSocket> {
    let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // Other programs of this machine listen on the port, too.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    // Without "all" off, a socket gets packets of every group that any program joined on any interface.
    if v6 {
        socket.set_only_v6(true)?;
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)).into())?;
        socket.set_multicast_all_v6(false)?;
        socket.join_multicast_v6(&GROUP_V6, interface.index)?;
        socket.set_multicast_if_v6(interface.index)?;
        socket.set_multicast_hops_v6(HOPS)?;
        socket.set_multicast_loop_v6(true)?;
    } else {
        let address = first_v4(interface).ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4_n(&GROUP_V4, &InterfaceIndexOrAddress::Index(interface.index))?;
        socket.set_multicast_if_v4(&address)?;
        socket.set_multicast_ttl_v4(HOPS)?;
        socket.set_multicast_loop_v4(true)?;
    }
    UdpSocket::from_std(socket.into())
}
