use super::*;
use crate::discovery::interfaces::Network;

const UNIX: u64 = 1_800_000_000;

fn mesh(byte: u8) -> MeshId {
    MeshId::from_bytes([byte; 32])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn eth0(networks: &[(&str, u8)]) -> Interface {
    Interface {
        name: "eth0".into(),
        index: 3,
        kind: Kind::Network,
        multicast: true,
        networks: networks.iter().map(|(a, prefix)| Network { ip: ip(a), prefix: *prefix }).collect(),
    }
}

fn bound() -> Vec<SocketAddr> {
    vec!["0.0.0.0:9400".parse().unwrap(), "[::]:9400".parse().unwrap()]
}

fn beacon(byte: u8, seed: u64, networks: &[(&str, u8)], now: Instant) -> Beacon {
    let mut beacon = Beacon::new(mesh(byte), UNIX, seed);
    beacon.interfaces(&[eth0(networks)], &bound(), now);
    beacon
}

/// Runs until `for_s` are over; packets in the order they were sent, with their time.
fn run(beacon: &mut Beacon, from: Instant, for_s: u64) -> Vec<(Instant, Packet)> {
    let mut sent = Vec::new();
    while let Some(at) = beacon.next_due().filter(|at| *at <= from + Duration::from_secs(for_s)) {
        sent.extend(beacon.due(at, UNIX).into_iter().map(|(_, bytes)| (at, dns::parse(&bytes).unwrap())));
    }
    sent
}

fn announcement(beacon: &mut Beacon, now: Instant) -> Vec<u8> {
    beacon.segments.values_mut().for_each(|s| (s.ask_at, s.announce_at) = (None, now));
    beacon.speak(now).remove(0).1
}

fn from(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), PORT)
}

#[tokio::test(start_paused = true)]
async fn two_nodes_hear_each_other_and_one_dials_first() {
    let now = Instant::now();
    let mut a = beacon(1, 1, &[("192.0.2.1", 24), ("fe80::1", 64)], now);
    let mut b = beacon(1, 2, &[("192.0.2.2", 24), ("2001:db8::2", 64), ("fe80::2", 64)], now);
    let (say_a, say_b) = (announcement(&mut a, now), announcement(&mut b, now));
    let at_a = a.received(3, from("192.0.2.2"), &say_b, now);
    let at_b = b.received(3, from("192.0.2.1"), &say_a, now);
    assert_eq!(at_b[0].addresses, ["192.0.2.1:9400", "[fe80::1%3]:9400"]);
    // Its global IPv6 address is not in a network of ours.
    assert_eq!(at_a[0].addresses, ["192.0.2.2:9400", "[fe80::2%3]:9400"]);
    assert_ne!(at_a[0].yields, at_b[0].yields);
    assert!(a.received(3, from("192.0.2.1"), &say_a, now).is_empty(), "itself");
    assert_eq!((a.report(now)[0].heard, a.report(now)[0].foreign), (1, 0));
    assert!(a.received(3, from("192.0.2.2"), &b.farewell()[0].1, now).is_empty());
    assert_eq!(a.report(now)[0].heard, 0, "it said good-bye");
}

#[tokio::test(start_paused = true)]
async fn what_is_announced_names_nobody() {
    let now = Instant::now();
    let say = |byte, seed, unix| {
        let mut beacon = Beacon::new(mesh(byte), unix, seed);
        beacon.interfaces(&[eth0(&[("192.0.2.1", 24)])], &bound(), now);
        let Some(Packet::Response(records)) = dns::parse(&announcement(&mut beacon, now)) else { panic!() };
        records
    };
    let records = say(1, 1, UNIX);
    assert_eq!(records.len(), 4, "{records:?}");
    assert!(records.iter().all(|r| r.name.len() < 40));
    let tag_of = |records: &[Record]| match &records[2].answer {
        Answer::Txt(strings) => strings.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(tag_of(&records)[1].len(), 2 + 2 * TAG_BYTES);
    assert_eq!(tag_of(&records), tag_of(&say(1, 9, UNIX)), "the mesh's, not the node's");
    assert_ne!(tag_of(&records), tag_of(&say(2, 1, UNIX)));
    assert_ne!(tag_of(&records), tag_of(&say(1, 1, UNIX + DAY_S)), "a stranger can't follow it for days");
    assert_ne!(records[0].answer, say(1, 9, UNIX)[0].answer, "another name at each start");
}

#[tokio::test(start_paused = true)]
async fn a_new_day_takes_the_old_name_back() {
    let now = Instant::now();
    let mut a = beacon(1, 1, &[("192.0.2.1", 24)], now);
    let first = announcement(&mut a, now);
    let mut b = beacon(1, 2, &[("192.0.2.2", 24)], now);
    b.received(3, from("192.0.2.1"), &first, now);
    for (_, packet) in a.due(now, UNIX + DAY_S) {
        b.received(3, from("192.0.2.1"), &packet, now);
    }
    assert_eq!(b.report(now)[0].heard, 1, "one node, although its name changed and b's day has not");
    assert!(a.received(3, from("192.0.2.1"), &first, now).is_empty(), "its own name of yesterday");
}

#[tokio::test(start_paused = true)]
async fn the_pace() {
    let now = Instant::now();
    let mut a = beacon(1, 1, &[("192.0.2.1", 24)], now);
    let sent = run(&mut a, now, 600);
    let asked = sent.iter().filter(|(_, p)| matches!(p, Packet::Query(_))).count();
    assert_eq!(asked, usize::try_from(QUESTIONS).unwrap());
    let announced = sent.len() - asked;
    assert!((10..=12).contains(&announced), "{announced} in ten minutes");
    // Answers: however many ask, one a second.
    let later = now + Duration::from_secs(600);
    let mut answers = 0;
    for step in 0..100u64 {
        let at = later + Duration::from_millis(step * 50);
        a.received(3, from("192.0.2.9"), &dns::question(SERVICE), at);
        answers += a.due(at, UNIX).len();
    }
    assert!((4..=7).contains(&answers), "{answers} answers in five seconds");
}

#[tokio::test(start_paused = true)]
async fn strangers_are_bounded() {
    let now = Instant::now();
    let mut a = beacon(1, 1, &[("10.0.0.1", 8)], now);
    let say = |seed: u64, source: IpAddr| {
        let mut other = Beacon::new(mesh(1), UNIX, seed);
        other.interfaces(
            &[Interface { networks: vec![Network { ip: source, prefix: 8 }], ..eth0(&[]) }],
            &bound(),
            now,
        );
        announcement(&mut other, now)
    };
    // One source, many names.
    let one = ip("10.0.0.66");
    let mut at = now;
    let mut heard = 0;
    for seed in 100..200 {
        at += Duration::from_millis(20);
        heard += a.received(3, SocketAddr::new(one, PORT), &say(seed, one), at).len();
    }
    assert_eq!(heard, HEARD_PER_SOURCE);
    // Many sources.
    for n in 0..2000u32 {
        at += Duration::from_millis(10);
        let source = IpAddr::V4((0x0a01_0000 + n).into());
        heard += a.received(3, SocketAddr::new(source, PORT), &say(u64::from(n) + 1000, source), at).len();
    }
    assert_eq!(heard, HEARD);
    // A flood within a second is not even parsed.
    let packet = say(7, ip("10.9.9.9"));
    let later = at + TTL * 2;
    let taken = (0..1000).filter(|_| !a.received(3, from("10.9.9.9"), &packet, later).is_empty()).count();
    assert_eq!(taken, usize::try_from(PACKETS_PER_S).unwrap());
}

#[tokio::test(start_paused = true)]
async fn only_this_network_is_listened_to_and_dialled() {
    let now = Instant::now();
    let mut a = beacon(1, 1, &[("192.0.2.1", 24)], now);
    let mut far = beacon(1, 2, &[("198.51.100.2", 24)], now);
    let packet = announcement(&mut far, now);
    assert!(a.received(3, from("198.51.100.2"), &packet, now).is_empty(), "from elsewhere");
    assert!(a.received(3, "192.0.2.2:4000".parse().unwrap(), &packet, now).is_empty(), "another port");
    assert!(a.received(9, from("192.0.2.2"), &packet, now).is_empty(), "no interface of ours");
    // An address elsewhere is not dialled, whoever names it; the sender's own is.
    let hints = a.received(3, from("192.0.2.2"), &packet, now);
    assert_eq!(hints[0].addresses, ["192.0.2.2:9400"]);
    let mut other_mesh = beacon(9, 3, &[("192.0.2.3", 24)], now);
    assert!(a.received(3, from("192.0.2.3"), &announcement(&mut other_mesh, now), now).is_empty());
    assert_eq!((a.report(now)[0].heard, a.report(now)[0].foreign), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_comes_is_spoken_on() {
    let now = Instant::now();
    let mut a = Beacon::new(mesh(1), UNIX, 1);
    a.interfaces(&[], &bound(), now);
    assert_eq!(a.next_due(), None);
    let loopback = ["127.0.0.1:9400".parse().unwrap()];
    a.interfaces(&[eth0(&[("192.0.2.1", 24)])], &loopback, now);
    assert_eq!(a.next_due(), None, "a node that only this machine reaches says nothing");
    a.interfaces(&[eth0(&[("192.0.2.1", 24)])], &bound(), now);
    assert!(a.next_due().is_some_and(|at| at <= now + JITTER));
    let sent = run(&mut a, now, 5);
    assert!(sent.len() >= 4, "{sent:?}");
    // A new address is announced at once.
    let later = now + Duration::from_secs(10);
    a.interfaces(&[eth0(&[("192.0.2.1", 24), ("192.0.2.99", 24)])], &bound(), later);
    assert!(a.next_due().is_some_and(|at| at <= later + JITTER));
    a.interfaces(&[], &bound(), later);
    assert_eq!(a.next_due(), None);
}
