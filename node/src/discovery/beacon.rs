//! What is said and heard by multicast DNS: a pure state machine. Packets and the clock in; packets and hints out.
//!
//! What is announced: a random name that lasts a day, a port, addresses of the interface, and a tag by which members know their
//! mesh. No node id, no name of node, machine or mesh. What is heard is from anybody: it is a hint where to dial, no more, and
//! each table has a bound.
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use data_encoding::HEXLOWER;
use octomesh_protocol::id::MeshId;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    Hint, SegmentReport,
    dns::{self, Answer, Packet, Record},
    interfaces::{Interface, Kind, is_link_local, reached_on},
};

/// Our service (RFC 6763 §4).
const SERVICE: &str = "_octomesh._tcp.local";
/// Port of multicast DNS; whoever sends from another one wants an answer that we do not give.
pub(super) const PORT: u16 = 5353;
/// Domain separation of the tag.
const TAG_LABEL: &[u8] = b"octomesh-mdns/1";
/// Eight bytes tell the meshes of one network apart.
const TAG_BYTES: usize = 8;
const DAY_S: u64 = 24 * 3600;

/// A node that says nothing for this long is not there any more.
const TTL: Duration = Duration::from_secs(150);
/// Two announcements may be lost before others forget us.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
/// Announcements and questions differ by up to this much, so that machines that got their power back together do not speak at
/// once (RFC 6762 §8.1).
const JITTER: Duration = Duration::from_millis(100);
/// Questions after an interface came: at once, then after 1, 2, 4, 8, 16 s. Later whoever comes announces itself.
const QUESTIONS: u32 = 6;
/// The same answer is not multicast more often (RFC 6762 §6).
const ANSWER_GAP: Duration = Duration::from_secs(1);

/// Interfaces spoken on: real ones are few.
const SEGMENTS: usize = 16;
/// Nodes remembered per interface: more than any network segment of a mesh has.
const HEARD: usize = 256;
/// Of them with one source address: several nodes on one machine, not a flood.
const HEARD_PER_SOURCE: usize = 8;
/// Addresses of one node that are passed on.
const ADDRESSES: usize = 4;
/// Packets looked at per interface and second: a full segment's answers, not a flood.
const PACKETS_PER_S: u32 = 128;

struct Heard {
    source: IpAddr,
    until: Instant,
}

struct Segment {
    interface: Interface,
    port: u16,
    addresses: Vec<IpAddr>,
    announce_at: Instant,
    announced: u32,
    ask_at: Option<Instant>,
    asked: u32,
    answer_at: Option<Instant>,
    spoke_at: Option<Instant>,
    since: Instant,
    heard: BTreeMap<String, Heard>,
    /// Nodes of other meshes, by the same bound.
    foreign: BTreeMap<String, Heard>,
    window: (Instant, u32),
}

/// The state.
pub(super) struct Beacon {
    mesh: MeshId,
    day: u64,
    instance: String,
    /// Its own name of yesterday, which may still be on its way.
    former: String,
    segments: BTreeMap<u32, Segment>,
    random: u64,
}

fn tag(mesh: MeshId, day: u64) -> String {
    let hash = Sha256::new()
        .chain_update(TAG_LABEL)
        .chain_update(mesh.as_bytes())
        .chain_update(day.to_be_bytes())
        .finalize();
    HEXLOWER.encode(hash.get(..TAG_BYTES).unwrap_or_default())
}

impl Beacon {
    /// `unix` is the time in seconds, `seed` a random number: names and delays are drawn from it.
    pub(super) fn new(mesh: MeshId, unix: u64, seed: u64) -> Self {
        let mut beacon = Self {
            mesh,
            day: unix / DAY_S,
            instance: String::new(),
            former: String::new(),
            segments: BTreeMap::new(),
            random: seed,
        };
        beacon.rename();
        beacon
    }

    /// SplitMix64: names and delays need to differ, they hide nothing.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn jitter(&mut self) -> Duration {
        let most = u64::try_from(JITTER.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.draw() % most)
    }

    fn rename(&mut self) {
        let name = self.draw();
        self.former = std::mem::replace(&mut self.instance, format!("{name:016x}"));
    }

    /// Takes the interfaces as they are now. New and changed ones are spoken on at once.
    pub(super) fn interfaces(&mut self, interfaces: &[Interface], bound: &[SocketAddr], now: Instant) {
        let usable = interfaces
            .iter()
            .filter(|i| i.multicast && i.kind == Kind::Network)
            .filter_map(|i| reached_on(i, bound).map(|(port, addresses)| (i, port, addresses)))
            .take(SEGMENTS);
        let usable: Vec<_> = usable.map(|(i, port, addresses)| (i.clone(), port, addresses)).collect();
        self.segments.retain(|index, _| usable.iter().any(|(i, ..)| i.index == *index));
        for (interface, port, addresses) in usable {
            let same = self.segments.get(&interface.index).is_some_and(|s| s.interface == interface);
            if same {
                continue;
            }
            let heard = self.segments.remove(&interface.index).map(|s| s.heard).unwrap_or_default();
            let first = now + self.jitter();
            self.segments.insert(
                interface.index,
                Segment {
                    interface,
                    port,
                    addresses,
                    announce_at: first,
                    announced: 0,
                    ask_at: Some(first),
                    asked: 0,
                    answer_at: None,
                    spoke_at: None,
                    since: now,
                    heard,
                    foreign: BTreeMap::new(),
                    window: (now, 0),
                },
            );
        }
    }

    /// Indices of the interfaces that are spoken on.
    pub(super) fn indices(&self) -> impl Iterator<Item = &Interface> {
        self.segments.values().map(|s| &s.interface)
    }

    /// A packet that came on interface `index`.
    pub(super) fn received(
        &mut self,
        index: u32,
        source: SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) -> Vec<Hint> {
        let jitter = self.jitter();
        let Some(segment) = self.segments.get_mut(&index) else { return Vec::new() };
        if !segment.takes(source, now) {
            return Vec::new();
        }
        match dns::parse(bytes) {
            Some(Packet::Query(names)) => {
                let host = format!("{}.local", self.instance);
                let own = format!("{}.{SERVICE}", self.instance);
                if names.iter().any(|n| *n == SERVICE || *n == own || *n == host) {
                    let earliest = segment.spoke_at.map_or(now, |at| (at + ANSWER_GAP).max(now));
                    segment.answer_at.get_or_insert(earliest + jitter);
                }
                Vec::new()
            }
            Some(Packet::Response(records)) => self.response(index, source, &records, now),
            None => Vec::new(),
        }
    }

    fn response(&mut self, index: u32, source: SocketAddr, records: &[Record], now: Instant) -> Vec<Hint> {
        // Clocks may differ by a time zone that was set wrong.
        let tags = [self.day.saturating_sub(1), self.day, self.day + 1].map(|day| tag(self.mesh, day));
        let instances = records.iter().filter_map(|r| match &r.answer {
            Answer::Ptr(instance) if r.name == SERVICE => Some((instance, r.ttl)),
            _ => None,
        });
        let mut hints = Vec::new();
        let Some(segment) = self.segments.get_mut(&index) else { return hints };
        for (instance, ttl) in instances.take(HEARD_PER_SOURCE) {
            let Some(name) = instance.strip_suffix(SERVICE).and_then(|n| n.strip_suffix('.')) else {
                continue;
            };
            if name == self.instance || name == self.former {
                continue;
            }
            let of = |kind: fn(&Answer) -> bool| {
                records.iter().find(|r| r.name == *instance && kind(&r.answer)).map(|r| &r.answer)
            };
            let Some(Answer::Srv { port, target }) = of(|a| matches!(a, Answer::Srv { .. })) else {
                continue;
            };
            let Some(Answer::Txt(strings)) = of(|a| matches!(a, Answer::Txt(_))) else { continue };
            let told = strings.iter().find_map(|s| s.strip_prefix(b"m="));
            let ours = told.is_some_and(|told| tags.iter().any(|tag| tag.as_bytes() == told));
            let table = if ours { &mut segment.heard } else { &mut segment.foreign };
            if ttl == 0 {
                table.remove(name);
                continue;
            }
            if !remember(table, name, source.ip(), now) || !ours {
                continue;
            }
            let addresses = segment.dialable(records, target, *port, source.ip());
            if !addresses.is_empty() {
                hints.push(Hint {
                    addresses,
                    yields: self.instance.as_str() > name,
                    interface: segment.interface.name.clone(),
                });
            }
        }
        hints
    }

    /// Packets to send now. `unix` is the time in seconds.
    pub(super) fn due(&mut self, now: Instant, unix: u64) -> Vec<(u32, Vec<u8>)> {
        if unix / DAY_S != self.day {
            // Taken back first: nobody shall see two nodes here.
            let mut packets = self.farewell();
            self.day = unix / DAY_S;
            self.rename();
            self.segments.values_mut().for_each(|s| s.announce_at = now);
            packets.extend(self.speak(now));
            return packets;
        }
        self.speak(now)
    }

    fn speak(&mut self, now: Instant) -> Vec<(u32, Vec<u8>)> {
        let mut packets = Vec::new();
        let indices: Vec<u32> = self.segments.keys().copied().collect();
        for index in indices {
            let jitter = self.jitter();
            let Some(segment) = self.segments.get_mut(&index) else { continue };
            if segment.ask_at.is_some_and(|at| now >= at) {
                packets.push((index, dns::question(SERVICE)));
                let gap = Duration::from_secs(1) * 2u32.saturating_pow(segment.asked);
                segment.asked += 1;
                segment.ask_at = (segment.asked < QUESTIONS).then(|| now + gap);
            }
            let announce = now >= segment.announce_at;
            if announce || segment.answer_at.is_some_and(|at| now >= at) {
                segment.answer_at = None;
                segment.spoke_at = Some(now);
                if announce {
                    // Twice a second apart (RFC 6762 §8.3), then now and then.
                    let gap = if segment.announced == 0 { ANSWER_GAP } else { ANNOUNCE_EVERY };
                    segment.announced = segment.announced.saturating_add(1);
                    segment.announce_at = now + gap + jitter * 10;
                }
                let records = segment.records(&self.instance, &tag(self.mesh, self.day), TTL);
                packets.push((index, dns::response(&records)));
            }
            let gone = |table: &mut BTreeMap<String, Heard>| table.retain(|_, heard| now < heard.until);
            gone(&mut segment.heard);
            gone(&mut segment.foreign);
        }
        packets
    }

    /// When [`Beacon::due`] has something to send.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let of = |s: &Segment| [Some(s.announce_at), s.ask_at, s.answer_at].into_iter().flatten().min();
        self.segments.values().filter_map(of).min()
    }

    /// Takes back what was announced.
    pub(super) fn farewell(&self) -> Vec<(u32, Vec<u8>)> {
        let tag = tag(self.mesh, self.day);
        let announced = self.segments.iter().filter(|(_, s)| s.announced > 0);
        announced
            .map(|(index, s)| (*index, dns::response(&s.records(&self.instance, &tag, Duration::ZERO))))
            .collect()
    }

    pub(super) fn report(&self, now: Instant) -> Vec<SegmentReport> {
        let count = |table: &BTreeMap<String, Heard>| {
            u32::try_from(table.values().filter(|heard| now < heard.until).count()).unwrap_or(u32::MAX)
        };
        let report = |s: &Segment| SegmentReport {
            interface: s.interface.name.clone(),
            networks: s.interface.networks.clone(),
            listening: now.saturating_duration_since(s.since),
            heard: count(&s.heard),
            foreign: count(&s.foreign),
            problem: None,
        };
        self.segments.values().map(report).collect()
    }
}

/// Gives whether there is room for it.
fn remember(table: &mut BTreeMap<String, Heard>, name: &str, source: IpAddr, now: Instant) -> bool {
    table.retain(|_, heard| now < heard.until);
    if !table.contains_key(name) {
        let of_source = table.values().filter(|h| h.source == source).count();
        if table.len() >= HEARD || of_source >= HEARD_PER_SOURCE {
            return false;
        }
    }
    table.insert(name.to_owned(), Heard { source, until: now + TTL });
    true
}

impl Segment {
    /// Whether a packet is looked at: from this network (RFC 6762 §11), from the port of the protocol, and not one of a flood.
    fn takes(&mut self, source: SocketAddr, now: Instant) -> bool {
        if source.port() != PORT || !self.is_here(source.ip()) {
            return false;
        }
        if now.saturating_duration_since(self.window.0) >= Duration::from_secs(1) {
            self.window = (now, 0);
        }
        self.window.1 += 1;
        self.window.1 <= PACKETS_PER_S
    }

    fn is_here(&self, ip: IpAddr) -> bool {
        (ip.is_ipv6() && is_link_local(ip)) || self.interface.networks.iter().any(|n| n.contains(ip))
    }

    /// Addresses of this network only: an announcement can't make us dial somebody elsewhere.
    fn dialable(&self, records: &[Record], target: &str, port: u16, source: IpAddr) -> Vec<String> {
        let named = records.iter().filter_map(|r| match r.answer {
            Answer::Address(ip) if r.name == target => Some(ip),
            _ => None,
        });
        let mut ips: Vec<IpAddr> = named.filter(|ip| self.is_here(*ip)).take(ADDRESSES * 2).collect();
        if ips.is_empty() {
            ips.push(source);
        }
        ips.retain(|ip| !(self.port == port && self.addresses.contains(ip)));
        ips.sort_unstable_by_key(|ip| (is_link_local(*ip), *ip));
        ips.dedup();
        let address = |ip: IpAddr| match ip {
            IpAddr::V6(v6) if is_link_local(ip) => {
                SocketAddrV6::new(v6, port, 0, self.interface.index).to_string()
            }
            other => SocketAddr::new(other, port).to_string(),
        };
        ips.into_iter().take(ADDRESSES).map(address).collect()
    }

    fn records(&self, instance: &str, tag: &str, ttl: Duration) -> Vec<Record> {
        let ttl = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
        let (own, host) = (format!("{instance}.{SERVICE}"), format!("{instance}.local"));
        let record = |name: &str, answer| Record { name: name.to_owned(), ttl, answer };
        let mut records = vec![
            record(SERVICE, Answer::Ptr(own.clone())),
            record(&own, Answer::Srv { port: self.port, target: host.clone() }),
            record(&own, Answer::Txt(vec![b"v=1".to_vec(), format!("m={tag}").into_bytes()])),
        ];
        let addresses = self.addresses.iter().take(ADDRESSES * 2);
        records.extend(addresses.map(|ip| record(&host, Answer::Address(*ip))));
        records
    }
}

#[cfg(test)]
#[path = "beacon_tests.rs"]
mod tests;
