//! The coordinator's side of a step: place it, reserve, start, follow it to its outcome, and know what to do when the
//! connection is lost.
//!
//! ```text
//!  call ─> decide (router; probes for data) ─> reserve ─> start ─> outcome
//!            ▲                                   │refused     │lost
//!            └───────────── exclude ◀────────────┴────────────┘ only if it may run twice or surely never ran
//! ```
//!
//! A step's result is recorded once; a pure or idempotent call may run more than once; any other call is started at most once,
//! and if it can't be known whether it ran, the step is `uncertain`.

mod attempt;
mod local_data;
mod measure;
mod payload;
mod recover;
mod remote;
mod streams;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use octomesh_protocol::{
    blob::BlobRef,
    card::SandboxLevel,
    id::{CardHash, NodeId, NodeName, StepKey, ToolName},
    step::{Event, StepStatus},
};
use octomesh_tools::tool::Caller;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::{attempt::Attempt, streams::Streams};
use crate::{
    app::{
        clock::Clock,
        failpoint::{self, Failpoint},
    },
    blob::BlobClient,
    executor::ExecutorHandle,
    journal::{JournalHandle, StartSent},
    membership::{MemberState, MeshView},
    metrics::NodeMetrics,
    net::NetHandle,
    router::{
        self, Ask, Candidate, Decision, DecisionId, Exclusion, FilterReason, History, Observation,
        OwnReservation, OwnReservations, ProbeResult, Refusal, Tries,
    },
    trust::{Exclusion as Excluded, TrustReader},
};

/// Starts of one step. Each one after the first follows a lost node or a lost lease.
const STARTS: u32 = 4;
/// How long a node that was restarted may take until steps can be placed on it again: sessions, cards and its self-call. Longer
/// than a slow machine needs; who waits has nowhere else to go.
const COMES_BACK: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 15 });
/// How long for one that does not answer.
const LOST_FOR: Duration = Duration::from_secs(4);
/// How long a machine takes from its sleep, or from being off, until its node takes steps.
const WAKES_UP: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 120 });
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// All candidates are asked for their data at once, in one round trip; who does not answer by then is left out.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// A probe's answer is believed this long.
const PROBE_TTL: Duration = Duration::from_secs(3);
/// Remembered probes.
const PROBES: usize = 1024;

/// The code of calls that fail because this node is no member any more.
pub(crate) const REVOKED: &str = "revoked";

/// What is to be called.
#[derive(Debug, Clone)]
pub(crate) struct CallAsk {
    pub(crate) key: StepKey,
    pub(crate) tool: ToolName,
    /// Only this variant of it; any, when absent.
    pub(crate) card: Option<CardHash>,
    pub(crate) arguments: serde_json::Map<String, Value>,
    pub(crate) pinned: Option<NodeId>,
    pub(crate) timeout: Duration,
    /// Told each time the step is started somewhere.
    pub(crate) placed: Option<Placed>,
    /// An earlier process of this node may have started it: its journal and the executor are asked first.
    pub(crate) resumed: bool,
}

/// Called with the decision when a step is started; must not block.
#[derive(Clone)]
pub(crate) struct Placed(pub(crate) Arc<dyn Fn(&Decision) + Send + Sync>);

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Placed")
    }
}

/// What became of it.
#[derive(Debug, Clone)]
pub(crate) struct CallDone {
    pub(crate) status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`.
    pub(crate) output: Value,
    /// Where it ran; absent when it never started.
    pub(crate) node: Option<NodeName>,
    pub(crate) elapsed_ms: u64,
    pub(crate) sandbox: SandboxLevel,
    pub(crate) decision: Decision,
    /// How often it was started.
    pub(crate) attempts: u32,
    /// No node could take it.
    pub(crate) no_capacity: bool,
    /// The whole result, when `output` is only its beginning.
    pub(crate) blob: Option<BlobRef>,
}

impl CallDone {
    fn of(
        outcome: &octomesh_protocol::step::Outcome,
        node: Option<NodeName>,
        decision: Decision,
        attempts: u32,
    ) -> Self {
        Self {
            status: outcome.status,
            output: serde_json::from_slice(&outcome.output).unwrap_or(Value::Null),
            node,
            elapsed_ms: outcome.elapsed_ms,
            sandbox: outcome.sandbox,
            decision,
            attempts,
            no_capacity: false,
            blob: outcome.blob(),
        }
    }
}

/// Counts for `status`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) routed_out: AtomicU64,
    pub(crate) failed_over: AtomicU64,
}

/// What the router remembers between decisions. The lock is held for one decision or one note, never across an await.
#[derive(Default)]
struct Memory {
    history: History,
    reservations: OwnReservations,
    /// By the hash of the arguments, which may be large.
    probes: BTreeMap<(NodeId, ToolName, [u8; 32]), (ProbeResult, Instant)>,
    /// Large arguments that were brought to a node, by their hash.
    inputs: BTreeMap<(NodeId, [u8; 32]), Instant>,
}

/// Wakes machines that sleep, when their owner wants that.
pub(crate) trait Wakes: Send + Sync + 'static {
    /// Whether it was called.
    fn wake(&self, node: NodeId) -> bool;
}

pub(crate) struct DispatchParts {
    pub(crate) me: Caller,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) net: NetHandle,
    pub(crate) trust: TrustReader,
    pub(crate) executor: ExecutorHandle,
    pub(crate) journal: JournalHandle,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) epoch: u64,
    pub(crate) blobs: BlobClient,
}

/// Places and follows steps; cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatcher(Arc<Inner>);

struct Inner {
    parts: DispatchParts,
    memory: Mutex<Memory>,
    counts: Counts,
    streams: Streams,
    /// Set once, when the node has one.
    wakes: OnceLock<Arc<dyn Wakes>>,
}

/// How an attempt ended.
enum Ended {
    Outcome(octomesh_protocol::step::Outcome),
    /// It was never started there; another node may have it whatever its effect.
    NotStarted(String),
    /// The node is gone or does not know; it may have run.
    Lost(String),
    /// The node is connected and says nothing; it stands still, or its network does. Only of steps that may repeat.
    Silent(String),
    /// The node was restarted while it ran, and is back.
    Interrupted,
}

/// What is said of a step that its executor's restart cut off.
const INTERRUPTED: &str = "the node restarted while it ran";

impl Dispatcher {
    pub(crate) fn new(parts: DispatchParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            memory: Mutex::default(),
            counts: Counts::default(),
            streams: Streams::default(),
            wakes: OnceLock::new(),
        }))
    }

    /// Takes up what calls took before the last restart.
    ///
    /// # Errors
    /// [`crate::journal::JournalError`]; without it the cards' own durations count.
    pub(crate) async fn remember(&self) -> Result<(), crate::journal::JournalError> {
        let kept = self.0.parts.journal.estimates().await?;
        self.memory(|m| m.history.restore(kept, Instant::now()));
        Ok(())
    }

    /// From now on machines that sleep are called when nobody else has the tool.
    pub(crate) fn wake_with(&self, wakes: Arc<dyn Wakes>) {
        // silent-ok: the first one stays
        let _ = self.0.wakes.set(wakes);
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Where the call would go now. Asks for data like a real call, reserves nothing.
    pub(crate) async fn place(&self, mut ask: CallAsk) -> Decision {
        self.resolve_data(&mut ask);
        let decision = self.decision_id();
        self.decide(&ask, decision, &Tries::default(), ask.timeout).await
    }

    /// Runs a call to its end. Cancelling `cancel` stops it wherever it runs.
    pub(crate) async fn call(
        &self,
        mut ask: CallAsk,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> CallDone {
        let begun = Instant::now();
        self.resolve_data(&mut ask);
        let mut done = match self.earlier(&ask, begun, cancel, events).await {
            Some(done) => done,
            None => {
                let done = self.attempts(&ask, begun, cancel, events).await;
                self.done_before(&ask, done).await
            }
        };
        self.collect(&ask, &mut done).await;
        done.elapsed_ms = millis(begun.elapsed());
        done.decision.took_ms = done.decision.ran_on.as_ref().map(|_| done.elapsed_ms);
        if let (Some(predicted), Some(took)) = (done.decision.predicted_ms, done.decision.took_ms) {
            self.0.parts.metrics.router.estimated(predicted, took);
        }
        self.store(&ask, &done.decision).await;
        done
    }

    /// The step is about to be started on the candidate: whoever watches is told, and what must not run twice can be looked up
    /// even if this node dies now.
    async fn told(&self, ask: &CallAsk, candidate: &Candidate, decision: &mut Decision) {
        decision.started(candidate);
        if !candidate.effect.may_repeat() {
            self.store(ask, decision).await;
        }
        if let Some(Placed(tell)) = &ask.placed {
            tell(decision);
        }
    }

    async fn store(&self, ask: &CallAsk, decision: &Decision) {
        let (id, decision) = (decision.id.to_string(), decision.clone());
        let stored = self.0.parts.journal.put_decision(id, &ask.key, move || decision.to_why_json());
        if let Err(error) = stored.await {
            tracing::warn!(%error, step = %ask.key, "decision not stored; `why` will not know it");
        }
    }

    async fn attempts(
        &self,
        ask: &CallAsk,
        begun: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> CallDone {
        let id = self.decision_id();
        let deadline = begun + ask.timeout;
        let mut tries = Tries::default();
        let mut earlier: Option<Decision> = None;
        let mut starts = 0;
        let mut back = Back::new(ask, begun);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut decision = self.decide(ask, id, &tries, left).await;
            if let Some(earlier) = &earlier {
                decision = decision.after(earlier);
            }
            if cancel.is_cancelled() {
                return failed(
                    StepStatus::Cancelled,
                    "cancelled",
                    "cancelled before it was started",
                    decision,
                    starts,
                );
            }
            let Some(candidate) = decision.chosen.clone() else {
                back.wakes(starts, deadline, || self.wake(ask));
                if starts < STARTS && back.is_awaited(&mut tries, |node| self.is_connected(node)) {
                    earlier = Some(decision);
                    tokio::time::sleep(LOOK_AGAIN).await;
                    continue;
                }
                self.0.parts.metrics.router.placed("no_capacity");
                return self.nowhere(ask, decision, starts);
            };
            if tries.is_over() || starts >= STARTS {
                self.0.parts.metrics.router.placed("no_capacity");
                decision.chosen = None;
                return self.nowhere(ask, decision, starts);
            }
            self.0.parts.metrics.router.placed(if self.is_me(candidate.node) { "local" } else { "remote" });
            let longest_wait_ms = tries.longest_wait_ms(&decision);
            let attempt = match self.reserve(ask, &candidate, longest_wait_ms, deadline).await {
                Ok(attempt) => attempt,
                Err((reason, refusal)) => {
                    match reason {
                        Some(reason) => tries.refused(candidate.node, reason, &refusal.detail),
                        None => tries.lost(candidate.node, &refusal.detail),
                    }
                    decision.refused(refusal);
                    earlier = Some(decision);
                    continue;
                }
            };
            failpoint::reached(Failpoint::Granted, Some(&ask.key.step));
            if let Err(error) = self.start_sent(ask, &candidate, &attempt).await {
                self.give_up(ask, attempt).await;
                let text = format!("the journal can't record the start, so it was not started: {error}");
                return failed(StepStatus::Error, "journal", &text, decision, starts);
            }
            failpoint::reached(Failpoint::StartSent, Some(&ask.key.step));
            starts += 1;
            self.told(ask, &candidate, &mut decision).await;
            let ended = self.run(ask, &candidate, attempt, deadline, cancel, events).await;
            match self.settle(ask, &candidate, ended, cancel, &mut tries).await {
                Settled::Done(outcome) => {
                    return CallDone::of(&outcome, Some(candidate.name), decision, starts);
                }
                Settled::Uncertain(detail) => {
                    return uncertain(ask, candidate.name, &detail, decision, starts);
                }
                Settled::Again { reason, detail, wait } => {
                    back.comes(candidate.node, wait);
                    self.0.counts.failed_over.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(step = %ask.key, node = %candidate.name, detail, "step is placed again");
                    decision.refused(Refusal {
                        node: candidate.node,
                        name: candidate.name.clone(),
                        reason: reason.code().to_owned(),
                        detail,
                    });
                    earlier = Some(decision);
                }
            }
        }
    }

    async fn run(
        &self,
        ask: &CallAsk,
        candidate: &Candidate,
        attempt: Attempt,
        deadline: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Ended {
        if !self.is_me(candidate.node) {
            self.0.counts.routed_out.fetch_add(1, Ordering::Relaxed);
        }
        let arguments = serde_json::to_vec(&ask.arguments).unwrap_or_default();
        let ended = match attempt {
            Attempt::Local(lease) => self.run_local(ask, lease, arguments, cancel, events).await,
            Attempt::Remote(remote) => {
                self.run_remote(ask, candidate.node, *remote, arguments, deadline, cancel, events).await
            }
        };
        self.memory(|m| match ended {
            Ended::Outcome(_) => m.reservations.ended(&ask.key, Instant::now()),
            Ended::NotStarted(_) | Ended::Lost(_) | Ended::Silent(_) | Ended::Interrupted => {
                m.reservations.remove(&ask.key);
            }
        });
        ended
    }

    /// What an ended attempt means for the step.
    async fn settle(
        &self,
        ask: &CallAsk,
        candidate: &Candidate,
        ended: Ended,
        cancel: &CancellationToken,
        tries: &mut Tries,
    ) -> Settled {
        let now = Instant::now();
        let journal = &self.0.parts.journal;
        let lost =
            |detail: &str| Exclusion { reason: FilterReason::Lost, detail: format!("was lost: {detail}") };
        match ended {
            Ended::Outcome(outcome) => {
                if recover::may_go_on(&outcome, candidate.effect) && !cancel.is_cancelled() {
                    // It may have it again, but costs more than before: another node gets its turn.
                    self.memory(|m| m.history.record_failure(candidate.node, now));
                    return Settled::again(FilterReason::Lost, "its lease was lost");
                }
                if outcome.status == StepStatus::Refused {
                    // Reserved, but not started after all: the lease had lapsed, or the tool had just gone.
                    let detail = "reserved, but it did not start there".to_owned();
                    let refused =
                        Exclusion { reason: FilterReason::Refused, detail: format!("refused: {detail}") };
                    tries.leave_out(candidate.node, refused);
                    return Settled::again(FilterReason::Refused, detail);
                }
                if matches!(outcome.status, StepStatus::Ok | StepStatus::Error) {
                    self.observed(ask, candidate, outcome.elapsed_ms, now).await;
                }
                if let Err(error) = journal.coordinator_told(&ask.key, candidate.effect, &outcome).await {
                    tracing::warn!(%error, step = %ask.key, "outcome not recorded");
                }
                failpoint::reached(Failpoint::OutcomeStored, Some(&ask.key.step));
                Settled::Done(outcome)
            }
            Ended::NotStarted(detail) => {
                tries.leave_out(candidate.node, lost(&detail));
                Settled::Again { reason: FilterReason::Lost, detail, wait: COMES_BACK }
            }
            Ended::Lost(_) | Ended::Silent(_) | Ended::Interrupted => {
                let (detail, wait) = match ended {
                    Ended::Lost(detail) => (detail, LOST_FOR),
                    Ended::Silent(detail) => (detail, COMES_BACK),
                    _ => (INTERRUPTED.to_owned(), COMES_BACK),
                };
                self.memory(|m| m.history.record_failure(candidate.node, now));
                if candidate.effect.may_repeat() {
                    tries.leave_out(candidate.node, lost(&detail));
                    return Settled::Again { reason: FilterReason::Lost, detail, wait };
                }
                let ended = journal.coordinator_ended(&ask.key, candidate.effect, StepStatus::Uncertain, 0);
                if let Err(error) = ended.await {
                    tracing::warn!(%error, step = %ask.key, "uncertain outcome not recorded");
                }
                Settled::Uncertain(detail)
            }
        }
    }

    /// What a call took is remembered, also over a restart.
    async fn observed(&self, ask: &CallAsk, candidate: &Candidate, elapsed_ms: u64, now: Instant) {
        let call = Observation {
            node: candidate.node,
            tool: &ask.tool,
            work_bytes: candidate.work_bytes,
            prior_ms: candidate.prior_ms,
            elapsed_ms,
        };
        let kept = self.memory(|m| m.history.record(call, now));
        if let Err(error) = self.0.parts.journal.put_estimate(kept).await {
            tracing::warn!(%error, tool = %ask.tool, "what the call took is forgotten with the next restart");
        }
    }

    async fn start_sent(
        &self,
        ask: &CallAsk,
        candidate: &Candidate,
        attempt: &Attempt,
    ) -> Result<(), crate::journal::JournalError> {
        self.0
            .parts
            .journal
            .coordinator_start_sent(StartSent {
                key: ask.key.clone(),
                tool: ask.tool.clone(),
                node: candidate.node,
                lease: attempt.lease(),
                epoch: self.0.parts.epoch,
                effect: candidate.effect,
            })
            .await
    }

    /// The router's decision; nodes that may have the data are asked first.
    async fn decide(&self, ask: &CallAsk, id: DecisionId, tries: &Tries, left: Duration) -> Decision {
        let begun = Instant::now();
        let arguments = serde_json::to_vec(&ask.arguments).unwrap_or_default();
        let question = Ask {
            decision: id,
            key: ask.key.clone(),
            tool: ask.tool.clone(),
            card: ask.card,
            argument_bytes: arguments.len() as u64,
            there: self.there(&arguments, begun),
            pinned: ask.pinned,
            exclude: tries.exclude().clone(),
            deadline_ms: millis(left),
        };
        let arguments = payload::to_be_probed(ask, &arguments);
        let mut probes = self.known_probes(&ask.tool, &arguments, begun);
        let view = self.view();
        let place = |probes: &BTreeMap<NodeId, ProbeResult>| {
            self.memory(|m| {
                router::decide(&view, &question, &m.history, &m.reservations, probes, Instant::now())
            })
        };
        let mut decision = place(&probes);
        if !decision.needs_probe.is_empty() {
            probes.extend(self.probe(&ask.tool, &arguments, &decision.needs_probe).await);
            decision = place(&probes);
        }
        self.0
            .parts
            .metrics
            .router
            .decided(begun.elapsed(), decision.filtered.iter().map(|f| f.reason.into()));
        decision
    }

    fn known_probes(&self, tool: &ToolName, arguments: &[u8], now: Instant) -> BTreeMap<NodeId, ProbeResult> {
        self.memory(|m| {
            if m.probes.is_empty() {
                return BTreeMap::new();
            }
            let arguments = digest(arguments);
            m.probes.retain(|_, (_, at)| now.saturating_duration_since(*at) < PROBE_TTL);
            m.probes
                .iter()
                .filter(|((_, t, a), (result, _))| {
                    t == tool && *a == arguments && *result != ProbeResult::Silent
                })
                .map(|((node, _, _), (result, _))| (*node, result.clone()))
                .collect()
        })
    }

    async fn probe(
        &self,
        tool: &ToolName,
        arguments: &[u8],
        nodes: &[NodeId],
    ) -> BTreeMap<NodeId, ProbeResult> {
        let asked = nodes.iter().map(|node| async move {
            let answer = tokio::time::timeout(PROBE_TIMEOUT, self.probe_one(*node, tool, arguments)).await;
            (*node, answer.unwrap_or(ProbeResult::Silent))
        });
        let answers: BTreeMap<NodeId, ProbeResult> =
            futures::future::join_all(asked).await.into_iter().collect();
        let (now, arguments) = (Instant::now(), digest(arguments));
        self.memory(|m| {
            // A hit is remembered; that something is missing may change with the next written file.
            for (node, answer) in &answers {
                if matches!(answer, ProbeResult::Have(_)) && m.probes.len() < PROBES {
                    m.probes.insert((*node, tool.clone(), arguments), (answer.clone(), now));
                }
            }
        });
        answers
    }

    fn memory<T>(&self, access: impl FnOnce(&mut Memory) -> T) -> T {
        access(&mut self.0.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn view(&self) -> Arc<MeshView> {
        Arc::clone(&self.0.parts.view.borrow())
    }

    fn is_me(&self, node: NodeId) -> bool {
        node == self.0.parts.me.node
    }

    fn is_connected(&self, node: NodeId) -> bool {
        let view = self.view();
        view.get(node).is_some_and(|m| m.connected && m.state != MemberState::Left)
    }

    /// No node can take it: the message names every node and its reason. A node that is out knows a better one.
    fn nowhere(&self, ask: &CallAsk, decision: Decision, attempts: u32) -> CallDone {
        let exclusion = self.0.parts.trust.borrow().exclusion().filter(|exclusion| match exclusion {
            // Hearsay counts for those who said it, and when nobody says otherwise.
            Excluded::Told { by } => self.is_alone() || ask.pinned.is_some_and(|node| by.contains(&node)),
            _ => true,
        });
        if let Some(exclusion) = exclusion {
            let message = exclusion.to_string();
            return failed(StepStatus::Refused, REVOKED, &message, decision, attempts);
        }
        let message = decision.sentence();
        let mut done = failed(StepStatus::Refused, "no_capacity", &message, decision, attempts);
        done.no_capacity = true;
        done
    }

    /// Calls machines that are off and have the tool, when none that is awake has it, or when one of them was asked for.
    fn wake(&self, ask: &CallAsk) -> bool {
        let Some(wakes) = self.0.wakes.get() else { return false };
        let view = self.view();
        let able = || {
            view.members
                .values()
                .filter(|m| ask.pinned.is_none_or(|node| node == m.node) && m.tool(&ask.tool).is_some())
        };
        if able().any(|m| m.state.is_present()) {
            return false;
        }
        // All of them: which one wakes, nobody can know.
        able().filter(|m| wakes.wake(m.node)).count() > 0
    }

    fn is_alone(&self) -> bool {
        let view = self.view();
        !view.members.values().any(|m| m.connected && !view.is_me(m.node))
    }

    fn decision_id(&self) -> DecisionId {
        DecisionId::new(self.0.parts.clock.id_bytes())
    }

    /// Counts the step on the candidate from the moment it is asked, so that steps placed meanwhile see it.
    fn note_reservation(&self, ask: &CallAsk, candidate: &Candidate) {
        let reservation = OwnReservation {
            node: candidate.node,
            est_ms: candidate.est_ms(),
            vram: candidate.vram,
            memory: candidate.memory,
            at: Instant::now(),
        };
        self.memory(|m| m.reservations.insert(ask.key.clone(), reservation));
    }
}

enum Settled {
    Done(octomesh_protocol::step::Outcome),
    Again {
        reason: FilterReason,
        detail: String,
        /// How long to wait for this node when no other can have the step.
        wait: Duration,
    },
    Uncertain(String),
}

impl Settled {
    fn again(reason: FilterReason, detail: impl Into<String>) -> Self {
        Self::Again { reason, detail: detail.into(), wait: Duration::ZERO }
    }
}

/// A node that is worth waiting for, because it was restarted, or this one was and sees nobody yet.
struct Back {
    until: Instant,
    node: Option<NodeId>,
    /// A sleeping machine is called once.
    woken: bool,
}

impl Back {
    fn new(ask: &CallAsk, begun: Instant) -> Self {
        Self { until: if ask.resumed { begun + COMES_BACK } else { begun }, node: None, woken: false }
    }

    fn comes(&mut self, node: NodeId, wait: Duration) {
        *self = Self { until: Instant::now() + wait, node: Some(node), woken: self.woken };
    }

    /// One that sleeps is called at the first look, and waited for.
    fn wakes(&mut self, starts: u32, deadline: Instant, wake: impl FnOnce() -> bool) {
        let first = starts == 0 && self.node.is_none();
        if first && !std::mem::replace(&mut self.woken, true) && wake() {
            self.until = self.until.max(deadline.min(Instant::now() + WAKES_UP));
        }
    }

    /// Whether to look again for a place. The node is no longer left out once it is `connected`.
    fn is_awaited(&self, tries: &mut Tries, connected: impl Fn(NodeId) -> bool) -> bool {
        if Instant::now() >= self.until || tries.is_over() {
            return false;
        }
        if let Some(node) = self.node.filter(|node| connected(*node)) {
            tries.take_back(node);
        }
        true
    }
}

fn digest(arguments: &[u8]) -> [u8; 32] {
    Sha256::digest(arguments).into()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn uncertain(ask: &CallAsk, node: NodeName, detail: &str, decision: Decision, attempts: u32) -> CallDone {
    let text = format!(
        "{node} was lost while {} ran there ({detail}); whether it took effect can't be known",
        ask.tool
    );
    let done = failed(StepStatus::Uncertain, "uncertain", &text, decision, attempts);
    CallDone { node: Some(node), ..done }
}

fn failed(status: StepStatus, code: &str, message: &str, decision: Decision, attempts: u32) -> CallDone {
    CallDone {
        status,
        output: json!({"error": {"code": code, "message": message}}),
        node: None,
        elapsed_ms: 0,
        sandbox: SandboxLevel::None,
        decision,
        attempts,
        no_capacity: false,
        blob: None,
    }
}

#[cfg(test)]
mod delivery;
#[cfg(test)]
mod tests;
