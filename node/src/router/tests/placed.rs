//! Which of several good nodes is taken, and at what cost.
use octomesh_protocol::step::RefuseReason;

use super::*;

fn terms(mesh: &Mesh, name: &str) -> Terms {
    let node = mesh.id(name);
    mesh.decide().candidates.into_iter().find(|c| c.node == node).unwrap().terms
}

fn with_own_tool(mesh: &mut Mesh) {
    let tool = mesh.view.by_name("tower").unwrap().tools.clone();
    mesh.change("pi", |m| m.tools = tool);
}

#[test]
fn the_cheapest_node_wins() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    mesh.advert("attic", |a| a.speed_percent = 400);
    assert_eq!(terms(&mesh, "attic").exec, 50.0);
    assert_eq!(terms(&mesh, "tower").exec, 200.0);
    assert_eq!(mesh.chosen().as_deref(), Some("attic"));
    mesh.advert("attic", |a| a.load = LoadState { running: 2, work_ms: 4000, ..a.load });
    assert_eq!(terms(&mesh, "attic").wait, 1000.0);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn equal_costs_go_to_the_smaller_name() {
    let mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    assert_eq!(mesh.chosen().as_deref(), Some("attic"));
}

#[test]
fn this_node_is_taken_when_it_is_nearly_as_good() {
    let mut mesh = Mesh::new(&card(|c| c.typical_ms = 1000), &["tower"]);
    with_own_tool(&mut mesh);
    mesh.advert("tower", |a| a.speed_percent = 114);
    assert_eq!(mesh.chosen().as_deref(), Some("pi"), "14 % are not worth the way");
    mesh.advert("tower", |a| a.speed_percent = 120);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
    let local = terms(&mesh, "pi");
    assert_eq!((local.rtt, local.transfer), (0.0, 0.0));
}

#[test]
fn an_unknown_round_trip_is_not_a_fast_one() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    mesh.change("attic", |m| m.rtt = None);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
    mesh.change("attic", |m| m.rtt = Some(Duration::ZERO));
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn own_reservations_spread_a_burst() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    let mut placed = BTreeMap::<String, u32>::new();
    for n in 0..8 {
        let chosen = mesh.decide().chosen.unwrap();
        *placed.entry(chosen.name.to_string()).or_default() += 1;
        let own = OwnReservation {
            node: chosen.node,
            est_ms: chosen.est_ms(),
            vram: 0,
            memory: 0,
            at: mesh.now + Duration::from_millis(1),
        };
        let step = StepId::parse(&format!("s{n:03}")).unwrap();
        mesh.own.insert(StepKey { step, ..mesh.ask.key.clone() }, own);
    }
    assert_eq!(placed, BTreeMap::from([("attic".into(), 4), ("tower".into(), 4)]));
}

#[test]
fn fresh_load_from_a_reply_counts() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    let busy =
        LoadState { slots: 2, running: 2, queued: 4, work_ms: 9000, ready: true, ..LoadState::default() };
    mesh.own.observe(mesh.id("attic"), busy, mesh.now + Duration::from_millis(1));
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn failures_and_cold_starts_cost() {
    let mut mesh = Mesh::new(&card(|c| c.source = Source::Mcp), &["tower", "attic"]);
    assert_eq!(terms(&mesh, "attic").cold, 500.0);
    let (attic, now) = (mesh.id("attic"), mesh.now);
    let name = tool_name();
    let call = Observation { node: attic, tool: &name, work_bytes: 0, prior_ms: 200.0, elapsed_ms: 200 };
    mesh.history.record(call, now);
    assert_eq!(terms(&mesh, "attic").cold, 0.0, "it is loaded there");
    assert_eq!(mesh.chosen().as_deref(), Some("attic"));
    (0..3).for_each(|_| mesh.history.record_failure(attic, now));
    assert!(terms(&mesh, "attic").risk > 1000.0);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn arguments_have_to_travel() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.ask.argument_bytes = 500_000;
    assert_eq!(terms(&mesh, "tower").transfer, 10.0, "500 kB at 50 MB/s");
}

#[test]
fn a_variant_brings_its_own_card_and_effect() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    let other = card(|c| (c.effect, c.typical_ms, c.version) = (Effect::Once, 1, "2".into()));
    let tools = Arc::new(BTreeMap::from([(tool_name(), Arc::clone(&other))]));
    mesh.change("attic", |m| m.tools = tools);
    let chosen = mesh.decide().chosen.unwrap();
    assert_eq!((chosen.name.as_str(), chosen.card, chosen.effect), ("attic", other.hash, Effect::Once));
}

#[test]
fn warm_but_busy_loses_to_cold_but_idle() {
    let mut mesh = Mesh::new(&card(|c| c.source = Source::Mcp), &["tower", "attic"]);
    let (attic, now, name) = (mesh.id("attic"), mesh.now, tool_name());
    let call = Observation { node: attic, tool: &name, work_bytes: 0, prior_ms: 200.0, elapsed_ms: 200 };
    mesh.history.record(call, now);
    mesh.advert("attic", |a| (a.load.running, a.load.queued, a.load.work_ms) = (2, 2, 4000));
    assert_eq!((terms(&mesh, "attic").cold, terms(&mesh, "tower").cold), (0.0, 500.0));
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn a_place_is_asked_for_with_the_wait_that_makes_it_worth_having() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    let first = |mesh: &Mesh, tries: &Tries| tries.longest_wait_ms(&mesh.decide());
    assert_eq!(first(&mesh, &Tries::default()), u32::MAX, "there is no other node to go to");
    mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    mesh.advert("tower", |a| (a.load.running, a.load.work_ms) = (2, 80));
    mesh.advert("attic", |a| (a.load.running, a.load.work_ms) = (2, 90));
    // 2 + 20 + 200 ms are promised; 1.5 times that and 20 ms more leave 151 ms for the wait.
    assert_eq!(first(&mesh, &Tries::default()), 151);
    mesh.advert("attic", |a| (a.load.running, a.load.work_ms) = (2, 40_000));
    assert_eq!(first(&mesh, &Tries::default()), 10_000, "as long as that of the second best");
}

#[test]
fn three_refusals_then_any_queue_then_none() {
    let mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    let (tower, mut tries) = (mesh.id("tower"), Tries::default());
    for _ in 0..3 {
        assert!(tries.longest_wait_ms(&mesh.decide()) < u32::MAX && !tries.is_over());
        tries.refused(tower, RefuseReason::Wait, "it would wait");
        assert!(tries.exclude().is_empty(), "with its fresh state it may be the best all the same");
    }
    assert_eq!(tries.longest_wait_ms(&mesh.decide()), u32::MAX, "then it is queued where it is granted");
    tries.refused(tower, RefuseReason::Busy, "full");
    assert_eq!(tries.exclude()[&tower].detail, "refused: full");
    for n in 0..4 {
        assert!(!tries.is_over());
        tries.lost(id(100 + n), "no answer");
    }
    assert!(tries.is_over());
}
