//! The record of a run: a passive logbook with the JSON schema that other programs read (`jq` on `solve_memory.json`), plus the
//! fields that a resumed run needs. It is written whole, to a file beside it, which then takes its place: a reader, or a node
//! that was killed in the middle, sees the old record or the new one.
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use octomesh_protocol::id::StepId;
use octomesh_tools::regular;

use super::{block::BlockId, citations::Citations};

mod record;

pub use record::{
    AttemptRecord, BlockRecord, Counts, Ending, LoopProgress, PlanRecord, Progress, SolveMemory,
    StepProgress, StepRecord, ToolLog,
};

/// Name of the record in the run's directory.
pub const MEMORY_FILE: &str = "solve_memory.json";
/// Name of the answer in the run's directory.
pub const ANSWER_FILE: &str = "final_answer.md";
/// A record is read back only up to this size: 256 steps with outputs of 256 KiB.
const MEMORY_BYTES: u64 = 128 * 1024 * 1024;

/// What the record refuses.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum MemoryError {
    /// The file could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a record.
    #[error("{path}: not a solve memory: {message}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        message: String,
    },
    /// The directory holds the record of another question.
    #[error("{path}: the record of another question", path = .path.display())]
    OtherQuestion {
        /// The file.
        path: PathBuf,
    },
    /// No such step.
    #[error("no step {0}")]
    UnknownStep(StepId),
    /// A step or the loop can't go there from where it is.
    #[error("{what} can't go from {from} to {to}")]
    Transition {
        /// The step, or `progress`.
        what: String,
        /// Where it is.
        from: String,
        /// Where it was to go.
        to: String,
    },
}

impl SolveMemory {
    /// A record without a plan.
    #[must_use]
    pub fn new(user_question: &str) -> Self {
        Self {
            user_question: user_question.to_owned(),
            plan: PlanRecord::default(),
            progress: Progress {
                status: LoopProgress::NotStarted,
                current_block: None,
                current_step: None,
                completed_blocks: Vec::new(),
                completed_steps: Vec::new(),
            },
            metadata: Counts::default(),
            citations: Citations::default(),
            engine: String::new(),
            ending: None,
        }
    }

    /// The record in `dir`, or a new one when there is none.
    ///
    /// # Errors
    /// [`MemoryError::Io`], [`MemoryError::Malformed`], and [`MemoryError::OtherQuestion`] when `dir` belongs to another run.
    pub fn load_or_create(dir: &Path, user_question: &str) -> Result<Self, MemoryError> {
        match Self::load(dir)? {
            Some(memory) if memory.user_question == user_question => Ok(memory),
            Some(_) => Err(MemoryError::OtherQuestion { path: dir.join(MEMORY_FILE) }),
            None => Ok(Self::new(user_question)),
        }
    }

    /// The record in `dir`; `None` when there is none.
    ///
    /// # Errors
    /// [`MemoryError::Io`] and [`MemoryError::Malformed`].
    pub fn load(dir: &Path) -> Result<Option<Self>, MemoryError> {
        let path = dir.join(MEMORY_FILE);
        let malformed = |message: String| MemoryError::Malformed { path: path.clone(), message };
        let bytes = match regular::read(&path, MEMORY_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                return Err(malformed("over 128 MiB".into()));
            }
            Err(source) => return Err(MemoryError::Io { path, source }),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|e| malformed(e.to_string()))
    }

    /// The JSON text that is saved.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut memory = self.clone();
        memory.count();
        // Strings, numbers and maps with string keys: there is nothing that could fail.
        serde_json::to_string_pretty(&memory).unwrap_or_default()
    }

    /// Writes the answer, when there is one, and the record. Both are on the disk when this returns, and a record of a run that
    /// is over never lacks its answer.
    ///
    /// # Errors
    /// [`MemoryError::Io`]; the former record is still there then.
    pub fn save(&mut self, dir: &Path, final_answer: Option<&str>) -> Result<(), MemoryError> {
        self.count();
        final_answer.map_or(Ok(()), |answer| write_whole(dir, ANSWER_FILE, answer))?;
        write_whole(dir, MEMORY_FILE, &self.to_json())
    }

    /// Brings the counts up to date.
    pub fn count(&mut self) {
        let steps = || self.plan.blocks.iter().flat_map(|b| &b.steps);
        self.metadata = Counts {
            total_blocks: self.plan.blocks.len(),
            total_steps: steps().count() + self.plan.blocks.iter().map(|b| b.outline.len()).sum::<usize>(),
            completed_steps: steps().filter(|s| s.status == StepProgress::Completed).count(),
        };
    }

    /// The block.
    #[must_use]
    pub fn block(&self, id: BlockId) -> Option<&BlockRecord> {
        self.plan.blocks.get(id.index())
    }

    /// The block, to be changed.
    pub fn block_mut(&mut self, id: BlockId) -> Option<&mut BlockRecord> {
        self.plan.blocks.get_mut(id.index())
    }

    /// All steps with their blocks, in the order of the plan.
    pub fn steps(&self) -> impl Iterator<Item = (BlockId, &StepRecord)> {
        self.plan.blocks.iter().flat_map(|b| b.steps.iter().map(move |s| (b.block_id, s)))
    }

    /// The step and its block.
    #[must_use]
    pub fn step(&self, id: &StepId) -> Option<(BlockId, &StepRecord)> {
        self.steps().find(|(_, s)| s.step_id == *id)
    }

    /// The step, to be changed.
    pub fn step_mut(&mut self, id: &StepId) -> Option<&mut StepRecord> {
        self.plan.blocks.iter_mut().flat_map(|b| &mut b.steps).find(|s| s.step_id == *id)
    }

    /// The step that is in work; when none is, the first that has not begun.
    #[must_use]
    pub fn get_current_step(&self) -> Option<&StepRecord> {
        let first = |status| self.steps().map(|(_, s)| s).find(|s| s.status == status);
        first(StepProgress::InProgress).or_else(|| first(StepProgress::Pending))
    }

    /// Marks a step as begun. A step that is in work already stays so: a resumed run begins it again.
    ///
    /// # Errors
    /// [`MemoryError::UnknownStep`]; [`MemoryError::Transition`] for a completed step.
    pub fn begin_step(&mut self, id: &StepId) -> Result<(), MemoryError> {
        let block = self.step(id).map(|(b, _)| b);
        let step = self.step_mut(id).ok_or_else(|| MemoryError::UnknownStep(id.clone()))?;
        if step.status == StepProgress::Completed {
            return Err(transition(id.as_str(), step.status, StepProgress::InProgress));
        }
        step.status = StepProgress::InProgress;
        self.progress.current_step = Some(id.clone());
        self.progress.current_block = block;
        Ok(())
    }

    /// Marks a step as completed with what it found.
    ///
    /// # Errors
    /// [`MemoryError::UnknownStep`]; [`MemoryError::Transition`] for a step that is not in work.
    pub fn complete_step(
        &mut self,
        id: &StepId,
        content: String,
        citations: Vec<String>,
        tool_logs: Vec<ToolLog>,
    ) -> Result<(), MemoryError> {
        let step = self.step_mut(id).ok_or_else(|| MemoryError::UnknownStep(id.clone()))?;
        if step.status != StepProgress::InProgress {
            return Err(transition(id.as_str(), step.status, StepProgress::Completed));
        }
        step.status = StepProgress::Completed;
        step.content = content;
        step.citations = citations;
        step.tool_logs = tool_logs;
        self.progress.completed_steps.push(id.clone());
        Ok(())
    }

    /// Moves the loop on: never back, never over a stage.
    ///
    /// # Errors
    /// [`MemoryError::Transition`].
    pub fn advance(&mut self, to: LoopProgress) -> Result<(), MemoryError> {
        use LoopProgress::{Completed, InProgress, NotStarted};
        match (self.progress.status, to) {
            (NotStarted | InProgress, InProgress) | (InProgress | Completed, Completed) => {
                self.progress.status = to;
                Ok(())
            }
            (from, to) => Err(MemoryError::Transition {
                what: "progress".into(),
                from: format!("{from:?}"),
                to: format!("{to:?}"),
            }),
        }
    }
}

fn transition(step: &str, from: StepProgress, to: StepProgress) -> MemoryError {
    MemoryError::Transition { what: step.to_owned(), from: from.to_string(), to: to.to_string() }
}

/// Writes a file beside `name`, brings it to the disk and lets it take the place of `name`. A run has one writer, so the name of
/// the file beside it may be fixed: what a killed node left there is overwritten.
fn write_whole(dir: &Path, name: &str, text: &str) -> Result<(), MemoryError> {
    let target = dir.join(name);
    let beside = dir.join(format!(".{name}.new"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &target)?;
        // The new name is on the disk when the directory is.
        File::open(dir)?.sync_all()
    };
    write().map_err(|source| MemoryError::Io { path: target.clone(), source })
}
