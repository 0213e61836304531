//! Bounds of a run, with their reasons.
use std::time::Duration;

/// A question: long enough for a pasted list of commands, short enough to split in microseconds.
pub const QUESTION_BYTES: usize = 64 * 1024;
/// A plan file: a hundred steps with arguments of a few kilobytes.
pub const PLAN_FILE_BYTES: usize = 1024 * 1024;
/// Blocks of one plan.
pub const BLOCKS: usize = 64;
/// Steps of one plan over all blocks: what a person can still read in an answer.
pub const STEPS: usize = 256;
/// Text of one citation, in characters: an excerpt, the step keeps the whole output.
pub const CITATION_CHARS: usize = 2_000;
/// Text that a step contributes to the answer, in characters.
pub const CONTENT_CHARS: usize = 4_000;
/// Words of a clause that recipes look at; a longer clause is no template's text.
pub const CLAUSE_WORDS: usize = 120;
/// How long a stopped run waits for its steps to stop before it ends without them.
pub const STOP_WAIT: Duration = Duration::from_secs(2);

/// What the caller may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SolveLimits {
    /// Steps of one block.
    pub max_steps: usize,
    /// The whole run; cuts a running step.
    pub max_time: Duration,
    /// Runs of one step until the checker is satisfied, the first included.
    pub max_attempts: u32,
    /// Blocks in work at the same time; more would only queue on the nodes.
    pub max_parallel: usize,
}

impl Default for SolveLimits {
    fn default() -> Self {
        Self { max_steps: 10, max_time: Duration::from_secs(300), max_attempts: 3, max_parallel: 8 }
    }
}
