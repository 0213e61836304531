//! Who thinks in a run. The rules engine implements these without a model; an engine with a model takes the same place.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::{card::ToolCard, id::StepId};
use serde_json::{Map, Value};

use super::{
    event::VerdictKind,
    memory::{BlockRecord, SolveMemory, StepRecord},
    plan::{PlanError, PlanOutcome, PlannedCall},
    ports::{CatalogueEntry, StepReport},
};

/// What the planner has to go by.
#[derive(Debug, Clone)]
pub struct PlanInput {
    /// The question.
    pub question: String,
    /// A plan that the owner wrote.
    pub plan_file: Option<PlanFile>,
    /// The tools of the mesh.
    pub catalogue: Arc<Vec<CatalogueEntry>>,
    /// Steps that one block may have.
    pub max_steps: usize,
}

/// A plan that the owner wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFile {
    /// Its name, for messages.
    pub name: String,
    /// YAML or JSON.
    pub text: String,
}

/// What a step's next attempt has to go by.
#[derive(Debug, Clone)]
pub struct ActInput {
    /// The step; its former attempts carry the checker's comments.
    pub step: StepRecord,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The tool's card, when a node has it.
    pub card: Option<Arc<ToolCard>>,
    /// The whole run so far.
    pub memory: Arc<SolveMemory>,
}

/// What to do for a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Run the step's tool with these arguments.
    Call(Map<String, Value>),
    /// Another attempt would change nothing, or would repeat a side effect: keep what is there, unresolved.
    Keep,
}

/// What the checker has to go by.
#[derive(Debug, Clone)]
pub struct CheckInput {
    /// The step.
    pub step: StepId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The tool's card, when a node has it.
    pub card: Option<Arc<ToolCard>>,
    /// The arguments of the call.
    pub arguments: Map<String, Value>,
    /// What came back.
    pub report: StepReport,
    /// What the step would contribute to the answer.
    pub content: String,
    /// Its sources.
    pub citations: Vec<String>,
}

/// What the checker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// In a word.
    pub kind: VerdictKind,
    /// What is wrong and how it could be right; given to the next attempt.
    pub comment: String,
    /// A better text for the same result.
    pub integrated_content: Option<String>,
}

impl Verdict {
    /// Good enough.
    #[must_use]
    pub const fn pass() -> Self {
        Self { kind: VerdictKind::Pass, comment: String::new(), integrated_content: None }
    }

    /// Once more, with this comment.
    #[must_use]
    pub fn needs_revision(comment: impl Into<String>) -> Self {
        Self { kind: VerdictKind::NeedsRevision, comment: comment.into(), integrated_content: None }
    }
}

/// A role could not do its part; the run fails with this message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RoleError(pub String);

/// Plans, manages, acts, checks and formats. Every method may be slow; a cancelled run drops it at any point.
#[async_trait]
pub trait Roles: Send + Sync {
    /// The name of the engine, for the record.
    fn engine(&self) -> &str;

    /// Whether a tool's error goes to the checker, and so to another attempt with other arguments. An engine that can't change
    /// the arguments says no: the run then fails with the tool's own message.
    fn revises_errors(&self) -> bool {
        false
    }

    /// Takes the question apart.
    ///
    /// # Errors
    /// [`PlanError`]: no run without a plan.
    async fn plan(&self, input: PlanInput) -> Result<PlanOutcome, PlanError>;

    /// The steps of a block, now that the blocks it depends on are done.
    ///
    /// # Errors
    /// [`RoleError`] fails the run.
    async fn manage(&self, block: &BlockRecord, memory: &SolveMemory) -> Result<Vec<PlannedCall>, RoleError>;

    /// The arguments of a step's next attempt.
    ///
    /// # Errors
    /// [`RoleError`] fails the run.
    async fn act(&self, input: ActInput) -> Result<Act, RoleError>;

    /// Judges an attempt.
    ///
    /// # Errors
    /// [`RoleError`] fails the run.
    async fn check(&self, input: CheckInput) -> Result<Verdict, RoleError>;

    /// The final answer in Markdown. Every citation in it is one of the run's.
    ///
    /// # Errors
    /// [`RoleError`] fails the run.
    async fn format(&self, memory: &SolveMemory) -> Result<String, RoleError>;
}
