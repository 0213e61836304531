use std::time::SystemTime;

use octomesh_protocol::{
    id::NodeName,
    sync::MemberAddress,
    trust::{Grants, Role},
};

use super::*;
use crate::{
    membership::state::Input,
    trust::fixtures::{NOW, chain, id, request, root},
};

struct Mesh {
    state: MembershipState,
    now: Instant,
}

impl Mesh {
    /// Node 9 of a mesh, with a session with node 2.
    fn new() -> Self {
        let name = NodeName::parse("me").unwrap();
        let me = Member::new(id(9), name, Role::Admin, Grants::default());
        let mut mesh = Self { state: MembershipState::new(me), now: Instant::now() };
        mesh.connect(2);
        mesh
    }

    fn give(&mut self, input: Input) -> Vec<Effect> {
        self.state.handle(input, self.now, SystemTime::UNIX_EPOCH)
    }

    fn connect(&mut self, seed: u8) -> Vec<Effect> {
        let certificate = chain(seed, Role::Worker).leaf().unwrap().clone();
        self.give(Input::Connected {
            relay: None,
            node: id(seed),
            name: certificate.name.clone(),
            role: certificate.role,
            grants: certificate.grants.clone(),
            certificate: Some(Arc::new(certificate)),
            address: Some(format!("192.0.2.{seed}:9400")),
            dialled: Some(format!("192.0.2.{seed}:9400")),
        })
    }

    fn disconnect(&mut self, seed: u8) {
        self.give(Input::Disconnected {
            node: id(seed),
            last: true,
            path: crate::net::Path::default(),
            reason: "gone".to_owned(),
        });
    }

    /// Node 2 tells of a member.
    fn hears_of(&mut self, seed: u8) {
        let told = MemberAddress {
            node: id(seed),
            name: NodeName::parse(&format!("node-{seed}")).unwrap(),
            addresses: vec![format!("192.0.2.{seed}:9400")],
        };
        self.give(Input::Members { from: Some(id(2)), members: vec![told] });
    }

    fn member(&self, seed: u8) -> Option<Arc<Member>> {
        self.state.view().get(id(seed)).cloned()
    }

    fn dials(&mut self, after: Duration) -> usize {
        self.now += after;
        let effects = self.give(Input::Tick);
        effects.iter().filter(|e| matches!(e, Effect::Dial { .. })).count()
    }
}

#[test]
fn who_has_left_is_shown_so_and_not_dialled() {
    let mut mesh = Mesh::new();
    mesh.connect(3);
    let effects = mesh.give(Input::Left { node: id(3) });
    assert!(effects.iter().any(|e| matches!(e, Effect::Transition { to: MemberState::Left, .. })));
    assert!(effects.contains(&Effect::Persist));
    assert!(mesh.state.remembered().iter().all(|m| m.node != id(3)) && !mesh.state.remembered().is_empty());
    mesh.disconnect(3);
    mesh.hears_of(3);
    let member = mesh.member(3).unwrap();
    assert_eq!((member.state, member.connected), (MemberState::Left, false));
    assert_eq!(member.problem.as_deref(), Some("it has left the mesh"));
    assert_eq!(mesh.dials(Duration::from_secs(60)), 0);
    // Its home may have joined again with the same keys in the meantime; then it says so itself.
    mesh.connect(3);
    assert_eq!(mesh.member(3).unwrap().state, MemberState::Alive);
    mesh.disconnect(3);
    assert_eq!(mesh.dials(Duration::from_secs(60)), 1);
}

#[test]
fn who_is_forgotten_comes_back_by_a_session_only() {
    let mut mesh = Mesh::new();
    mesh.connect(3);
    mesh.give(Input::Forget { node: id(3) });
    assert!(mesh.member(3).is_some(), "it is here");
    mesh.disconnect(3);
    mesh.give(Input::Forget { node: id(3) });
    assert!(mesh.member(3).is_some(), "it may still answer");
    mesh.dials(Duration::from_secs(10));
    mesh.give(Input::Liveness { node: id(3), to: MemberState::Down });
    assert!(mesh.give(Input::Forget { node: id(3) }).contains(&Effect::Persist));
    assert!(mesh.member(3).is_none());
    mesh.hears_of(3);
    assert!(mesh.member(3).is_none());
    mesh.now += NOT_FROM_HEARSAY;
    mesh.hears_of(3);
    assert!(mesh.member(3).is_some(), "a day later others may know better");

    mesh.give(Input::Forget { node: id(3) });
    mesh.connect(3);
    assert_eq!(mesh.member(3).unwrap().state, MemberState::Alive);
    mesh.disconnect(3);
    mesh.hears_of(3);
    assert!(mesh.member(3).is_some());
}

#[test]
fn what_is_remembered_of_the_gone_is_bounded() {
    let mut gone = Gone::default();
    let now = Instant::now();
    let node = |n: usize| NodeId::from_bytes(std::array::from_fn(|at| (n >> (8 * at.min(3))) as u8));
    for n in 0..2 * GONE {
        gone.put(node(n), now + Duration::from_secs(n as u64));
    }
    assert_eq!(gone.0.len(), GONE);
    assert!(gone.contains(node(2 * GONE - 1), now) && !gone.contains(node(0), now));
}

#[test]
fn another_certificate_changes_the_member() {
    let mut mesh = Mesh::new();
    let mut renamed = request(2, Role::Worker);
    renamed.name = NodeName::parse("loft").unwrap();
    let certificate = root().issue(renamed).unwrap().leaf().unwrap().clone();
    let effects = mesh.give(Input::Shown { certificate: Box::new(certificate.clone()) });
    assert!(effects.contains(&Effect::Persist));
    let member = mesh.member(2).unwrap();
    assert_eq!((member.name.as_str(), member.certificate.as_deref()), ("loft", Some(&certificate)));
    // The own one.
    let own = chain(9, Role::Admin).leaf().unwrap().clone();
    mesh.give(Input::Shown { certificate: Box::new(own) });
    assert_eq!(mesh.member(9).unwrap().name.as_str(), "node-9");
    // Of somebody who is not here any more: the next session shows it.
    mesh.disconnect(2);
    let before = chain(2, Role::Worker).leaf().unwrap().clone();
    mesh.give(Input::Shown { certificate: Box::new(before) });
    assert_eq!(mesh.member(2).unwrap().name.as_str(), "loft");
}

#[test]
fn a_session_does_not_outlive_its_certificate() {
    let mut mesh = Mesh::new();
    let ends = chain(2, Role::Worker).ends().unwrap();
    assert_eq!(mesh.state.expired(ends + 300, 300), []);
    assert_eq!(mesh.state.expired(ends + 301, 300), [id(2)]);
    let mut later = request(2, Role::Worker);
    later.now = NOW + 1000;
    let certificate = root().issue(later).unwrap().leaf().unwrap().clone();
    mesh.give(Input::Shown { certificate: Box::new(certificate) });
    assert_eq!(mesh.state.expired(ends + 301, 300), [], "it was renewed meanwhile");
    mesh.disconnect(2);
    assert_eq!(mesh.state.expired(ends + 9999, 300), []);
}

#[test]
fn an_older_certificate_takes_no_name_back() {
    let mut mesh = Mesh::new();
    let mut renamed = request(2, Role::Worker);
    renamed.name = NodeName::parse("loft").unwrap();
    renamed.now = NOW + 100;
    let certificate = root().issue(renamed).unwrap().leaf().unwrap().clone();
    mesh.give(Input::Shown { certificate: Box::new(certificate) });
    let before = chain(2, Role::Worker).leaf().unwrap().clone();
    assert!(mesh.give(Input::Shown { certificate: Box::new(before) }).is_empty());
    assert_eq!(mesh.member(2).unwrap().name.as_str(), "loft");
}

#[test]
fn who_is_gone_for_good_is_told_apart_from_who_was_stopped() {
    let mut mesh = Mesh::new();
    mesh.give(Input::Liveness { node: id(2), to: MemberState::Left });
    assert!(!mesh.member(2).unwrap().is_gone() && mesh.state.view().gone.is_empty());
    mesh.give(Input::Left { node: id(2) });
    assert!(mesh.member(2).unwrap().is_gone() && mesh.state.view().gone.contains(&id(2)));
    mesh.connect(2);
    assert!(!mesh.member(2).unwrap().is_gone() && mesh.state.view().gone.is_empty());
}
