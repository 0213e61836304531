//! Ids of blocks, and the ids of steps as numbers.
use std::{fmt, str::FromStr};

use octomesh_protocol::id::StepId;
use serde::{Deserialize, Serialize};

/// A block of a run: `b001`, counted from 1 in the order of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlockId(u32);

/// Text that is not a block id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a block id is b and 3 to 6 digits")]
pub struct InvalidBlockId;

impl BlockId {
    /// The block with this place in the plan, counted from 0.
    #[must_use]
    pub fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Its place in the plan, counted from 0.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0.saturating_sub(1)).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{:03}", self.0)
    }
}

impl FromStr for BlockId {
    type Err = InvalidBlockId;

    fn from_str(text: &str) -> Result<Self, InvalidBlockId> {
        let digits = text.strip_prefix('b').filter(|d| (3..=6).contains(&d.len())).ok_or(InvalidBlockId)?;
        match digits.parse() {
            Ok(number) if number > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => Ok(Self(number)),
            _ => Err(InvalidBlockId),
        }
    }
}

impl TryFrom<String> for BlockId {
    type Error = InvalidBlockId;

    fn try_from(text: String) -> Result<Self, InvalidBlockId> {
        text.parse()
    }
}

impl From<BlockId> for String {
    fn from(id: BlockId) -> Self {
        id.to_string()
    }
}

/// The id of the step with this number, counted from 1 over all blocks of the run; `None` over 999,999.
#[must_use]
pub fn step_id(number: usize) -> Option<StepId> {
    StepId::parse(&format!("s{number:03}")).ok()
}

/// The key of one attempt at a step: the first has the step's own id, the others `s001.2`, `s001.3`. Every attempt is a call of
/// its own for whoever runs it.
#[must_use]
pub fn attempt_id(step: &StepId, attempt: u32) -> StepId {
    if attempt <= 1 {
        return step.clone();
    }
    StepId::parse(&format!("{step}.{attempt}")).unwrap_or_else(|_| step.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        assert_eq!(BlockId::at(0).to_string(), "b001");
        assert_eq!("b012".parse::<BlockId>().unwrap().index(), 11);
        for bad in ["", "b", "b1", "b000", "b-01", "b+01", "x001", "b1234567"] {
            assert!(bad.parse::<BlockId>().is_err(), "{bad}");
        }
        let step = step_id(7).unwrap();
        assert_eq!(step.as_str(), "s007");
        assert_eq!(attempt_id(&step, 1), step);
        assert_eq!(attempt_id(&step, 2).as_str(), "s007.2");
        assert!(step_id(1_000_000).is_none());
    }
}
