//! What a record consists of; plain values with the names that the JSON has.
use octomesh_protocol::{
    card::SandboxLevel,
    id::{NodeName, StepId, ToolName},
    step::StepStatus,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::solve::{
    block::BlockId,
    citations::Citations,
    event::{RunStatus, VerdictKind},
    plan::PlannedCall,
};

/// Where a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum StepProgress {
    /// Not begun.
    Pending,
    /// Begun.
    InProgress,
    /// Done, perhaps `unresolved`.
    Completed,
}

/// Where the loop stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopProgress {
    /// No block has begun.
    NotStarted,
    /// Not all blocks are done.
    InProgress,
    /// All blocks are done and formatted.
    Completed,
}

/// One call of a tool for a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLog {
    /// The tool.
    pub tool: ToolName,
    /// `success`, or the name of the step status.
    pub status: String,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Why it did not end with a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One attempt at a step with the checker's verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// 1, 2, 3.
    pub attempt: u32,
    /// The arguments with all references resolved.
    pub arguments: Map<String, Value>,
    /// The verdict, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictKind>,
    /// What the checker said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its id, unique in the run.
    pub step_id: StepId,
    /// What it is for.
    pub plan: String,
    /// Where it stands.
    pub status: StepProgress,
    /// What it contributes to the answer.
    pub content: String,
    /// The ids of its sources: `[rag-1]`.
    pub citations: Vec<String>,
    /// Its calls.
    pub tool_logs: Vec<ToolLog>,
    /// The call as planned; references are not resolved.
    pub tool: ToolName,
    /// Arguments as planned.
    pub arguments: Map<String, Value>,
    /// Name of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// Only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<NodeName>,
    /// Its attempts with verdicts.
    pub attempts: Vec<AttemptRecord>,
    /// The checker was never satisfied.
    pub unresolved: bool,
    /// How the last call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<StepStatus>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Level it ran at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxLevel>,
    /// The stored placement decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_id: Option<String>,
    /// The decision itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Value>,
    /// The whole result, for references of later steps.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output: Value,
}

impl StepRecord {
    /// A step that has not begun.
    #[must_use]
    pub fn pending(step_id: StepId, call: PlannedCall) -> Self {
        Self {
            step_id,
            plan: call.plan,
            status: StepProgress::Pending,
            content: String::new(),
            citations: Vec::new(),
            tool_logs: Vec::new(),
            tool: call.tool,
            arguments: call.arguments,
            save_as: call.save_as,
            pinned: call.node,
            attempts: Vec::new(),
            unresolved: false,
            outcome: None,
            node: None,
            sandbox: None,
            decision_id: None,
            why: None,
            output: Value::Null,
        }
    }

    /// The step's number in the run, counted from 1.
    #[must_use]
    pub fn number(&self) -> usize {
        self.step_id.as_str().trim_start_matches('s').parse().unwrap_or_default()
    }
}

/// A block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// Its id.
    pub block_id: BlockId,
    /// What it is for.
    pub goal: String,
    /// Its steps; empty until it is managed.
    pub steps: Vec<StepRecord>,
    /// Its name in the plan file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it waits for.
    #[serde(default)]
    pub depends_on: Vec<BlockId>,
    /// Calls that the planner knew; gone once the block has steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outline: Vec<PlannedCall>,
    /// Number of its first step where the planner reserved numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<usize>,
    /// Whether its steps were planned.
    #[serde(default)]
    pub managed: bool,
    /// Steps that were planned over the limit and never ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut_steps: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl BlockRecord {
    /// Whether all its steps are done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.managed && self.steps.iter().all(|s| s.status == StepProgress::Completed)
    }
}

/// The blocks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlanRecord {
    /// In order.
    pub blocks: Vec<BlockRecord>,
}

/// How far the loop is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// In a word.
    pub status: LoopProgress,
    /// The block that began last.
    pub current_block: Option<BlockId>,
    /// The step that began last.
    pub current_step: Option<StepId>,
    /// In the order of completion.
    pub completed_blocks: Vec<BlockId>,
    /// In the order of completion.
    pub completed_steps: Vec<StepId>,
}

/// Counts; they equal the blocks at every save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Blocks.
    pub total_blocks: usize,
    /// Steps known so far.
    pub total_steps: usize,
    /// Steps that are done.
    pub completed_steps: usize,
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The final status.
    pub status: RunStatus,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The whole record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolveMemory {
    /// The question.
    pub user_question: String,
    /// Its plan.
    pub plan: PlanRecord,
    /// How far it is.
    pub progress: Progress,
    /// Counts.
    pub metadata: Counts,
    /// Sources of the answer.
    #[serde(default)]
    pub citations: Citations,
    /// Who planned.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine: String,
    /// How the run ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}
