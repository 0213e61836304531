//! The task of one run: performs what [`SolveState`] decides. It owns the run's state and record; everything it waits for runs
//! inside it, so that nothing is left when it ends.
use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use futures::{Future, StreamExt, stream::FuturesUnordered};
use octomesh_protocol::id::{RunId, StepId, ToolName};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    block::attempt_id,
    doubt::OnUncertain,
    limits::{self, SolveLimits},
    memory::{MemoryError, SolveMemory},
    outcome::RunOutcome,
    ports::{CatalogueEntry, RunJournal, RunRecord, RunSink, StepPort, StepRequest},
    roles::{ActInput, PlanFile, PlanInput, RoleError, Roles},
    state::{SolveEffect, SolveEvent, SolveState},
};

/// What a run is about.
#[derive(Debug, Clone)]
pub struct RunInput {
    /// Its id.
    pub run_id: RunId,
    /// The question.
    pub question: String,
    /// A plan that the owner wrote.
    pub plan_file: Option<PlanFile>,
    /// The run's directory, which exists; a record in it is resumed.
    pub dir: PathBuf,
    /// Bounds.
    pub limits: SolveLimits,
    /// For the record of a run that ended `uncertain`: what somebody decided.
    pub decision: Option<OnUncertain>,
}

/// What a run works with.
#[derive(Clone)]
pub struct RunPorts {
    /// Who thinks.
    pub roles: Arc<dyn Roles>,
    /// Who runs calls.
    pub steps: Arc<dyn StepPort>,
    /// Who watches.
    pub sink: Arc<dyn RunSink>,
    /// Who keeps the list of runs.
    pub journal: Arc<dyn RunJournal>,
    /// Milliseconds of a clock that never goes back.
    pub now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl std::fmt::Debug for RunPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunPorts").field("engine", &self.roles.engine()).finish_non_exhaustive()
    }
}

type Pending = Pin<Box<dyn Future<Output = SolveEvent> + Send>>;

struct RunTask {
    input: RunInput,
    ports: RunPorts,
    state: SolveState,
    catalogue: Arc<Vec<CatalogueEntry>>,
    deadline: Instant,
    /// Calls that are out. At most `max_parallel`, because a block has one call at a time.
    calls: FuturesUnordered<Pending>,
    /// What the roles are at. Bounded likewise.
    thoughts: FuturesUnordered<Pending>,
    stop_calls: CancellationToken,
    stop_by: Option<Instant>,
    started_ms: u64,
}

/// Solves a question. Ends when there is an answer, when a step fails, when `max_time` is over, or when `cancel` is cancelled;
/// in every case the record is written and the running calls were stopped (waited for at most 2 s).
///
/// # Errors
/// [`MemoryError`] when the directory's record can't be read or belongs to another question.
pub async fn run(
    input: RunInput,
    ports: RunPorts,
    cancel: CancellationToken,
) -> Result<RunOutcome, MemoryError> {
    let memory = SolveMemory::load_or_create(&input.dir, &input.question)?;
    let catalogue = Arc::new(ports.steps.catalogue());
    let cards: BTreeMap<ToolName, _> =
        catalogue.iter().map(|e| (e.card.name.clone(), Arc::clone(&e.card))).collect();
    let mut state = SolveState::new(memory, input.limits, Arc::new(cards), ports.roles.revises_errors());
    if let Some(decision) = input.decision {
        state.decide(decision);
    }
    let started_ms = (ports.now_ms)();
    let task = RunTask {
        deadline: Instant::now() + input.limits.max_time,
        input,
        ports,
        state,
        catalogue,
        calls: FuturesUnordered::new(),
        thoughts: FuturesUnordered::new(),
        // Not a child of `cancel`: the state decides what a cancelled run does with its calls.
        stop_calls: CancellationToken::new(),
        stop_by: None,
        started_ms,
    };
    Ok(task.drive(cancel).await)
}

impl RunTask {
    async fn drive(mut self, cancel: CancellationToken) -> RunOutcome {
        self.feed(SolveEvent::Start).await;
        while !self.state.is_ended() {
            let event = self.next_event(&cancel).await;
            self.feed(event).await;
        }
        RunOutcome::new(self.input.run_id.clone(), &self.state)
    }

    async fn next_event(&mut self, cancel: &CancellationToken) -> SolveEvent {
        let stop_by = self.stop_by;
        tokio::select! {
            biased;
            () = cancel.cancelled(), if stop_by.is_none() => SolveEvent::Cancel,
            // A call that ended just before the limit counts, so calls come before the clock.
            Some(event) = self.calls.next() => event,
            Some(event) = self.thoughts.next() => event,
            () = sleep_until(self.deadline), if stop_by.is_none() => SolveEvent::TimeUp,
            () = sleep_until(stop_by.unwrap_or(self.deadline)), if stop_by.is_some() => SolveEvent::StopExpired,
        }
    }

    /// Gives an event to the state and performs its effects. A write that fails is an event itself.
    async fn feed(&mut self, event: SolveEvent) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let mut effects = self.state.handle(event, (self.ports.now_ms)()).into_iter();
            while let Some(effect) = effects.next() {
                if let Err(message) = self.perform(effect).await {
                    // The rest of these effects stands on what could not be written.
                    let not_started = effects.by_ref().filter_map(|e| match e {
                        SolveEffect::Run { step, .. } => Some(step),
                        _ => None,
                    });
                    next = Some(SolveEvent::SaveFailed { message, not_started: not_started.collect() });
                }
            }
        }
    }

    async fn perform(&mut self, effect: SolveEffect) -> Result<(), String> {
        match effect {
            SolveEffect::Save => return self.save().await,
            SolveEffect::Emit(event) => self.ports.sink.event(&event),
            SolveEffect::Run { step, attempt, tool, arguments, node } => {
                let request = StepRequest {
                    run: self.input.run_id.clone(),
                    step: attempt_id(&step, attempt),
                    tool,
                    arguments,
                    timeout: self
                        .deadline
                        .saturating_duration_since(Instant::now())
                        .max(Duration::from_millis(1)),
                    node,
                };
                self.call(step, attempt, request);
            }
            SolveEffect::StopCalls => {
                self.stop_calls.cancel();
                self.thoughts.clear();
                self.stop_by = Some(Instant::now() + limits::STOP_WAIT);
            }
            SolveEffect::End => {}
            SolveEffect::Plan => {
                let roles = Arc::clone(&self.ports.roles);
                let input = PlanInput {
                    question: self.input.question.clone(),
                    plan_file: self.input.plan_file.clone(),
                    catalogue: Arc::clone(&self.catalogue),
                    max_steps: self.input.limits.max_steps,
                };
                self.think(async move { SolveEvent::Planned(roles.plan(input).await) });
            }
            SolveEffect::Manage(block) => {
                let roles = Arc::clone(&self.ports.roles);
                let memory = self.state.memory().clone();
                self.think(async move {
                    let result = match memory.block(block) {
                        Some(record) => roles.manage(record, &memory).await,
                        None => Err(RoleError(format!("no block {block}"))),
                    };
                    SolveEvent::Managed { block, result }
                });
            }
            SolveEffect::Act { step, attempt } => self.act(step, attempt),
            SolveEffect::Check(input) => {
                let roles = Arc::clone(&self.ports.roles);
                let (step, attempt) = (input.step.clone(), input.attempt);
                self.think(async move {
                    SolveEvent::Checked { step, attempt, result: roles.check(*input).await }
                });
            }
            SolveEffect::Format => {
                let roles = Arc::clone(&self.ports.roles);
                let memory = self.state.memory().clone();
                self.think(async move { SolveEvent::Formatted(roles.format(&memory).await) });
            }
        }
        Ok(())
    }

    fn think(&self, thought: impl Future<Output = SolveEvent> + Send + 'static) {
        self.thoughts.push(Box::pin(thought));
    }

    fn call(&self, step: StepId, attempt: u32, request: StepRequest) {
        let (steps, cancel) = (Arc::clone(&self.ports.steps), self.stop_calls.clone());
        self.calls.push(Box::pin(async move {
            SolveEvent::Reported { report: steps.run(request, cancel).await, step, attempt }
        }));
    }

    fn act(&self, step: StepId, attempt: u32) {
        let roles = Arc::clone(&self.ports.roles);
        let memory = Arc::new(self.state.memory().clone());
        let card = memory.step(&step).and_then(|(_, s)| self.state.card(&s.tool)).cloned();
        self.think(async move {
            let result = match memory.step(&step) {
                Some((_, record)) => {
                    let step = record.clone();
                    roles.act(ActInput { step, attempt, card, memory: Arc::clone(&memory) }).await
                }
                None => Err(RoleError(format!("no step {step}"))),
            };
            SolveEvent::Acted { step, attempt, result }
        });
    }

    /// The record on the disk, then the journal: a run that is listed has a record.
    async fn save(&mut self) -> Result<(), String> {
        let mut memory = self.state.memory().clone();
        memory.count();
        let record = RunRecord {
            run_id: self.input.run_id.clone(),
            question: self.input.question.clone(),
            status: self.state.status(),
            reason: memory.ending.as_ref().and_then(|e| e.reason.clone()),
            steps_done: memory.metadata.completed_steps,
            steps_total: memory.metadata.total_steps,
            started_ms: self.started_ms,
            updated_ms: (self.ports.now_ms)(),
        };
        let dir = self.input.dir.clone();
        let answer = self.state.answer().map(str::to_owned);
        let written = tokio::task::spawn_blocking(move || memory.save(&dir, answer.as_deref()));
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(error) => return Err(format!("the record was not written: {error}")),
        }
        self.ports.journal.record(record).await.map_err(|e| e.to_string())
    }
}
