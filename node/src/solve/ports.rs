//! What the solve loop asks of the rest of the node. Dispatch, the API and the journal implement these.
use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::{
    card::{SandboxLevel, ToolCard},
    id::{NodeName, RunId, StepId, ToolName},
    step::StepStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::event::{RunEvent, RunStatus};

/// A tool of the mesh and where it is.
#[derive(Debug, Clone)]
pub struct CatalogueEntry {
    /// What it is.
    pub card: Arc<ToolCard>,
    /// The nodes that have it.
    pub nodes: Vec<NodeName>,
}

/// One call to place and run.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRequest {
    /// The run.
    pub run: RunId,
    /// The step, with its attempt from the second on: `s001`, `s001.2`.
    pub step: StepId,
    /// The tool.
    pub tool: ToolName,
    /// Its arguments; all references are resolved.
    pub arguments: Map<String, Value>,
    /// Time left for the step.
    pub timeout: Duration,
    /// Only there.
    pub node: Option<NodeName>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// How it ended.
    pub status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`.
    pub output: Value,
    /// Where it ran, or was last tried.
    pub node: Option<NodeName>,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// Level it ran at.
    pub sandbox: SandboxLevel,
    /// The stored placement decision.
    pub decision_id: Option<String>,
    /// The decision itself: `{decision_id, sentence, chosen, candidates[], filtered[]}`.
    pub why: Option<Value>,
    /// Why it did not end with a result.
    pub reason: Option<String>,
    /// How many nodes were tried.
    pub attempts: u32,
}

/// Places and runs calls.
#[async_trait]
pub trait StepPort: Send + Sync {
    /// The tools of the mesh now, each name once.
    fn catalogue(&self) -> Vec<CatalogueEntry>;

    /// Places a call, runs it and waits for its end. Once `cancel` is cancelled the call is stopped wherever it runs, and the
    /// report says what became of it.
    async fn run(&self, request: StepRequest, cancel: CancellationToken) -> StepReport;
}

/// Where progress goes. Called from the run's task: it must not block.
pub trait RunSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: &RunEvent);
}

/// A run as the journal keeps it; written again at every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run.
    pub run_id: RunId,
    /// The question.
    pub question: String,
    /// How far it is, or how it ended.
    pub status: RunStatus,
    /// Why it did not complete.
    pub reason: Option<String>,
    /// Steps that are completed.
    pub steps_done: usize,
    /// Steps that are known so far.
    pub steps_total: usize,
    /// When it began, in milliseconds of the clock that was given to the run.
    pub started_ms: u64,
    /// When this record was made, in milliseconds of the same clock.
    pub updated_ms: u64,
}

/// The journal could not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("journal: {0}")]
pub struct JournalFailure(pub String);

/// Keeps the list of runs.
#[async_trait]
pub trait RunJournal: Send + Sync {
    /// Writes the record in place of the former one of this run.
    ///
    /// # Errors
    /// [`JournalFailure`]: the run then fails, because it could not be found again.
    async fn record(&self, record: RunRecord) -> Result<(), JournalFailure>;
}
