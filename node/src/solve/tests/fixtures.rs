//! Cards, a scripted mesh, scripted roles.
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use octomesh_protocol::{
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{NodeName, RunId, ToolName},
    step::StepStatus,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::solve::{
    doubt::OnUncertain,
    event::RunEvent,
    limits::SolveLimits,
    outcome::RunOutcome,
    ports::{
        CatalogueEntry, JournalFailure, RunJournal, RunRecord, RunSink, StepPort, StepReport, StepRequest,
    },
    roles::{PlanFile, Roles},
    rules::{RulesRoles, clauses::Ranker, recipes::Recipes},
    task::{RunInput, RunPorts, run},
};

pub(in crate::solve) fn card(
    name: &str,
    effect: Effect,
    data: &[&str],
    required: &[&str],
    properties: Value,
) -> Arc<ToolCard> {
    Arc::new(ToolCard {
        name: ToolName::parse(name).unwrap(),
        version: "1.0.0".into(),
        description: format!("{}.", name.replace('_', " ")),
        keywords: vec![],
        input_schema: json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false
        }),
        output_schema: None,
        examples: vec![],
        effect,
        needs: Needs::default(),
        typical_ms: 1,
        data: data.iter().map(|d| (*d).to_owned()).collect(),
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Builtin,
    })
}

pub(in crate::solve) fn cards() -> Vec<Arc<ToolCard>> {
    let text = json!({"type": "string"});
    let whole = json!({"type": "integer"});
    vec![
        card("calc", Effect::Pure, &[], &["expression"], json!({"expression": text})),
        card("echo", Effect::Pure, &[], &["text"], json!({"text": text})),
        card(
            "file_read",
            Effect::Pure,
            &["path"],
            &["path"],
            json!({"path": text, "offset": whole, "limit": whole}),
        ),
        card("file_search", Effect::Pure, &["path"], &["query"], json!({"query": text, "path": text})),
        card("file_list", Effect::Pure, &["path"], &[], json!({"path": text})),
        card(
            "file_write",
            Effect::Once,
            &[],
            &["path", "content"],
            json!({"path": text, "content": text, "append": {"type": "boolean"}}),
        ),
        card("hash", Effect::Pure, &["path"], &[], json!({"path": text, "text": text})),
        card("text_stats", Effect::Pure, &["path"], &["path"], json!({"path": text})),
        card(
            "time",
            Effect::Pure,
            &[],
            &["op"],
            json!({"op": {"type": "string", "enum": ["now", "parse"]}, "tz": text}),
        ),
        card(
            "image_render",
            Effect::Idempotent,
            &[],
            &["width"],
            json!({"width": whole, "height": whole, "tags": {"type": "array"}, "fast": {"type": "boolean"}}),
        ),
    ]
}

pub(in crate::solve) fn catalogue() -> Vec<CatalogueEntry> {
    cards().into_iter().map(|card| CatalogueEntry { card, nodes: vec![node("attic")] }).collect()
}

pub(in crate::solve) fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

pub(in crate::solve) fn ok(output: Value) -> StepReport {
    StepReport {
        status: StepStatus::Ok,
        output,
        node: Some(node("attic")),
        elapsed_ms: 5,
        sandbox: SandboxLevel::None,
        decision_id: Some("dec-1".into()),
        why: Some(
            json!({"decision_id": "dec-1", "sentence": "attic has the file", "chosen": "attic", "candidates": [], "filtered": []}),
        ),
        reason: None,
        attempts: 1,
    }
}

pub(in crate::solve) fn ended(status: StepStatus, reason: &str) -> StepReport {
    StepReport {
        status,
        output: json!({"error": {"code": "x", "message": reason}}),
        reason: Some(reason.into()),
        ..ok(Value::Null)
    }
}

/// Counts how many words of a query a card's name and description have.
pub(in crate::solve) struct WordRanker;

impl Ranker for WordRanker {
    fn rank(&self, cards: &[Arc<ToolCard>], query: &str, max: usize) -> Vec<(Arc<ToolCard>, f64)> {
        let query = query.to_lowercase();
        let score = |c: &ToolCard| {
            let text = format!("{} {}", c.name.as_str().replace('_', " "), c.description.to_lowercase());
            let words: std::collections::BTreeSet<_> =
                text.split(|c: char| !c.is_alphanumeric()).filter(|w| w.len() > 2).collect();
            words.iter().filter(|w| query.contains(**w)).count() as f64
        };
        let mut all: Vec<_> =
            cards.iter().map(|c| (Arc::clone(c), score(c))).filter(|(_, s)| *s > 0.0).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(max);
        all
    }
}

pub(in crate::solve) fn rules() -> Arc<dyn Roles> {
    Arc::new(RulesRoles::new(Recipes::embedded().unwrap(), Arc::new(WordRanker)))
}

type Behaviour = Box<dyn Fn(&StepRequest) -> (Duration, StepReport) + Send + Sync>;

/// A mesh that answers as it is told, and writes down what it was asked.
pub(in crate::solve) struct Mesh {
    behaviour: Behaviour,
    /// Waits this long after a cancel before it reports.
    pub(in crate::solve) stubborn: Duration,
    pub(in crate::solve) requests: Mutex<Vec<StepRequest>>,
    running: AtomicUsize,
    pub(in crate::solve) most_at_once: AtomicUsize,
    pub(in crate::solve) stopped: AtomicUsize,
}

impl Mesh {
    pub(in crate::solve) fn new(
        behaviour: impl Fn(&StepRequest) -> (Duration, StepReport) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self::build(behaviour))
    }

    pub(in crate::solve) fn build(
        behaviour: impl Fn(&StepRequest) -> (Duration, StepReport) + Send + Sync + 'static,
    ) -> Self {
        Self {
            behaviour: Box::new(behaviour),
            stubborn: Duration::ZERO,
            requests: Mutex::default(),
            running: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            stopped: AtomicUsize::new(0),
        }
    }

    /// Every tool answers at once in the form of the real one.
    pub(in crate::solve) fn quick() -> Arc<Self> {
        Self::new(|r| (Duration::ZERO, ok(plausible(r))))
    }

    pub(in crate::solve) fn asked(&self) -> Vec<(String, Value)> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|r| (r.step.to_string(), Value::Object(r.arguments.clone()))).collect()
    }
}

pub(in crate::solve) fn plausible(r: &StepRequest) -> Value {
    let text = |k: &str| r.arguments.get(k).and_then(Value::as_str).unwrap_or_default().to_owned();
    match r.tool.as_str() {
        "calc" => json!({"expression": text("expression"), "result": 36}),
        "text_stats" => json!({"path": text("path"), "lines": 120, "words": 900}),
        "file_read" => json!({"path": text("path"), "content": "A storm came.\nThen it left.\n"}),
        "file_search" => json!({"matches": [{"path": "a.md", "line": 3, "text": "the storm"}]}),
        "echo" => json!({"text": text("text")}),
        "hash" => json!({"path": text("path"), "sha256": "ab12"}),
        _ => json!({"done": true}),
    }
}

#[async_trait]
impl StepPort for Mesh {
    fn catalogue(&self) -> Vec<CatalogueEntry> {
        catalogue()
    }

    async fn run(&self, request: StepRequest, cancel: CancellationToken) -> StepReport {
        let (takes, report) = (self.behaviour)(&request);
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        self.requests.lock().unwrap().push(request);
        let report = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                tokio::time::sleep(self.stubborn).await;
                self.stopped.fetch_add(1, Ordering::SeqCst);
                ended(StepStatus::Cancelled, "cancelled")
            }
            () = tokio::time::sleep(takes) => report,
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        report
    }
}

/// Keeps events and journal records.
#[derive(Default)]
pub(in crate::solve) struct Log {
    pub(in crate::solve) events: Mutex<Vec<RunEvent>>,
    pub(in crate::solve) records: Mutex<Vec<RunRecord>>,
    pub(in crate::solve) fails: bool,
}

impl RunSink for Log {
    fn event(&self, event: &RunEvent) {
        self.events.lock().unwrap().push(event.clone());
    }
}

#[async_trait]
impl RunJournal for Log {
    async fn record(&self, record: RunRecord) -> Result<(), JournalFailure> {
        self.records.lock().unwrap().push(record);
        if self.fails { Err(JournalFailure("disk full".into())) } else { Ok(()) }
    }
}

pub(in crate::solve) struct Setup {
    pub(in crate::solve) roles: Arc<dyn Roles>,
    pub(in crate::solve) mesh: Arc<Mesh>,
    pub(in crate::solve) log: Arc<Log>,
    pub(in crate::solve) limits: SolveLimits,
    pub(in crate::solve) plan: Option<&'static str>,
    pub(in crate::solve) cancel: CancellationToken,
    pub(in crate::solve) decision: Option<OnUncertain>,
}

impl Setup {
    pub(in crate::solve) fn new(mesh: Arc<Mesh>) -> Self {
        Self {
            roles: rules(),
            mesh,
            log: Arc::default(),
            limits: SolveLimits::default(),
            plan: None,
            cancel: CancellationToken::new(),
            decision: None,
        }
    }

    pub(in crate::solve) async fn solve(&self, question: &str) -> RunOutcome {
        self.solve_in(tempfile::tempdir().unwrap().path(), question).await
    }

    pub(in crate::solve) async fn solve_in(&self, dir: &Path, question: &str) -> RunOutcome {
        let start = tokio::time::Instant::now();
        let ports = RunPorts {
            roles: Arc::clone(&self.roles),
            steps: self.mesh.clone(),
            sink: self.log.clone(),
            journal: self.log.clone(),
            now_ms: Arc::new(move || start.elapsed().as_millis().try_into().unwrap_or(u64::MAX)),
        };
        let input = RunInput {
            run_id: RunId::run([1; 8]),
            question: question.into(),
            plan_file: self.plan.map(|text| PlanFile { name: "plan.yaml".into(), text: text.into() }),
            dir: dir.to_owned(),
            limits: self.limits,
            decision: self.decision,
        };
        run(input, ports, self.cancel.clone()).await.unwrap()
    }
}

/// `step id -> status` of an outcome.
pub(in crate::solve) fn statuses(outcome: &RunOutcome) -> BTreeMap<String, String> {
    outcome.blocks.iter().flat_map(|b| &b.steps).map(|s| (s.step_id.to_string(), s.status.clone())).collect()
}
