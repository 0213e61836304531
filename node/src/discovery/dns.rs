//! As much of DNS messages (RFC 1035) as service discovery over multicast (RFC 6762, RFC 6763) needs: questions and answers of
//! the types PTR, SRV, TXT, A and AAAA. What comes is from anybody on the network: every read is checked, every count bounded.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Larger packets are not read: our own have about 300 bytes, and other programs' long lists are no business of ours.
pub(super) const PACKET_BYTES: usize = 1500;
/// A name on the wire (RFC 1035 §3.1).
const NAME_BYTES: usize = 255;
/// Questions and records looked at in one packet.
const ENTRIES: usize = 64;
/// Strings of one TXT record.
const STRINGS: usize = 16;

const CLASS_IN: u16 = 1;
/// "This is all there is of this name and type" (RFC 6762 §10.2).
const CACHE_FLUSH: u16 = 0x8000;
/// Response, authoritative.
const RESPONSE: u16 = 0x8400;

const A: u16 = 1;
const PTR: u16 = 12;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Ptr(String),
    Srv { port: u16, target: String },
    Txt(Vec<Vec<u8>>),
    Address(IpAddr),
}

/// A record; other types are left out when a packet is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// In lower case, labels joined by dots.
    pub(super) name: String,
    /// Seconds; 0 takes the record back.
    pub(super) ttl: u32,
    pub(super) answer: Answer,
}

/// A packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// Names that are asked for.
    Query(Vec<String>),
    Response(Vec<Record>),
}

/// `None` for anything that is not a whole, plain message.
pub(super) fn parse(bytes: &[u8]) -> Option<Packet> {
    let mut reader = Reader { bytes, at: 0 };
    let _id = reader.u16()?;
    let flags = reader.u16()?;
    let [questions, answers, authorities, additionals] =
        [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?].map(usize::from);
    let mut names = Vec::new();
    for _ in 0..questions.min(ENTRIES) {
        names.push(reader.name()?);
        reader.skip(4)?;
    }
    if flags & 0x8000 == 0 {
        return Some(Packet::Query(names));
    }
    if questions > ENTRIES {
        return None;
    }
    let mut records = Vec::new();
    for _ in 0..(answers + authorities + additionals).min(ENTRIES) {
        records.extend(reader.record()?);
    }
    Some(Packet::Response(records))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A name with its compression pointers followed. Each pointer leads to before the last one, so there is an end.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut at = self.at;
        let mut after = None;
        let mut floor = self.at;
        loop {
            let length = *self.bytes.get(at)?;
            match length {
                0 => {
                    self.at = after.unwrap_or(at + 1);
                    return Some(name);
                }
                1..=63 => {
                    let label = self.bytes.get(at + 1..at + 1 + usize::from(length))?;
                    if name.len() + label.len() + 1 > NAME_BYTES {
                        return None;
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    // What is no plain text can't be one of our names, but must not look like one either.
                    name.extend(label.iter().map(|b| match b {
                        b'.' | 0..=32 | 127.. => '\u{fffd}',
                        plain => char::from(plain.to_ascii_lowercase()),
                    }));
                    at += 1 + usize::from(length);
                }
                0xc0.. => {
                    let low = *self.bytes.get(at + 1)?;
                    after.get_or_insert(at + 2);
                    let target = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                    if target >= floor {
                        return None;
                    }
                    (floor, at) = (target, target);
                }
                64..0xc0 => return None,
            }
        }
    }

    /// The inner `None` is a record of another type.
    fn record(&mut self) -> Option<Option<Record>> {
        let name = self.name()?;
        let (kind, class) = (self.u16()?, self.u16()?);
        let ttl = self.u32()?;
        let length = usize::from(self.u16()?);
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let answer = match (class & !CACHE_FLUSH, kind) {
            (CLASS_IN, PTR) => Some(Answer::Ptr(self.name()?)),
            (CLASS_IN, SRV) => {
                self.skip(4)?;
                Some(Answer::Srv { port: self.u16()?, target: self.name()? })
            }
            (CLASS_IN, TXT) => {
                let mut strings = Vec::new();
                while self.at < end && strings.len() < STRINGS {
                    let length = usize::from(*self.take(1)?.first()?);
                    strings.push(self.take(length)?.to_vec());
                }
                Some(Answer::Txt(strings))
            }
            (CLASS_IN, A) => {
                let ip: [u8; 4] = self.take(4)?.try_into().ok()?;
                Some(Answer::Address(IpAddr::V4(ip.into())))
            }
            (CLASS_IN, AAAA) => {
                let ip: [u8; 16] = self.take(16)?.try_into().ok()?;
                Some(Answer::Address(IpAddr::V6(ip.into())))
            }
            _ => None,
        };
        if self.at > end {
            return None;
        }
        self.at = end;
        Some(answer.map(|answer| Record { name, ttl, answer }))
    }
}

/// A question for the pointers of `service`, to be answered by multicast.
pub(super) fn question(service: &str) -> Vec<u8> {
    let mut writer = Writer::new(0, [1, 0]);
    writer.name(service);
    writer.u16(PTR);
    writer.u16(CLASS_IN);
    writer.0
}

/// A response with `records`, uncompressed.
pub(super) fn response(records: &[Record]) -> Vec<u8> {
    let mut writer = Writer::new(RESPONSE, [0, u16::try_from(records.len()).unwrap_or(u16::MAX)]);
    for record in records {
        writer.name(&record.name);
        let (kind, class, body) = match &record.answer {
            // A pointer has others beside it, from other machines.
            Answer::Ptr(target) => (PTR, CLASS_IN, Writer::body(|w| w.name(target))),
            Answer::Srv { port, target } => (
                SRV,
                CLASS_IN | CACHE_FLUSH,
                Writer::body(|w| {
                    // Priority and weight: there is one target.
                    w.u16(0);
                    w.u16(0);
                    w.u16(*port);
                    w.name(target);
                }),
            ),
            Answer::Txt(strings) => (
                TXT,
                CLASS_IN | CACHE_FLUSH,
                Writer::body(|w| strings.iter().for_each(|string| w.counted(string))),
            ),
            Answer::Address(IpAddr::V4(ip)) => (A, CLASS_IN | CACHE_FLUSH, v4(*ip)),
            Answer::Address(IpAddr::V6(ip)) => (AAAA, CLASS_IN | CACHE_FLUSH, v6(*ip)),
        };
        writer.u16(kind);
        writer.u16(class);
        writer.0.extend_from_slice(&record.ttl.to_be_bytes());
        writer.u16(u16::try_from(body.len()).unwrap_or(u16::MAX));
        writer.0.extend_from_slice(&body);
    }
    writer.0
}

fn v4(ip: Ipv4Addr) -> Vec<u8> {
    ip.octets().to_vec()
}

fn v6(ip: Ipv6Addr) -> Vec<u8> {
    ip.octets().to_vec()
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(flags: u16, [questions, answers]: [u16; 2]) -> Self {
        let mut writer = Self(Vec::new());
        [0, flags, questions, answers, 0, 0].into_iter().for_each(|word| writer.u16(word));
        writer
    }

    fn body(write: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut writer = Self(Vec::new());
        write(&mut writer);
        writer.0
    }

    fn u16(&mut self, word: u16) {
        self.0.extend_from_slice(&word.to_be_bytes());
    }

    /// At most 255 bytes with their length before them.
    fn counted(&mut self, bytes: &[u8]) {
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        self.0.push(length);
        self.0.extend(bytes.iter().take(usize::from(length)));
    }

    /// Our own names: labels of at most 63 bytes.
    fn name(&mut self, name: &str) {
        name.split('.').for_each(|label| self.counted(label.as_bytes()));
        self.0.push(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVICE: &str = "_octomesh._tcp.local";

    fn records() -> Vec<Record> {
        let record = |name: &str, answer| Record { name: name.into(), ttl: 120, answer };
        vec![
            record(SERVICE, Answer::Ptr("aa._octomesh._tcp.local".into())),
            record("aa._octomesh._tcp.local", Answer::Srv { port: 9400, target: "aa.local".into() }),
            record("aa._octomesh._tcp.local", Answer::Txt(vec![b"m=00".to_vec(), Vec::new()])),
            record("aa.local", Answer::Address("192.0.2.7".parse().unwrap())),
            record("aa.local", Answer::Address("fe80::7".parse().unwrap())),
        ]
    }

    #[test]
    fn there_and_back() {
        let bytes = response(&records());
        assert!(bytes.len() < PACKET_BYTES);
        assert_eq!(parse(&bytes), Some(Packet::Response(records())));
        assert_eq!(parse(&question(SERVICE)), Some(Packet::Query(vec![SERVICE.into()])));
    }

    /// The bytes that another program's encoder makes of it: names compressed, upper case, other types between.
    #[test]
    fn another_programs_packet() {
        let mut bytes = vec![0, 0, 0x84, 0, 0, 0, 0, 3, 0, 0, 0, 0];
        bytes.extend(b"\x09_OctoMesh\x04_tcp\x05local\0");
        bytes.extend([0, 12, 0, 1, 0, 0, 0, 120, 0, 5, 2, b'a', b'a', 0xc0, 12]);
        // NSEC of the instance, by a pointer to a name that ends in a pointer.
        bytes.extend([0xc0, 44, 0, 47, 0x80, 1, 0, 0, 0, 120, 0, 2, 9, 9]);
        bytes.extend([0xc0, 44, 0, 16, 0x80, 1, 0, 0, 0, 0, 0, 2, 1, b'x']);
        let instance = "aa._octomesh._tcp.local";
        assert_eq!(
            parse(&bytes),
            Some(Packet::Response(vec![
                Record { name: SERVICE.into(), ttl: 120, answer: Answer::Ptr(instance.into()) },
                Record { name: instance.into(), ttl: 0, answer: Answer::Txt(vec![b"x".to_vec()]) },
            ]))
        );
    }

    #[test]
    fn names_that_lead_astray() {
        let named = |name: &[u8]| {
            let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            bytes.extend(name);
            bytes.extend([0, 12, 0, 1]);
            parse(&bytes)
        };
        for bad in [
            &[0xc0, 12][..],                         // itself
            &[1, b'a', 0xc0, 12],                    // a loop
            &[0xc0, 14, 0xc0, 12],                   // forward
            &[0x40, 1, 2],                           // a reserved length
            &[63, b'a'],                             // past the end
            &[[63; 64].repeat(5), vec![0]].concat(), // longer than any name
        ] {
            assert_eq!(named(bad), None, "{bad:?}");
        }
        assert_eq!(named(b"\x03a.b\x01\xff\0"), Some(Packet::Query(vec!["a\u{fffd}b.\u{fffd}".into()])));
    }

    #[test]
    fn counts_that_lie() {
        let mut bytes = response(&records());
        bytes[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
        assert_eq!(parse(&bytes), None);
        bytes[4..6].copy_from_slice(&u16::MAX.to_be_bytes());
        assert_eq!(parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn no_packet_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            parse(&bytes);
        }

        #[test]
        fn no_damaged_packet_panics(at in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut bytes = response(&records());
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(cut);
            parse(&bytes);
        }
    }
}
