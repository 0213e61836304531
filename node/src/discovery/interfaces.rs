//! Network interfaces of this machine, and which of their addresses are worth telling. Reading is Linux; choosing is pure.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use nix::net::if_::{InterfaceFlags, if_nametoindex};
use octomesh_protocol::limits;

/// Interfaces looked at: a machine with more has them from containers.
const INTERFACES: usize = 256;
/// Addresses of one interface.
const ADDRESSES: usize = 16;
/// A list of IPv6 addresses is not longer.
const LONGEST_LIST: u64 = 256 * 1024;
/// IPv6 addresses told even when there are many IPv4 addresses.
const V6_PLACES: usize = 2;

/// Interfaces that container engines, hypervisors and their network plug-ins make: their addresses are the same on every host
/// and lead nowhere from outside.
const VIRTUAL: [&str; 17] = [
    "docker", "br-", "virbr", "veth", "cni", "podman", "lxcbr", "lxdbr", "vnet", "tap", "flannel", "cali",
    "cilium", "kube-", "weave", "nerdctl", "vboxnet",
];
/// `IFA_F_*` of Linux: addresses that change by themselves, are on their way out, or are not usable (yet).
const UNSTABLE: u8 = 0x01 | 0x08 | 0x20 | 0x40;

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Network {
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

impl Network {
    /// Whether `other` is in the same network.
    pub(crate) fn contains(&self, other: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u32| {
            let shift = bits.saturating_sub(u32::from(self.prefix));
            a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
        };
        match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// What an interface is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This machine alone.
    Loopback,
    /// A bridge or cable of containers and virtual machines.
    Virtual,
    /// A tunnel: its network is not this one.
    Tunnel,
    /// The rest.
    Network,
}

/// An interface that is up and has a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) kind: Kind,
    pub(crate) multicast: bool,
    /// Sorted; IPv6 addresses that change by themselves are left out.
    pub(crate) networks: Vec<Network>,
}

/// Reads the interfaces, sorted by name. Empty when the system does not tell.
pub(crate) fn read() -> Vec<Interface> {
    let unstable = unstable_v6(Path::new("/proc/net/if_inet6"));
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let mut interfaces: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in found {
        let usable = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        if !entry.flags.contains(usable) {
            continue;
        }
        let Some(network) = network(&entry) else { continue };
        if unstable.contains(&(entry.interface_name.clone(), network.ip)) {
            continue;
        }
        if interfaces.len() >= INTERFACES && !interfaces.contains_key(&entry.interface_name) {
            continue;
        }
        let interface = interfaces.entry(entry.interface_name.clone()).or_insert_with(|| Interface {
            index: if_nametoindex(entry.interface_name.as_str()).unwrap_or(0),
            kind: kind(&entry.interface_name, entry.flags),
            multicast: entry.flags.contains(InterfaceFlags::IFF_MULTICAST),
            networks: Vec::new(),
            name: entry.interface_name,
        });
        if interface.networks.len() < ADDRESSES {
            interface.networks.push(network);
        }
    }
    let mut interfaces: Vec<Interface> = interfaces.into_values().filter(|i| i.index != 0).collect();
    interfaces.iter_mut().for_each(|i| i.networks.sort_unstable());
    interfaces
}

fn network(entry: &nix::ifaddrs::InterfaceAddress) -> Option<Network> {
    let ip = |storage: &nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let address = ip(entry.address.as_ref()?)?;
    let prefix = match entry.netmask.as_ref().and_then(ip) {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        // Without a mask it is a network of its own.
        None => 128,
    };
    Some(Network { ip: address, prefix: u8::try_from(prefix).unwrap_or(128) })
}

fn kind(name: &str, flags: InterfaceFlags) -> Kind {
    if flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        Kind::Loopback
    } else if is_virtual(name) || leads_nowhere(&Path::new("/sys/class/net").join(name)) {
        Kind::Virtual
    } else if flags.contains(InterfaceFlags::IFF_POINTOPOINT) {
        Kind::Tunnel
    } else {
        Kind::Network
    }
}

fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether it is a bridge that only containers and virtual machines hang on, or nothing. A bridge with a real port, as on a host
/// of virtual machines, is that host's way to the network.
fn leads_nowhere(interface: &Path) -> bool {
    if !interface.join("bridge").exists() {
        return false;
    }
    let Ok(ports) = fs::read_dir(interface.join("brif")) else { return false };
    ports.flatten().take(INTERFACES).all(|port| port.file_name().to_str().is_none_or(is_virtual))
}

/// Interface and address of those that are temporary, deprecated, tentative or in conflict.
fn unstable_v6(list: &Path) -> BTreeSet<(String, IpAddr)> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = fs::File::open(list).and_then(|file| file.take(LONGEST_LIST).read_to_string(&mut text));
    if read.is_err() {
        return BTreeSet::new();
    }
    text.lines().filter_map(unstable).collect()
}

/// `ADDRESS INDEX PREFIX SCOPE FLAGS NAME`, all numbers in hexadecimal.
fn unstable(line: &str) -> Option<(String, IpAddr)> {
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u8::from_str_radix(words.nth(3)?, 16).ok()?;
    let name = words.next()?;
    (flags & UNSTABLE != 0).then(|| (name.to_owned(), IpAddr::V6(address.into())))
}

/// An address that means nothing without the interface that it is on.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Addresses that others are told when this node listens on `bound`: the same in the same order after every start. `explicit`
/// says that the owner wrote `bound`; then also a loopback address or one of a container bridge in it is meant.
///
/// IPv4 before IPv6, networks before tunnels, at most [`limits::MEMBER_ADDRESSES`].
pub(crate) fn advertised(bound: &[SocketAddr], explicit: bool, interfaces: &[Interface]) -> Vec<String> {
    let mut told: BTreeSet<(bool, bool, SocketAddr)> = BTreeSet::new();
    for address in bound {
        if !address.ip().is_unspecified() {
            if explicit && !is_link_local_v6(address.ip()) {
                told.insert((false, address.is_ipv6(), *address));
            }
            continue;
        }
        for (tunnel, network) in reachable(interfaces) {
            if network.ip.is_ipv6() == address.is_ipv6() && !is_link_local(network.ip) {
                told.insert((tunnel, address.is_ipv6(), SocketAddr::new(network.ip, address.port())));
            }
        }
    }
    let (v4, v6): (Vec<_>, Vec<_>) = told.into_iter().partition(|(_, v6, _)| !v6);
    let most = limits::MEMBER_ADDRESSES;
    let v4_places = most - v6.len().min(V6_PLACES);
    let chosen = v4.into_iter().take(v4_places).chain(v6);
    let mut chosen: Vec<_> = chosen.take(most).collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(_, _, address)| address.to_string()).collect()
}

fn is_link_local_v6(ip: IpAddr) -> bool {
    ip.is_ipv6() && is_link_local(ip)
}

fn reachable(interfaces: &[Interface]) -> impl Iterator<Item = (bool, &Network)> {
    let real = interfaces.iter().filter(|i| matches!(i.kind, Kind::Network | Kind::Tunnel));
    real.flat_map(|i| i.networks.iter().map(move |n| (i.kind == Kind::Tunnel, n)))
}

/// Where a node that listens on `bound` can be reached on `interface`: one port and its addresses, link-local ones included.
pub(crate) fn reached_on(interface: &Interface, bound: &[SocketAddr]) -> Option<(u16, Vec<IpAddr>)> {
    let addresses = |port: u16| -> Vec<IpAddr> {
        let here = |ip: &IpAddr| {
            bound.iter().any(|b| {
                b.port() == port
                    && (b.ip() == *ip || (b.ip().is_unspecified() && b.is_ipv6() == ip.is_ipv6()))
            })
        };
        interface.networks.iter().map(|n| n.ip).filter(here).collect()
    };
    let mut ports: Vec<u16> = bound.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.into_iter().map(|port| (port, addresses(port))).find(|(_, found)| !found.is_empty())
}

/// The first IPv4 address of an interface, which multicast of that family leaves from.
pub(crate) fn first_v4(interface: &Interface) -> Option<Ipv4Addr> {
    interface.networks.iter().find_map(|n| match n.ip {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn interface(name: &str, kind: Kind, networks: &[(&str, u8)]) -> Interface {
        let networks =
            networks.iter().map(|(ip, prefix)| Network { ip: ip.parse().unwrap(), prefix: *prefix });
        Interface { name: name.into(), index: 7, kind, multicast: true, networks: networks.collect() }
    }

    fn bound(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|a| a.parse().unwrap()).collect()
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("docker0", Kind::Virtual, &[("172.17.0.1", 16)]),
            interface("eth0", Kind::Network, &[("192.0.2.7", 24), ("2001:db8::7", 64), ("fe80::7", 64)]),
            interface("lo", Kind::Loopback, &[("127.0.0.1", 8), ("::1", 128)]),
            interface("tailscale0", Kind::Tunnel, &[("100.64.0.7", 32)]),
            interface("wlan0", Kind::Network, &[("169.254.3.4", 16), ("198.51.100.7", 24)]),
        ]
    }

    #[test]
    fn a_wildcard_is_the_real_interfaces_in_a_fixed_order() {
        let mut machine = machine();
        let all = bound(&["0.0.0.0:9400", "[::]:9401"]);
        let told = advertised(&all, false, &machine);
        assert_eq!(told, ["192.0.2.7:9400", "198.51.100.7:9400", "[2001:db8::7]:9401", "100.64.0.7:9400"]);
        machine.reverse();
        assert_eq!(advertised(&all, true, &machine), told);
        assert_eq!(advertised(&bound(&["[::]:1"]), false, &machine), ["[2001:db8::7]:1"]);
    }

    #[test]
    fn what_the_owner_wrote_is_told() {
        let machine = machine();
        for asked in ["127.0.0.1:1", "172.17.0.1:1", "169.254.3.4:1"] {
            assert_eq!(advertised(&bound(&[asked]), true, &machine), [asked]);
            assert!(advertised(&bound(&[asked]), false, &machine).is_empty());
        }
        assert!(advertised(&bound(&["[fe80::7]:1"]), true, &machine).is_empty(), "useless without a zone");
    }

    #[test]
    fn many_addresses_leave_room_for_ipv6() {
        let v4: Vec<(String, u8)> = (1..=20).map(|n| (format!("10.0.{n}.1"), 24)).collect();
        let mut networks: Vec<(&str, u8)> = v4.iter().map(|(a, p)| (a.as_str(), *p)).collect();
        networks.extend([("2001:db8::1", 64), ("2001:db8::2", 64), ("2001:db8::3", 64)]);
        let told = advertised(
            &bound(&["0.0.0.0:1", "[::]:1"]),
            false,
            &[interface("eth0", Kind::Network, &networks)],
        );
        assert_eq!(told.len(), limits::MEMBER_ADDRESSES);
        assert_eq!(told.iter().filter(|a| a.starts_with('[')).count(), V6_PLACES);
    }

    #[test]
    fn networks() {
        let network = |ip: &str, prefix| Network { ip: ip.parse().unwrap(), prefix };
        assert!(network("192.0.2.7", 24).contains("192.0.2.200".parse().unwrap()));
        assert!(!network("192.0.2.7", 24).contains("192.0.3.7".parse().unwrap()));
        assert!(network("192.0.2.7", 0).contains("8.8.8.8".parse().unwrap()));
        assert!(!network("192.0.2.7", 0).contains("::1".parse().unwrap()));
        assert!(network("2001:db8::1", 64).contains("2001:db8::ffff".parse().unwrap()));
        assert!(!network("2001:db8::1", 128).contains("2001:db8::2".parse().unwrap()));
        assert!(!network("192.0.2.7", 128).contains("192.0.2.8".parse().unwrap()), "no mask is a /32");
    }

    #[test]
    fn bridges_of_containers_lead_nowhere() {
        let sys = tempfile::tempdir().unwrap();
        let make = |name: &str, ports: &[&str]| {
            let path = sys.path().join(name);
            std::fs::create_dir_all(path.join("bridge")).unwrap();
            std::fs::create_dir(path.join("brif")).unwrap();
            ports.iter().for_each(|p| std::fs::write(path.join("brif").join(p), "").unwrap());
            path
        };
        assert!(leads_nowhere(&make("lab1", &[])));
        assert!(leads_nowhere(&make("vmbr1", &["tap100i0", "veth1"])));
        assert!(!leads_nowhere(&make("vmbr0", &["tap100i0", "enp3s0"])));
        assert!(!leads_nowhere(&sys.path().join("eth0")));
    }

    #[test]
    fn docker_virbr_and_veth_are_not_told_and_several_cards_are() {
        let up = InterfaceFlags::IFF_UP;
        for name in ["docker0", "br-0f1e2d3c4b5a", "virbr0", "veth12ab34c", "cni0", "podman0"] {
            assert_eq!(kind(name, up), Kind::Virtual, "{name}");
        }
        for name in ["no-such-eth7", "no-such-wlan7", "enx7"] {
            assert_eq!(kind(name, up), Kind::Network, "{name}");
        }
        let two = ["no-such-eth7", "docker0", "no-such-wlan7"];
        let machine: Vec<Interface> = (1..)
            .zip(two)
            .map(|(n, name)| interface(name, kind(name, up), &[(&format!("192.0.2.{n}"), 24)]))
            .collect();
        let told = advertised(&bound(&["0.0.0.0:9400"]), false, &machine);
        assert_eq!(told, ["192.0.2.1:9400", "192.0.2.3:9400"]);
    }

    #[test]
    fn temporary_addresses_are_known_from_their_flags() {
        let temporary = "20010db8000000000000000000000001 02 40 00 01     eth0";
        assert_eq!(unstable(temporary), Some(("eth0".into(), "2001:db8::1".parse().unwrap())));
        assert_eq!(unstable("20010db8000000000000000000000001 02 40 00 80     eth0"), None, "permanent");
        for junk in ["", "x y z", "20010db8000000000000000000000001 02 40 00", "ff 02 40 00 zz eth0"] {
            assert_eq!(unstable(junk), None);
        }
    }

    #[test]
    fn this_machine_has_its_loopback() {
        let own = read();
        assert!(
            own.iter().any(|i| i.kind == Kind::Loopback && i.networks.iter().any(|n| n.ip.is_loopback()))
        );
    }

    #[test]
    fn one_port_per_interface() {
        let machine = machine();
        let eth0 = &machine[1];
        let (port, addresses) = reached_on(eth0, &bound(&["0.0.0.0:9400", "[::]:9400"])).unwrap();
        assert_eq!((port, addresses.len()), (9400, 3), "link-local included");
        assert_eq!(reached_on(eth0, &bound(&["127.0.0.1:1"])), None);
        let (port, addresses) = reached_on(eth0, &bound(&["192.0.2.7:5"])).unwrap();
        assert_eq!((port, addresses), (5, vec!["192.0.2.7".parse().unwrap()]));
    }
}
