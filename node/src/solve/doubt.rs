//! A run that ended because nobody could know whether a step ran, and that somebody decided about since.
use std::collections::{BTreeMap, BTreeSet};

use octomesh_protocol::{
    card::ToolCard,
    id::{StepId, ToolName},
    step::StepStatus,
};
use serde::{Deserialize, Serialize};

use super::{
    event::{RunStatus, VerdictKind},
    memory::{SolveMemory, StepProgress, StepRecord},
};

/// What is to be done with a step of which nobody knows whether it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OnUncertain {
    /// Run it again, though it may have run.
    Retry,
    /// Leave it out, though it may not have run.
    Skip,
}

/// What the record says of a step that was left out.
const LEFT_OUT: &str = "left out by decision; whether it took effect is not known";
const AGAIN: &str = "run again by decision; whether it took effect before is not known";

/// Opens the record of a run that ended `uncertain`, and names the steps that the decision is about: those that began, have no
/// result, and may not be repeated without one. Gives nothing for a record that is not of such a run.
#[must_use]
pub fn reopen(
    memory: &mut SolveMemory,
    cards: &BTreeMap<ToolName, std::sync::Arc<ToolCard>>,
) -> BTreeSet<StepId> {
    if memory.ending.as_ref().is_none_or(|ending| ending.status != RunStatus::Uncertain) {
        return BTreeSet::new();
    }
    memory.ending = None;
    let repeats = |tool: &ToolName| cards.get(tool).is_some_and(|card| card.effect.may_repeat());
    let open = |s: &StepRecord| s.status == StepProgress::InProgress && s.outcome != Some(StepStatus::Ok);
    memory.steps().filter(|(_, s)| open(s) && !repeats(&s.tool)).map(|(_, s)| s.step_id.clone()).collect()
}

/// Writes the decision into the record of the step.
pub(super) fn decide(record: &mut StepRecord, decision: OnUncertain) {
    let comment = match decision {
        OnUncertain::Retry => AGAIN,
        OnUncertain::Skip => {
            record.content = LEFT_OUT.to_owned();
            LEFT_OUT
        }
    };
    if let Some(last) = record.attempts.last_mut() {
        // With a verdict, so that the next attempt has a key of its own: under the old one it never runs again.
        last.verdict = Some(VerdictKind::NeedsRevision);
        comment.clone_into(&mut last.comment);
    }
}
