//! Plans as values: what a planner returns, and what it says when it has none.
use octomesh_protocol::{
    card::Effect,
    id::{NodeName, ToolName},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::block::BlockId;

/// A call that is known before the step runs. Arguments may hold references to earlier results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedCall {
    /// What the step is for, in words.
    pub plan: String,
    /// The tool.
    pub tool: ToolName,
    /// Its arguments; a text such as `${stats.lines}` or `$1.lines` stands for an earlier result.
    pub arguments: Map<String, Value>,
    /// Name of the result for later references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// Runs on this node or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

/// A part of the question with an objective of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedBlock {
    /// The name in the plan file, when there is one.
    pub name: Option<String>,
    /// What it is for.
    pub goal: String,
    /// Blocks whose results it uses; without any it may run at once.
    pub depends_on: Vec<BlockId>,
    /// Calls that the planner knows already; their step numbers are reserved in the order of the plan, so that `$3` means
    /// `s003` whatever block ends first.
    pub outline: Vec<PlannedCall>,
}

/// What a planner returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Who made it: `rules`, or an engine.
    pub engine: String,
    /// The blocks in order: `b001`, `b002` …
    pub blocks: Vec<PlannedBlock>,
}

/// A plan, or a question back.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanOutcome {
    /// A plan.
    Plan(Plan),
    /// The planner does not act on its own here.
    NeedsConfirmation(Box<NeedsConfirmation>),
}

/// One of the three best guesses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Guess {
    /// The tool.
    pub tool: ToolName,
    /// What running it twice does.
    pub effect: Effect,
    /// How well its card fits; only to be compared with the other guesses.
    pub score: f64,
    /// Arguments that were found in the text.
    pub arguments: Map<String, Value>,
    /// Required arguments that were not found, or found more than once.
    pub missing: Vec<String>,
    /// The guess as a command that can be given back as it is, once the missing arguments are filled in.
    pub command: String,
}

/// Why nothing was done, and what could be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeedsConfirmation {
    /// The part of the question that is meant.
    pub clause: String,
    /// At most three guesses, the best first.
    pub guesses: Vec<Guess>,
    /// What to do now.
    pub hint: String,
}

/// Why there is no plan. The variant's name is the error code that people see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to do.
    #[error("the question is empty")]
    EmptyQuestion,
    /// Over a bound.
    #[error("{what} is over its limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// The limit with its unit.
        limit: String,
    },
    /// No node has this tool.
    #[error("{place}: no node has a tool named {tool:?}{}", nearest(.suggestions))]
    UnknownTool {
        /// Where it is named.
        place: String,
        /// The name.
        tool: String,
        /// The nearest names.
        suggestions: Vec<String>,
    },
    /// Arguments that the tool's schema refuses.
    #[error("{place}: {tool}: {message}")]
    InvalidArguments {
        /// Where.
        place: String,
        /// The tool.
        tool: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A reference to a result that does not exist or may not exist yet.
    #[error("{place}: {message}")]
    InvalidReference {
        /// Where.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// A plan file or a recipe file that is not one.
    #[error("{place}: {message}")]
    InvalidFile {
        /// File, line or key.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The engine that plans has failed.
    #[error("the engine failed: {0}")]
    Engine(String),
}

fn nearest(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; near are: {}", names.join(", ")) }
}

impl PlanError {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::EmptyQuestion => "give a question, or a plan file with --plan",
            Self::TooLarge { .. } => "split it, or put large inputs into files of the workspace",
            Self::UnknownTool { .. } => "octomesh tools --all lists every tool of the mesh",
            Self::InvalidArguments { .. } => "octomesh tools show NAME shows the arguments",
            Self::InvalidReference { .. } => "write $$ for a dollar sign that is only text",
            Self::InvalidFile { .. } => "docs/plans.md has a complete example",
            Self::Engine(_) => "octomesh doctor checks the engines",
        }
    }
}
