//! The last outcomes, for callers that come back: after a lost stream, or with the same start twice.
use std::collections::{BTreeMap, VecDeque};

use octomesh_protocol::{
    id::{LeaseId, NodeId, StepKey},
    step::Outcome,
};

/// Outcomes remembered; the journal remembers those that matter for longer.
const OUTCOMES: usize = 1000;
/// Bytes of their outputs: a thousand outputs of the largest size would be a quarter of a small machine's memory.
const OUTPUT_BYTES: usize = 32 * 1024 * 1024;

/// A step that ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) owner: NodeId,
    pub(super) lease: LeaseId,
    pub(super) outcome: Outcome,
    /// Whether its tool was begun.
    pub(super) ran: bool,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    by_key: BTreeMap<(StepKey, NodeId), Ended>,
    order: VecDeque<(StepKey, NodeId)>,
    bytes: usize,
}

impl Results {
    pub(super) fn insert(&mut self, key: StepKey, ended: Ended) {
        let key = (key, ended.owner);
        self.remove(&key);
        self.bytes += ended.outcome.output.len();
        self.order.push_back(key.clone());
        self.by_key.insert(key, ended);
        while self.order.len() > OUTCOMES || self.bytes > OUTPUT_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(old) = self.by_key.remove(&oldest) {
                self.bytes -= old.outcome.output.len();
            }
        }
    }

    fn remove(&mut self, key: &(StepKey, NodeId)) {
        if let Some(old) = self.by_key.remove(key) {
            self.bytes -= old.outcome.output.len();
            self.order.retain(|k| k != key);
        }
    }

    pub(super) fn get(&self, key: &StepKey, owner: NodeId) -> Option<&Ended> {
        self.by_key.get(&(key.clone(), owner))
    }

    /// By the lease it ran under. Rare, so that a scan will do.
    pub(super) fn by_lease(&self, lease: LeaseId, owner: NodeId) -> Option<&Ended> {
        self.by_key.values().find(|e| e.lease == lease && e.owner == owner)
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::{
        card::SandboxLevel,
        id::{RunId, StepId},
        step::StepStatus,
    };

    use super::*;

    fn put(r: &mut Results, n: usize, bytes: usize) {
        let key = StepKey { run: RunId::run([1; 8]), step: StepId::parse(&format!("s{n:04}")).unwrap() };
        let outcome = Outcome::new(StepStatus::Ok, vec![0; bytes], 1, SandboxLevel::None);
        r.insert(
            key,
            Ended { owner: NodeId::from_bytes([1; 32]), lease: LeaseId(n as u64), outcome, ran: true },
        );
    }

    #[test]
    fn the_oldest_go_first() {
        let mut r = Results::default();
        (0..1500).for_each(|n| put(&mut r, n, 10));
        assert_eq!((r.by_key.len(), r.order.len(), r.bytes), (OUTCOMES, OUTCOMES, OUTCOMES * 10));
        assert!(r.by_lease(LeaseId(499), NodeId::from_bytes([1; 32])).is_none());
        assert!(r.by_lease(LeaseId(500), NodeId::from_bytes([1; 32])).is_some());
        assert!(r.by_lease(LeaseId(500), NodeId::from_bytes([2; 32])).is_none(), "another node's");
        (0..200).for_each(|n| put(&mut r, n, 256 * 1024));
        assert!(r.bytes <= OUTPUT_BYTES && r.by_key.len() >= 100);
    }
}
