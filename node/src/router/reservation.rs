//! What this node has reserved elsewhere, and what of it has ended: load that the others' adverts don't show yet, or show still.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use octomesh_protocol::{
    advert::LoadState,
    id::{NodeId, StepKey},
};
use tokio::time::Instant;

/// Reservations remembered; a coordinator with more steps under way forgets the oldest ones' load, never a step.
const RESERVATIONS: usize = 4096;
/// Nodes whose load is remembered: the design target of a mesh.
const OBSERVED: usize = 1024;
/// Steps that ended on one node, remembered: more than its slots and queue between two adverts.
const ENDED: usize = 64;
/// A step that ended longer ago than this is in every state that still counts.
const ENDED_TTL: Duration = Duration::from_secs(30);

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
    /// When it was asked for; when it was granted, once it is.
    pub at: Instant,
}

/// A step of ours that ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    made_at: Instant,
    ended_at: Instant,
    est_ms: u32,
    vram: u64,
}

/// By how much own steps change the last known state of a node. Below zero: that state still shows steps that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Unseen {
    pub(super) steps: i64,
    pub(super) work_ms: i64,
    pub(super) vram: u64,
    /// GPU memory of steps that have ended, which that state may show as taken still.
    pub(super) vram_ended: u64,
    pub(super) memory: u64,
}

#[derive(Debug, Clone, Default)]
struct OnNode {
    made: BTreeMap<StepKey, OwnReservation>,
    ended: VecDeque<Ended>,
}

/// Own reservations, and the load that came back with the replies to them.
#[derive(Debug, Clone, Default)]
pub struct OwnReservations {
    nodes: BTreeMap<NodeId, OnNode>,
    by_key: BTreeMap<StepKey, NodeId>,
    observed: BTreeMap<NodeId, (LoadState, Instant)>,
}

impl OwnReservations {
    /// Notes a reservation that is asked for; it counts until [`Self::remove`] or [`Self::ended`], or until the node's state is
    /// newer than it.
    pub fn insert(&mut self, key: StepKey, reservation: OwnReservation) {
        self.remove(&key);
        if self.by_key.len() >= RESERVATIONS {
            let all = self.nodes.values().flat_map(|n| &n.made);
            let oldest = all.min_by_key(|(_, r)| r.at).map(|(k, _)| k.clone());
            if let Some(oldest) = oldest {
                self.remove(&oldest);
            }
        }
        self.by_key.insert(key.clone(), reservation.node);
        self.nodes.entry(reservation.node).or_default().made.insert(key, reservation);
    }

    /// It was granted, with a reply that was read at `at` and whose state contains it.
    pub fn granted(&mut self, key: &StepKey, at: Instant) {
        let on_node = self.by_key.get(key).and_then(|node| self.nodes.get_mut(node));
        if let Some(reservation) = on_node.and_then(|n| n.made.get_mut(key)) {
            reservation.at = at;
        }
    }

    /// The step was refused or lost: it is nowhere.
    pub fn remove(&mut self, key: &StepKey) {
        self.take(key);
    }

    /// The step ended where it was reserved. A state of that node from before still shows it.
    pub fn ended(&mut self, key: &StepKey, at: Instant) {
        let Some(reservation) = self.take(key) else { return };
        // Which bounds `nodes`; whoever granted a step was observed.
        if !self.observed.contains_key(&reservation.node) {
            return;
        }
        let ended = &mut self.nodes.entry(reservation.node).or_default().ended;
        while ended.len() >= ENDED
            || ended.front().is_some_and(|e| at.saturating_duration_since(e.ended_at) > ENDED_TTL)
        {
            ended.pop_front();
        }
        ended.push_back(Ended {
            made_at: reservation.at,
            ended_at: at,
            est_ms: reservation.est_ms,
            vram: reservation.vram,
        });
    }

    fn take(&mut self, key: &StepKey) -> Option<OwnReservation> {
        let node = self.by_key.remove(key)?;
        let on_node = self.nodes.get_mut(&node)?;
        let taken = on_node.made.remove(key);
        if on_node.made.is_empty() && on_node.ended.is_empty() {
            self.nodes.remove(&node);
        }
        taken
    }

    /// Notes the load that a node sent with a reply.
    pub fn observe(&mut self, node: NodeId, load: LoadState, at: Instant) {
        if self.observed.len() >= OBSERVED && !self.observed.contains_key(&node) {
            let oldest = self.observed.iter().min_by_key(|(_, (_, at))| *at).map(|(n, _)| *n);
            if let Some(oldest) = oldest {
                self.observed.remove(&oldest);
                // What ended on a node of which nothing newer is known is forgotten with it, which bounds `nodes`.
                if self.nodes.get(&oldest).is_some_and(|n| n.made.is_empty()) {
                    self.nodes.remove(&oldest);
                }
            }
        }
        self.observed.insert(node, (load, at));
    }

    /// Reservations that are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The newer of an advert's load and the one that came with a reply.
    pub(super) fn newest_load(&self, node: NodeId, advert: (LoadState, Instant)) -> (LoadState, Instant) {
        match self.observed.get(&node) {
            Some(seen) if seen.1 > advert.1 => *seen,
            _ => advert,
        }
    }

    /// What own steps on `node` add to its state of the moment `since`, and take from it.
    pub(super) fn unseen(&self, node: NodeId, since: Instant) -> Unseen {
        let Some(on_node) = self.nodes.get(&node) else { return Unseen::default() };
        let newer = on_node.made.values().filter(|r| r.at > since);
        let mut sum = newer.fold(Unseen::default(), |sum, r| Unseen {
            steps: sum.steps.saturating_add(1),
            work_ms: sum.work_ms.saturating_add(i64::from(r.est_ms)),
            vram: sum.vram.saturating_add(r.vram),
            memory: sum.memory.saturating_add(r.memory),
            vram_ended: 0,
        });
        // Memory is not taken off: a node frees it when it says so.
        for gone in on_node.ended.iter().filter(|e| e.made_at <= since && e.ended_at > since) {
            sum.steps = sum.steps.saturating_sub(1);
            sum.work_ms = sum.work_ms.saturating_sub(i64::from(gone.est_ms));
            sum.vram_ended = sum.vram_ended.saturating_add(gone.vram);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            own.unseen(a, start),
            Unseen { steps: 1, work_ms: 100, vram: 8, vram_ended: 0, memory: 4 }
        );
        own.remove(&key(1));
        assert_eq!(own.unseen(a, start), Unseen::default());
        let advert = (LoadState::default(), start);
        own.observe(a, LoadState { queued: 3, ..LoadState::default() }, later);
        assert_eq!(own.newest_load(a, advert).0.queued, 3);
        assert_eq!(own.newest_load(a, (LoadState::default(), later + Duration::from_secs(1))).0.queued, 0);
    }

    #[test]
    fn a_granted_step_is_in_the_state_that_granted_it() {
        let node = NodeId::from_bytes([1; 32]);
        let asked = Instant::now();
        let answered = asked + Duration::from_millis(20);
        let mut own = OwnReservations::default();
        let one = OwnReservation { node, est_ms: 100, vram: 0, memory: 0, at: asked };
        own.insert(key(1), one);
        let before = asked.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(own.unseen(node, before).steps, 1, "on its way it counts already");
        own.granted(&key(1), answered);
        own.observe(node, LoadState { running: 1, ..LoadState::default() }, answered);
        assert_eq!(own.unseen(node, answered), Unseen::default(), "not twice");
    }

    #[test]
    fn a_step_that_ended_is_taken_off_a_state_that_still_shows_it() {
        let node = NodeId::from_bytes([1; 32]);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut own = OwnReservations::default();
        let one = OwnReservation { node, est_ms: 100, vram: 8, memory: 4, at: at(10) };
        own.insert(key(1), one);
        own.observe(node, LoadState::default(), at(10));
        own.ended(&key(1), at(200));
        assert_eq!(
            own.unseen(node, at(50)),
            Unseen { steps: -1, work_ms: -100, vram: 0, vram_ended: 8, memory: 0 }
        );
        assert_eq!(own.unseen(node, at(5)), Unseen::default(), "that state never showed it");
        assert_eq!(own.unseen(node, at(300)), Unseen::default(), "that state shows it no more");
        own.ended(&key(1), at(400));
        assert!(own.is_empty() && own.unseen(node, at(250)) == Unseen::default(), "it ends once");
    }

    #[test]
    fn it_stays_bounded() {
        let mut own = OwnReservations::default();
        let now = Instant::now();
        let node = NodeId::from_bytes([1; 32]);
        for n in 0..5000u16 {
            own.insert(key(n), OwnReservation { node, est_ms: 1, vram: 0, memory: 0, at: now });
        }
        assert_eq!(own.len(), RESERVATIONS);
        own.observe(node, LoadState::default(), now);
        for n in 0..5000u16 {
            own.ended(&key(n), now);
        }
        assert!(own.is_empty());
        assert_eq!(own.nodes[&node].ended.len(), ENDED);
        for n in 0..2000u16 {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&n.to_be_bytes());
            let node = NodeId::from_bytes(bytes);
            own.insert(key(n), OwnReservation { node, est_ms: 1, vram: 0, memory: 0, at: now });
            own.observe(node, LoadState::default(), now + Duration::from_millis(u64::from(n)));
            own.ended(&key(n), now);
        }
        assert_eq!(own.observed.len(), OBSERVED);
        assert!(own.nodes.len() <= OBSERVED + 1, "{}", own.nodes.len());
    }
}
