//! Steps that an earlier process of this node had started: what became of them, and what that means.
//!
//! ```text
//!  the row says where ─> Status ─┬─ done         its result is taken
//!                                ├─ running      followed to its outcome, under the lease that it has
//!                                ├─ granted      the same; it begins now, and only once
//!                                ├─ unseen       it never began: placed like a new one
//!                                └─ interrupted, or nobody answers: placed again (pure, idempotent), else `uncertain`
//! ```
//!
//! A start of the earlier process that is still on its way can't begin the step a second time: it needs a lease that is still
//! granted, and that lease now has this process's epoch.
use std::time::Duration;

use octomesh_protocol::{
    card::{Effect, SandboxLevel},
    id::{CardHash, NodeId, StepKey},
    step::{Cancel, Event, Message, Outcome, Reserve, StatusQuery, StatusReply, StepStatus},
};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    COMES_BACK, CallAsk, CallDone, Dispatcher, Ended, INTERRUPTED, Tries, failed, millis,
    remote::{REATTACH_EVERY, STOP_GRACE},
};
use crate::journal::{AttemptRow, AttemptState, JournalError};

/// How long a node may stay away until a call on it, for which nobody waits any more, is written off.
const OLD_CALLS: Duration = Duration::from_secs(60);
/// Old calls that are asked about at once.
const ASKED_AT_ONCE: usize = 8;

/// Whether a step with this outcome may be placed again: it was stopped because its coordinator was not heard, and it may
/// repeat or never began. (A step with a side effect that runs is not stopped for that.)
pub(super) fn may_go_on(outcome: &Outcome, effect: Effect) -> bool {
    let never_began = || {
        let output: Value = serde_json::from_slice(&outcome.output).unwrap_or_default();
        outcome.elapsed_ms == 0 && output.pointer("/error/code").is_some_and(|code| code == "lease_lost")
    };
    outcome.status == StepStatus::Cancelled && (effect.may_repeat() || never_began())
}

impl Dispatcher {
    /// The end of a step that was started before this node came back; `None` when it is to be placed like a new one.
    pub(super) async fn earlier(
        &self,
        ask: &CallAsk,
        begun: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Option<CallDone> {
        if !ask.resumed {
            return None;
        }
        let parts = &self.0.parts;
        let found = parts.journal.attempt(&ask.key).await;
        let row = match found {
            Ok(row) => row?,
            Err(error) => {
                let decision = self.decide(ask, self.decision_id(), &Tries::default(), ask.timeout).await;
                let text =
                    format!("whether it was started before can't be read, so it was not started: {error}");
                return Some(failed(StepStatus::Error, "journal", &text, decision, 0));
            }
        };
        let ended = self.ask_about(ask, &row, begun + ask.timeout, cancel, events).await;
        if cancel.is_cancelled() && matches!(ended, Ended::NotStarted(_)) {
            // As if it had been placed: `attempts` says that it was cancelled.
            return None;
        }
        let name = self.view().get(row.node).map(|m| m.name.clone());
        let place = name.as_ref().map_or_else(|| row.node.to_string(), ToString::to_string);
        let (outcome, kept) = match ended {
            Ended::Outcome(outcome) if may_go_on(&outcome, row.effect) && !cancel.is_cancelled() => {
                return None;
            }
            Ended::Outcome(outcome) if outcome.status == StepStatus::Refused => return None,
            Ended::Outcome(outcome) => {
                (Some(outcome), format!("{place} had it when this node came back; its outcome was taken"))
            }
            Ended::NotStarted(_) => return None,
            Ended::Lost(_) | Ended::Silent(_) | Ended::Interrupted if row.effect.may_repeat() => return None,
            Ended::Lost(detail) | Ended::Silent(detail) => (None, detail),
            Ended::Interrupted => (None, INTERRUPTED.to_owned()),
        };
        let mut decision = self.decide(ask, self.decision_id(), &Tries::default(), ask.timeout).await;
        decision.ran_on.clone_from(&name);
        let written = match &outcome {
            Some(outcome) => parts.journal.coordinator_done(&ask.key, row.effect, outcome).await,
            None => parts.journal.coordinator_ended(&ask.key, row.effect, StepStatus::Uncertain, 0).await,
        };
        if let Err(error) = written {
            tracing::warn!(%error, step = %ask.key, "outcome not recorded");
        }
        let Some(outcome) = outcome else {
            let text = format!(
                "{} was started on {place} before this node stopped ({kept}); whether it took effect can't be known",
                ask.tool
            );
            decision.kept = Some(text.clone());
            let mut done = failed(StepStatus::Uncertain, "uncertain", &text, decision, 1);
            done.node = name;
            return Some(done);
        };
        decision.kept = Some(kept);
        Some(CallDone::of(&outcome, name, decision, 1))
    }

    /// A step that an earlier process knew to be done is not reported as one that no node can run: its result is out of reach, and
    /// may be there later. Whoever resumes the run has its node asked again.
    pub(super) async fn done_before(&self, ask: &CallAsk, done: CallDone) -> CallDone {
        if !ask.resumed || !done.no_capacity || done.attempts > 0 {
            return done;
        }
        // silent-ok: `earlier` read the same row and reported what is wrong with the journal
        let Ok(Some(row)) = self.0.parts.journal.attempt(&ask.key).await else { return done };
        if row.status.as_deref() != Some(<&str>::from(StepStatus::Ok)) {
            return done;
        }
        let name = self.view().get(row.node).map(|m| m.name.clone());
        let place = name.as_ref().map_or_else(|| row.node.to_string(), ToString::to_string);
        let text = format!(
            "{} was done on {place} before this node stopped, but its result can't be had now, and {}",
            ask.tool,
            done.decision.sentence()
        );
        let mut known = failed(StepStatus::Uncertain, "uncertain", &text, done.decision, 0);
        known.node = name;
        known
    }

    /// Asks the node until it answers or has been away too long; a step that is not over is followed to its outcome.
    async fn ask_about(
        &self,
        ask: &CallAsk,
        row: &AttemptRow,
        deadline: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Ended {
        let mut give_up = Instant::now() + COMES_BACK;
        loop {
            match self.status_of(row.node, &ask.key).await {
                Ok(reply) => {
                    if let Some(ended) = Self::read_status(reply) {
                        return ended;
                    }
                    if let Some(ended) = self.attach(ask, row, deadline, cancel, events).await {
                        return ended;
                    }
                    if Instant::now() >= deadline + STOP_GRACE {
                        return Ended::Lost("it runs on although its time is over".to_owned());
                    }
                    give_up = Instant::now() + COMES_BACK;
                }
                Err(error) if Instant::now() >= give_up || cancel.is_cancelled() => {
                    return Ended::Lost(error);
                }
                Err(_) => {}
            }
            tokio::time::sleep(REATTACH_EVERY).await;
        }
    }

    async fn status_of(&self, node: NodeId, key: &StepKey) -> Result<StatusReply, String> {
        let parts = &self.0.parts;
        if self.is_me(node) {
            return parts
                .executor
                .status(key.clone(), parts.me.clone())
                .await
                .map_err(|gone| gone.to_string());
        }
        match self.ask_remote(node, StatusQuery { key: key.clone() }.into()).await? {
            Message::StatusReply(reply) => Ok(reply),
            other => Err(format!("answered a status query with {}", other.name())),
        }
    }

    /// Takes up a step that is not over: its key has a lease already, which the reservation gives again, and whose start gives
    /// its events and its outcome. `None` when that did not work.
    async fn attach(
        &self,
        ask: &CallAsk,
        row: &AttemptRow,
        deadline: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Option<Ended> {
        let parts = &self.0.parts;
        let card = self.view().get(row.node).and_then(|m| m.tool(&ask.tool).map(|tool| tool.hash));
        let arguments = serde_json::to_vec(&ask.arguments).unwrap_or_default();
        let reserve = Reserve {
            key: ask.key.clone(),
            tool: ask.tool.clone(),
            // Not looked at where the key is known, and refused where it is not.
            card: card.unwrap_or(CardHash::from_bytes([0; 32])),
            effect: row.effect,
            est_ms: 1,
            vram: 0,
            memory: 0,
            argument_bytes: arguments.len() as u64,
            deadline_ms: millis(deadline.saturating_duration_since(Instant::now())),
            epoch: parts.epoch,
            longest_wait_ms: u32::MAX,
        };
        tracing::info!(step = %ask.key, node = row.node.short(), "taking up a step that an earlier process started");
        if self.is_me(row.node) {
            let granted = parts.executor.reserve(reserve, parts.me.clone()).await.ok()?.ok()?;
            return Some(self.run_local(ask, granted.lease, arguments, cancel, events).await);
        }
        let (_, remote) = self.reserve_remote(row.node, reserve, None).await.ok()?.ok()?;
        Some(self.run_remote(ask, row.node, remote, arguments, deadline, cancel, events).await)
    }

    /// Ends the rows of steps for which nobody waits any more: single calls of an earlier process, and steps of runs that are
    /// over. What still runs is stopped. Returns when all have an end.
    ///
    /// # Errors
    /// [`JournalError`].
    pub(crate) async fn settle_old(&self, rows: Vec<AttemptRow>) -> Result<(), JournalError> {
        use futures::{StreamExt as _, TryStreamExt as _};
        futures::stream::iter(rows.into_iter().filter(|row| row.state == AttemptState::StartSent))
            .map(|row| async move { self.settle_one(&row).await })
            .buffer_unordered(ASKED_AT_ONCE)
            .try_for_each(|()| async { Ok(()) })
            .await
    }

    async fn settle_one(&self, row: &AttemptRow) -> Result<(), JournalError> {
        let Some(key) = row.key() else { return Ok(()) };
        let give_up = Instant::now() + OLD_CALLS;
        let outcome = loop {
            match self.status_of(row.node, &key).await {
                Ok(StatusReply::Done(outcome)) => break outcome,
                Ok(StatusReply::Unseen) => {
                    break Outcome::new(StepStatus::Cancelled, Vec::new(), 0, SandboxLevel::None);
                }
                Ok(StatusReply::Running | StatusReply::Granted) if Instant::now() < give_up => {
                    self.stop_old(row.node, &key).await
                }
                Ok(StatusReply::Interrupted | StatusReply::Running | StatusReply::Granted) => {
                    break Outcome::new(StepStatus::Uncertain, Vec::new(), 0, SandboxLevel::None);
                }
                Err(_) if Instant::now() >= give_up => {
                    break Outcome::new(StepStatus::Uncertain, Vec::new(), 0, SandboxLevel::None);
                }
                Err(_) => {}
            }
            tokio::time::sleep(REATTACH_EVERY).await;
        };
        tracing::info!(step = %key, status = %outcome.status, "a call that an earlier process of this node left open has its end");
        self.0.parts.journal.coordinator_done(&key, row.effect, &outcome).await
    }

    async fn stop_old(&self, node: NodeId, key: &StepKey) {
        let parts = &self.0.parts;
        // silent-ok: the status, which is asked for next, tells what came of it
        if self.is_me(node) {
            let _ = parts.executor.cancel(key.clone(), parts.epoch, parts.me.clone()).await;
        } else {
            let _ = self.ask_remote(node, Cancel { key: key.clone(), epoch: parts.epoch }.into()).await;
        }
    }
}
