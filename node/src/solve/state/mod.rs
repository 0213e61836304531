//! The solve loop as a pure machine: events in, effects out. No clock (time comes with the event), no files, no network, so that
//! every order of events can be tested.
mod blocks;
mod ending;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use octomesh_protocol::{
    card::ToolCard,
    id::{NodeName, StepId, ToolName},
};
use serde_json::{Map, Value};

use super::{
    block::BlockId,
    doubt::{self, OnUncertain},
    event::{RunEvent, RunStatus},
    limits::SolveLimits,
    memory::{LoopProgress, SolveMemory},
    plan::{NeedsConfirmation, PlanError, PlanOutcome, PlannedCall},
    ports::StepReport,
    roles::{Act, CheckInput, RoleError, Verdict},
};

/// What happened.
#[derive(Debug)]
pub enum SolveEvent {
    /// Begin, or go on where the record ends.
    Start,
    /// The planner is done.
    Planned(Result<PlanOutcome, PlanError>),
    /// A block has steps.
    Managed {
        /// The block.
        block: BlockId,
        /// Its calls.
        result: Result<Vec<PlannedCall>, RoleError>,
    },
    /// A step knows what to do.
    Acted {
        /// The step.
        step: StepId,
        /// Which attempt, from 1.
        attempt: u32,
        /// What to do.
        result: Result<Act, RoleError>,
    },
    /// A call has ended.
    Reported {
        /// The step.
        step: StepId,
        /// Which attempt, from 1.
        attempt: u32,
        /// How.
        report: StepReport,
    },
    /// The checker has spoken.
    Checked {
        /// The step.
        step: StepId,
        /// Which attempt, from 1.
        attempt: u32,
        /// What it says.
        result: Result<Verdict, RoleError>,
    },
    /// The answer is written.
    Formatted(Result<String, RoleError>),
    /// The record or the journal could not be written.
    SaveFailed {
        /// Why.
        message: String,
        /// Steps whose call was therefore not made.
        not_started: Vec<StepId>,
    },
    /// The owner stops the run.
    Cancel,
    /// `max_time` is over.
    TimeUp,
    /// Calls that were stopped did not end in time.
    StopExpired,
}

/// What to do now, in this order.
#[derive(Debug)]
pub enum SolveEffect {
    /// Ask the planner.
    Plan,
    /// Ask for the steps of a block.
    Manage(BlockId),
    /// Ask what to do for an attempt.
    Act {
        /// The step.
        step: StepId,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// Run a call.
    Run {
        /// The step.
        step: StepId,
        /// Which attempt, from 1.
        attempt: u32,
        /// The tool.
        tool: ToolName,
        /// Its arguments.
        arguments: Map<String, Value>,
        /// Only there.
        node: Option<NodeName>,
    },
    /// Ask the checker.
    Check(Box<CheckInput>),
    /// Ask for the answer.
    Format,
    /// Write the record (and the answer, once there is one) before anything after this effect.
    Save,
    /// Tell whoever watches.
    Emit(RunEvent),
    /// Stop every running call and drop what the roles are at.
    StopCalls,
    /// The run is over.
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Idle,
    Planning,
    Working,
    Formatting,
    Stopping { status: RunStatus, reason: String },
    Ended,
}

/// Why nothing was run.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// The planner asks back.
    NeedsConfirmation(Box<NeedsConfirmation>),
    /// There is no plan.
    Plan(PlanError),
}

/// The run.
#[derive(Debug)]
pub struct SolveState {
    memory: SolveMemory,
    limits: SolveLimits,
    cards: Arc<BTreeMap<ToolName, Arc<ToolCard>>>,
    revises_errors: bool,
    phase: Phase,
    /// Blocks in work.
    active: BTreeSet<BlockId>,
    /// Steps whose call is out.
    running: BTreeSet<StepId>,
    /// Steps of which nobody knew whether they ran, and what was decided about them.
    doubted: BTreeMap<StepId, OnUncertain>,
    started_ms: u64,
    ended_ms: u64,
    answer: Option<String>,
    refusal: Option<Refusal>,
}

type Effects = Vec<SolveEffect>;

impl SolveState {
    /// A run over `memory`, which is new or was loaded.
    #[must_use]
    pub fn new(
        memory: SolveMemory,
        limits: SolveLimits,
        cards: Arc<BTreeMap<ToolName, Arc<ToolCard>>>,
        revises_errors: bool,
    ) -> Self {
        Self {
            memory,
            limits,
            cards,
            revises_errors,
            phase: Phase::Idle,
            active: BTreeSet::new(),
            running: BTreeSet::new(),
            doubted: BTreeMap::new(),
            started_ms: 0,
            ended_ms: 0,
            answer: None,
            refusal: None,
        }
    }

    /// A run that ended `uncertain` goes on; its doubtful steps are treated as decided, unless their nodes now know better.
    pub fn decide(&mut self, decision: OnUncertain) {
        let doubted = doubt::reopen(&mut self.memory, &self.cards);
        self.doubted = doubted.into_iter().map(|step| (step, decision)).collect();
    }

    /// The record.
    #[must_use]
    pub const fn memory(&self) -> &SolveMemory {
        &self.memory
    }

    /// The card of a tool.
    #[must_use]
    pub fn card(&self, tool: &ToolName) -> Option<&Arc<ToolCard>> {
        self.cards.get(tool)
    }

    /// The answer, once there is one; of a run that did not complete, what was found.
    #[must_use]
    pub fn answer(&self) -> Option<&str> {
        self.answer.as_deref()
    }

    /// Why nothing was run.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// Where the run stands.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        match (&self.memory.ending, self.memory.progress.status) {
            (Some(ending), _) => ending.status,
            (None, LoopProgress::NotStarted) => RunStatus::NotStarted,
            (None, _) => RunStatus::InProgress,
        }
    }

    /// Whether the run is over.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether calls are being stopped.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// When the run began and, once it is over, how long it took; in milliseconds.
    #[must_use]
    pub const fn times_ms(&self) -> (u64, u64) {
        (self.started_ms, self.ended_ms.saturating_sub(self.started_ms))
    }

    /// Takes an event and says what to do. An event that comes too late (its step is done, the run is stopping) does nothing.
    pub fn handle(&mut self, event: SolveEvent, now_ms: u64) -> Effects {
        let mut effects = Effects::new();
        match event {
            SolveEvent::Start => self.on_start(now_ms, &mut effects),
            SolveEvent::Planned(result) => self.on_planned(result, now_ms, &mut effects),
            SolveEvent::Managed { block, result } => self.on_managed(block, result, now_ms, &mut effects),
            SolveEvent::Acted { step, attempt, result } => {
                self.on_acted(step, attempt, result, now_ms, &mut effects);
            }
            SolveEvent::Reported { step, attempt, report } => {
                self.on_reported(step, attempt, report, now_ms, &mut effects);
            }
            SolveEvent::Checked { step, attempt, result } => {
                self.on_checked(step, attempt, result, now_ms, &mut effects);
            }
            SolveEvent::Formatted(result) => self.on_formatted(result, now_ms, &mut effects),
            SolveEvent::SaveFailed { message, not_started } => {
                self.on_save_failed(message, &not_started, now_ms, &mut effects);
            }
            SolveEvent::Cancel => {
                self.stop(RunStatus::Cancelled, "stopped by its owner".into(), now_ms, &mut effects);
            }
            SolveEvent::TimeUp => self.on_time_up(now_ms, &mut effects),
            SolveEvent::StopExpired => self.on_stop_expired(now_ms, &mut effects),
        }
        effects
    }

    fn on_start(&mut self, now_ms: u64, effects: &mut Effects) {
        if self.phase != Phase::Idle {
            return;
        }
        self.started_ms = now_ms;
        if self.memory.ending.is_some() {
            // The record of a run that is over: there is nothing to do again.
            self.phase = Phase::Ended;
            self.ended_ms = now_ms;
            effects.push(SolveEffect::End);
        } else if self.memory.plan.blocks.is_empty() {
            self.phase = Phase::Planning;
            effects.extend([SolveEffect::Save, SolveEffect::Plan]);
        } else {
            self.phase = Phase::Working;
            self.announce(effects);
            self.go_on(now_ms, effects);
        }
    }
}
