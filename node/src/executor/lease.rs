//! Leases, slots and the queue, as a pure state machine: facts and the time go in, [`Action`]s come out.
//!
//! ```text
//!  reserve ─> Granted(slot | queue place) ─ start ─> Queued ─ a slot is free ─> Running ─ finished ─> results
//!                │ 5 s without start                   │ cancel, deadline,        │ the same, through Stop
//!                └> gone                               └ lost lease ─> results    └ (once runs on when its lease is lost)
//! ```
//!
//! Invariants: granted leases with a slot and running steps together never exceed the slots; the others never exceed the queue;
//! a key has at most one live lease; what has ended never runs again under the same lease.
mod admit;
mod epochs;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vram_laws;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use octomesh_protocol::{
    advert::LoadState,
    card::{Effect, SandboxLevel},
    id::{LeaseId, NodeId, StepKey, ToolName},
    step::{Granted, LEASE_TTL_MS, Outcome, RENEW_LOST_MS, Refused, StatusReply, StepStatus},
    trust::Role,
};
use octomesh_tools::tool::Caller;
use tokio::time::Instant;

pub(super) use self::admit::Reservation;
use self::epochs::Epochs;
use super::{
    ExecutorConfig, Resources,
    pace::Pace,
    queue::FairQueue,
    results::{Ended, Results},
    vram::{self, Held},
};
use crate::load::{CardState, gpu::CardId};

/// A granted lease lapses after this time without a start.
const TTL: Duration = Duration::from_millis(LEASE_TTL_MS);
/// A started lease is lost after this time without a renewal.
const LOST: Duration = Duration::from_millis(RENEW_LOST_MS);

/// A step that is over its estimate is expected to run on for this share of the time that it ran already, not to end at once.
const OVERDUE: f64 = 0.5;

/// Ended leases whose GPU memory a reading may still show: more than end between two readings.
const FREED: usize = 64;

/// Why a running step is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    Cancelled,
    Deadline,
    LeaseLost,
}

impl StopReason {
    /// The outcome of a step that was stopped for this reason before it had a result.
    pub(super) fn outcome(self, elapsed_ms: u64, sandbox: SandboxLevel) -> Outcome {
        let (status, code, message) = match self {
            Self::Cancelled => (StepStatus::Cancelled, "cancelled", "cancelled"),
            Self::Deadline => (StepStatus::Timeout, "timeout", "stopped at its deadline"),
            Self::LeaseLost => (
                StepStatus::Cancelled,
                "lease_lost",
                "stopped because its coordinator was not heard any more",
            ),
        };
        Outcome::new(status, error_output(code, message), elapsed_ms, sandbox)
    }
}

/// `{"error": {"code", "message"}}` as JSON bytes.
pub(super) fn error_output(code: &str, message: &str) -> Vec<u8> {
    serde_json::json!({"error": {"code": code, "message": message}}).to_string().into_bytes()
}

fn refused(code: &str, message: &str) -> Outcome {
    Outcome::new(StepStatus::Refused, error_output(code, message), 0, SandboxLevel::None)
}

/// What the task has to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Begin the step.
    Run(LeaseId),
    /// Stop the running step; it ends with its own outcome soon.
    Stop(LeaseId, StopReason),
    /// The lease is over: tell who waits. Without an outcome it lapsed before it was started.
    End(LeaseId, Option<Outcome>),
}

/// Answer to a start.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StartAnswer {
    /// It runs, or will: now, or since an earlier start of the same lease.
    Accepted {
        /// Whether this start was the first.
        first: bool,
    },
    /// It has ended already, or can't begin.
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Granted { slot: bool },
    Queued,
    Running { since: Instant },
}

/// One lease.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) key: StepKey,
    pub(super) owner: NodeId,
    pub(super) tool: ToolName,
    pub(super) effect: Effect,
    pub(super) epoch: u64,
    pub(super) deadline: Instant,
    local: bool,
    /// Of a self-call, which nobody else sees.
    pub(super) proof: bool,
    est_ms: u32,
    held: Held,
    /// When it was granted; when it was last renewed, once it is started.
    seen_at: Instant,
    phase: Phase,
    stopping: bool,
}

impl Lease {
    /// When the lease itself ends unless something happens, and how.
    fn ends_at(&self) -> (Instant, StopReason) {
        let deadline = (self.deadline, StopReason::Deadline);
        let lost = match self.phase {
            Phase::Granted { .. } => return (self.seen_at + TTL, StopReason::LeaseLost),
            Phase::Running { .. } if !self.effect.may_repeat() => return deadline,
            _ if self.local => return deadline,
            Phase::Queued | Phase::Running { .. } => (self.seen_at + LOST, StopReason::LeaseLost),
        };
        if lost.0 < deadline.0 { lost } else { deadline }
    }

    /// Work left, in milliseconds.
    fn work_ms(&self, now: Instant) -> u64 {
        let estimate = Duration::from_millis(u64::from(self.est_ms));
        let left = match self.phase {
            Phase::Running { since } => {
                let ran = now.saturating_duration_since(since);
                estimate.saturating_sub(ran).max(ran.mul_f64(OVERDUE))
            }
            Phase::Granted { .. } | Phase::Queued => estimate,
        };
        u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
    }

    /// The card that was reserved for it.
    pub(super) fn card(&self) -> Option<&CardId> {
        self.held.vram.as_ref().map(|hold| &hold.card)
    }

    fn has_slot(&self) -> bool {
        !self.proof && matches!(self.phase, Phase::Granted { slot: true } | Phase::Running { .. })
    }
}

/// All leases of this node.
#[derive(Debug)]
pub(super) struct LeaseState {
    config: ExecutorConfig,
    leases: BTreeMap<LeaseId, Lease>,
    /// A key is its owner's: who knows the name of another's run takes nothing from it.
    by_key: BTreeMap<(StepKey, NodeId), LeaseId>,
    queue: FairQueue,
    epochs: Epochs,
    results: Results,
    /// GPU memory of leases that have ended, the newest last.
    freed: VecDeque<Held>,
    draining: bool,
    ready: bool,
    pace: Pace,
}

impl LeaseState {
    pub(super) fn new(config: ExecutorConfig) -> Self {
        Self {
            config,
            leases: BTreeMap::new(),
            by_key: BTreeMap::new(),
            queue: FairQueue::default(),
            epochs: Epochs::default(),
            results: Results::default(),
            freed: VecDeque::new(),
            draining: false,
            ready: false,
            pace: Pace::default(),
        }
    }

    /// What the last self-calls came to; replies and adverts carry it.
    pub(super) fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
    }

    pub(super) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    pub(super) fn lease(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease)
    }

    /// Leases that are not over: granted, waiting and running.
    pub(super) fn remaining(&self) -> usize {
        self.leases.values().filter(|l| !l.proof).count()
    }

    /// Leases without a slot.
    fn waiting(&self) -> usize {
        self.remaining() - self.taken()
    }

    /// The cards with what leases hold of them.
    pub(super) fn cards(&self, resources: &Resources) -> Vec<CardState> {
        vram::cards(resources, || self.on_cards())
    }

    /// What leases hold, and what those held that have just ended.
    fn on_cards(&self) -> impl Iterator<Item = &Held> {
        self.held().chain(&self.freed)
    }

    fn held(&self) -> impl Iterator<Item = &Held> {
        self.leases.values().map(|l| &l.held)
    }

    fn taken(&self) -> usize {
        self.leases.values().filter(|l| l.has_slot()).count()
    }

    fn has_free_slot(&self) -> bool {
        self.taken() < self.config.slots()
    }

    fn work_ms(&self, now: Instant) -> u64 {
        self.leases.values().filter(|l| !l.proof).map(|l| l.work_ms(now)).fold(0, u64::saturating_add)
    }

    /// How long one more step would wait here, in milliseconds.
    fn wait_ms(&self, now: Instant) -> f64 {
        self.load_but_memory(now).wait_ms(0, 0)
    }

    /// Load as adverts and replies carry it. A granted lease counts as running when it holds a slot, else as queued.
    pub(super) fn load(&self, resources: &Resources, now: Instant) -> LoadState {
        let memory_free = vram::free_memory(resources, self.held(), now).unwrap_or(0);
        LoadState { memory_free, ..self.load_but_memory(now) }
    }

    fn load_but_memory(&self, now: Instant) -> LoadState {
        let taken = self.taken();
        let pace_percent = self.pace.percent(now);
        let work_ms = self.work_ms(now).saturating_mul(u64::from(pace_percent)) / 100;
        LoadState {
            slots: self.config.slots.max(1),
            running: u16::try_from(taken).unwrap_or(u16::MAX),
            queued: u16::try_from(self.waiting()).unwrap_or(u16::MAX),
            work_ms: u32::try_from(work_ms).unwrap_or(u32::MAX),
            memory_free: 0,
            draining: self.draining,
            ready: self.ready,
            pace_percent,
        }
    }

    /// Asks for a place. The same key of the same node gets the same lease again, also when its step has ended: a start of
    /// that lease then gets the outcome.
    pub(super) fn reserve(
        &mut self,
        ask: Reservation,
        resources: &Resources,
        now: Instant,
    ) -> Result<Granted, Refused> {
        match admit::admit(self, &ask, resources, now) {
            Ok(admitted) => {
                self.epochs.raise(ask.caller.node, &ask.request.key.run, ask.request.epoch);
                let lease = self.enter(ask, admitted, now);
                Ok(Granted { lease, state: self.load(resources, now) })
            }
            Err((reason, detail)) => Err(Refused { reason, detail, state: self.load(resources, now) }),
        }
    }

    fn enter(&mut self, ask: Reservation, admitted: admit::Admitted, now: Instant) -> LeaseId {
        let place = match admitted {
            admit::Admitted::Known(id) => {
                if let Some(lease) = self.leases.get_mut(&id) {
                    lease.epoch = lease.epoch.max(ask.request.epoch);
                    lease.seen_at = now;
                }
                return id;
            }
            admit::Admitted::New(place) => place,
        };
        let request = ask.request;
        let lease = Lease {
            key: request.key.clone(),
            owner: ask.caller.node,
            tool: request.tool,
            effect: place.effect,
            epoch: request.epoch,
            deadline: place.deadline,
            local: ask.caller.local,
            proof: ask.proof,
            est_ms: request.est_ms,
            held: place.held,
            seen_at: now,
            phase: Phase::Granted { slot: ask.proof || (self.has_free_slot() && self.queue.is_empty()) },
            stopping: false,
        };
        if !ask.proof {
            self.by_key.insert((request.key, ask.caller.node), ask.lease);
        }
        self.leases.insert(ask.lease, lease);
        ask.lease
    }

    /// Starts a granted lease.
    pub(super) fn start(
        &mut self,
        id: LeaseId,
        epoch: u64,
        owner: NodeId,
        now: Instant,
    ) -> (StartAnswer, Vec<Action>) {
        let ended = |outcome| (StartAnswer::Ended(outcome), Vec::new());
        let Some(lease) = self.leases.get(&id).filter(|l| l.owner == owner) else {
            let known = self.results.by_lease(id, owner).map(|e| e.outcome.clone());
            return ended(
                known.unwrap_or_else(|| refused("lease_lapsed", "the lease lapsed before it was started")),
            );
        };
        if epoch < self.epochs.of(owner, &lease.key.run) {
            return ended(refused("fenced", "a newer coordinator of this run was seen"));
        }
        let Phase::Granted { slot } = lease.phase else {
            return (StartAnswer::Accepted { first: false }, Vec::new());
        };
        let runs_now = slot || (self.has_free_slot() && self.queue.is_empty());
        let est_ms = u64::from(lease.est_ms);
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.seen_at = now;
            lease.phase = if runs_now { Phase::Running { since: now } } else { Phase::Queued };
        }
        if !runs_now {
            self.queue.push(id, owner, est_ms);
        }
        let actions = if runs_now { vec![Action::Run(id)] } else { Vec::new() };
        (StartAnswer::Accepted { first: true }, actions)
    }

    /// Whether a start that comes with the reservation begins the step: it may repeat, and has a slot already. What ended has no lease
    /// any more, and is asked for by an ordinary start.
    pub(super) fn may_begin(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| {
            let slot = matches!(lease.phase, Phase::Granted { slot: true } | Phase::Running { .. });
            slot && lease.effect.may_repeat() && !lease.stopping
        })
    }

    /// The owner is alive and still wants these.
    pub(super) fn renew(&mut self, leases: &[LeaseId], owner: NodeId, now: Instant) {
        for id in leases {
            let lease = self.leases.get_mut(id).filter(|l| l.owner == owner);
            // A renewal keeps a started step alive; a lease that is only granted lapses all the same.
            if let Some(lease) = lease.filter(|l| !matches!(l.phase, Phase::Granted { .. })) {
                lease.seen_at = now;
            }
        }
    }

    fn may_stop(owner: NodeId, asker: &Caller) -> bool {
        asker.local || asker.role == Role::Admin || asker.node == owner
    }

    /// The lease of a key that the asker may stop: its own, if there is one.
    fn stoppable(&self, key: &StepKey, asker: &Caller) -> Option<(LeaseId, NodeId)> {
        let own = self.by_key.get(&(key.clone(), asker.node)).map(|id| (*id, asker.node));
        let from = (key.clone(), NodeId::from_bytes([0; 32]));
        let all = || self.by_key.range(from..).take_while(|((k, _), _)| k == key);
        own.or_else(|| {
            all().find(|((_, owner), _)| Self::may_stop(*owner, asker)).map(|((_, owner), id)| (*id, *owner))
        })
    }

    /// Stops a step. Somebody else's step is `Unseen`, and one that a newer coordinator holds is left alone.
    pub(super) fn cancel(
        &mut self,
        key: &StepKey,
        epoch: u64,
        asker: &Caller,
        now: Instant,
    ) -> (StatusReply, Vec<Action>) {
        let Some((id, owner)) = self.stoppable(key, asker) else {
            return (self.status(key, asker), Vec::new());
        };
        if asker.node == owner && epoch < self.epochs.of(owner, &key.run) {
            return (self.status(key, asker), Vec::new());
        }
        let actions = self.stop(id, StopReason::Cancelled, now);
        (self.status_of(key, owner), actions)
    }

    /// What became of a step of the asker's, as far as it is in memory. Nobody is told of another's: a coordinator takes what it hears
    /// for the outcome of its own step.
    pub(super) fn status(&self, key: &StepKey, asker: &Caller) -> StatusReply {
        self.status_of(key, asker.node)
    }

    fn status_of(&self, key: &StepKey, owner: NodeId) -> StatusReply {
        let live = self.by_key.get(&(key.clone(), owner)).and_then(|id| self.leases.get(id));
        if let Some(lease) = live {
            return match lease.phase {
                Phase::Granted { .. } => StatusReply::Granted,
                Phase::Queued | Phase::Running { .. } => StatusReply::Running,
            };
        }
        match self.results.get(key, owner) {
            Some(ended) => StatusReply::Done(ended.outcome.clone()),
            None => StatusReply::Unseen,
        }
    }

    /// A running step ended.
    pub(super) fn finished(&mut self, id: LeaseId, outcome: Outcome, now: Instant) -> Vec<Action> {
        if let (StepStatus::Ok, Some(lease)) = (outcome.status, self.leases.get(&id).filter(|l| !l.proof)) {
            self.pace.observe(lease.est_ms, outcome.elapsed_ms, now);
        }
        let mut actions = self.end(id, Some(outcome), now);
        actions.extend(self.fill_slots(now));
        actions
    }

    /// Lets time do its work: leases lapse, are lost, or reach their deadline.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let over: Vec<(LeaseId, StopReason)> = self
            .leases
            .iter()
            .filter(|(_, l)| !l.stopping)
            .map(|(id, l)| (*id, l.ends_at()))
            .filter(|(_, (at, _))| *at <= now)
            .map(|(id, (_, reason))| (id, reason))
            .collect();
        over.into_iter().flat_map(|(id, reason)| self.stop(id, reason, now)).collect()
    }

    /// When [`Self::tick`] has something to do next.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        self.leases.values().filter(|l| !l.stopping).map(|l| l.ends_at().0).min()
    }

    /// Stops everything, for the end of the node.
    pub(super) fn stop_all(&mut self, now: Instant) -> Vec<Action> {
        self.draining = true;
        let waiting_first: BTreeSet<_> = self.leases.iter().map(|(id, l)| (l.has_slot(), *id)).collect();
        waiting_first.into_iter().flat_map(|(_, id)| self.stop(id, StopReason::Cancelled, now)).collect()
    }

    /// Stops everything of one owner, also what would run on without a lease.
    pub(super) fn evict(&mut self, owner: NodeId, now: Instant) -> Vec<Action> {
        let of_owner: Vec<LeaseId> =
            self.leases.iter().filter(|(_, l)| l.owner == owner && !l.local).map(|(id, _)| *id).collect();
        of_owner.into_iter().flat_map(|id| self.stop(id, StopReason::Cancelled, now)).collect()
    }

    fn stop(&mut self, id: LeaseId, reason: StopReason, now: Instant) -> Vec<Action> {
        let Some(lease) = self.leases.get_mut(&id) else { return Vec::new() };
        let mut actions = match lease.phase {
            Phase::Running { .. } if lease.stopping => return Vec::new(),
            Phase::Running { .. } => {
                lease.stopping = true;
                return vec![Action::Stop(id, reason)];
            }
            // A lease that was never started leaves no outcome unless somebody cancelled it.
            Phase::Granted { .. } if reason != StopReason::Cancelled => self.end(id, None, now),
            Phase::Granted { .. } | Phase::Queued => {
                self.end(id, Some(reason.outcome(0, SandboxLevel::None)), now)
            }
        };
        actions.extend(self.fill_slots(now));
        actions
    }

    fn end(&mut self, id: LeaseId, outcome: Option<Outcome>, now: Instant) -> Vec<Action> {
        let Some(lease) = self.leases.remove(&id) else { return Vec::new() };
        if lease.held.vram.is_some() {
            if self.freed.len() >= FREED {
                self.freed.pop_front();
            }
            self.freed.push_back(Held { ended: Some(now), ..lease.held.clone() });
        }
        self.queue.remove(id);
        if lease.proof {
            return vec![Action::End(id, outcome)];
        }
        self.by_key.remove(&(lease.key.clone(), lease.owner));
        if let Some(outcome) = &outcome {
            let ran = matches!(lease.phase, Phase::Running { .. });
            let ended = Ended { owner: lease.owner, lease: id, outcome: outcome.clone(), ran };
            self.results.insert(lease.key, ended);
        }
        vec![Action::End(id, outcome)]
    }

    fn fill_slots(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while self.has_free_slot() {
            let Some(id) = self.queue.pop() else { break };
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.phase = Phase::Running { since: now };
                actions.push(Action::Run(id));
            }
        }
        actions
    }
}
