use super::*;

fn block(text: &str) -> Option<Block> {
    Block::of(&at(text))
}

fn at(text: &str) -> Multiaddr {
    crate::net::address::to_multiaddr(text).unwrap()
}

fn id(n: usize) -> Visitor {
    n as Visitor
}

/// Where they come in.
fn here() -> Multiaddr {
    at("192.0.2.99:9400")
}

fn enter(door: &mut Door, id: Visitor, remote: &str, now: Instant) -> Result<(), Crowded> {
    door.enter(id, (&here(), &at(remote)), now, Arc::default)
}

#[test]
fn addresses_that_count_as_one() {
    assert_ne!(block("192.0.2.1:1"), block("192.0.2.2:1"));
    assert_eq!(block("192.0.2.1:1"), block("192.0.2.1:2"));
    assert_eq!(block("192.0.2.1:1"), block("[::ffff:192.0.2.1]:1"));
    assert_eq!(block("[2001:db8:1:2::3]:1"), block("[2001:db8:1:2:ffff::4]:1"));
    assert_ne!(block("[2001:db8:1:2::3]:1"), block("[2001:db8:1:3::3]:1"));
    assert_eq!(block("memory:5"), None);
}

/// Who comes over a relay has no address of its own: what a relay brings counts together, and crowds nobody else.
#[tokio::test(start_paused = true)]
async fn circuits_count_by_the_relay_that_brings_them() {
    let circuit = |relay: &str| format!("{relay}/p2p-circuit").parse::<Multiaddr>().unwrap();
    let over = |relay: &str| Block::from(&circuit(relay), &random());
    fn random() -> Multiaddr {
        Protocol::P2p(PeerId::random()).into()
    }
    let (one, two) = ("/ip4/192.0.2.1/tcp/9400", "/ip4/192.0.2.1/tcp/9401");
    assert_eq!(over(one), over(one), "whoever it says that comes");
    assert_ne!(over(one), over(two), "another session");
    let named = format!("{one}/p2p/{}", PeerId::random());
    assert_eq!(over(one), over(&named), "the address that was dialled names the relay");
    assert_ne!(over(one), block("192.0.2.1:9400"), "the relay itself comes in as before");
    let (mut door, now) = (Door::new(), Instant::now());
    let taken: Vec<_> =
        (0..100).map(|n| door.enter(id(n), (&circuit(one), &random()), now, Arc::default)).collect();
    assert_eq!(taken.iter().filter(|r| r.is_ok()).count(), 8);
    assert_eq!(door.enter(id(200), (&circuit(two), &random()), now, Arc::default), Ok(()));
    assert_eq!(enter(&mut door, id(201), "192.0.2.1:9400", now), Ok(()));
    let (gate, at) = (Gate::new(), circuit(one));
    assert_eq!((0..100).filter(|_| gate.tells(&at, &random())).count(), 16, "nor are all of them told");
    gate.know(&at);
    assert!(gate.door().members.known.is_empty(), "a circuit makes nobody's address welcome");
}

/// PROTOCOL 5.5: 1,000 connections from one address.
#[tokio::test(start_paused = true)]
async fn a_thousand_connections_from_one_address() {
    let (mut door, now) = (Door::new(), Instant::now());
    let results: Vec<_> = (0..1000).map(|n| enter(&mut door, id(n), "192.0.2.1:1", now)).collect();
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 8);
    assert_eq!(results.last(), Some(&Err(Crowded::Address)));
    assert_eq!(enter(&mut door, id(2000), "192.0.2.2:1", now), Ok(()), "others get in");
    door.leave(id(0), false, now);
    assert_eq!(enter(&mut door, id(2001), "192.0.2.1:1", now), Ok(()));
}

/// PROTOCOL 5.5: 256 silent ones, from 32 addresses.
#[tokio::test(start_paused = true)]
async fn silent_connections_do_not_keep_a_member_out() {
    let (mut door, now) = (Door::new(), Instant::now());
    door.know(block("192.0.2.1:1").unwrap());
    for n in 0..256 {
        assert_eq!(enter(&mut door, id(n), &format!("198.51.100.{}:1", n / 8), now), Ok(()), "{n}");
    }
    assert_eq!(enter(&mut door, id(257), "192.0.2.1:1", now), Ok(()), "a member");
    assert!(door.open.contains_key(&id(0)), "a member has a place of its own");
    // A newcomer from an address that nobody knows: the oldest silent one gives way.
    assert_eq!(enter(&mut door, id(258), "203.0.113.9:1", now), Ok(()));
    assert!(!door.open.contains_key(&id(0)) && door.open.contains_key(&id(1)));
}

/// The same from a member's own address: it gets in, and whoever has said something stays longer.
#[tokio::test(start_paused = true)]
async fn silent_connections_from_a_members_own_address_give_way() {
    let (mut door, now) = (Door::new(), Instant::now());
    let address = "192.0.2.1:1";
    door.know(block(address).unwrap());
    let spoke = Arc::new(Place::default());
    door.enter(id(0), (&here(), &at(address)), now, || Arc::clone(&spoke)).unwrap();
    spoke.spoke();
    let silent = Arc::new(Place::default());
    door.enter(id(1), (&here(), &at(address)), now, || Arc::clone(&silent)).unwrap();
    for n in 2..10_000 {
        assert_eq!(enter(&mut door, id(n), address, now), Ok(()));
        assert!(door.open.len() <= PER_MEMBER_BLOCK);
    }
    assert!(door.open.contains_key(&id(0)) && door.open.contains_key(&id(9_999)));
    assert!(!silent.is_silent(), "it was told");
    door.leave(id(1), true, now);
    assert!(door.failures.known.is_empty(), "to give way is no failure");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_told_of_sixteen_times_and_then_once_a_second() {
    let (mut door, start) = (Door::new(), Instant::now());
    let mut told =
        |address: &str, now| (0..1000).filter(|_| door.tells(block(address).unwrap(), now)).count();
    assert_eq!(told("192.0.2.1:1", start), 16);
    assert_eq!(told("192.0.2.1:1", start + Duration::from_secs(2)), 2);
    assert_eq!(told("192.0.2.2:1", start), 16, "others are told of");
    assert_eq!(told("192.0.2.1:1", start + Duration::from_secs(3600)), 16);
}

/// PROTOCOL 5.4: many wrong secrets from one address.
#[tokio::test(start_paused = true)]
async fn failures_close_the_door_to_an_address_and_are_forgotten() {
    let (mut door, start) = (Door::new(), Instant::now());
    let address = "192.0.2.1:1";
    let mut fails = |count: usize, now| {
        (0..count)
            .take_while(|n| {
                let entered = enter(&mut door, id(*n), address, now);
                door.leave(id(*n), true, now);
                entered.is_ok()
            })
            .count()
    };
    assert_eq!(fails(1000, start), 64);
    assert_eq!(fails(1000, start), 0);
    assert_eq!(fails(1000, start + Duration::from_secs(1)), 8);
    assert_eq!(fails(1000, start + Duration::from_secs(3600)), 64);
    assert_eq!(enter(&mut door, id(5000), "192.0.2.2:1", start), Ok(()), "others are not charged");
}

/// The same flood from a member's own address: its failures are not held against the member.
#[tokio::test(start_paused = true)]
async fn a_flood_from_a_members_own_address_does_not_lock_it_out() {
    let (mut door, now) = (Door::new(), Instant::now());
    let address = "192.0.2.1:1";
    door.know(block(address).unwrap());
    for n in 0..10_000 {
        assert_eq!(enter(&mut door, id(n), address, now), Ok(()));
        door.leave(id(n), true, now);
    }
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_whatever_the_addresses() {
    let (mut door, now) = (Door::new(), Instant::now());
    for n in 0..REMEMBERED * 2 {
        let address = format!("[2001:db8:{:x}:{:x}::1]:1", n >> 8, n);
        enter(&mut door, id(n), &address, now).unwrap();
        door.leave(id(n), true, now);
        door.know(Block::V6([0x2001, 0xdb9, (n >> 8) as u16, n as u16]));
    }
    assert!(door.open.is_empty());
    assert_eq!((door.failures.known.len(), door.failures.by_age.len()), (REMEMBERED, REMEMBERED));
    assert_eq!(door.members.known.len(), REMEMBERED);
}

#[test]
fn replays_are_known_for_4096_messages() {
    let mut replays = Replays::new();
    let hash = |n: usize| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        hash
    };
    for n in 0..=REMEMBERED {
        assert!(replays.add(hash(n)));
    }
    assert!(!replays.add(hash(1)) && replays.contains(&hash(REMEMBERED)));
    assert!(!replays.contains(&hash(0)));
    assert_eq!(replays.by_age.len(), REMEMBERED);
}
