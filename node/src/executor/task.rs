//! The task that owns the leases and the running steps.
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use octomesh_protocol::{
    id::LeaseId,
    step::{Event, Outcome, Start, StepStatus},
};
use octomesh_tools::tool::{Caller, EventSink};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    ExecutorConfig, ExecutorHandle, Resources, RunContext, ToolRunner,
    handle::{Command, PROBES},
    lease::{Action, LeaseState, Reservation, StartAnswer, StopReason},
    proof::Health,
    run::{self, Run},
};
use crate::journal::JournalHandle;

/// Commands that may wait: each is handled in microseconds, so a full queue is a burst of a whole mesh.
const COMMANDS: usize = 256;
/// Callers that wait for the same step: the coordinator, and itself again after a lost stream, a few times.
const WAITERS: usize = 8;
/// Load changes by the mere passing of time as running steps come nearer to their end.
const REFRESH: Duration = Duration::from_secs(1);
/// At the end of the node: tools have their grace, then this much for the journal.
const STOP: Duration = Duration::from_secs(4);

/// What an executor is made of.
pub struct ExecutorParts {
    /// Settings.
    pub config: ExecutorConfig,
    /// The tools.
    pub runner: Arc<dyn ToolRunner>,
    /// The journal.
    pub journal: JournalHandle,
    /// Memory as measured. When its sender is gone the last measurement ages.
    pub resources: watch::Receiver<Resources>,
    /// Random numbers for lease ids, from the node's source.
    pub random: Box<dyn FnMut() -> u64 + Send>,
    /// Seconds between the start of a step by its coordinator and its run.
    pub queue_wait: Option<prometheus::Histogram>,
}

impl std::fmt::Debug for ExecutorParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutorParts").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Makes the executor; the owner runs the task.
#[must_use]
pub fn executor(parts: ExecutorParts) -> (ExecutorHandle, ExecutorTask) {
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let state = LeaseState::new(parts.config.clone());
    let resources = parts.resources.borrow().clone();
    let load = watch::Sender::new(state.load(&resources, Instant::now()));
    let health = watch::Sender::new(Health::Unproven);
    let proved = health.subscribe();
    let (remaining_out, remaining) = watch::channel(0);
    let (vram_out, reserved_vram) = watch::channel(state.reserved_vram(resources.gpus.len()));
    let handle = ExecutorHandle {
        commands,
        load: load.clone(),
        health,
        remaining,
        reserved_vram,
        runner: Arc::clone(&parts.runner),
        journal: parts.journal.clone(),
        offers_tools: parts.config.offers_tools,
        probes: Arc::new(Semaphore::new(PROBES)),
    };
    let out = Published { load, remaining: remaining_out, vram: vram_out };
    let steps = JoinSet::new();
    let (started, lease_of) = (BTreeMap::new(), HashMap::new());
    let task = ExecutorTask { state, parts, inbox, proved, started, steps, lease_of, out };
    (handle, task)
}

/// What a started lease needs beside its place.
struct StartedStep {
    caller: Caller,
    since: Instant,
    /// Taken when the step begins to run.
    arguments: Vec<u8>,
    listener: watch::Sender<Option<mpsc::Sender<Event>>>,
    waiters: Vec<oneshot::Sender<Outcome>>,
    cancel: CancellationToken,
    stop: Arc<OnceLock<StopReason>>,
}

struct Published {
    load: watch::Sender<octomesh_protocol::advert::LoadState>,
    remaining: watch::Sender<usize>,
    vram: watch::Sender<Vec<u64>>,
}

/// The executor's task.
pub struct ExecutorTask {
    state: LeaseState,
    parts: ExecutorParts,
    inbox: mpsc::Receiver<Command>,
    proved: watch::Receiver<Health>,
    started: BTreeMap<LeaseId, StartedStep>,
    steps: JoinSet<(LeaseId, Outcome)>,
    /// Lease of each running task, for one that ends without saying which it was.
    lease_of: HashMap<Id, LeaseId>,
    out: Published,
}

impl std::fmt::Debug for ExecutorTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutorTask").field("running", &self.steps.len()).finish_non_exhaustive()
    }
}

impl ExecutorTask {
    /// Runs until `shutdown` or until all handles are gone; then stops every step and waits a few seconds for them.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut resources = self.parts.resources.clone();
        let mut measured = true;
        let mut proved = self.proved.clone();
        loop {
            let wake = self.wake();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = self.steps.join_next_with_id() => self.step_ended(ended),
                command = self.inbox.recv() => match command {
                    #[cfg(any(test, feature = "testing"))]
                    Some(Command::Hold { until }) => drop(until.await),
                    Some(command) => self.handle(command),
                    None => break,
                },
                () = sleep_until(wake) => {
                    let actions = self.state.tick(Instant::now());
                    self.perform(actions);
                }
                changed = resources.changed(), if measured => measured = changed.is_ok(),
                // The handles hold its sender; without handles there are no commands either.
                Ok(()) = proved.changed() => {}
            }
            self.publish();
        }
        self.stop().await;
    }

    fn wake(&self) -> Option<Instant> {
        self.state.next_tick().map(|tick| tick.min(Instant::now() + REFRESH))
    }

    fn publish(&mut self) {
        self.state.set_ready(self.proved.borrow().is_ready());
        let resources = self.parts.resources.borrow();
        set(&self.out.load, self.state.load(&resources, Instant::now()));
        set(&self.out.remaining, self.state.remaining());
        set(&self.out.vram, self.state.reserved_vram(resources.gpus.len()));
    }

    fn handle(&mut self, command: Command) {
        let now = Instant::now();
        self.state.set_ready(self.proved.borrow().is_ready());
        // silent-ok, for all replies below: whoever asked has gone away, and the state is right without them
        match command {
            Command::Reserve { request, caller, proof, reply } => {
                let card = self.parts.runner.card(&request.tool);
                let sandbox = self.parts.runner.sandbox();
                let lease = self.new_lease();
                let ask = Reservation { request, caller, card, sandbox, lease, proof };
                let answer = self.state.reserve(ask, &self.parts.resources.borrow(), now);
                let _ = reply.send(answer);
            }
            Command::Start { start, caller, events, outcome } => {
                self.start(start, caller, events, outcome, now)
            }
            Command::Renew { leases, owner } => self.state.renew(&leases, owner, now),
            Command::Cancel { key, epoch, caller, reply } => {
                let (answer, actions) = self.state.cancel(&key, epoch, &caller, now);
                self.perform(actions);
                let _ = reply.send(answer);
            }
            Command::Status { key, caller, reply } => {
                let _ = reply.send(self.state.status(&key, &caller));
            }
            Command::Evict { owner } => {
                let actions = self.state.evict(owner, now);
                self.perform(actions);
            }
            Command::Drain { on, reply } => {
                self.state.set_draining(on);
                let _ = reply.send(self.state.remaining());
            }
            Command::Ping { reply } => {
                let _ = reply.send(());
            }
            #[cfg(any(test, feature = "testing"))]
            Command::Hold { .. } => {}
        }
    }

    fn new_lease(&mut self) -> LeaseId {
        loop {
            let lease = LeaseId((self.parts.random)());
            if self.state.lease(lease).is_none() {
                return lease;
            }
        }
    }

    fn start(
        &mut self,
        start: Start,
        caller: Caller,
        events: mpsc::Sender<Event>,
        outcome: oneshot::Sender<Outcome>,
        now: Instant,
    ) {
        let lease = start.lease;
        let (answer, actions) = self.state.start(lease, start.epoch, caller.node, now);
        match answer {
            StartAnswer::Ended(ended) => {
                // silent-ok: whoever asked has gone away
                let _ = outcome.send(ended);
            }
            StartAnswer::Accepted { first: true } => {
                let step = StartedStep {
                    since: Instant::now(),
                    caller,
                    arguments: start.arguments,
                    listener: watch::Sender::new(Some(events)),
                    waiters: vec![outcome],
                    cancel: CancellationToken::new(),
                    stop: Arc::default(),
                };
                self.started.insert(lease, step);
            }
            StartAnswer::Accepted { first: false } => {
                if let Some(step) = self.started.get_mut(&lease) {
                    step.listener.send_replace(Some(events));
                    step.waiters.retain(|w| !w.is_closed());
                    // One more is told nothing; it can ask for the status.
                    if step.waiters.len() < WAITERS {
                        step.waiters.push(outcome);
                    }
                }
            }
        }
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Run(lease) => self.begin(lease),
                Action::Stop(lease, reason) => {
                    if let Some(step) = self.started.get(&lease) {
                        // silent-ok: the first reason stays
                        let _ = step.stop.set(reason);
                        step.cancel.cancel();
                    }
                }
                Action::End(lease, outcome) => self.end(lease, outcome),
            }
        }
    }

    fn begin(&mut self, lease: LeaseId) {
        let (Some(place), Some(step)) = (self.state.lease(lease), self.started.get_mut(&lease)) else {
            return;
        };
        if let Some(waited) = self.parts.queue_wait.as_ref().filter(|_| !place.proof) {
            waited.observe(step.since.elapsed().as_secs_f64());
        }
        let context = RunContext {
            key: place.key.clone(),
            caller: step.caller.clone(),
            cancel: step.cancel.clone(),
            deadline: place.deadline,
            events: EventSink::none(),
            proof: place.proof,
        };
        let run = Run {
            lease,
            epoch: place.epoch,
            effect: place.effect,
            tool: place.tool.clone(),
            context,
            arguments: std::mem::take(&mut step.arguments),
            listener: step.listener.subscribe(),
            stop: Arc::clone(&step.stop),
        };
        let runner = Arc::clone(&self.parts.runner);
        let task = self.steps.spawn(run::run(runner, self.parts.journal.clone(), run));
        self.lease_of.insert(task.id(), lease);
    }

    fn end(&mut self, lease: LeaseId, outcome: Option<Outcome>) {
        let Some(step) = self.started.remove(&lease) else { return };
        // Its tool, if it still runs, has nobody to work for.
        step.cancel.cancel();
        let Some(outcome) = outcome else { return };
        for waiter in step.waiters {
            // silent-ok: whoever waited has gone away; the outcome is kept
            let _ = waiter.send(outcome.clone());
        }
    }

    fn step_ended(&mut self, ended: Result<(Id, (LeaseId, Outcome)), JoinError>) {
        let (lease, outcome) = match ended {
            Ok((id, (lease, outcome))) => {
                self.lease_of.remove(&id);
                (lease, outcome)
            }
            Err(error) => {
                let Some(lease) = self.lease_of.remove(&error.id()) else { return };
                tracing::error!(%lease, %error, "a step ended without an outcome");
                let text = "this node lost track of the step; this is a bug";
                (lease, run::without_result(StepStatus::Uncertain, "uncertain", text, 0))
            }
        };
        let actions = self.state.finished(lease, outcome, Instant::now());
        self.perform(actions);
    }

    /// Stops every step, gives them their grace, and answers whoever waits. What does not end then is dropped.
    async fn stop(mut self) {
        self.inbox.close();
        let actions = self.state.stop_all(Instant::now());
        self.perform(actions);
        let until = Instant::now() + STOP;
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, self.steps.join_next_with_id()).await {
            self.step_ended(ended);
        }
        self.publish();
    }
}

fn set<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|old| {
        let changed = *old != value;
        *old = value;
        changed
    });
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
