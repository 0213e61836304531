//! One attempt: a reservation that was granted here or on another node.
use octomesh_protocol::{
    card::Effect,
    id::{LeaseId, NodeId, ToolName},
    limits,
    step::{Event, Message, Probe, RefuseReason, Reserve, Start, StatusReply},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{CallAsk, Dispatcher, Ended, millis, streams::StepStream};
use crate::{
    app::failpoint::{self, Failpoint},
    journal::Persistence,
    router::{Candidate, ProbeResult, Refusal},
};

/// A granted reservation.
pub(super) enum Attempt {
    Local(LeaseId),
    Remote(Box<RemoteLease>),
}

/// A lease on another node and the stream it was granted on.
pub(super) struct RemoteLease {
    pub(super) lease: LeaseId,
    pub(super) effect: Effect,
    pub(super) stream: StepStream,
    /// It runs already: it may repeat, was small, and there was a slot for it.
    pub(super) begun: bool,
}

impl Attempt {
    pub(super) fn lease(&self) -> LeaseId {
        match self {
            Self::Local(lease) => *lease,
            Self::Remote(remote) => remote.lease,
        }
    }
}

impl Dispatcher {
    /// Asks the candidate for a place. An error has its reason, or none when it did not answer.
    pub(super) async fn reserve(
        &self,
        ask: &CallAsk,
        candidate: &Candidate,
        longest_wait_ms: u32,
        deadline: Instant,
    ) -> Result<Attempt, (Option<RefuseReason>, Refusal)> {
        let arguments = serde_json::to_vec(&ask.arguments).unwrap_or_default();
        let reserve = Reserve {
            key: ask.key.clone(),
            tool: ask.tool.clone(),
            card: candidate.card,
            effect: candidate.effect,
            est_ms: candidate.est_ms(),
            vram: candidate.vram,
            memory: candidate.memory,
            argument_bytes: arguments.len() as u64,
            deadline_ms: millis(deadline.saturating_duration_since(Instant::now())),
            epoch: self.0.parts.epoch,
            longest_wait_ms,
        };
        let refusal = |reason: &str, detail: String| Refusal {
            node: candidate.node,
            name: candidate.name.clone(),
            reason: reason.to_owned(),
            detail,
        };
        // Before the reservation: a lease that is not started lapses in seconds.
        if let Err(detail) = self.bring_input(ask, candidate).await {
            return Err((None, refusal("input", detail)));
        }
        self.note_reservation(ask, candidate);
        let answer = if self.is_me(candidate.node) {
            let answer = self.0.parts.executor.reserve(reserve, self.0.parts.me.clone()).await;
            answer
                .map(|answer| answer.map(|granted| (granted.state, Attempt::Local(granted.lease))))
                .map_err(|gone| gone.to_string())
        } else {
            // A step with rows in the journal is started when its row is there, and that has the lease.
            let unwritten = Persistence::of(candidate.effect, &ask.key) == Persistence::None;
            let at_once = unwritten && arguments.len() <= limits::START_IF_FREE_BYTES;
            let answer = self.reserve_remote(candidate.node, reserve, at_once.then_some(arguments)).await;
            if answer.is_err() {
                self.memory(|m| m.history.record_failure(candidate.node, Instant::now()));
            }
            answer.map(|answer| answer.map(|(state, remote)| (state, Attempt::Remote(Box::new(remote)))))
        };
        let now = Instant::now();
        match answer {
            Ok(Ok((state, attempt))) => {
                self.memory(|m| {
                    m.reservations.observe(candidate.node, state, now);
                    m.reservations.granted(&ask.key, now);
                });
                self.0.parts.metrics.router.reserved("granted");
                Ok(attempt)
            }
            Ok(Err(refused)) => {
                self.memory(|m| {
                    m.reservations.observe(candidate.node, refused.state, now);
                    m.reservations.remove(&ask.key);
                });
                self.0.parts.metrics.router.reserved(refused.reason.into());
                Err((Some(refused.reason), refusal(refused.reason.into(), refused.detail)))
            }
            Err(detail) => {
                self.memory(|m| m.reservations.remove(&ask.key));
                Err((None, refusal("lost", detail)))
            }
        }
    }

    /// Gives a lease back that will not be started. A remote one lapses by itself in a few seconds.
    pub(super) async fn give_up(&self, ask: &CallAsk, attempt: Attempt) {
        self.memory(|m| m.reservations.remove(&ask.key));
        match attempt {
            Attempt::Remote(remote) => drop(remote),
            Attempt::Local(_) => {
                let parts = &self.0.parts;
                // silent-ok: without an executor there is no lease either
                let _ = parts.executor.cancel(ask.key.clone(), parts.epoch, parts.me.clone()).await;
            }
        }
    }

    pub(super) async fn run_local(
        &self,
        ask: &CallAsk,
        lease: LeaseId,
        arguments: Vec<u8>,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Ended {
        let executor = &self.0.parts.executor;
        let start = Start::new(lease, self.0.parts.epoch, arguments);
        let mut running = match executor.start(start, self.0.parts.me.clone(), events.clone()).await {
            Ok(running) => running,
            Err(gone) => return Ended::NotStarted(gone.to_string()),
        };
        failpoint::reached(Failpoint::Started, Some(&ask.key.step));
        let ended = tokio::select! {
            ended = &mut running => ended,
            () = cancel.cancelled() => {
                // silent-ok: the outcome below tells what came of it
                let _ = executor.cancel(ask.key.clone(), self.0.parts.epoch, self.0.parts.me.clone()).await;
                running.await
            }
        };
        match ended {
            Ok(outcome) => Ended::Outcome(outcome),
            Err(_) => Ended::Lost("the executor of this node has stopped".to_owned()),
        }
    }

    /// Asks one node whether it has the data.
    pub(super) async fn probe_one(&self, node: NodeId, tool: &ToolName, arguments: &[u8]) -> ProbeResult {
        let probe = Probe { tool: tool.clone(), arguments: arguments.to_vec() };
        if self.is_me(node) {
            return match self.0.parts.executor.probe(&probe, &self.0.parts.me).await {
                Ok(have) => ProbeResult::Have(have.bytes),
                Err(missing) => ProbeResult::Missing(missing.detail),
            };
        }
        match self.ask_remote(node, probe.into()).await {
            Ok(Message::Have(have)) => ProbeResult::Have(have.bytes),
            Ok(Message::Missing(missing)) => ProbeResult::Missing(missing.detail),
            Ok(_) | Err(_) => ProbeResult::Silent,
        }
    }

    /// What a status answer means for a step whose stream was lost; `None` while it goes on.
    pub(super) fn read_status(reply: StatusReply) -> Option<Ended> {
        match reply {
            StatusReply::Done(outcome) => Some(Ended::Outcome(outcome)),
            StatusReply::Running | StatusReply::Granted => None,
            StatusReply::Unseen => Some(Ended::NotStarted("the node does not know the step".to_owned())),
            StatusReply::Interrupted => Some(Ended::Interrupted),
        }
    }
}
