//! What the router decided, and why.
use std::{fmt, str::FromStr};

use octomesh_protocol::{
    card::Effect,
    id::{CardHash, NodeId, NodeName, StepKey, ToolName},
};

use super::{Ask, FilterReason, Terms};

/// Text that is no decision id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a decision id: dec- and 16 hexadecimal characters")]
pub struct InvalidDecisionId;

/// Names a decision: `dec-` and 16 hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId([u8; 8]);

impl DecisionId {
    /// From 8 random bytes.
    #[must_use]
    pub const fn new(random: [u8; 8]) -> Self {
        Self(random)
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dec-{}", data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecisionId({self})")
    }
}

impl FromStr for DecisionId {
    type Err = InvalidDecisionId;

    fn from_str(text: &str) -> Result<Self, InvalidDecisionId> {
        let hex = text.strip_prefix("dec-").filter(|h| h.len() == 16).ok_or(InvalidDecisionId)?;
        let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).map_err(|_| InvalidDecisionId)?;
        bytes.try_into().map(Self).map_err(|_| InvalidDecisionId)
    }
}

/// A node that can run the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Who.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Expected time until the outcome is here, in milliseconds: the sum of the terms.
    pub cost_ms: f64,
    /// The terms.
    pub terms: Terms,
    /// Duration of the call by the card alone, in milliseconds.
    pub prior_ms: f64,
    /// Factor on durations there, as the node says; the one that `terms` contain.
    pub pace: f64,
    /// The card it would run.
    pub card: CardHash,
    /// The effect of that card.
    pub effect: Effect,
    /// The GPU that the step would get, by what is known of the node, in words.
    pub gpu: Option<String>,
    /// GPU memory to reserve, in bytes; 0 for none.
    pub vram: u64,
    /// Main memory to reserve, in bytes; 0 for none.
    pub memory: u64,
    /// Bytes that the step works on (arguments and data), the size under which its duration is remembered.
    pub work_bytes: u64,
}

impl Candidate {
    /// Expected duration of the call itself, as sent with the reservation, in milliseconds; at the node's usual pace, which it
    /// knows best itself.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range first")]
    pub fn est_ms(&self) -> u32 {
        (self.terms.exec / self.pace + self.terms.cold).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

/// A node that can't, and the first reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filtered {
    /// Who.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// The code.
    pub reason: FilterReason,
    /// Words that follow the node's name: "has no GPU".
    pub detail: String,
}

/// A node that was asked for a place and refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Who.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// The executor's code, or `lost` when it did not answer.
    pub reason: String,
    /// One sentence.
    pub detail: String,
}

/// A node whose own expected completion time is over this factor of what was promised, and [`PROMISE_MS`] more, refuses.
const PROMISE_FACTOR: f64 = 1.5;
const PROMISE_MS: f64 = 20.0;
/// Refusals kept in one decision; the dispatcher gives up after three, so this bounds a mistake only.
const REFUSALS: usize = 16;

/// What was decided for one step. The dispatcher adds what happened then.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Its id.
    pub id: DecisionId,
    /// The step.
    pub key: StepKey,
    /// The tool.
    pub tool: ToolName,
    /// The node to ask for a place; `None` when all are filtered.
    pub chosen: Option<Candidate>,
    /// All nodes that can run it, cheapest first.
    pub candidates: Vec<Candidate>,
    /// All others, in order of their names.
    pub filtered: Vec<Filtered>,
    /// Nodes that would be candidates if they have the data; nobody asked them yet.
    pub needs_probe: Vec<NodeId>,
    /// Who refused, in order.
    pub refusals: Vec<Refusal>,
    /// Where it ran in the end.
    pub ran_on: Option<NodeName>,
    /// The chosen node's cost when the step was started, in milliseconds.
    pub predicted_ms: Option<f64>,
    /// Time from the decision to the outcome, in milliseconds.
    pub took_ms: Option<u64>,
    /// What an earlier start of the step came to, in a sentence; nothing was placed anew then.
    pub kept: Option<String>,
}

impl Decision {
    pub(super) fn new(ask: &Ask) -> Self {
        Self {
            id: ask.decision,
            key: ask.key.clone(),
            tool: ask.tool.clone(),
            chosen: None,
            candidates: Vec::new(),
            filtered: Vec::new(),
            needs_probe: Vec::new(),
            refusals: Vec::new(),
            ran_on: None,
            predicted_ms: None,
            took_ms: None,
            kept: None,
        }
    }

    /// Whether every node is out.
    #[must_use]
    pub fn is_nowhere(&self) -> bool {
        self.chosen.is_none()
    }

    /// The longest wait in milliseconds with which the chosen node is still a good choice: its own expected completion time may be
    /// 1.5 times what was promised and 20 ms more, and as long as that of the second best. With no other node to go to, any wait is.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range first")]
    pub fn longest_wait_ms(&self) -> u32 {
        let Some(chosen) = &self.chosen else { return u32::MAX };
        let others = self.candidates.iter().filter(|c| c.node != chosen.node);
        let Some(second) = others.map(|c| c.cost_ms).min_by(f64::total_cmp) else { return u32::MAX };
        let most = (chosen.cost_ms * PROMISE_FACTOR + PROMISE_MS).max(second);
        let rest = chosen.cost_ms - chosen.terms.wait;
        (most - rest).ceil().clamp(0.0, f64::from(u32::MAX - 1)) as u32
    }

    /// The filtered entry of a node.
    #[must_use]
    pub fn filtered_for(&self, node: NodeId) -> Option<&Filtered> {
        self.filtered.iter().find(|f| f.node == node)
    }

    /// Notes that a node refused.
    pub fn refused(&mut self, refusal: Refusal) {
        if self.refusals.len() < REFUSALS {
            self.refusals.push(refusal);
        }
    }

    /// Takes the refusals of an earlier decision for the same step.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        self.refusals = earlier.refusals.clone();
        self
    }

    /// Notes where the step was started.
    pub fn started(&mut self, on: &Candidate) {
        self.ran_on = Some(on.name.clone());
        self.predicted_ms = Some(on.cost_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        let id = DecisionId::new([0xab; 8]);
        assert_eq!(id.to_string(), "dec-abababababababab");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "dec-", "dec-ABABABABABABABAB", "dec-abababababababab0", "run-abababababababab"] {
            assert_eq!(bad.parse::<DecisionId>(), Err(InvalidDecisionId), "{bad}");
        }
    }
}
