//! What scripts and dashboards rely on: names of fields, and what is counted.
use std::collections::BTreeSet;

use octomesh_protocol::{
    advert::{Advert, LoadState},
    card::SandboxLevel,
    id::{NodeId, NodeName, ToolSetHash},
    trust::{Grants, Role},
};
use serde_json::Value;

use super::*;

fn member(byte: u8, state: MemberState, ready: bool) -> Member {
    let node = NodeId::from_bytes([byte; 32]);
    let name = NodeName::parse(&format!("n{byte}")).unwrap();
    let advert = Advert {
        node,
        incarnation: 5,
        seq: 1,
        load: LoadState { slots: 2, ready, ..LoadState::default() },
        memory_total: 1,
        gpus: vec![],
        models: vec![],
        tool_set: ToolSetHash::from_bytes([0; 32]),
        speed_percent: 100,
        sandbox: SandboxLevel::Rlimits,
        region: "attic".into(),
        tags: vec!["gpu".into()],
        version: "1".into(),
        circumstances: Default::default(),
    };
    Member {
        state,
        advert: Some(Arc::new(advert)),
        ..Member::new(node, name, Role::Worker, Grants::default())
    }
}

fn view(members: impl IntoIterator<Item = Member>) -> MeshView {
    let mut view = MeshView::alone(member(1, MemberState::Alive, true));
    view.members.extend(members.into_iter().map(|m| (m.node, Arc::new(m))));
    view
}

#[test]
fn dead_is_who_is_down_and_nobody_else() {
    use MemberState::{Alive, Down, Left, Suspect};
    let states = [Alive, Suspect, Down, Down, Down, Left, Left];
    let view = view((2..).zip(states).map(|(byte, state)| member(byte, state, true)));
    let counts = membership(&view);
    assert_eq!((counts.alive, counts.suspect, counts.dead, counts.left, counts.total_seen), (2, 1, 3, 2, 8));
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// F105, and the names of INTERFACES beside them.
#[test]
fn nodes_have_the_names_of_the_seed() {
    let reply = serde_json::to_value(nodes(&view([]))).unwrap();
    assert_eq!(keys(&reply), BTreeSet::from(["nodes"]));
    let entry = keys(&reply["nodes"][0]);
    for name in [
        "node_id",
        "state",
        "addr",
        "region",
        "capabilities",
        "load_ratio",
        "latency_ms",
        "last_seen",
        "incarnation",
        "is_self",
        "name",
        "tags",
        "slots",
        "running",
        "queued",
        "rtt_ms",
        "draining",
        "sandbox",
        "gpus",
        "models",
        "tools",
        "suite",
        "version",
        "problem",
    ] {
        assert!(entry.contains(name), "{name} in {entry:?}");
    }
}

#[test]
fn a_member_that_is_not_ready_says_why_it_takes_no_steps() {
    let view = view([
        member(2, MemberState::Alive, false),
        member(3, MemberState::Alive, true),
        member(4, MemberState::Down, false),
    ]);
    let nodes = nodes(&view).nodes;
    let of = |name: &str| nodes.iter().find(|n| n.name == name).unwrap();
    assert!(of("n2").problem.as_ref().is_some_and(|p| p.starts_with("not_ready: its executor")));
    assert!(!of("n2").ready && of("n2").state == "alive", "its heartbeat lives");
    assert_eq!((of("n3").ready, &of("n3").problem), (true, &None));
    assert_eq!((of("n4").ready, &of("n4").problem), (false, &None), "it is down, which says enough");
}
