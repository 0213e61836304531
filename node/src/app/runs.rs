//! Runs of this node: starts them, keeps their events for whoever watches, stops them. A run lives on without its client.
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use octomesh_protocol::{
    id::RunId,
    step::{Event, EventKind},
};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    home::{self, HomeError},
    step_port::{MeshSteps, StepWatch},
    supervise::Supervisor,
};
use crate::{
    api::types::{RunEvent, RunRequest},
    dispatch::Dispatcher,
    journal::{self, JournalHandle},
    membership::MeshView,
    metrics::NodeMetrics,
    router::Decision,
    solve::{
        event as solved,
        limits::SolveLimits,
        memory::SolveMemory,
        outcome::RunOutcome,
        ports::{JournalFailure, RunJournal, RunRecord, RunSink},
        roles::{PlanFile, Roles},
        task::{self, RunInput, RunPorts},
    },
};

/// Runs at once; each is a task with a few calls out.
const ACTIVE: usize = 64;
/// Runs that are over and whose events are still kept for a late watcher.
const KEPT: usize = 64;
/// Events of one run; the oldest progress goes first.
const EVENTS: usize = 2048;
/// Events on their way to one watcher.
const WATCHER: usize = 256;

/// Why a run does not start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum RunsError {
    #[error("{ACTIVE} runs are going on here; wait for one or cancel one")]
    Busy,
    #[error("engine {0:?} is not here; this node has: rules")]
    NoEngine(String),
    #[error("the question is empty")]
    EmptyQuestion,
    #[error("the run's folder: {0}")]
    Folder(#[from] HomeError),
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    #[error("this node is stopping")]
    Stopping,
}

struct Tracked {
    question: String,
    started_at: u64,
    cancel: CancellationToken,
    events: Mutex<Events>,
    live: broadcast::Sender<RunEvent>,
    over: watch::Sender<bool>,
}

#[derive(Default)]
struct Events {
    past: VecDeque<RunEvent>,
    next: u64,
    blocks: BTreeMap<String, String>,
    last: Option<Value>,
}

impl Tracked {
    fn events<T>(&self, access: impl FnOnce(&mut Events) -> T) -> T {
        access(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, event: Value) {
        let Value::Object(body) = event else { return };
        self.events(|events| {
            events.next += 1;
            let event = RunEvent { seq: events.next, body };
            if events.past.len() >= EVENTS {
                events.past.pop_front();
            }
            events.past.push_back(event.clone());
            // Sent under the lock, so that a watcher that replays the past misses nothing and sees nothing twice.
            // silent-ok: nobody watches
            let _ = self.live.send(event);
        });
    }
}

impl RunSink for Tracked {
    fn event(&self, event: &solved::RunEvent) {
        if let solved::RunEvent::StepStarted { step_id, block_id, .. } = event {
            self.events(|e| e.blocks.insert(step_of(step_id.as_str()).to_owned(), block_id.to_string()));
        }
        self.tell(serde_json::to_value(event).unwrap_or_default());
    }
}

impl StepWatch for Tracked {
    fn placed(&self, step: &octomesh_protocol::id::StepKey, decision: &Decision) {
        let step_id = step.step.to_string();
        let block_id = self.events(|e| e.blocks.get(step_of(&step_id)).cloned()).unwrap_or_default();
        self.tell(json!({
            "type": "step_placed",
            "step_id": step_id,
            "block_id": block_id,
            "tool": decision.tool,
            "node": decision.ran_on,
            "decision_id": decision.id.to_string(),
            "sentence": decision.sentence(),
        }));
    }

    fn said(&self, step: &octomesh_protocol::id::StepKey, event: &Event) {
        if event.kind == EventKind::Output {
            return;
        }
        self.tell(json!({"type": "step_progress", "step_id": step.step, "text": event.text}));
    }
}

/// The last event of every run.
const ENDED: &str = "ended";

/// The solve loop's document with the question, which a list of runs shows.
fn document(question: &str, mut document: Value) -> Value {
    if let Value::Object(fields) = &mut document {
        fields.insert("question".to_owned(), Value::from(question));
    }
    document
}

/// In the document of a run that was cut off: the step that nobody knows the end of, and where it was started.
fn mark_uncertain(document: &mut Value, step: &str, node: &str) {
    let blocks = document.get_mut("blocks").and_then(Value::as_array_mut).into_iter().flatten();
    let steps = blocks.filter_map(|b| b.get_mut("steps").and_then(Value::as_array_mut)).flatten();
    for found in steps.filter(|s| s.get("step_id").and_then(Value::as_str) == Some(step_of(step))) {
        if let Value::Object(fields) = found {
            fields.insert("status".to_owned(), json!(octomesh_protocol::step::StepStatus::Uncertain));
            fields.insert("node".to_owned(), json!(node));
        }
    }
}

/// `s001.2` is the second attempt of `s001`.
fn step_of(step: &str) -> &str {
    step.split('.').next().unwrap_or(step)
}

/// The runs of a node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Runs(Arc<Inner>);

pub(crate) struct RunsParts {
    pub(crate) folder: PathBuf,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) journal: JournalHandle,
    pub(crate) roles: Arc<dyn Roles>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) supervisor: Supervisor,
}

struct Inner {
    parts: RunsParts,
    /// Held for look-ups and inserts only.
    runs: Mutex<BTreeMap<RunId, Arc<Tracked>>>,
    stopping: CancellationToken,
}

struct Journal(JournalHandle);

#[async_trait]
impl RunJournal for Journal {
    async fn record(&self, record: RunRecord) -> Result<(), JournalFailure> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.0
            .run_progress(&record.run_id, count(record.steps_done), count(record.steps_total))
            .await
            .map_err(|e| JournalFailure(e.to_string()))
    }
}

impl Runs {
    pub(crate) fn new(parts: RunsParts) -> Self {
        Self(Arc::new(Inner { parts, runs: Mutex::default(), stopping: CancellationToken::new() }))
    }

    /// Runs that a crash or a power cut ended are over: their record says so instead of "in progress" for ever.
    pub(crate) async fn settle_unfinished(&self) -> Result<(), journal::JournalError> {
        let journal = &self.0.parts.journal;
        for row in journal.unfinished_runs().await? {
            let Ok(run_id) = RunId::parse(&row.run_id) else { continue };
            let dir = self.0.parts.folder.join(run_id.as_str());
            let mut result = match SolveMemory::load(&dir) {
                Ok(Some(memory)) => RunOutcome::from_memory(run_id.clone(), &memory).to_json(),
                Ok(None) | Err(_) => json!({"run_id": run_id, "blocks": [], "citations": []}),
            };
            let (status, reason) = match self.may_have_run(&run_id).await? {
                Some(open) => {
                    let view = self.0.parts.view.borrow().clone();
                    let node =
                        view.get(open.node).map_or_else(|| open.node.to_string(), |m| m.name.to_string());
                    mark_uncertain(&mut result, &open.step_id, &node);
                    let step = format!("{} ({}) on {node}", open.step_id, open.tool);
                    let words = "the node stopped before the run was over; whether";
                    (journal::RunStatus::Uncertain, format!("{words} {step} took effect can't be known"))
                }
                None => (journal::RunStatus::Failed, "the node stopped before the run was over".to_owned()),
            };
            if let Value::Object(fields) = &mut result {
                fields.insert("status".to_owned(), json!(status));
                fields.insert("reason".to_owned(), json!(reason));
            }
            tracing::warn!(run = %run_id, %status, reason, "a run was cut off");
            let end = journal::RunFinished { status, result: document(&row.question, result) };
            journal.run_finished(&run_id, end).await?;
        }
        Ok(())
    }

    /// A step of the run that must not run twice, was started, and has no outcome.
    async fn may_have_run(&self, run: &RunId) -> Result<Option<journal::AttemptRow>, journal::JournalError> {
        let attempts = self.0.parts.journal.attempts(run).await?;
        Ok(attempts
            .into_iter()
            .find(|a| !a.effect.may_repeat() && a.state == journal::AttemptState::StartSent))
    }

    fn runs<T>(&self, access: impl FnOnce(&mut BTreeMap<RunId, Arc<Tracked>>) -> T) -> T {
        access(&mut self.0.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a run.
    pub(crate) async fn start(&self, request: RunRequest) -> Result<RunId, RunsError> {
        if self.0.stopping.is_cancelled() {
            return Err(RunsError::Stopping);
        }
        if let Some(engine) = request.engine.as_deref().filter(|e| *e != "rules") {
            return Err(RunsError::NoEngine(engine.chars().take(80).collect()));
        }
        if request.question.trim().is_empty() && request.plan.is_none() {
            return Err(RunsError::EmptyQuestion);
        }
        let parts = &self.0.parts;
        let run_id = RunId::run(parts.clock.id_bytes());
        let dir = parts.folder.join(run_id.as_str());
        let (live, _) = broadcast::channel(WATCHER);
        let tracked = Arc::new(Tracked {
            question: request.question.clone(),
            started_at: parts.clock.unix(),
            cancel: self.0.stopping.child_token(),
            events: Mutex::default(),
            live,
            over: watch::channel(false).0,
        });
        let known = self.runs(|runs| {
            let active = runs.values().filter(|r| !*r.over.borrow()).count();
            if active >= ACTIVE {
                return false;
            }
            if runs.len() >= ACTIVE + KEPT {
                let oldest = runs.iter().filter(|(_, r)| *r.over.borrow()).min_by_key(|(_, r)| r.started_at);
                oldest.map(|(id, _)| id.clone()).and_then(|id| runs.remove(&id));
            }
            runs.insert(run_id.clone(), Arc::clone(&tracked));
            true
        });
        if !known {
            return Err(RunsError::Busy);
        }
        let recorded = match home::private_folder(&dir) {
            Ok(()) => parts.journal.run_started(&run_id, &request.question).await.map_err(RunsError::from),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = recorded {
            self.runs(|runs| runs.remove(&run_id));
            return Err(error);
        }
        let (this, id) = (self.clone(), run_id.clone());
        parts.supervisor.spawn("run", async move { this.drive(id, request, dir, tracked).await });
        Ok(run_id)
    }

    async fn drive(&self, run_id: RunId, request: RunRequest, dir: PathBuf, tracked: Arc<Tracked>) {
        let parts = &self.0.parts;
        parts.metrics.solve.active.inc();
        let mut limits = SolveLimits::default();
        if let Some(steps) = request.max_steps {
            limits.max_steps = usize::try_from(steps).unwrap_or(usize::MAX).clamp(1, limits.max_steps * 10);
        }
        if let Some(seconds) = request.max_time_s {
            limits.max_time = Duration::from_secs(u64::from(seconds.max(1)));
        }
        let begun = tokio::time::Instant::now();
        let input = RunInput {
            run_id: run_id.clone(),
            question: request.question.clone(),
            plan_file: request.plan.map(|text| PlanFile { name: "plan".to_owned(), text }),
            dir,
            limits,
        };
        let ports = RunPorts {
            roles: Arc::clone(&parts.roles),
            steps: Arc::new(MeshSteps {
                dispatcher: parts.dispatcher.clone(),
                view: parts.view.clone(),
                watch: Arc::clone(&tracked) as Arc<dyn StepWatch>,
            }),
            sink: Arc::clone(&tracked) as Arc<dyn RunSink>,
            journal: Arc::new(Journal(parts.journal.clone())),
            now_ms: Arc::new(move || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)),
        };
        let (status, document) = match task::run(input, ports, tracked.cancel.clone()).await {
            Ok(outcome) => (outcome.status, document(&tracked.question, outcome.to_json())),
            Err(error) => {
                let error = json!({"error": {"code": "failed", "message": error.to_string(), "hint": null}});
                (solved::RunStatus::Failed, document(&tracked.question, error))
            }
        };
        self.finish(&run_id, status, document, &tracked).await;
    }

    async fn finish(&self, run_id: &RunId, status: solved::RunStatus, document: Value, tracked: &Tracked) {
        let parts = &self.0.parts;
        let stored = match status {
            solved::RunStatus::Completed => journal::RunStatus::Completed,
            solved::RunStatus::Cancelled => journal::RunStatus::Cancelled,
            solved::RunStatus::Uncertain => journal::RunStatus::Uncertain,
            solved::RunStatus::Failed | solved::RunStatus::NotStarted | solved::RunStatus::InProgress => {
                journal::RunStatus::Failed
            }
        };
        let end = journal::RunFinished { status: stored, result: document.clone() };
        if let Err(error) = parts.journal.run_finished(run_id, end).await {
            tracing::error!(%error, run = %run_id, "the end of a run was not recorded");
        }
        parts.metrics.solve.active.dec();
        parts.metrics.solve.runs.with_label_values(&[<&str>::from(status)]).inc();
        tracked.events(|e| e.last = Some(document));
        tracked.tell(json!({"type": ENDED, "status": status}));
        tracked.over.send_replace(true);
    }

    /// The live run with this id.
    fn tracked(&self, run: &RunId) -> Option<Arc<Tracked>> {
        self.runs(|runs| runs.get(run).cloned())
    }

    /// A run that is over, as it ended; of one that is going on, what its record tells so far.
    pub(crate) fn current(&self, run: &RunId) -> Option<Value> {
        let tracked = self.tracked(run)?;
        let last = tracked.events(|e| e.last.clone());
        Some(last.unwrap_or_else(|| {
            let path = self.0.parts.folder.join(run.as_str()).join("solve_memory.json");
            let memory: Option<SolveMemory> =
                std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let so_far = match memory {
                // Its last record is written before its answer: until the end is told, it goes on.
                Some(memory) if memory.ending.is_some() => {
                    let mut outcome = RunOutcome::from_memory(run.clone(), &memory);
                    (outcome.status, outcome.reason) = (solved::RunStatus::InProgress, None);
                    outcome.to_json()
                }
                Some(memory) => RunOutcome::from_memory(run.clone(), &memory).to_json(),
                None => json!({"run_id": run, "status": solved::RunStatus::NotStarted, "blocks": []}),
            };
            document(&tracked.question, so_far)
        }))
    }

    /// All events: those that were, then those that come.
    pub(crate) fn watch(&self, run: &RunId) -> Option<mpsc::Receiver<RunEvent>> {
        let tracked = self.tracked(run)?;
        let (past, mut live) = tracked.events(|e| (e.past.clone(), tracked.live.subscribe()));
        let (sender, receiver) = mpsc::channel(WATCHER);
        self.0.parts.supervisor.spawn("run watcher", async move {
            let mut over = false;
            for event in past {
                over |= event.kind() == ENDED;
                if sender.send(event).await.is_err() {
                    return;
                }
            }
            while !over {
                match live.recv().await {
                    Ok(event) => {
                        over = event.kind() == ENDED;
                        if sender.send(event).await.is_err() {
                            return;
                        }
                    }
                    // A slow watcher has a gap; the end is kept for it below.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        Some(receiver)
    }

    /// Stops a run and waits a little for its steps to end.
    pub(crate) async fn cancel(&self, run: &RunId) -> Option<Value> {
        let tracked = self.tracked(run)?;
        tracked.cancel.cancel();
        let mut over = tracked.over.subscribe();
        // silent-ok: a run that does not end in time is reported as it is
        let _ = tokio::time::timeout(Duration::from_secs(8), over.wait_for(|over| *over)).await;
        self.current(run)
    }

    /// Cancels all runs and waits for them.
    pub(crate) async fn stop(&self, patience: Duration) {
        self.0.stopping.cancel();
        let all: Vec<_> = self.runs(|runs| runs.values().map(|r| r.over.subscribe()).collect());
        let ended = futures::future::join_all(all.into_iter().map(|mut over| async move {
            // silent-ok: the sender lives as long as the run is tracked
            let _ = over.wait_for(|over| *over).await;
        }));
        // silent-ok: what is left is stopped with the node
        let _ = tokio::time::timeout(patience, ended).await;
    }
}
