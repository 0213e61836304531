//! What a run returns: the JSON of `octomesh solve --json`, and the exit code.
use std::path::Path;

use octomesh_protocol::id::{NodeName, RunId, StepId, ToolName};
use octomesh_tools::regular;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    block::BlockId,
    event::RunStatus,
    format,
    memory::{ANSWER_FILE, AttemptRecord, MemoryError, SolveMemory, StepRecord},
    plan::{NeedsConfirmation, PlanError},
    state::{Refusal, SolveState},
};

/// No answer is longer: its record with all results may have 128 MiB.
const ANSWER_BYTES: u64 = 128 * 1024 * 1024;

/// A source of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CitationView {
    /// `[rag-1]`.
    pub id: String,
    /// What it says.
    pub content: String,
    /// Where it is from.
    pub source: String,
}

/// A step of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepView {
    /// The step.
    pub step_id: StepId,
    /// Its block.
    pub block_id: BlockId,
    /// What it is for.
    pub plan: String,
    /// The tool.
    pub tool: ToolName,
    /// Where it ran.
    pub node: Option<NodeName>,
    /// The step status of its last call; `pending` or `in_progress` when there was none.
    pub status: String,
    /// The last call's time, in milliseconds.
    pub elapsed_ms: u64,
    /// The placement decision.
    pub why: Option<Value>,
    /// What it contributed.
    pub content: String,
    /// The checker was never satisfied.
    pub unresolved: bool,
    /// Its attempts with verdicts.
    pub attempts: Vec<AttemptRecord>,
    /// The whole result.
    pub output: Value,
}

/// A block of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockView {
    /// The block.
    pub block_id: BlockId,
    /// Its name in the plan file.
    pub name: Option<String>,
    /// What it is for.
    pub goal: String,
    /// What it waited for.
    pub depends_on: Vec<BlockId>,
    /// Its steps.
    pub steps: Vec<StepView>,
}

/// What the run cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The engine that thought.
    pub engine: String,
    /// Tokens given to models.
    pub input_tokens: u64,
    /// Tokens made by models.
    pub output_tokens: u64,
    /// Calls of tools.
    pub tool_calls: usize,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunOutcome {
    /// The run.
    pub run_id: RunId,
    /// How it ended.
    pub status: RunStatus,
    /// The answer; of a run that did not complete, what was found.
    pub answer: Option<String>,
    /// The sources that it names.
    pub citations: Vec<CitationView>,
    /// Its blocks.
    pub blocks: Vec<BlockView>,
    /// What it can't vouch for.
    pub unresolved: Vec<String>,
    /// What it cost.
    pub usage: Usage,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// Why it did not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why nothing was run.
    #[serde(skip)]
    pub refusal: Option<Refusal>,
}

impl RunOutcome {
    pub(super) fn new(run_id: RunId, state: &SolveState) -> Self {
        let memory = state.memory();
        let (_, elapsed_ms) = state.times_ms();
        Self {
            answer: state.answer().map(str::to_owned),
            elapsed_ms,
            refusal: state.refusal().cloned(),
            ..Self::from_memory(run_id, memory)
        }
    }

    /// The outcome of the run whose directory this is, with its answer when there is one; `None` when there is no record.
    ///
    /// # Errors
    /// [`MemoryError`] when the record can't be read.
    pub fn load(run_id: RunId, dir: &Path) -> Result<Option<Self>, MemoryError> {
        let Some(memory) = SolveMemory::load(dir)? else { return Ok(None) };
        // Without it the record still tells the rest.
        let answer = regular::read_text(&dir.join(ANSWER_FILE), ANSWER_BYTES).ok();
        Ok(Some(Self { answer, ..Self::from_memory(run_id, &memory) }))
    }

    /// The outcome as far as the record of a run tells it: without the answer's text and the time.
    #[must_use]
    pub fn from_memory(run_id: RunId, memory: &SolveMemory) -> Self {
        let ending = memory.ending.as_ref();
        Self {
            run_id,
            status: ending.map_or(RunStatus::InProgress, |e| e.status),
            answer: None,
            citations: format::used(memory)
                .into_iter()
                .map(|c| CitationView {
                    id: c.id.clone(),
                    content: c.content.clone(),
                    source: c.source.clone(),
                })
                .collect(),
            blocks: blocks(memory),
            unresolved: format::unresolved(memory),
            usage: Usage {
                engine: memory.engine.clone(),
                input_tokens: 0,
                output_tokens: 0,
                tool_calls: memory.steps().map(|(_, s)| s.tool_logs.len()).sum(),
            },
            elapsed_ms: 0,
            reason: ending.and_then(|e| e.reason.clone()),
            refusal: None,
        }
    }

    /// The exit code of a command that shows this outcome.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match (&self.refusal, self.status) {
            (Some(Refusal::NeedsConfirmation(_)), _) => 3,
            (Some(Refusal::Plan(PlanError::Engine(_))), _) => 1,
            (Some(Refusal::Plan(_)), _) => 2,
            (None, RunStatus::Completed) => 0,
            (None, RunStatus::Uncertain) => 5,
            (None, RunStatus::Cancelled) => 130,
            (None, _) => 1,
        }
    }

    /// The JSON object of `--json`: the outcome, or `{error: {code, message, hint}}` when nothing was run.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.refusal {
            Some(Refusal::NeedsConfirmation(question)) => needs_confirmation(question),
            Some(Refusal::Plan(error)) => {
                json!({"error": {"code": error.code(), "message": error.to_string(), "hint": error.hint()}})
            }
            None => serde_json::to_value(self).unwrap_or_default(),
        }
    }
}

fn needs_confirmation(question: &NeedsConfirmation) -> Value {
    json!({"error": {
        "code": "needs_confirmation",
        "message": format!("not sure enough to act on {:?}", question.clause),
        "hint": question.hint,
        "clause": question.clause,
        "guesses": question.guesses,
    }})
}

fn blocks(memory: &SolveMemory) -> Vec<BlockView> {
    let view = |block_id, s: &StepRecord| StepView {
        step_id: s.step_id.clone(),
        block_id,
        plan: s.plan.clone(),
        tool: s.tool.clone(),
        node: s.node.clone(),
        status: s.outcome.map_or_else(|| s.status.to_string(), |o| o.to_string()),
        elapsed_ms: s.tool_logs.last().map_or(0, |l| l.elapsed_ms),
        why: s.why.clone(),
        content: s.content.clone(),
        unresolved: s.unresolved,
        attempts: s.attempts.clone(),
        output: s.output.clone(),
    };
    memory
        .plan
        .blocks
        .iter()
        .map(|b| BlockView {
            block_id: b.block_id,
            name: b.name.clone(),
            goal: b.goal.clone(),
            depends_on: b.depends_on.clone(),
            steps: b.steps.iter().map(|s| view(b.block_id, s)).collect(),
        })
        .collect()
}
