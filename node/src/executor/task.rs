//! The task that owns the leases and the running steps.
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use octomesh_protocol::{
    blob::BlobRef,
    id::LeaseId,
    step::{Event, Granted, Outcome, Refused, Reserve, Start},
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
    handle::{Begun, Command, PROBES, Step},
    lease::{Action, Lease, LeaseState, Reservation, StartAnswer, StopReason},
    proof::Health,
    run::{self, Run},
};
use crate::{journal::JournalHandle, load::CardState};

/// Commands that may wait: each is handled in microseconds, so a full queue is a burst of a whole mesh.
const COMMANDS: usize = 256;
/// Callers that wait for the same step: the coordinator, and itself again after a lost stream, a few times.
const WAITERS: usize = 8;
/// Load changes by the mere passing of time as running steps come nearer to their end.
const REFRESH: Duration = Duration::from_secs(1);
/// Others hear of a load at least this often while it changes with every command.
const TOLD_EVERY: Duration = Duration::from_millis(20);
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
    let (cards_out, cards) = watch::channel(state.cards(&resources));
    let handle = ExecutorHandle {
        commands,
        load: load.clone(),
        health,
        remaining,
        cards,
        runner: Arc::clone(&parts.runner),
        journal: parts.journal.clone(),
        offers_tools: parts.config.offers_tools,
        probes: Arc::new(Semaphore::new(PROBES)),
    };
    let out = Published { load, remaining: remaining_out, cards: cards_out };
    let steps = JoinSet::new();
    let (started, lease_of) = (BTreeMap::new(), HashMap::new());
    let task = ExecutorTask {
        state,
        parts,
        inbox,
        proved,
        started,
        steps,
        lease_of,
        out,
        told: Instant::now(),
        handed_out: false,
    };
    (handle, task)
}

/// What a started lease needs beside its place.
struct StartedStep {
    caller: Caller,
    since: Instant,
    /// Taken when the step begins to run.
    arguments: Vec<u8>,
    input: Option<BlobRef>,
    listener: watch::Sender<Option<mpsc::Sender<Event>>>,
    waiters: Vec<oneshot::Sender<Outcome>>,
    cancel: CancellationToken,
    stop: Arc<OnceLock<StopReason>>,
}

struct Published {
    load: watch::Sender<octomesh_protocol::advert::LoadState>,
    remaining: watch::Sender<usize>,
    cards: watch::Sender<Vec<CardState>>,
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
    /// When others were last told of the load.
    told: Instant,
    /// Whether a step was just given to whoever asked for it.
    handed_out: bool,
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
                    Some(command) => {
                        self.handle(command);
                        // Its end, or the step itself, comes back at once, and others are told of the load then.
                        if std::mem::take(&mut self.handed_out) && self.told.elapsed() < TOLD_EVERY {
                            continue;
                        }
                    }
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
        self.told = Instant::now();
        self.state.set_ready(self.proved.borrow().is_ready());
        let resources = self.parts.resources.borrow();
        set(&self.out.load, self.state.load(&resources, Instant::now()));
        set(&self.out.remaining, self.state.remaining());
        set(&self.out.cards, self.state.cards(&resources));
    }

    fn handle(&mut self, command: Command) {
        let now = Instant::now();
        self.state.set_ready(self.proved.borrow().is_ready());
        // silent-ok, for all replies below: whoever asked has gone away, and the state is right without them
        match command {
            Command::Reserve { request, caller, proof, reply } => {
                let _ = reply.send(self.reserve(request, caller, proof, now));
            }
            Command::StartIfFree { request, arguments, caller, events, reply } => {
                let epoch = request.epoch;
                let answer = self.reserve(request, caller.clone(), false, now).map(|granted| {
                    let lease = granted.lease;
                    if !self.state.may_begin(lease) {
                        return Begun::new(granted, None, None);
                    }
                    let (outcome, running) = oneshot::channel();
                    let start = Start::new(lease, epoch, arguments);
                    let mut actions = self.take_start(start, caller, events, outcome, now);
                    let first = actions.iter().position(|action| *action == Action::Run(lease));
                    let step = first.and_then(|place| {
                        actions.remove(place);
                        self.prepare(lease)
                    });
                    self.perform(actions);
                    self.handed_out = step.is_some();
                    Begun::new(granted, Some(running), step)
                });
                // Nobody was there to take it.
                if let Err(Ok(Begun { granted, step: Some(step), .. })) = reply.send(answer) {
                    self.adopt(granted.lease, step);
                }
            }
            Command::Finished { lease, outcome } => self.finished(lease, outcome),
            Command::Adopt { lease, step } => self.adopt(lease, step),
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

    fn reserve(
        &mut self,
        request: Reserve,
        caller: Caller,
        proof: bool,
        now: Instant,
    ) -> Result<Granted, Refused> {
        let card = self.parts.runner.card(&request.tool);
        let sandbox = self.parts.runner.sandbox();
        let lease = self.new_lease();
        let ask = Reservation { request, caller, card, sandbox, lease, proof };
        self.state.reserve(ask, &self.parts.resources.borrow(), now)
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
        let actions = self.take_start(start, caller, events, outcome, now);
        self.perform(actions);
    }

    /// Notes the start; what is to be done for it is left to the caller.
    fn take_start(
        &mut self,
        start: Start,
        caller: Caller,
        events: mpsc::Sender<Event>,
        outcome: oneshot::Sender<Outcome>,
        now: Instant,
    ) -> Vec<Action> {
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
                    input: start.input,
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
        actions
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
        if let Some(step) = self.prepare(lease) {
            self.adopt(lease, step);
        }
    }

    /// Has the step run in a task of its own.
    fn adopt(&mut self, lease: LeaseId, step: Step) {
        let task = self.steps.spawn(step);
        self.lease_of.insert(task.id(), lease);
    }

    /// The step from its beginning to its outcome.
    fn prepare(&mut self, lease: LeaseId) -> Option<Step> {
        let gpu = self.state.lease(lease).map(|place| self.environment_of(place)).unwrap_or_default();
        let (Some(place), Some(step)) = (self.state.lease(lease), self.started.get_mut(&lease)) else {
            return None;
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
            gpu,
        };
        let run = Run {
            lease,
            epoch: place.epoch,
            effect: place.effect,
            tool: place.tool.clone(),
            context,
            arguments: std::mem::take(&mut step.arguments),
            input: step.input,
            listener: step.listener.subscribe(),
            stop: Arc::clone(&step.stop),
        };
        let runner = Arc::clone(&self.parts.runner);
        Some(Box::pin(run::run(runner, self.parts.journal.clone(), run)))
    }

    /// Tells a program which card is its own.
    fn environment_of(&self, place: &Lease) -> BTreeMap<String, String> {
        let resources = self.parts.resources.borrow();
        let cards = resources.gpus.iter().enumerate();
        let own = place.card().and_then(|own| cards.clone().find(|(_, card)| card.id == *own));
        own.map(|(index, card)| card.environment(index)).unwrap_or_default()
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
                (lease, run::lost_track())
            }
        };
        self.finished(lease, outcome);
    }

    fn finished(&mut self, lease: LeaseId, outcome: Outcome) {
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
