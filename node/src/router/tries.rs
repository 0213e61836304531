//! Whom a step asked for a place so far, and what follows for the next try.
use std::collections::BTreeMap;

use octomesh_protocol::{id::NodeId, step::RefuseReason};

use super::{Decision, Exclusion, FilterReason};

/// Refusals until the step takes any place, however long it waits there: after three the mesh is full, and every further round trip
/// is lost.
const REFUSALS: usize = 3;
/// Nodes that are then asked to queue it. Each that refuses is left out for good.
const QUEUES: usize = 5;

/// The tries of one step.
#[derive(Debug, Clone, Default)]
pub struct Tries {
    exclude: BTreeMap<NodeId, Exclusion>,
    refusals: usize,
}

impl Tries {
    /// Nodes that are out for this step, with the reason.
    #[must_use]
    pub fn exclude(&self) -> &BTreeMap<NodeId, Exclusion> {
        &self.exclude
    }

    /// Leaves a node out from now on.
    pub fn leave_out(&mut self, node: NodeId, why: Exclusion) {
        self.exclude.insert(node, why);
    }

    /// A node that was left out may be asked again: it came back.
    pub fn take_back(&mut self, node: NodeId) {
        self.exclude.remove(&node);
    }

    /// The longest wait to ask the chosen node for, in milliseconds.
    #[must_use]
    pub fn longest_wait_ms(&self, decision: &Decision) -> u32 {
        if self.refusals < REFUSALS { decision.longest_wait_ms() } else { u32::MAX }
    }

    /// A node refused a place. One that only had more to do than was known stays in: with its fresh state it may still be the best.
    pub fn refused(&mut self, node: NodeId, reason: RefuseReason, detail: &str) {
        self.refusals += 1;
        if reason != RefuseReason::Wait {
            self.exclude
                .insert(node, Exclusion { reason: reason.into(), detail: format!("refused: {detail}") });
        }
    }

    /// A node did not answer.
    pub fn lost(&mut self, node: NodeId, detail: &str) {
        self.refusals += 1;
        let detail = format!("was lost: {detail}");
        self.exclude.insert(node, Exclusion { reason: FilterReason::Lost, detail });
    }

    /// Whether enough nodes were asked.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.refusals >= REFUSALS + QUEUES
    }
}
