//! What a run tells whoever watches it.
use octomesh_protocol::{
    id::{NodeName, StepId, ToolName},
    step::StepStatus,
};
use serde::{Deserialize, Serialize};

use super::block::BlockId;

/// Where a run stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RunStatus {
    /// Nothing has happened.
    NotStarted,
    /// In work.
    InProgress,
    /// There is an answer.
    Completed,
    /// A step or the plan failed.
    Failed,
    /// Stopped by its owner.
    Cancelled,
    /// Nobody can know whether a step with side effects ran.
    Uncertain,
}

impl RunStatus {
    /// Whether nothing more happens.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::NotStarted | Self::InProgress)
    }
}

/// What the checker says.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VerdictKind {
    /// Good enough.
    Pass,
    /// Once more.
    NeedsRevision,
}

/// A block of the plan, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSummary {
    /// The block.
    pub block_id: BlockId,
    /// What it is for.
    pub goal: String,
    /// What it waits for.
    pub depends_on: Vec<BlockId>,
    /// Steps that the planner knows already.
    pub steps: Vec<String>,
}

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEvent {
    /// There is a plan.
    Planned {
        /// Who made it.
        engine: String,
        /// Its blocks.
        blocks: Vec<BlockSummary>,
    },
    /// A step begins.
    StepStarted {
        /// The step.
        step_id: StepId,
        /// Its block.
        block_id: BlockId,
        /// The tool.
        tool: ToolName,
        /// What it is for.
        plan: String,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// A step's call has ended.
    StepFinished {
        /// The step.
        step_id: StepId,
        /// The tool.
        tool: ToolName,
        /// Where it ran.
        node: Option<NodeName>,
        /// How it ended.
        status: StepStatus,
        /// How long it took, in milliseconds.
        elapsed_ms: u64,
        /// Why it ran there.
        sentence: Option<String>,
    },
    /// The checker has spoken.
    Checked {
        /// The step.
        step_id: StepId,
        /// What it says.
        verdict: VerdictKind,
        /// In words.
        comment: String,
        /// About which attempt, from 1.
        attempt: u32,
    },
    /// A step is completed.
    StepCompleted {
        /// The step.
        step_id: StepId,
        /// Whether the checker was never satisfied.
        unresolved: bool,
    },
    /// The end of a run that has an answer.
    Answer {
        /// The answer in Markdown.
        answer: String,
        /// How long the run took, in milliseconds.
        elapsed_ms: u64,
    },
    /// The end of a run that has none.
    Failed {
        /// `failed`, `cancelled` or `uncertain`.
        status: RunStatus,
        /// Why.
        reason: String,
    },
}

impl RunEvent {
    /// The event as lines for people, without a line break at the end.
    #[must_use]
    pub fn to_lines(&self) -> String {
        match self {
            Self::Planned { engine, blocks } => {
                let mut text = format!("Plan by {engine}: {} blocks", blocks.len());
                for block in blocks {
                    text.push_str(&format!("\n  {}: {}", block.block_id, block.goal));
                    if !block.depends_on.is_empty() {
                        let names: Vec<_> = block.depends_on.iter().map(ToString::to_string).collect();
                        text.push_str(&format!(" (after {})", names.join(", ")));
                    }
                }
                text
            }
            Self::StepStarted { step_id, plan, tool, attempt, .. } => {
                let number = step_id.as_str().trim_start_matches('s').trim_start_matches('0');
                let again = if *attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
                format!(
                    "--- Step {number}: {step_id} ---{again}\n  Plan: {plan}\n  [Solve] Running {tool}..."
                )
            }
            Self::StepFinished { step_id, tool, node, status, elapsed_ms, sentence } => {
                let place = node.as_ref().map_or_else(|| "no node".to_owned(), |n| format!("node {n}"));
                let mut text = format!("  [Solve] {step_id} {tool}: {status} on {place} in {elapsed_ms} ms");
                if let Some(sentence) = sentence {
                    text.push_str(&format!("\n  [Why] {sentence}"));
                }
                text
            }
            Self::Checked { step_id, verdict, comment, .. } => {
                format!(
                    "  [Check] {step_id} Verdict: {verdict}{}{comment}",
                    if comment.is_empty() { "" } else { ": " }
                )
            }
            Self::StepCompleted { step_id, unresolved: false } => {
                format!("  \u{2713} Step {step_id} completed")
            }
            Self::StepCompleted { step_id, unresolved: true } => {
                format!("  ! Step {step_id} completed, unresolved")
            }
            Self::Answer { elapsed_ms, .. } => format!("[Format] Answer ready after {elapsed_ms} ms"),
            Self::Failed { status, reason } => format!("Run {status}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f74_log_lines() {
        let step_id = StepId::parse("s001").unwrap();
        let tool = ToolName::parse("calc").unwrap();
        let events = [
            RunEvent::StepStarted {
                step_id: step_id.clone(),
                block_id: BlockId::at(0),
                tool: tool.clone(),
                plan: "12 * 3".into(),
                attempt: 1,
            },
            RunEvent::StepFinished {
                step_id: step_id.clone(),
                tool,
                node: Some(NodeName::parse("pi").unwrap()),
                status: StepStatus::Ok,
                elapsed_ms: 3,
                sentence: Some("pi: idle".into()),
            },
            RunEvent::Checked {
                step_id: step_id.clone(),
                verdict: VerdictKind::Pass,
                comment: String::new(),
                attempt: 1,
            },
            RunEvent::StepCompleted { step_id, unresolved: false },
        ];
        let text: Vec<_> = events.iter().map(RunEvent::to_lines).collect();
        assert_eq!(
            text.join("\n"),
            "--- Step 1: s001 ---\n  Plan: 12 * 3\n  [Solve] Running calc...\n  [Solve] s001 calc: ok on node pi in 3 ms\n  [Why] pi: idle\n  [Check] s001 Verdict: pass\n  \u{2713} Step s001 completed"
        );
    }

    #[test]
    fn events_are_tagged() {
        let event = RunEvent::Failed { status: RunStatus::Failed, reason: "x".into() };
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            serde_json::json!({"type": "failed", "status": "failed", "reason": "x"})
        );
    }
}
