//! Revocations, and what a node that was away can know.
use super::*;

fn out(mesh: &mut Mesh, byte: u8) -> Vec<Effect> {
    mesh.give(Input::Trust { revoked: BTreeMap::from([(id(byte), "revoked: stolen".to_owned())]) })
}

fn closed(mesh: &mut Mesh, byte: u8) {
    mesh.give(Input::Disconnected {
        node: id(byte),
        last: true,
        path: Path::default(),
        reason: "gone".into(),
    });
}

fn unreachable(mesh: &mut Mesh, byte: u8) {
    let reason = "refused".to_owned();
    mesh.give(Input::DialFailed { node: Some(id(byte)), address: None, reason });
}

fn trusts(mesh: &Mesh, byte: u8) -> bool {
    mesh.state.view().may_trust(id(byte))
}

#[test]
fn a_revoked_member_leaves_at_once_and_for_good() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    mesh.connect(2);
    let shown = tool("work");
    let offered = manifest(&[Arc::clone(&shown)]);
    mesh.give(Input::Advert { advert: advert(1, 1, 1, &offered), direct: true });
    mesh.give(Input::Manifest { node: id(1), hash: offered.hash().unwrap(), manifest: offered.clone() });
    mesh.give(Input::Cards { cards: vec![shown] });
    assert!(mesh.member(1).tools_complete);
    let effects = out(&mut mesh, 1);
    assert!(effects.contains(&Effect::Transition { node: id(1), name: name("n1"), to: MemberState::Left }));
    assert!(effects.contains(&Effect::Persist) && effects.contains(&Effect::Sync { node: id(2) }));
    assert!(!effects.contains(&Effect::Sync { node: id(1) }));
    let gone = mesh.member(1);
    assert_eq!((gone.state, gone.problem.as_deref()), (MemberState::Left, Some("revoked: stolen")));
    assert!(!gone.connected && gone.tools.is_empty() && gone.advert.is_none() && gone.addresses.is_empty());
    let kept = mesh.state.remembered().into_iter().find(|m| m.node == id(1)).unwrap();
    assert!(kept.addresses.is_empty(), "after a restart it is not dialled");
    assert_eq!(kept.name, name("n1"), "and has its name");
    closed(&mut mesh, 1);

    // Whatever comes from it or about it: nothing changes.
    mesh.connect(1);
    mesh.give(Input::Advert { advert: advert(1, 1, 2, &offered), direct: false });
    mesh.told(1);
    let from = Some(id(2));
    let members =
        vec![MemberAddress { node: id(1), name: name("n1"), addresses: vec!["192.0.2.1:9400".into()] }];
    mesh.give(Input::Members { from, members });
    mesh.give(Input::Rtt { node: id(1), rtt: Duration::from_millis(1) });
    assert_eq!(*mesh.member(1), Member { suite: None, ..(*gone).clone() });
    for _ in 0..100 {
        assert!(!dials(&mesh.later(1_000)).contains(&id(1)));
    }
}

#[test]
fn one_that_was_never_met_does_not_come_in_later() {
    let mut mesh = Mesh::new();
    out(&mut mesh, 1);
    let told = MemberAddress { node: id(1), name: name("n1"), addresses: vec!["192.0.2.1:9400".into()] };
    mesh.give(Input::Members { from: Some(id(3)), members: vec![told] });
    mesh.connect(1);
    assert!(mesh.state.view().get(id(1)).is_none());
}

#[test]
fn a_node_that_was_away_asks_another_member_first() {
    let mut mesh = Mesh::new();
    // Both are in the file of the last run.
    mesh.told(1);
    mesh.told(2);
    mesh.connect(1);
    assert!(!trusts(&mesh, 1), "nothing was exchanged");
    mesh.give(Input::Exchanged { node: id(1) });
    assert!(!trusts(&mesh, 1), "a revoked node tells nothing against itself");
    mesh.connect(2);
    assert!(!trusts(&mesh, 1), "a session is no exchange");
    mesh.give(Input::Exchanged { node: id(2) });
    assert!(trusts(&mesh, 1) && trusts(&mesh, 2), "each vouches for the other");
    // One of them goes: what it said still counts.
    closed(&mut mesh, 2);
    assert!(trusts(&mesh, 1));
    // Away from everybody: begins anew.
    closed(&mut mesh, 1);
    mesh.connect(1);
    mesh.give(Input::Exchanged { node: id(1) });
    assert!(!trusts(&mesh, 1));
}

#[test]
fn alone_with_the_caller_nobody_can_know() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    assert!(!trusts(&mesh, 1));
    mesh.give(Input::Exchanged { node: id(1) });
    assert!(trusts(&mesh, 1), "a mesh of two works");

    let mut mesh = Mesh::new();
    mesh.told(1);
    mesh.told(2);
    mesh.connect(1);
    mesh.give(Input::Exchanged { node: id(1) });
    assert!(!trusts(&mesh, 1), "the third is looked for first");
    unreachable(&mut mesh, 2);
    assert!(trusts(&mesh, 1), "and is switched off");
    // Somebody of whom only the caller tells is no member that could be asked.
    let members =
        vec![MemberAddress { node: id(3), name: name("n3"), addresses: vec!["192.0.2.3:1".into()] }];
    mesh.give(Input::Members { from: Some(id(1)), members });
    assert!(trusts(&mesh, 1));
}

#[test]
fn who_comes_back_looks_for_everybody_at_once() {
    let mut mesh = Mesh::new();
    mesh.told(1);
    mesh.told(2);
    for _ in 0..12 {
        unreachable(&mut mesh, 2);
    }
    assert!(!dials(&mesh.later(1_000)).contains(&id(2)), "it waits by now");
    mesh.connect(1);
    mesh.give(Input::Exchanged { node: id(1) });
    assert!(!trusts(&mesh, 1), "that it did not answer before says nothing");
    assert!(dials(&mesh.later(1)).contains(&id(2)));
    unreachable(&mut mesh, 2);
    assert!(trusts(&mesh, 1));
}

/// The file of the last run is read when it is known already who is out.
#[test]
fn a_revoked_node_keeps_its_name_over_a_restart() {
    let mut mesh = Mesh::new();
    out(&mut mesh, 1);
    mesh.told(1);
    let gone = mesh.member(1);
    assert_eq!((gone.name.as_str(), gone.state), ("n1", MemberState::Left));
    assert_eq!(gone.problem.as_deref(), Some("revoked: stolen"));
    assert!(gone.addresses.is_empty() && !gone.known);
    assert_eq!(dials(&mesh.later(60_000)), [] as [NodeId; 0]);
    assert_eq!(mesh.state.remembered().len(), 1);
    // From others nobody hears of it.
    out(&mut mesh, 2);
    let told = MemberAddress { node: id(2), name: name("n2"), addresses: vec![] };
    mesh.give(Input::Members { from: Some(id(3)), members: vec![told] });
    assert!(mesh.state.view().get(id(2)).is_none());
}

/// A member that shows an older certificate than before, which still holds, does not get its old name and limits back.
#[test]
fn of_two_certificates_the_newer_counts() {
    use crate::trust::fixtures::{NOW, request, root};
    let mut mesh = Mesh::new();
    let mut connects = |named: &str, at: u64, serial: u64| {
        let mut asked = request(3, Role::Worker);
        (asked.name, asked.now, asked.serial) = (name(named), at, serial);
        let certificate = root().issue(asked).unwrap().leaf().unwrap().clone();
        let node = certificate.node;
        mesh.give(Input::Disconnected { node, last: true, path: Path::default(), reason: "gone".into() });
        mesh.give(Input::Connected {
            node,
            name: certificate.name.clone(),
            role: certificate.role,
            grants: certificate.grants.clone(),
            certificate: Some(Arc::new(certificate)),
            address: None,
            dialled: None,
            relay: None,
        });
        let member = Arc::clone(mesh.state.view().get(node).unwrap());
        assert!(member.connected);
        member.name.to_string()
    };
    assert_eq!(connects("old", NOW, 5), "old");
    assert_eq!(connects("new", NOW + 9, 1), "new");
    assert_eq!(connects("old", NOW, 5), "new");
    assert_eq!(connects("newer", NOW + 9, 2), "newer", "of the same second the serial decides");
    assert_eq!(connects("new", NOW + 9, 1), "newer");
}

/// Cards are only asked for up to a number of bytes, whatever a manifest names.
#[test]
fn the_cards_of_one_member_are_bounded() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    let large = |n: usize| {
        let mut card = (*tool(&format!("t{n:04}")).card).clone();
        card.description = "x".repeat(octomesh_protocol::limits::CARD_BYTES / 2);
        Arc::new(RemoteTool { hash: card.hash().unwrap(), card: Arc::new(card) })
    };
    let all: Vec<_> = (0..300).map(large).collect();
    let offered = manifest(&all);
    mesh.give(Input::Advert { advert: advert(1, 1, 1, &offered), direct: true });
    let mut effects =
        mesh.give(Input::Manifest { node: id(1), hash: offered.hash().unwrap(), manifest: offered });
    let mut asked = 0;
    while let Some(hashes) = effects.iter().find_map(|e| match e {
        Effect::FetchCards { hashes, .. } => Some(hashes.clone()),
        _ => None,
    }) {
        asked += hashes.len();
        let cards = all.iter().filter(|t| hashes.contains(&t.hash)).cloned().collect();
        effects = mesh.give(Input::Cards { cards });
    }
    assert!((64..=192).contains(&asked), "{asked} cards of 32 KiB");
    let member = mesh.member(1);
    assert_eq!(member.tools.len(), asked, "those that are here can be used");
    assert!(member.problem.as_ref().unwrap().starts_with("cards_over_limit: "), "{:?}", member.problem);
    assert!(mesh.later(60_000).iter().all(|e| !matches!(e, Effect::FetchCards { .. })));
}
