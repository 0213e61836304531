//! Where a step runs: a function of a snapshot of the mesh, what was measured before and what this node reserved itself.
//! Nothing here waits, reads a clock or sends a byte.
//!
//! ```text
//!  view ─ filter ─> candidates ─ cost in ms ─> choose ─> Decision ─> explain (JSON, one sentence)
//!            └────> filtered, each with the first reason that holds
//! ```
//!
//! The first reason in the order of [`FilterReason`] is reported, so the same node gives the same answer every time.
mod choose;
mod cost;
mod decision;
mod explain;
mod filter;
mod history;
mod reservation;
#[cfg(test)]
mod tests;
mod tries;
pub(crate) mod vram;

use std::collections::{BTreeMap, BTreeSet};

use octomesh_protocol::id::{CardHash, NodeId, StepKey, ToolName};
use tokio::time::Instant;

use crate::membership::view::MeshView;

pub use self::{
    cost::Terms,
    decision::{Candidate, Decision, DecisionId, Filtered, InvalidDecisionId, Refusal},
    filter::FilterReason,
    history::{History, Observation},
    reservation::{OwnReservation, OwnReservations},
    tries::Tries,
};

/// One step that needs a node.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The id that the decision gets. The same for a second decision after a refusal.
    pub decision: DecisionId,
    /// The step.
    pub key: StepKey,
    /// The tool.
    pub tool: ToolName,
    /// Only this card; any variant when absent.
    pub card: Option<CardHash>,
    /// Size of the arguments, in bytes.
    pub argument_bytes: u64,
    /// Nodes that have them already: nothing has to travel there.
    pub there: BTreeSet<NodeId>,
    /// Only this node (`--node`); all other filters still hold.
    pub pinned: Option<NodeId>,
    /// Nodes that refused or lost this very step, with the reason.
    pub exclude: BTreeMap<NodeId, Exclusion>,
    /// Time left until the deadline, in milliseconds.
    pub deadline_ms: u64,
}

/// Why a node is out for this step whatever the view says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exclusion {
    /// The code.
    pub reason: FilterReason,
    /// Words that follow the node's name: "refused: all slots and the queue are full".
    pub detail: String,
}

/// What a node said when it was asked for the data that the arguments point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// It has the data, with this size in bytes.
    Have(u64),
    /// It does not, for this reason.
    Missing(String),
    /// It did not answer in time; unknown is not a yes.
    Silent,
}

/// Places a step. Deterministic: equal inputs give an equal decision.
///
/// Nodes that pass every filter except the question where the data is, and whose answer to that question is not in `probes`, are
/// in [`Decision::needs_probe`]; none for tools that need no data. The dispatcher asks all of them at once and decides again.
#[must_use]
pub fn decide(
    view: &MeshView,
    ask: &Ask,
    history: &History,
    reservations: &OwnReservations,
    probes: &BTreeMap<NodeId, ProbeResult>,
    now: Instant,
) -> Decision {
    let mut decision = Decision::new(ask);
    let place = filter::Placement { view, ask, history, reservations, probes, now };
    for member in view.members.values() {
        match place.examine(member) {
            filter::Verdict::Candidate(candidate) => decision.candidates.push(*candidate),
            filter::Verdict::NeedsProbe(filtered) => {
                decision.needs_probe.push(member.node);
                decision.filtered.push(filtered);
            }
            filter::Verdict::Filtered(filtered) => decision.filtered.push(filtered),
        }
    }
    choose::choose(&mut decision, view.me);
    decision
}
