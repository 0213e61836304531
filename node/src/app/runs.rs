//! Runs of this node: starts them, keeps their events for whoever watches, stops them. A run lives on without its client, and
//! goes on after a crash of this node ([`resume`]).
mod resume;

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
    failpoint::{self, Failpoint},
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
        doubt::OnUncertain,
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
    #[error("no run {0:?} on this node")]
    UnknownRun(String),
    #[error("the run goes on")]
    Live,
    #[error("run {run} is {status}; only one that is uncertain can be resumed")]
    Over { run: String, status: journal::RunStatus },
    #[error("run {run}: {reason}")]
    NeedsDecision { run: String, reason: String },
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

/// What a run goes on with.
struct Going {
    request: RunRequest,
    /// An earlier process of this node, or an earlier life of the run, may have started steps of it.
    resumed: bool,
    decision: Option<OnUncertain>,
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
        if record.steps_total > 0 && record.steps_done == 0 {
            failpoint::reached(Failpoint::PlanStored, None);
        }
        if record.steps_done > 0 {
            failpoint::reached(Failpoint::StepStored, None);
        }
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
        let tracked = self.track(&run_id, &request.question, parts.clock.unix())?;
        let dir = self.dir(&run_id);
        // Plain values: there is nothing that could fail.
        let asked = serde_json::to_value(&request).unwrap_or_default();
        let recorded = match home::private_folder(&dir) {
            Ok(()) => {
                parts.journal.run_started(&run_id, &request.question, &asked).await.map_err(RunsError::from)
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = recorded {
            self.runs(|runs| runs.remove(&run_id));
            return Err(error);
        }
        failpoint::reached(Failpoint::RunRow, None);
        let (this, id) = (self.clone(), run_id.clone());
        let going = Going { request, resumed: false, decision: None };
        parts.supervisor.spawn("run", async move { this.drive(id, going, tracked).await });
        Ok(run_id)
    }

    fn dir(&self, run: &RunId) -> PathBuf {
        self.0.parts.folder.join(run.as_str())
    }

    /// A place among the live runs.
    fn track(&self, run_id: &RunId, question: &str, started_at: u64) -> Result<Arc<Tracked>, RunsError> {
        let (live, _) = broadcast::channel(WATCHER);
        let tracked = Arc::new(Tracked {
            question: question.to_owned(),
            started_at,
            cancel: self.0.stopping.child_token(),
            events: Mutex::default(),
            live,
            over: watch::channel(false).0,
        });
        self.runs(|runs| {
            let is_active = |r: &Arc<Tracked>| !*r.over.borrow();
            if runs.get(run_id).is_some_and(is_active) {
                return Err(RunsError::Live);
            }
            if runs.values().filter(|r| is_active(r)).count() >= ACTIVE {
                return Err(RunsError::Busy);
            }
            if runs.len() >= ACTIVE + KEPT {
                let oldest = runs.iter().filter(|(_, r)| !is_active(r)).min_by_key(|(_, r)| r.started_at);
                oldest.map(|(id, _)| id.clone()).and_then(|id| runs.remove(&id));
            }
            runs.insert(run_id.clone(), Arc::clone(&tracked));
            Ok(tracked)
        })
    }

    async fn drive(&self, run_id: RunId, going: Going, tracked: Arc<Tracked>) {
        let parts = &self.0.parts;
        let Going { request, resumed, decision } = going;
        parts.metrics.solve.active.inc();
        if resumed {
            self.until_seen(&run_id, &tracked.cancel).await;
        }
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
            dir: self.dir(&run_id),
            limits,
            decision,
        };
        let ports = RunPorts {
            roles: Arc::clone(&parts.roles),
            steps: Arc::new(MeshSteps {
                dispatcher: parts.dispatcher.clone(),
                view: parts.view.clone(),
                watch: Arc::clone(&tracked) as Arc<dyn StepWatch>,
                resumed,
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
        failpoint::reached(Failpoint::Final, None);
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
            let memory = SolveMemory::load(&self.dir(run)).ok().flatten();
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
