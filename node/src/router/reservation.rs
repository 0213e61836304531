//! What this node has reserved elsewhere: load that the others' adverts don't show yet.
use std::collections::BTreeMap;

use octomesh_protocol::{
    advert::LoadState,
    id::{NodeId, StepKey},
};
use tokio::time::Instant;

/// Reservations remembered; a coordinator with more steps under way forgets the oldest ones' load, never a step.
const RESERVATIONS: usize = 4096;
/// Nodes whose load is remembered: the design target of a mesh.
const OBSERVED: usize = 1024;

/// One reservation of ours on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnReservation {
    /// Where.
    pub node: NodeId,
    /// Expected duration, in milliseconds.
    pub est_ms: u32,
    /// GPU memory, in bytes.
    pub vram: u64,
    /// Main memory, in bytes.
    pub memory: u64,
    /// When it was made.
    pub at: Instant,
}

/// Own load on one node that its last known state does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Unseen {
    pub(super) steps: u32,
    pub(super) work_ms: u64,
    pub(super) vram: u64,
    pub(super) memory: u64,
}

/// Own reservations, and the load that came back with the replies to them.
#[derive(Debug, Clone, Default)]
pub struct OwnReservations {
    made: BTreeMap<StepKey, OwnReservation>,
    observed: BTreeMap<NodeId, (LoadState, Instant)>,
}

impl OwnReservations {
    /// Notes a reservation; it counts until [`Self::remove`], or until the node's state is newer than it.
    pub fn insert(&mut self, key: StepKey, reservation: OwnReservation) {
        if self.made.len() >= RESERVATIONS {
            let oldest = self.made.iter().min_by_key(|(_, r)| r.at).map(|(k, _)| k.clone());
            oldest.and_then(|k| self.made.remove(&k));
        }
        self.made.insert(key, reservation);
    }

    /// The step ended, was refused or lost.
    pub fn remove(&mut self, key: &StepKey) {
        self.made.remove(key);
    }

    /// Notes the load that a node sent with a reply.
    pub fn observe(&mut self, node: NodeId, load: LoadState, at: Instant) {
        if self.observed.len() >= OBSERVED && !self.observed.contains_key(&node) {
            let oldest = self.observed.iter().min_by_key(|(_, (_, at))| *at).map(|(n, _)| *n);
            oldest.and_then(|n| self.observed.remove(&n));
        }
        self.observed.insert(node, (load, at));
    }

    /// Reservations that are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// The newer of an advert's load and the one that came with a reply.
    pub(super) fn newest_load(&self, node: NodeId, advert: (LoadState, Instant)) -> (LoadState, Instant) {
        match self.observed.get(&node) {
            Some(seen) if seen.1 > advert.1 => *seen,
            _ => advert,
        }
    }

    /// Own reservations on `node` made after `since`.
    pub(super) fn unseen(&self, node: NodeId, since: Instant) -> Unseen {
        let newer = self.made.values().filter(|r| r.node == node && r.at > since);
        newer.fold(Unseen::default(), |sum, r| Unseen {
            steps: sum.steps.saturating_add(1),
            work_ms: sum.work_ms.saturating_add(u64::from(r.est_ms)),
            vram: sum.vram.saturating_add(r.vram),
            memory: sum.memory.saturating_add(r.memory),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use octomesh_protocol::id::{RunId, StepId};

    use super::*;

    fn key(n: u16) -> StepKey {
        StepKey { run: RunId::run([1; 8]), step: StepId::parse(&format!("s{n:04}")).unwrap() }
    }

    #[test]
    fn only_what_the_state_does_not_show_counts() {
        let (a, b) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut own = OwnReservations::default();
        let one = OwnReservation { node: a, est_ms: 100, vram: 8, memory: 4, at: later };
        own.insert(key(1), one);
        own.insert(key(2), OwnReservation { at: start, ..one });
        own.insert(key(3), OwnReservation { node: b, ..one });
        assert_eq!(own.unseen(a, start), Unseen { steps: 1, work_ms: 100, vram: 8, memory: 4 });
        own.remove(&key(1));
        assert_eq!(own.unseen(a, start), Unseen::default());
        let advert = (LoadState::default(), start);
        own.observe(a, LoadState { queued: 3, ..LoadState::default() }, later);
        assert_eq!(own.newest_load(a, advert).0.queued, 3);
        assert_eq!(own.newest_load(a, (LoadState::default(), later + Duration::from_secs(1))).0.queued, 0);
    }

    #[test]
    fn it_stays_bounded() {
        let mut own = OwnReservations::default();
        let now = Instant::now();
        for n in 0..5000u16 {
            let r =
                OwnReservation { node: NodeId::from_bytes([1; 32]), est_ms: 1, vram: 0, memory: 0, at: now };
            own.insert(key(n), r);
        }
        assert_eq!(own.len(), RESERVATIONS);
    }
}
