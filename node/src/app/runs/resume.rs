//! Runs that go on: after a crash of this node by themselves, and after an `uncertain` end when somebody decided.
//!
//! A run's record says what was planned and which steps are done; none of that is done again. What was on its way is dispatch's
//! to find out ([`crate::dispatch`]). A run that never comes further, because it takes the node down each time, say, is given up.
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use octomesh_protocol::id::{NodeId, RunId, ToolName};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Going, OnUncertain, RunRequest, Runs, RunsError, Tracked, document};
use crate::{
    journal::{self, AttemptState, JournalError},
    membership::{MemberState, MeshView},
    solve::{
        event::RunStatus,
        memory::{SolveMemory, StepProgress},
        outcome::RunOutcome,
    },
};

/// How long a resumed run waits for members that it needs. Dials and sessions take a second; a member that is off is not waited
/// for longer than a person would.
const MEMBERS: Duration = Duration::from_secs(10);
/// Starts of this node in which a run may come no step further. The sixth gives it up, so that a run which takes its node down
/// does not do so for ever.
const RESUMES: u32 = 5;

/// What somebody who resumes a run is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// It was going on already.
    Live(RunId),
    /// It goes on now.
    Again(RunId),
}

impl Resumed {
    pub(crate) fn run(&self) -> &RunId {
        match self {
            Self::Live(run) | Self::Again(run) => run,
        }
    }
}

impl Runs {
    /// Runs that a crash or a power cut ended go on; single calls that it ended get their end in the journal.
    pub(crate) async fn resume_unfinished(&self) -> Result<(), JournalError> {
        let parts = &self.0.parts;
        let unfinished = parts.journal.unfinished_runs().await?;
        let going_on: BTreeSet<&str> = unfinished.iter().map(|row| row.run_id.as_str()).collect();
        let mut open = parts.journal.open_attempts().await?;
        open.retain(|row| !going_on.contains(row.run_id.as_str()));
        if !open.is_empty() {
            let dispatcher = parts.dispatcher.clone();
            let stop = parts.supervisor.stop_token().clone();
            parts.supervisor.spawn("old calls", async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    settled = dispatcher.settle_old(open) => if let Err(error) = settled {
                        tracing::warn!(%error, "calls that the last process left open stay open in the journal");
                    }
                }
            });
        }
        for row in &unfinished {
            let Ok(run_id) = RunId::parse(&row.run_id) else { continue };
            match self.go_on(&run_id, &row.question, row.started_at, None).await {
                Ok(()) => tracing::info!(run = %run_id, "a run that was cut off goes on"),
                Err(error) => tracing::error!(run = %run_id, %error, "a run that was cut off does not go on"),
            }
        }
        Ok(())
    }

    /// A live run stays as it is; one that ended `uncertain` goes on with the decision.
    pub(crate) async fn resume(&self, id: &str, decision: Option<OnUncertain>) -> Result<Resumed, RunsError> {
        if self.0.stopping.is_cancelled() {
            return Err(RunsError::Stopping);
        }
        let found = self.0.parts.journal.show_run(id).await?;
        let unknown = || RunsError::UnknownRun(id.chars().take(80).collect());
        let (row, result) = found.ok_or_else(unknown)?;
        let run_id = RunId::parse(&row.run_id).map_err(|_| unknown())?;
        if self.tracked(&run_id).is_some_and(|r| !*r.over.borrow()) {
            return Ok(Resumed::Live(run_id));
        }
        if row.status.is_final() && row.status != journal::RunStatus::Uncertain {
            return Err(RunsError::Over { run: row.run_id, status: row.status });
        }
        // One without an end that does not go on found no place when the node started.
        if row.status.is_final() && decision.is_none() {
            let reason = result.as_ref().and_then(|r| r.get("reason")).and_then(Value::as_str);
            let reason = reason.unwrap_or("whether one of its steps took effect can't be known").to_owned();
            return Err(RunsError::NeedsDecision { run: row.run_id, reason });
        }
        match self.go_on(&run_id, &row.question, row.started_at, decision).await {
            Ok(()) => Ok(Resumed::Again(run_id)),
            // Somebody else was faster.
            Err(RunsError::Live) => Ok(Resumed::Live(run_id)),
            Err(error) => Err(error),
        }
    }

    async fn go_on(
        &self,
        run_id: &RunId,
        question: &str,
        started_at: i64,
        decision: Option<OnUncertain>,
    ) -> Result<(), RunsError> {
        let parts = &self.0.parts;
        let tracked = self.track(run_id, question, u64::try_from(started_at / 1000).unwrap_or_default())?;
        let (resumes, asked) = match parts.journal.run_resumed(run_id).await {
            Ok(resumed) => resumed,
            Err(error) => {
                self.runs(|runs| runs.remove(run_id));
                return Err(error.into());
            }
        };
        let request =
            asked.and_then(|asked| serde_json::from_value(asked).ok()).unwrap_or_else(|| RunRequest {
                question: question.to_owned(),
                plan: None,
                engine: None,
                max_steps: None,
                max_time_s: None,
            });
        let (this, run_id) = (self.clone(), run_id.clone());
        parts.supervisor.spawn("run", async move {
            if let Some((status, document)) =
                this.is_over(&run_id, question_of(&tracked), resumes, decision).await
            {
                this.0.parts.metrics.solve.active.inc();
                return this.finish(&run_id, status, document, &tracked).await;
            }
            this.drive(run_id, Going { request, resumed: true, decision }, tracked).await;
        });
        Ok(())
    }

    /// The end of a run that has one: its record was written and only the journal does not know of it, or it is given up.
    async fn is_over(
        &self,
        run_id: &RunId,
        question: &str,
        resumes: u32,
        decision: Option<OnUncertain>,
    ) -> Option<(RunStatus, Value)> {
        let (dir, id) = (self.dir(run_id), run_id.clone());
        let loaded = tokio::task::spawn_blocking(move || RunOutcome::load(id, &dir)).await;
        let failed = |reason: String, outcome: Option<RunOutcome>| {
            let mut result = outcome
                .map_or_else(|| json!({"run_id": run_id, "blocks": [], "citations": []}), |o| o.to_json());
            if let Value::Object(fields) = &mut result {
                fields.insert("status".to_owned(), json!(RunStatus::Failed));
                fields.insert("reason".to_owned(), json!(reason));
            }
            Some((RunStatus::Failed, document(question, result)))
        };
        let outcome = match loaded {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => return failed(error.to_string(), None),
            Err(error) => return failed(error.to_string(), None),
        };
        match outcome {
            Some(outcome) if outcome.status != RunStatus::InProgress && decision.is_none() => {
                Some((outcome.status, document(question, outcome.to_json())))
            }
            outcome if resumes > RESUMES && decision.is_none() => {
                let words = "the node stopped in the middle of it";
                failed(format!("given up: {words} {resumes} times without one more step done"), outcome)
            }
            _ => None,
        }
    }

    /// Waits until the members that the run needs are seen, a while.
    pub(super) async fn until_seen(&self, run_id: &RunId, cancel: &CancellationToken) {
        let dir = self.dir(run_id);
        let memory = tokio::task::spawn_blocking(move || SolveMemory::load(&dir)).await;
        let memory = memory.ok().and_then(Result::ok).flatten();
        let needed = memory.filter(|m| !m.plan.blocks.is_empty()).map(|m| tools_to_come(&m));
        let open = self.0.parts.journal.attempts(run_id).await.unwrap_or_default();
        let open: BTreeSet<NodeId> =
            open.iter().filter(|a| a.state == AttemptState::StartSent).map(|a| a.node).collect();
        let mut view = self.0.parts.view.clone();
        let seen = view.wait_for(|view| is_seen(view, needed.as_ref(), &open));
        tokio::select! {
            () = cancel.cancelled() => {}
            seen = tokio::time::timeout(MEMBERS, seen) => if seen.is_err() {
                tracing::warn!(run = %run_id, "members that it needs are not seen; the run goes on without them");
            }
        }
    }
}

fn question_of(tracked: &Arc<Tracked>) -> &str {
    &tracked.question
}

/// Tools of steps that are not done.
fn tools_to_come(memory: &SolveMemory) -> BTreeSet<ToolName> {
    let blocks = || memory.plan.blocks.iter();
    let planned = blocks().flat_map(|b| &b.outline).map(|call| call.tool.clone());
    let steps = blocks().flat_map(|b| &b.steps).filter(|s| s.status != StepProgress::Completed);
    planned.chain(steps.map(|s| s.tool.clone())).collect()
}

/// Whether the tools are there and the nodes with steps connected; without a plan, whether everybody is there who may be.
fn is_seen(view: &MeshView, tools: Option<&BTreeSet<ToolName>>, nodes: &BTreeSet<NodeId>) -> bool {
    let usable = |m: &Arc<crate::membership::Member>| view.is_me(m.node) || (m.connected && m.tools_complete);
    let members = || view.members.values();
    let has = |tool: &ToolName| members().any(|m| usable(m) && m.tool(tool).is_some());
    let here = |node: &NodeId| view.is_me(*node) || view.get(*node).is_none_or(|m| m.connected);
    let tools = match tools {
        Some(tools) => tools.iter().all(has),
        None => members().all(|m| usable(m) || m.state == MemberState::Left),
    };
    tools && nodes.iter().all(here)
}
