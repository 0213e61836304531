//! What holds for every mesh.
use proptest::prelude::*;

use super::*;

/// One node in numbers.
#[derive(Debug, Clone)]
struct Facts {
    slots: u16,
    running: u16,
    queued: u16,
    work_ms: u32,
    rtt_ms: u16,
    speed: u16,
    state: u8,
    draining: bool,
    ready: bool,
    gpu_gib: Option<u64>,
    advert_age_s: u64,
    failures: u8,
    has_tool: bool,
}

fn facts() -> impl Strategy<Value = Facts> {
    let load = (0u16..5, 0u16..6, 0u16..10, 0u32..100_000, 0u16..200, 0u16..400);
    let health = (0u8..8, prop::bool::weighted(0.1), prop::bool::weighted(0.9));
    let rest = (prop::option::of(0u64..24), 0u64..40, 0u8..4, prop::bool::weighted(0.9));
    (load, health, rest).prop_map(|(l, h, r)| Facts {
        slots: l.0,
        running: l.1,
        queued: l.2,
        work_ms: l.3,
        rtt_ms: l.4,
        speed: l.5,
        state: h.0,
        draining: h.1,
        ready: h.2,
        gpu_gib: r.0,
        advert_age_s: r.1,
        failures: r.2,
        has_tool: r.3,
    })
}

fn mesh(nodes: &[Facts], vram: bool) -> Mesh {
    let names: Vec<String> = (0..nodes.len()).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tool = card(|c| c.needs.gpu_vram = vram.then_some(8 * GIB));
    let mut mesh = Mesh::new(&tool, &names);
    let now = mesh.now;
    for (name, f) in names.iter().zip(nodes) {
        mesh.change(name, |m| {
            m.state = match f.state {
                0 => MemberState::Down,
                1 => MemberState::Suspect,
                _ => MemberState::Alive,
            };
            m.rtt = Some(Duration::from_millis(u64::from(f.rtt_ms)));
            m.advert_at = Some(now - Duration::from_secs(f.advert_age_s));
            m.last_contact = None;
            if !f.has_tool {
                m.tools = Arc::default();
            }
        });
        mesh.advert(name, |a| {
            a.load = LoadState {
                slots: f.slots,
                running: f.running,
                queued: f.queued,
                work_ms: f.work_ms,
                draining: f.draining,
                ready: f.ready,
                ..a.load
            };
            a.speed_percent = f.speed;
            a.gpus = f.gpu_gib.map(|g| gpu(g * GIB)).into_iter().collect();
        });
        let node = mesh.id(name);
        (0..f.failures).for_each(|_| mesh.history.record_failure(node, now));
    }
    mesh
}

proptest! {
    #[test]
    fn every_node_is_a_candidate_or_filtered_and_the_chosen_one_is_not_filtered(
        nodes in prop::collection::vec(facts(), 1..8), vram: bool,
    ) {
        let mesh = mesh(&nodes, vram);
        let d = mesh.decide();
        prop_assert_eq!(d.candidates.len() + d.filtered.len(), mesh.view.members.len());
        prop_assert_eq!(d.chosen.is_some(), !d.candidates.is_empty());
        if let Some(chosen) = &d.chosen {
            prop_assert!(d.filtered_for(chosen.node).is_none());
            let best = d.candidates[0].cost_ms;
            prop_assert!(chosen.cost_ms <= best * 1.15 + 2.0);
            prop_assert!(chosen.node == mesh.view.me || chosen.cost_ms == best);
        }
        for c in &d.candidates {
            prop_assert!(c.cost_ms.is_finite() && c.cost_ms >= 0.0);
            prop_assert!((c.terms.sum() - c.cost_ms).abs() < 1e-9);
        }
        prop_assert!(d.candidates.is_sorted_by(|a, b| a.cost_ms <= b.cost_ms));
    }

    #[test]
    fn equal_inputs_give_equal_decisions(nodes in prop::collection::vec(facts(), 1..8), vram: bool) {
        let mesh = mesh(&nodes, vram);
        prop_assert_eq!(mesh.decide(), mesh.decide());
        prop_assert_eq!(mesh.decide().to_why_json(), mesh.decide().to_why_json());
    }

    #[test]
    fn more_load_never_makes_a_node_cheaper(
        f in facts(), steps in 0u16..5, work in 0u32..50_000, own in 0u32..3,
    ) {
        let f = Facts { state: 5, draining: false, ready: true, advert_age_s: 0, slots: f.slots.max(1), has_tool: true, ..f };
        let mut before = mesh(std::slice::from_ref(&f), false);
        before.ask.deadline_ms = u64::MAX;
        let more = Facts { queued: f.queued + steps, work_ms: f.work_ms + work, ..f };
        let mut after = mesh(&[more], false);
        after.ask.deadline_ms = u64::MAX;
        for n in 0..own {
            let at = after.now + Duration::from_millis(1);
            let r = OwnReservation { node: after.id("n0"), est_ms: work, vram: 0, memory: 0, at };
            let step = StepId::parse(&format!("s00{n}")).unwrap();
            after.own.insert(StepKey { step, ..after.ask.key.clone() }, r);
        }
        prop_assert!(after.decide().candidates[0].cost_ms >= before.decide().candidates[0].cost_ms);
    }

    #[test]
    fn more_filters_never_add_a_candidate(nodes in prop::collection::vec(facts(), 1..8), out in 0usize..8) {
        let mut mesh = mesh(&nodes, false);
        let before = mesh.decide().candidates.len();
        let gone = mesh.view.members.keys().nth(out % mesh.view.members.len()).copied().unwrap();
        mesh.ask.exclude.insert(gone, Exclusion { reason: FilterReason::Refused, detail: "refused".into() });
        let d = mesh.decide();
        prop_assert!(d.candidates.len() <= before);
        prop_assert!(d.chosen.is_none_or(|c| c.node != gone));
    }
}
