use std::time::SystemTime;

use octomesh_protocol::{
    id::NodeName,
    sync::MemberAddress,
    trust::{Grants, Role},
};

use super::*;
use crate::membership::{reach::Step, state::Input, view::Member};

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

struct Mesh {
    state: MembershipState,
    now: Instant,
}

impl Mesh {
    fn new() -> Self {
        let name = NodeName::parse("me").unwrap();
        let me = Member::new(id(5), name, Role::Admin, Grants::default());
        Self { state: MembershipState::new(me), now: Instant::now() }
    }

    fn give(&mut self, input: Input) {
        self.state.handle(input, self.now, SystemTime::UNIX_EPOCH);
    }

    fn hear(&mut self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        self.give(Input::Heard(Hint { addresses, yields: false, interface: "eth0".into() }));
    }

    fn told(&mut self, byte: u8, address: &str) {
        let name = NodeName::parse(&format!("n{byte}")).unwrap();
        let told = MemberAddress { node: id(byte), name, addresses: vec![address.to_owned()] };
        self.give(Input::Members { from: None, members: vec![told] });
    }

    fn connected(&mut self, byte: u8, address: &str) {
        self.give(Input::Connected {
            relay: None,
            node: id(byte),
            name: NodeName::parse(&format!("n{byte}")).unwrap(),
            role: Role::Worker,
            grants: Grants::default(),
            certificate: None,
            address: Some(address.to_owned()),
            dialled: Some(address.to_owned()),
        });
    }

    /// Dials of nobody in particular at the tick after `ms`.
    fn later(&mut self, ms: u64) -> Vec<String> {
        self.now += Duration::from_millis(ms);
        let effects = self.state.handle(Input::Tick, self.now, SystemTime::UNIX_EPOCH);
        let blind = |e| match e {
            Effect::Try { address } => Some(address),
            _ => None,
        };
        effects.into_iter().filter_map(blind).collect()
    }
}

const A: &str = "192.0.2.9:9400";
const B: &str = "[fe80::9%3]:9400";

#[test]
fn whoever_is_heard_is_dialled_until_it_is_reached() {
    let mut mesh = Mesh::new();
    mesh.hear(&[A, B]);
    assert_eq!(mesh.later(0), [A]);
    assert!(mesh.later(500).is_empty());
    mesh.give(Input::DialFailed { node: None, address: Some(A.into()), reason: "refused".into() });
    let unreached = mesh.state.view().unreached;
    assert_eq!((unreached[0].source, unreached[0].reason.as_deref()), (Source::Mdns, Some("refused")));
    assert_eq!(mesh.later(600), [B], "its next address");
    mesh.connected(9, B);
    assert!((0..100).all(|_| mesh.later(1_000).is_empty()), "it is connected");
    assert!(mesh.state.view().unreached.is_empty());
    let member = mesh.state.view().get(id(9)).unwrap().clone();
    assert!(member.addresses.is_empty(), "a link-local address is of no use to others");
    mesh.give(Input::Disconnected {
        node: id(9),
        last: true,
        path: crate::net::Path::default(),
        reason: "reset".into(),
    });
    assert_eq!(mesh.later(1_000), [A]);
    assert!(mesh.later(60_000).is_empty(), "not announced for too long");
}

#[test]
fn the_one_that_yields_waits() {
    let mut mesh = Mesh::new();
    mesh.give(Input::Heard(Hint { addresses: vec![A.into()], yields: true, interface: "eth0".into() }));
    assert!(mesh.later(1_400).is_empty());
    assert_eq!(mesh.later(200), [A]);
}

#[test]
fn invented_addresses_are_bounded_and_do_not_crowd_out_members() {
    let mut mesh = Mesh::new();
    for n in 0..2_000u16 {
        mesh.hear(&[&format!("10.0.{}.{}:1", n / 250, n % 250)]);
    }
    mesh.told(9, A);
    let mut dials = 0;
    for _ in 0..120 {
        let now = mesh.later(500);
        assert!(now.len() <= DIALS_PER_TICK);
        dials += now.len();
    }
    assert_eq!(mesh.state.view().unreached.len(), KEPT);
    assert!(dials <= KEPT * 7, "{dials} dials in a minute");
    assert_eq!(mesh.state.view().get(id(9)).unwrap().reach.step(true), Step::NotDialled, "no result came");
    // One that is real gets the place of one that led nowhere.
    mesh.hear(&["192.0.2.77:9400"]);
    assert!((0..4).any(|_| mesh.later(500).contains(&"192.0.2.77:9400".to_owned())));
}

#[test]
fn a_member_heard_again_is_dialled_at_once() {
    let mut mesh = Mesh::new();
    mesh.told(9, A);
    for _ in 0..8 {
        mesh.later(30_000);
        mesh.give(Input::DialFailed {
            node: Some(id(9)),
            address: Some(A.into()),
            reason: "no answer".into(),
        });
    }
    let dials = |mesh: &mut Mesh| {
        let effects = mesh.state.handle(Input::Tick, mesh.now, SystemTime::UNIX_EPOCH);
        effects.into_iter().filter(|e| matches!(e, Effect::Dial { node: Some(_), .. })).count()
    };
    assert_eq!(dials(&mut mesh), 0, "it backs off");
    mesh.hear(&[A]);
    assert_eq!(dials(&mut mesh), 1);
    let member = mesh.state.view().get(id(9)).unwrap().clone();
    assert!(member.reach.heard_from().contains(&Source::Mdns));
    // A flood of the same does not make it dial more often.
    mesh.give(Input::DialFailed { node: Some(id(9)), address: Some(A.into()), reason: "no answer".into() });
    mesh.hear(&[A]);
    assert_eq!(dials(&mut mesh), 0);
    // Another node may live there now: the address is dialled for whoever it is.
    assert_eq!(mesh.later(3_000), [A]);
}
