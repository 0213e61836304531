//! Wake-on-LAN: where this machine listens while it sleeps, and the packet that wakes another.
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    path::Path,
};

use octomesh_protocol::{advert::MacAddress, limits};

use super::sysfs::{names, text};

/// The port that a sleeping network card does not look at, and that nobody uses.
const PORT: u16 = 9;
/// A packet that is lost wakes nobody.
const PACKETS: usize = 3;

/// Hardware addresses of cables on which this machine can be woken; those of which the kernel says so first.
pub(crate) fn own(sysfs: &Path) -> Vec<MacAddress> {
    let folder = sysfs.join("class/net");
    let mut found: Vec<(bool, String, MacAddress)> = names(&folder)
        .into_iter()
        .filter_map(|name| {
            let interface = folder.join(&name);
            // What has a device is no bridge or tunnel. Radio cards sleep too deeply for nearly all machines.
            let cable = interface.join("device").exists() && !interface.join("phy80211").exists();
            let mac = text(&interface.join("address")).and_then(|mac| parse(&mac)).filter(|_| cable)?;
            let enabled = text(&interface.join("device/power/wakeup")).as_deref() == Some("enabled");
            Some((!enabled, name, mac))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, _, mac)| mac).take(limits::ADVERT_MACS).collect()
}

/// `02:00:00:00:00:01`; not that of nobody, and not that of several.
pub(crate) fn parse(text: &str) -> Option<MacAddress> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|p| p.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    let single = mac.first().is_some_and(|first| first & 1 == 0);
    (parts.next().is_none() && mac != [0; 6] && single).then_some(MacAddress(mac))
}

/// Six times all ones, then sixteen times the address.
fn packet(mac: MacAddress) -> Vec<u8> {
    [vec![0xff; 6], mac.0.repeat(16)].concat()
}

/// Where a packet is sent so that it reaches every machine of each network.
pub(crate) fn targets(networks: impl Iterator<Item = (Ipv4Addr, u8)>) -> Vec<SocketAddr> {
    let directed =
        networks.filter(|(ip, prefix)| (8..=30).contains(prefix) && !ip.is_loopback()).map(|(ip, prefix)| {
            let host = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() | host)
        });
    let mut all: Vec<Ipv4Addr> = directed.chain([Ipv4Addr::BROADCAST]).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|ip| SocketAddr::V4(SocketAddrV4::new(ip, PORT))).collect()
}

/// Sends the packets; gives to how many places one went.
///
/// # Errors
/// When none went anywhere.
pub(crate) fn send(macs: &[MacAddress], targets: &[SocketAddr]) -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_broadcast(true)?;
    let (mut sent, mut last) = (0, io::Error::other("there is no hardware address, or no network"));
    for target in targets {
        let mut reached = false;
        for packet in macs.iter().map(|mac| packet(*mac)) {
            for _ in 0..PACKETS {
                match socket.send_to(&packet, target) {
                    Ok(_) => reached = true,
                    Err(error) => last = error,
                }
            }
        }
        sent += usize::from(reached);
    }
    if sent == 0 { Err(last) } else { Ok(sent) }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn the_packet_on_the_wire() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mac = parse("02:00:5e:10:00:01").unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
        assert_eq!(send(&[mac], &[listener.local_addr().unwrap()]).unwrap(), 1);
        let mut buffer = [0; 200];
        for _ in 0..PACKETS {
            let (length, _) = listener.recv_from(&mut buffer).unwrap();
            assert_eq!(length, 102);
            assert_eq!(buffer[..6], [0xff; 6]);
            assert!(buffer[6..102].chunks(6).all(|chunk| chunk == mac.0));
        }
        assert!(send(&[], &[listener.local_addr().unwrap()]).is_err());
        assert!(send(&[mac], &[]).is_err());
    }

    #[test]
    fn addresses() {
        for bad in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "01:00:5e:00:00:01",
            "0200:5e:10:00:01:3",
            "x2:00:5e:10:00:01",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let networks = [("192.168.3.7", 24), ("10.1.2.3", 16), ("127.0.0.1", 8), ("10.9.9.9", 32)];
        let networks = networks.map(|(ip, prefix)| (ip.parse().unwrap(), prefix));
        let told: Vec<String> = targets(networks.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["10.1.255.255:9", "192.168.3.255:9", "255.255.255.255:9"]);
    }

    #[test]
    fn only_cables_are_told_those_that_wake_first() {
        let sys = tempfile::tempdir().unwrap();
        let card = |name: &str, mac: &str, folders: &[&str], wakeup: &str| {
            let interface = sys.path().join("class/net").join(name);
            fs::create_dir_all(interface.join("x")).unwrap();
            fs::write(interface.join("address"), format!("{mac}\n")).unwrap();
            for folder in folders {
                fs::create_dir_all(interface.join(folder)).unwrap();
            }
            if !wakeup.is_empty() {
                fs::create_dir_all(interface.join("device/power")).unwrap();
                fs::write(interface.join("device/power/wakeup"), wakeup).unwrap();
            }
        };
        card("lo", "00:00:00:00:00:00", &[], "");
        card("br0", "02:00:00:00:00:09", &[], "");
        card("eth0", "02:00:00:00:00:01", &["device"], "disabled\n");
        card("eth1", "02:00:00:00:00:02", &["device"], "enabled\n");
        card("eth2", "02:00:00:00:00:03", &["device"], "");
        card("wlan0", "02:00:00:00:00:04", &["device", "phy80211"], "enabled\n");
        let told: Vec<String> = own(sys.path()).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["02:00:00:00:00:02", "02:00:00:00:00:01"]);
    }
}
