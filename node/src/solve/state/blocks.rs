//! From the plan to steps: which block is next.
use crate::solve::{
    block::{BlockId, step_id},
    event::{BlockSummary, RunEvent, RunStatus},
    limits,
    memory::{BlockRecord, LoopProgress, StepProgress, StepRecord},
    plan::{Plan, PlanError, PlanOutcome, PlannedCall},
    roles::RoleError,
};

use super::{Effects, Phase, Refusal, SolveEffect, SolveState};

impl SolveState {
    pub(super) fn on_planned(
        &mut self,
        result: Result<PlanOutcome, PlanError>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        if self.phase != Phase::Planning {
            return;
        }
        match result {
            Ok(PlanOutcome::Plan(plan)) => self.take_plan(plan, now_ms, effects),
            Ok(PlanOutcome::NeedsConfirmation(question)) => {
                let reason = format!("{:?} needs confirmation", question.clause);
                self.refusal = Some(Refusal::NeedsConfirmation(question));
                self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
            Err(error) => {
                let reason = error.to_string();
                self.refusal = Some(Refusal::Plan(error));
                self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
        }
    }

    fn take_plan(&mut self, plan: Plan, now_ms: u64, effects: &mut Effects) {
        let steps: usize = plan.blocks.iter().map(|b| b.outline.len()).sum();
        if plan.blocks.is_empty() || plan.blocks.len() > limits::BLOCKS || steps > limits::STEPS {
            let reason = format!(
                "the plan has {} blocks and {steps} steps; a run has 1 to {} blocks and at most {} steps",
                plan.blocks.len(),
                limits::BLOCKS,
                limits::STEPS
            );
            return self.stop(RunStatus::Failed, reason, now_ms, effects);
        }
        self.memory.engine = plan.engine;
        let mut next = 1;
        for (index, block) in plan.blocks.into_iter().enumerate() {
            let first_step = (!block.outline.is_empty()).then_some(next);
            next += block.outline.len();
            self.memory.plan.blocks.push(BlockRecord {
                block_id: BlockId::at(index),
                goal: block.goal,
                steps: Vec::new(),
                name: block.name,
                depends_on: block.depends_on,
                outline: block.outline,
                first_step,
                managed: false,
                cut_steps: 0,
            });
        }
        // NotStarted -> InProgress; a plan is taken once.
        if let Err(error) = self.memory.advance(LoopProgress::InProgress) {
            return self.stop(RunStatus::Failed, error.to_string(), now_ms, effects);
        }
        self.phase = Phase::Working;
        effects.push(SolveEffect::Save);
        self.announce(effects);
        self.go_on(now_ms, effects);
    }

    pub(super) fn announce(&self, effects: &mut Effects) {
        let blocks = self.memory.plan.blocks.iter().map(|b| BlockSummary {
            block_id: b.block_id,
            goal: b.goal.clone(),
            depends_on: b.depends_on.clone(),
            steps: b
                .steps
                .iter()
                .map(|s| s.plan.clone())
                .chain(b.outline.iter().map(|c| c.plan.clone()))
                .collect(),
        });
        effects.push(SolveEffect::Emit(RunEvent::Planned {
            engine: self.memory.engine.clone(),
            blocks: blocks.collect(),
        }));
    }

    /// Begins every block that may begin; formats when all are done.
    pub(super) fn go_on(&mut self, now_ms: u64, effects: &mut Effects) {
        if self.phase != Phase::Working {
            return;
        }
        while self.active.len() < self.limits.max_parallel.max(1) {
            let Some(block) = self.next_block() else { break };
            let managed = self.memory.block(block).is_some_and(|b| b.managed);
            self.active.insert(block);
            if managed {
                self.next_step(block, effects);
            } else {
                self.memory.progress.current_block = Some(block);
                effects.push(SolveEffect::Manage(block));
            }
        }
        if !self.active.is_empty() {
            return;
        }
        if self.memory.plan.blocks.iter().all(BlockRecord::is_done) {
            self.phase = Phase::Formatting;
            effects.push(SolveEffect::Format);
        } else {
            let waiting: Vec<_> = self
                .memory
                .plan
                .blocks
                .iter()
                .filter(|b| !b.is_done())
                .map(|b| b.block_id.to_string())
                .collect();
            let reason = format!("these blocks wait for blocks that never end: {}", waiting.join(", "));
            self.stop(RunStatus::Failed, reason, now_ms, effects);
        }
    }

    fn next_block(&self) -> Option<BlockId> {
        let done = |id: &BlockId| self.memory.block(*id).is_some_and(BlockRecord::is_done);
        self.memory
            .plan
            .blocks
            .iter()
            .find(|b| !b.is_done() && !self.active.contains(&b.block_id) && b.depends_on.iter().all(done))
            .map(|b| b.block_id)
    }

    pub(super) fn on_managed(
        &mut self,
        block: BlockId,
        result: Result<Vec<PlannedCall>, RoleError>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        if self.phase != Phase::Working || !self.active.contains(&block) {
            return;
        }
        let calls = match result {
            Ok(calls) => calls,
            Err(error) => {
                return self.stop(
                    RunStatus::Failed,
                    format!("block {block} has no steps: {error}"),
                    now_ms,
                    effects,
                );
            }
        };
        let free = self.first_free_number();
        let most = self.limits.max_steps;
        let Some(record) = self.memory.block_mut(block) else { return };
        record.cut_steps = calls.len().saturating_sub(most);
        let reserved = record.outline.len();
        let numbers = record.first_step.map_or(0..0, |first| first..first + reserved).chain(free..);
        let steps: Vec<_> = calls
            .into_iter()
            .take(most)
            .zip(numbers)
            .filter_map(|(call, number)| Some(StepRecord::pending(step_id(number)?, call)))
            .collect();
        record.steps = steps;
        record.outline.clear();
        record.managed = true;
        if self.memory.steps().count() > limits::STEPS {
            let reason = format!("a run has at most {} steps", limits::STEPS);
            return self.stop(RunStatus::Failed, reason, now_ms, effects);
        }
        effects.push(SolveEffect::Save);
        self.next_step(block, effects);
        self.go_on(now_ms, effects);
    }

    /// The first step number that no step has and no block has reserved.
    fn first_free_number(&self) -> usize {
        let last = |b: &BlockRecord| {
            let reserved =
                b.first_step.map_or(0, |first| first + b.outline.len() - usize::from(!b.outline.is_empty()));
            b.steps.iter().map(StepRecord::number).max().unwrap_or_default().max(reserved)
        };
        self.memory.plan.blocks.iter().map(last).max().unwrap_or_default() + 1
    }

    /// Begins the next step of a block; without one the block is done.
    pub(super) fn next_step(&mut self, block: BlockId, effects: &mut Effects) {
        let next = self
            .memory
            .block(block)
            .and_then(|b| b.steps.iter().find(|s| s.status != StepProgress::Completed))
            .map(|s| (s.step_id.clone(), s.attempts.last().cloned()));
        match next {
            // A resumed run goes on with the attempt that has no verdict yet: the same call under the same key, so that nothing
            // is decided or run twice.
            Some((step, Some(last))) if last.verdict.is_none() => {
                self.call(step, block, last.attempt, last.arguments, effects);
            }
            Some((step, last)) => {
                let attempt = last.map_or(1, |a| a.attempt + 1);
                effects.push(SolveEffect::Act { step, attempt });
            }
            None => {
                self.active.remove(&block);
                if !self.memory.progress.completed_blocks.contains(&block) {
                    self.memory.progress.completed_blocks.push(block);
                }
            }
        }
    }
}
