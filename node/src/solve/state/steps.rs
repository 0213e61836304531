//! A step: act, run, check, perhaps again.
use octomesh_protocol::{id::StepId, step::StepStatus};
use serde_json::{Map, Value};

use crate::solve::{
    block::BlockId,
    citations::{self, Prefix},
    doubt::{self, OnUncertain},
    event::{RunEvent, RunStatus, VerdictKind},
    format,
    memory::{AttemptRecord, StepProgress, StepRecord, ToolLog},
    ports::StepReport,
    roles::{Act, CheckInput, RoleError, Verdict},
};

use super::{Effects, Phase, SolveEffect, SolveState};

impl SolveState {
    /// The step and its block, when the run still works on it.
    fn at_work(&self, step: &StepId) -> Option<(BlockId, &StepRecord)> {
        let (block, record) = self.memory.step(step)?;
        let open = record.status != StepProgress::Completed && self.active.contains(&block);
        (self.phase == Phase::Working && open).then_some((block, record))
    }

    pub(super) fn on_acted(
        &mut self,
        step: StepId,
        attempt: u32,
        result: Result<Act, RoleError>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let Some((block, record)) = self.at_work(&step) else { return };
        let tool = record.tool.clone();
        let arguments = match result {
            Ok(Act::Call(arguments)) => arguments,
            Ok(Act::Keep) => return self.complete(&step, block, true, now_ms, effects),
            Err(error) => {
                let reason = format!("step {step} ({tool}) could not begin: {error}");
                return self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
        };
        if let Err(error) = self.memory.begin_step(&step) {
            return self.stop(RunStatus::Failed, error.to_string(), now_ms, effects);
        }
        if let Some(record) = self.memory.step_mut(&step) {
            record.attempts.retain(|a| a.attempt != attempt);
            record.attempts.push(AttemptRecord {
                attempt,
                arguments: arguments.clone(),
                verdict: None,
                comment: String::new(),
            });
        }
        self.call(step, block, attempt, arguments, effects);
    }

    /// Runs an attempt that is in the memory.
    pub(super) fn call(
        &mut self,
        step: StepId,
        block: BlockId,
        attempt: u32,
        arguments: Map<String, Value>,
        effects: &mut Effects,
    ) {
        let Some((_, record)) = self.memory.step(&step) else { return };
        let (tool, node, plan) = (record.tool.clone(), record.pinned.clone(), record.plan.clone());
        self.running.insert(step.clone());
        effects.push(SolveEffect::Save);
        effects.push(SolveEffect::Emit(RunEvent::StepStarted {
            step_id: step.clone(),
            block_id: block,
            tool: tool.clone(),
            plan,
            attempt,
        }));
        effects.push(SolveEffect::Run { step, attempt, tool, arguments, node });
    }

    pub(super) fn on_reported(
        &mut self,
        step: StepId,
        attempt: u32,
        report: StepReport,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        if !self.running.remove(&step) {
            return;
        }
        let Some(record) = self.memory.step_mut(&step) else { return };
        note(record, &report);
        let tool = record.tool.clone();
        effects.push(SolveEffect::Emit(RunEvent::StepFinished {
            step_id: step.clone(),
            tool: tool.clone(),
            node: report.node.clone(),
            status: report.status,
            elapsed_ms: report.elapsed_ms,
            sentence: sentence(&report),
        }));
        if self.is_stopping() {
            if report.status == StepStatus::Uncertain {
                self.add_reason(&format!("step {step} ({tool}) is uncertain"));
            }
            return self.end_when_stopped(now_ms, effects);
        }
        if matches!(report.status, StepStatus::Uncertain | StepStatus::Cancelled)
            && let Some(decision) = self.doubted.remove(&step)
        {
            return self.as_decided(step, attempt, decision, now_ms, effects);
        }
        match report.status {
            StepStatus::Ok => self.ask_checker(step, attempt, report, effects),
            StepStatus::Error if self.revises_errors => self.ask_checker(step, attempt, report, effects),
            StepStatus::Uncertain => {
                let reason = failure(&step, tool.as_str(), &report);
                self.stop(RunStatus::Uncertain, reason, now_ms, effects);
            }
            _ => {
                let reason = failure(&step, tool.as_str(), &report);
                self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
        }
    }

    /// Its node could not say more than before, so what was decided holds.
    fn as_decided(
        &mut self,
        step: StepId,
        attempt: u32,
        decision: OnUncertain,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let Some((block, _)) = self.at_work(&step) else { return };
        let Some(record) = self.memory.step_mut(&step) else { return };
        doubt::decide(record, decision);
        let arguments = record.attempts.last().map(|a| a.arguments.clone()).unwrap_or_default();
        match decision {
            // The same call: nobody has to think about it again.
            OnUncertain::Retry => self.on_acted(step, attempt + 1, Ok(Act::Call(arguments)), now_ms, effects),
            OnUncertain::Skip => self.complete(&step, block, true, now_ms, effects),
        }
    }

    fn ask_checker(&mut self, step: StepId, attempt: u32, report: StepReport, effects: &mut Effects) {
        let Some(record) = self.memory.step(&step).map(|(_, s)| s) else { return };
        let arguments = record.attempts.last().map(|a| a.arguments.clone()).unwrap_or_default();
        let tool = record.tool.clone();
        let card = self.cards.get(&tool).cloned();
        let text = format::text_of(&report.output);
        let cited = if report.status == StepStatus::Ok && !text.is_empty() {
            let prefix = card.as_ref().map_or(Prefix::Code, |c| Prefix::of(c));
            let source = citations::source(tool.as_str(), &arguments, report.node.as_ref());
            vec![self.memory.citations.add(prefix, &text, &source)]
        } else {
            Vec::new()
        };
        let content = format::content(tool.as_str(), &arguments, &report.output, &cited);
        if let Some(record) = self.memory.step_mut(&step) {
            record.content.clone_from(&content);
            record.citations.clone_from(&cited);
        }
        effects.push(SolveEffect::Check(Box::new(CheckInput {
            step,
            attempt,
            card,
            arguments,
            report,
            content,
            citations: cited,
        })));
    }

    pub(super) fn on_checked(
        &mut self,
        step: StepId,
        attempt: u32,
        result: Result<Verdict, RoleError>,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let Some((block, record)) = self.at_work(&step) else { return };
        let verdict = match result {
            Ok(verdict) => verdict,
            Err(error) => {
                let reason = format!("step {step} ({}) could not be checked: {error}", record.tool);
                return self.stop(RunStatus::Failed, reason, now_ms, effects);
            }
        };
        if let Some(record) = self.memory.step_mut(&step) {
            if let Some(last) = record.attempts.iter_mut().find(|a| a.attempt == attempt) {
                last.verdict = Some(verdict.kind);
                last.comment.clone_from(&verdict.comment);
            }
            if let (VerdictKind::Pass, Some(better)) = (verdict.kind, verdict.integrated_content) {
                record.content = better;
            }
        }
        effects.push(SolveEffect::Emit(RunEvent::Checked {
            step_id: step.clone(),
            verdict: verdict.kind,
            comment: verdict.comment,
            attempt,
        }));
        match verdict.kind {
            VerdictKind::Pass => self.complete(&step, block, false, now_ms, effects),
            VerdictKind::NeedsRevision if attempt < self.limits.max_attempts => {
                effects.push(SolveEffect::Act { step, attempt: attempt + 1 });
            }
            VerdictKind::NeedsRevision => self.complete(&step, block, true, now_ms, effects),
        }
    }

    fn complete(
        &mut self,
        step: &StepId,
        block: BlockId,
        unresolved: bool,
        now_ms: u64,
        effects: &mut Effects,
    ) {
        let Some(record) = self.memory.step_mut(step) else { return };
        record.unresolved = unresolved;
        let (content, cited, logs) =
            (record.content.clone(), record.citations.clone(), record.tool_logs.clone());
        if let Err(error) = self.memory.complete_step(step, content, cited, logs) {
            return self.stop(RunStatus::Failed, error.to_string(), now_ms, effects);
        }
        let mut next = Effects::new();
        self.next_step(block, &mut next);
        effects.push(SolveEffect::Save);
        effects.push(SolveEffect::Emit(RunEvent::StepCompleted { step_id: step.clone(), unresolved }));
        effects.append(&mut next);
        self.go_on(now_ms, effects);
    }
}

fn note(record: &mut StepRecord, report: &StepReport) {
    let status =
        if report.status == StepStatus::Ok { "success".to_owned() } else { report.status.to_string() };
    record.tool_logs.push(ToolLog {
        tool: record.tool.clone(),
        status,
        elapsed_ms: report.elapsed_ms,
        node: report.node.clone(),
        reason: report.reason.clone(),
    });
    record.outcome = Some(report.status);
    record.node.clone_from(&report.node);
    record.sandbox = Some(report.sandbox);
    record.decision_id.clone_from(&report.decision_id);
    record.why.clone_from(&report.why);
    record.output.clone_from(&report.output);
}

fn sentence(report: &StepReport) -> Option<String> {
    report.why.as_ref()?.get("sentence")?.as_str().map(str::to_owned)
}

/// One sentence that names the step, the tool and the node.
fn failure(step: &StepId, tool: &str, report: &StepReport) -> String {
    let place = report.node.as_ref().map_or_else(String::new, |n| format!(" on {n}"));
    let message = report
        .reason
        .clone()
        .or_else(|| report.output.pointer("/error/message")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| report.status.to_string());
    match report.status {
        StepStatus::Error => format!("step {step} ({tool}) failed{place}: {message}"),
        StepStatus::Uncertain => format!("step {step} ({tool}) is uncertain{place}: {message}"),
        other => format!("step {step} ({tool}) failed{place} ({other}): {message}"),
    }
}
