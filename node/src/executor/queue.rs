//! Fair order of waiting steps: by origin, weighted with their expected work, so that a node that sends a thousand steps does
//! not stand before one that sends two.
//!
//! Each step gets a tag: where its origin's last tag (or the tag served last, if that is later) ends after this step's work.
//! The smallest tag is served first. It is self-clocked fair queueing; there is nothing to tune.
use std::collections::BTreeMap;

use octomesh_protocol::id::{LeaseId, NodeId};

/// Expected work counted for one step, in milliseconds: an origin that claims 0 or an hour gets neither all nor nothing.
const WORK_MS: std::ops::RangeInclusive<u64> = 1..=60_000;

/// Waiting steps. Its bound is the owner's: a step comes in only with a queue place.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// By tag, then by order of arrival.
    waiting: BTreeMap<(u64, u64), (LeaseId, NodeId)>,
    /// Last tag of each origin that has steps waiting.
    last: BTreeMap<NodeId, u64>,
    served: u64,
    arrivals: u64,
}

impl FairQueue {
    pub(super) fn push(&mut self, lease: LeaseId, origin: NodeId, work_ms: u64) {
        let begin = self.last.get(&origin).copied().unwrap_or(0).max(self.served);
        let tag = begin.saturating_add(work_ms.clamp(*WORK_MS.start(), *WORK_MS.end()));
        self.arrivals += 1;
        self.last.insert(origin, tag);
        self.waiting.insert((tag, self.arrivals), (lease, origin));
    }

    pub(super) fn pop(&mut self) -> Option<LeaseId> {
        let ((tag, _), (lease, origin)) = self.waiting.pop_first()?;
        self.served = tag;
        self.forget_idle(origin);
        Some(lease)
    }

    pub(super) fn remove(&mut self, lease: LeaseId) {
        let place = self.waiting.iter().find(|(_, (l, _))| *l == lease).map(|(place, _)| *place);
        if let Some((_, origin)) = place.and_then(|p| self.waiting.remove(&p)) {
            self.forget_idle(origin);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An origin without waiting steps owes nothing; its entry goes, which bounds `last` by `waiting`.
    fn forget_idle(&mut self, origin: NodeId) {
        if !self.waiting.values().any(|(_, o)| *o == origin) {
            self.last.remove(&origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(q: &mut FairQueue) -> Vec<u64> {
        std::iter::from_fn(|| q.pop().map(|l| l.0)).collect()
    }

    #[test]
    fn a_flood_does_not_stand_before_a_trickle() {
        let (a, b) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let mut q = FairQueue::default();
        (0..4).for_each(|n| q.push(LeaseId(n), a, 100));
        q.push(LeaseId(10), b, 100);
        q.push(LeaseId(11), b, 100);
        assert_eq!(drain(&mut q), [0, 10, 1, 11, 2, 3]);
        assert!(q.is_empty() && q.last.is_empty());
    }

    #[test]
    fn work_counts_not_the_number_of_steps() {
        let (a, b) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let mut q = FairQueue::default();
        (0..2).for_each(|n| q.push(LeaseId(n), a, 1000));
        (10..14).for_each(|n| q.push(LeaseId(n), b, 400));
        assert_eq!(drain(&mut q), [10, 11, 0, 12, 13, 1]);
    }

    #[test]
    fn removed_steps_are_not_served() {
        let a = NodeId::from_bytes([1; 32]);
        let mut q = FairQueue::default();
        (0..3).for_each(|n| q.push(LeaseId(n), a, 0));
        q.remove(LeaseId(1));
        q.remove(LeaseId(9));
        assert_eq!(drain(&mut q), [0, 2]);
    }
}
