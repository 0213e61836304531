//! The machine under any order of events: it always ends, and it never does more than it may.
use std::{collections::BTreeMap, sync::Arc};

use octomesh_protocol::{id::ToolName, step::StepStatus};
use proptest::prelude::*;
use serde_json::{Map, json};

use super::fixtures::{ended, ok};
use crate::solve::{
    block::BlockId,
    limits::SolveLimits,
    memory::SolveMemory,
    plan::{Plan, PlanOutcome, PlannedBlock, PlannedCall},
    roles::{Act, RoleError, Verdict},
    state::{SolveEffect, SolveEvent, SolveState},
};

/// A plan whose blocks depend on earlier ones, or, when `bad`, on each other.
fn plan(sizes: &[usize], depends: &[usize], bad: bool) -> Plan {
    let call = || PlannedCall {
        plan: "say".into(),
        tool: ToolName::parse("echo").unwrap(),
        arguments: Map::new(),
        save_as: None,
        node: None,
    };
    let blocks = sizes.iter().enumerate().map(|(i, size)| {
        let on = depends.get(i).copied().unwrap_or_default();
        let depends_on = match (bad, i) {
            (true, 0) => vec![BlockId::at(sizes.len() - 1)],
            (_, 0) => vec![],
            _ if on == 0 => vec![],
            _ => vec![BlockId::at((on - 1) % i)],
        };
        PlannedBlock {
            name: None,
            goal: "g".into(),
            depends_on,
            outline: (0..*size).map(|_| call()).collect(),
        }
    });
    Plan { engine: "test".into(), blocks: blocks.collect() }
}

/// The answer to an effect, by chance.
fn answer(effect: SolveEffect, plan: &Plan, dice: u8) -> Option<SolveEvent> {
    let fails = dice == 0;
    Some(match effect {
        SolveEffect::Plan => SolveEvent::Planned(Ok(PlanOutcome::Plan(plan.clone()))),
        SolveEffect::Manage(block) => {
            let calls = plan.blocks[block.index()].outline.clone();
            SolveEvent::Managed { block, result: if fails { Err(RoleError("no".into())) } else { Ok(calls) } }
        }
        SolveEffect::Act { step, attempt } => {
            let act = if dice == 1 && attempt > 1 { Act::Keep } else { Act::Call(Map::new()) };
            SolveEvent::Acted { step, attempt, result: Ok(act) }
        }
        SolveEffect::Run { step, attempt, .. } => {
            let report = match dice {
                0 => ended(StepStatus::Error, "no"),
                1 => ended(StepStatus::Uncertain, "lost"),
                _ => ok(json!({"text": dice})),
            };
            SolveEvent::Reported { step, attempt, report }
        }
        SolveEffect::Check(input) => {
            let verdict =
                if dice.is_multiple_of(3) { Verdict::needs_revision("again") } else { Verdict::pass() };
            SolveEvent::Checked { step: input.step, attempt: input.attempt, result: Ok(verdict) }
        }
        SolveEffect::Format => SolveEvent::Formatted(Ok("answer".into())),
        SolveEffect::Save | SolveEffect::Emit(_) | SolveEffect::StopCalls | SolveEffect::End => return None,
    })
}

proptest! {
    #[test]
    fn every_order_of_events_ends(
        sizes in prop::collection::vec(0usize..4, 1..6),
        depends in prop::collection::vec(0usize..6, 6),
        bad in prop::bool::weighted(0.1),
        order in prop::collection::vec((any::<prop::sample::Index>(), 0u8..30), 400),
        interrupt in prop::option::weighted(0.3, (0usize..40, 0u8..3)),
    ) {
        let plan = plan(&sizes, &depends, bad);
        let limits = SolveLimits { max_parallel: 2, max_steps: 3, ..SolveLimits::default() };
        let mut state = SolveState::new(SolveMemory::new("q"), limits, Arc::default(), false);
        let mut waiting = vec![SolveEvent::Start];
        let mut runs: BTreeMap<String, u32> = BTreeMap::new();
        let (mut out, mut ends) = (0_usize, 0_usize);
        for (turn, (pick, dice)) in order.iter().enumerate() {
            if waiting.is_empty() {
                break;
            }
            let event = match interrupt {
                Some((at, 0)) if at == turn => SolveEvent::Cancel,
                Some((at, 1)) if at == turn => SolveEvent::TimeUp,
                Some((at, _)) if at == turn => SolveEvent::SaveFailed { message: "disk".into(), not_started: vec![] },
                _ => waiting.swap_remove(pick.index(waiting.len())),
            };
            if matches!(event, SolveEvent::Reported { .. }) {
                out -= 1;
            }
            for effect in state.handle(event, turn as u64) {
                if let SolveEffect::Run { step, .. } = &effect {
                    prop_assert!(!state.is_stopping() && !state.is_ended());
                    out += 1;
                    *runs.entry(step.to_string()).or_default() += 1;
                }
                ends += usize::from(matches!(effect, SolveEffect::End));
                waiting.extend(answer(effect, &plan, *dice));
            }
            prop_assert!(out <= 2, "{} calls at once", out);
        }
        prop_assert!(state.is_ended(), "waits for nothing: {:?}", state.memory().progress);
        prop_assert_eq!(ends, 1);
        prop_assert!(runs.values().all(|n| *n <= 3));
        let memory = state.memory();
        prop_assert!(memory.ending.is_some());
        if memory.ending.as_ref().is_some_and(|e| e.reason.is_none()) {
            prop_assert!(memory.plan.blocks.iter().all(|b| b.is_done()));
            prop_assert_eq!(memory.progress.completed_blocks.len(), memory.plan.blocks.len());
        }
    }
}
