//! Sessions with members that are down, members of whom little is known, and how often members compare.
use super::*;

fn hang_ups(effects: &[Effect]) -> Vec<NodeId> {
    let node = |e: &Effect| match e {
        Effect::HangUp { node } => Some(*node),
        _ => None,
    };
    effects.iter().filter_map(node).collect()
}

fn down(mesh: &mut Mesh, byte: u8) {
    mesh.give(Input::Liveness { node: id(byte), to: MemberState::Down });
}

#[test]
fn a_session_with_a_member_that_is_down_and_silent_ends() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    mesh.connect(2);
    assert_eq!(hang_ups(&mesh.later(60_000)), [], "silence alone says nothing: SWIM decides");
    down(&mut mesh, 1);
    assert_eq!(hang_ups(&mesh.later(0)), [id(1)]);
    assert_eq!(hang_ups(&mesh.later(500)), [id(1)], "until it is closed");
    mesh.give(Input::Disconnected {
        node: id(1),
        last: true,
        path: Path::default(),
        reason: "it did not answer".into(),
    });
    let effects = mesh.later(0);
    assert_eq!((hang_ups(&effects), dials(&effects)), (vec![], vec![id(1)]), "perhaps it is elsewhere");
    let member = mesh.member(1);
    assert_eq!(member.reach.step(true), crate::membership::reach::Step::Lost);
    assert_eq!(member.problem.as_deref(), Some("connected, then lost: it did not answer"));
}

#[test]
fn one_that_answers_while_others_call_it_down_keeps_its_session() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    mesh.later(60_000);
    down(&mut mesh, 1);
    for _ in 0..20 {
        mesh.state.heard_directly(id(1), mesh.now, SystemTime::UNIX_EPOCH);
        assert_eq!(hang_ups(&mesh.later(500)), []);
    }
    mesh.later(1_000);
    assert_eq!(hang_ups(&mesh.later(500)), [id(1)]);
}

#[test]
fn one_that_was_stopped_is_not_said_to_be_lost() {
    let mut mesh = Mesh::new();
    mesh.connect(1);
    mesh.give(Input::Liveness { node: id(1), to: MemberState::Left });
    let said = mesh.member(1).problem.clone();
    mesh.give(Input::Disconnected {
        node: id(1),
        last: true,
        path: Path::default(),
        reason: "closed".into(),
    });
    mesh.told(1);
    assert_eq!(mesh.member(1).problem, said);
}

#[test]
fn what_is_known_of_a_stranger_is_said_anew_when_more_is_told() {
    let mut mesh = Mesh::new();
    let nowhere = MemberAddress { node: id(9), name: name("n9"), addresses: vec![] };
    mesh.give(Input::Members { from: None, members: vec![nowhere] });
    assert!(mesh.member(9).problem.as_ref().unwrap().contains("nobody told where it is"));
    mesh.told(9);
    assert!(mesh.member(9).problem.as_ref().unwrap().contains("not dialled yet"));
}

#[test]
fn members_compare_one_after_the_other_and_everybody_has_a_turn() {
    let mut mesh = Mesh::new();
    for byte in 10..20 {
        mesh.connect(byte);
    }
    let (mut turns, mut last): (BTreeMap<NodeId, usize>, Option<u32>) = (BTreeMap::new(), None);
    for tick in 0..1800u32 {
        for effect in mesh.later(500) {
            let Effect::Sync { node } = effect else { continue };
            assert!(last.is_none_or(|then| tick - then >= 60), "every 30 s at most");
            last = Some(tick);
            *turns.entry(node).or_default() += 1;
        }
    }
    // A quarter of an hour, thirty turns for ten members.
    let turns: Vec<usize> = turns.into_values().collect();
    assert!(turns.len() == 10 && turns.iter().all(|n| (2..=3).contains(n)), "{turns:?}");
}
