use std::time::SystemTime;

use octomesh_protocol::{
    sync::MemberAddress,
    trust::{Grants, Role},
};

use super::super::{Input, Member};
use super::*;

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

struct Mesh {
    state: MembershipState,
    now: Instant,
}

impl Mesh {
    fn of(me: u8) -> Self {
        let me = Member::new(id(me), NodeName::parse("me").unwrap(), Role::Admin, Grants::default());
        Self { state: MembershipState::new(me), now: Instant::now() }
    }

    fn give(&mut self, input: Input) -> Vec<Effect> {
        self.state.handle(input, self.now, SystemTime::UNIX_EPOCH)
    }

    fn later(&mut self, ms: u64) -> Vec<Effect> {
        self.now += Duration::from_millis(ms);
        self.give(Input::Tick)
    }

    fn connect(&mut self, byte: u8, relay: Option<u8>) {
        self.give(Input::Connected {
            node: id(byte),
            name: NodeName::parse(&format!("n{byte}")).unwrap(),
            role: Role::Worker,
            grants: Grants::default(),
            certificate: None,
            address: relay.is_none().then(|| format!("192.0.2.{byte}:9400")),
            dialled: relay.is_none().then(|| format!("192.0.2.{byte}:9400")),
            relay: relay.map(id),
        });
    }

    /// A member that others told of, and that can't be dialled.
    fn miss(&mut self, byte: u8) {
        let addresses = vec![format!("192.0.2.{byte}:9400")];
        let told =
            MemberAddress { node: id(byte), name: NodeName::parse(&format!("n{byte}")).unwrap(), addresses };
        self.give(Input::Members { from: None, members: vec![told] });
        let reason = "no answer".to_owned();
        self.give(Input::DialFailed { node: Some(id(byte)), address: None, reason });
    }

    fn lose(&mut self, byte: u8) {
        let path = Path::default();
        self.give(Input::Disconnected { node: id(byte), last: true, path, reason: "reset".to_owned() });
    }

    fn problem(&self, byte: u8) -> String {
        self.state.view().get(id(byte)).unwrap().problem.clone().unwrap_or_default()
    }
}

fn asked(effects: &[Effect]) -> Vec<(NodeId, NodeId)> {
    let asked = effects.iter().filter_map(|e| match e {
        Effect::DialOver { node, relay } => Some((*node, *relay)),
        _ => None,
    });
    asked.collect()
}

fn reserves(effects: &[Effect]) -> Option<Vec<NodeId>> {
    effects.iter().find_map(|e| match e {
        Effect::Reserve { relays } => Some(relays.clone()),
        _ => None,
    })
}

fn directly(effects: &[Effect], byte: u8) -> bool {
    effects.iter().any(|e| matches!(e, Effect::Dial { node: Some(node), .. } if *node == id(byte)))
}

#[test]
fn nobody_is_asked_while_all_are_reached() {
    let mut mesh = Mesh::of(5);
    (1..5).for_each(|n| mesh.connect(n, None));
    for _ in 0..100 {
        let effects = mesh.later(500);
        assert!(asked(&effects).is_empty() && reserves(&effects).is_none());
    }
}

/// The one that looks and the one that waits have the same first choice, and so have their second and third.
#[test]
fn both_sides_go_through_the_relays_in_one_order() {
    let (mut looks, mut waits) = (Mesh::of(0x51), Mesh::of(0xa2));
    for relay in [3, 0x40, 0x80, 0xa0, 0xf0] {
        looks.connect(relay, None);
        waits.connect(relay, None);
    }
    looks.miss(0xa2);
    waits.miss(0x51);
    let reserved = reserves(&waits.later(2_000)).unwrap();
    assert_eq!(reserved, [id(0xa0), id(0x80), id(0xf0)]);
    let mut order = Vec::new();
    for _ in 0..3 {
        order.extend(asked(&looks.later(500)).into_iter().map(|(node, relay)| {
            assert_eq!(node, id(0xa2));
            relay
        }));
    }
    assert_eq!(order, reserved);
}

#[test]
fn all_relays_are_asked_then_ever_more_rarely() {
    let mut mesh = Mesh::of(5);
    [1, 2].into_iter().for_each(|n| mesh.connect(n, None));
    mesh.miss(9);
    let rounds = (0..240).map(|_| asked(&mesh.later(500)).len()).collect::<Vec<_>>();
    assert!(rounds.iter().all(|asked| *asked <= 1));
    assert_eq!(rounds.iter().take(4).sum::<usize>(), 3, "at once: {rounds:?}");
    assert!(rounds.iter().skip(120).sum::<usize>() <= 6, "in the second minute: {rounds:?}");
    // What they say is told.
    mesh.give(Input::CircuitFailed { node: id(9), relay: id(2), reason: "it is full".to_owned() });
    assert!(mesh.problem(9).ends_with("; over n2: it is full"), "{}", mesh.problem(9));
}

#[test]
fn when_a_relay_is_lost_the_next_one_is_asked_at_once() {
    let mut mesh = Mesh::of(5);
    [1, 2].into_iter().for_each(|n| mesh.connect(n, None));
    mesh.miss(9);
    let (_, first) = asked(&mesh.later(500))[0];
    mesh.connect(9, Some(first.as_bytes()[0]));
    let member = mesh.state.view().get(id(9)).unwrap().clone();
    assert_eq!((member.relay, member.direct_address.as_deref(), member.connected), (Some(first), None, true));
    assert!(asked(&mesh.later(500)).is_empty());
    mesh.lose(first.as_bytes()[0]);
    mesh.lose(9);
    let again = asked(&mesh.later(0));
    assert_eq!(again.len(), 1);
    assert!(again[0].0 == id(9) && again[0].1 != first, "{again:?}");
    // With the last one goes the last hope, and that is said.
    let second = again[0].1.as_bytes()[0];
    mesh.connect(9, Some(second));
    mesh.lose(second);
    mesh.lose(9);
    assert!(asked(&mesh.later(500)).is_empty());
    assert!(mesh.problem(9).contains("no member is left"), "{}", mesh.problem(9));
    // A path over a relay is no relay for others.
    let mut mesh = Mesh::of(5);
    mesh.connect(1, None);
    mesh.connect(2, Some(1));
    mesh.miss(9);
    for _ in 0..20 {
        assert!(asked(&mesh.later(500)).iter().all(|(_, relay)| *relay == id(1)));
    }
}

#[test]
fn a_member_reached_over_a_relay_is_still_looked_for_directly() {
    let mut mesh = Mesh::of(5);
    mesh.connect(1, None);
    mesh.miss(9);
    mesh.connect(9, Some(1));
    let dials: Vec<bool> = (0..600).map(|_| directly(&mesh.later(500), 9)).collect();
    assert!(!dials.iter().take(28).any(|d| *d), "not at once");
    let early = dials.iter().take(60).filter(|d| **d).count();
    assert!((1..=2).contains(&early), "{early} in the first half minute");
    assert!(dials.iter().filter(|d| **d).count() <= 6, "ever more rarely");
    // A failure of that changes nothing.
    mesh.give(Input::DialFailed { node: Some(id(9)), address: None, reason: "no answer".to_owned() });
    assert_eq!(mesh.problem(9), "");
    mesh.connect(9, None);
    let member = mesh.state.view().get(id(9)).unwrap().clone();
    assert!(member.relay.is_none() && member.direct_address.is_some());
    // Its direct session ends while the one over the relay lasts.
    let path = Path { address: None, relay: Some(id(1)) };
    mesh.give(Input::Disconnected { node: id(9), last: false, path, reason: "reset".to_owned() });
    let member = mesh.state.view().get(id(9)).unwrap().clone();
    assert!(member.connected && member.relay == Some(id(1)) && member.direct_address.is_none());
}

#[test]
fn who_carries_nothing_is_left_out_for_a_while() {
    let mut mesh = Mesh::of(5);
    (1..5).for_each(|n| mesh.connect(n, None));
    mesh.miss(9);
    let first = reserves(&mesh.later(0)).unwrap();
    assert_eq!(first, [id(4), id(1), id(3)]);
    mesh.give(Input::NotReserved { relay: id(4) });
    assert_eq!(reserves(&mesh.later(500)).unwrap(), [id(1), id(3), id(2)]);
    mesh.now += LEFT_OUT;
    assert_eq!(reserves(&mesh.later(0)).unwrap(), first);
    // Those who left or are out are not missed.
    mesh.connect(9, None);
    mesh.give(Input::Left { node: id(9) });
    mesh.lose(9);
    assert!(asked(&mesh.later(60_000)).is_empty());
}

/// The only one that could relay may say no before it is asked for a circuit, to whoever waits for one there.
#[test]
fn who_has_no_relay_left_is_told_why() {
    let mut mesh = Mesh::of(5);
    mesh.connect(1, None);
    mesh.give(Input::NotReserved { relay: id(1) });
    mesh.miss(9);
    let _ = mesh.later(5_000);
    let problem = mesh.state.view().get(id(9)).unwrap().problem.clone().unwrap();
    assert!(problem.contains("over n1: it carries no circuits"), "{problem}");
}
