//! How a run ends.
use octomesh_protocol::{id::StepId, step::StepStatus};

use crate::solve::{
    event::{RunEvent, RunStatus},
    format,
    memory::{Ending, LoopProgress},
    roles::RoleError,
};

use super::{Effects, Phase, SolveEffect, SolveState};

impl SolveState {
    /// Ends the run without a full answer: at once, or when the running calls have stopped.
    pub(super) fn stop(&mut self, status: RunStatus, reason: String, now_ms: u64, effects: &mut Effects) {
        if self.is_ended() || self.is_stopping() {
            return;
        }
        self.phase = Phase::Stopping { status, reason };
        effects.push(SolveEffect::StopCalls);
        self.end_when_stopped(now_ms, effects);
    }

    pub(super) fn add_reason(&mut self, more: &str) {
        if let Phase::Stopping { reason, .. } = &mut self.phase {
            reason.push_str("; ");
            reason.push_str(more);
        }
    }

    pub(super) fn end_when_stopped(&mut self, now_ms: u64, effects: &mut Effects) {
        let Phase::Stopping { status, reason } = &self.phase else { return };
        if !self.running.is_empty() {
            return;
        }
        let (status, reason) = (*status, reason.clone());
        self.phase = Phase::Ended;
        self.ended_ms = now_ms;
        self.active.clear();
        self.memory.ending = Some(Ending { status, reason: Some(reason.clone()) });
        if self.refusal.is_none() {
            self.answer = Some(format::unfinished(&self.memory, &reason));
        }
        effects.push(SolveEffect::Save);
        effects.push(SolveEffect::Emit(RunEvent::Failed { status, reason }));
        effects.push(SolveEffect::End);
    }

    pub(super) fn on_formatted(
        &mut self,
        result: Result<String, RoleError>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        if self.phase != Phase::Formatting {
            return;
        }
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                let reason = format!("the answer could not be written: {error}");
                return self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
        };
        if let Err(error) = self.memory.advance(LoopProgress::Completed) {
            return self.stop(RunStatus::Failed, error.to_string(), now_ms, effects);
        }
        self.phase = Phase::Ended;
        self.ended_ms = now_ms;
        self.memory.ending = Some(Ending { status: RunStatus::Completed, reason: None });
        self.answer = Some(answer.clone());
        effects.push(SolveEffect::Save);
        effects.push(SolveEffect::Emit(RunEvent::Answer {
            answer,
            elapsed_ms: now_ms.saturating_sub(self.started_ms),
        }));
        effects.push(SolveEffect::End);
    }

    pub(super) fn on_save_failed(
        &mut self,
        message: String,
        not_started: &[StepId],
        now_ms: u64,
        effects: &mut Effects,
    ) {
        for step in not_started {
            self.running.remove(step);
        }
        if self.is_ended() {
            // The answer exists but its record does not: the run must not look completed.
            let (status, reason) = (RunStatus::Failed, message);
            self.memory.ending = Some(Ending { status, reason: Some(reason.clone()) });
            effects.push(SolveEffect::Emit(RunEvent::Failed { status, reason }));
            return;
        }
        self.stop(RunStatus::Failed, message, now_ms, effects);
        self.end_when_stopped(now_ms, effects);
    }

    pub(super) fn on_time_up(&mut self, now_ms: u64, effects: &mut Effects) {
        let limit = self.limits.max_time.as_secs_f64();
        let running: Vec<_> = self
            .running
            .iter()
            .map(|id| match self.memory.step(id) {
                Some((_, s)) => format!("{id} ({})", s.tool),
                None => id.to_string(),
            })
            .collect();
        let place =
            if running.is_empty() { String::new() } else { format!(" at step {}", running.join(", ")) };
        self.stop(
            RunStatus::Failed,
            format!("the time limit of {limit} s was reached{place}"),
            now_ms,
            effects,
        );
    }

    /// Calls that did not say how they ended are uncertain: nobody here knows.
    pub(super) fn on_stop_expired(&mut self, now_ms: u64, effects: &mut Effects) {
        if !self.is_stopping() {
            return;
        }
        for step in std::mem::take(&mut self.running) {
            if let Some(record) = self.memory.step_mut(&step) {
                record.outcome = Some(StepStatus::Uncertain);
            }
            self.add_reason(&format!("step {step} did not say in time whether it stopped"));
        }
        self.end_when_stopped(now_ms, effects);
    }
}
