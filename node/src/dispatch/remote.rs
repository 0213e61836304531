//! A step on another node, over its stream. Losing the stream says nothing about the step: the node is asked again.
use std::time::Duration;

use octomesh_protocol::{
    id::NodeId,
    step::{
        Cancel, Event, Granted, LEASE_TTL_MS, Message, RENEW_EVERY_MS, Refused, Renew, Reserve, Start,
        StatusQuery,
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{CallAsk, Dispatcher, Ended, attempt::RemoteLease};
use crate::{
    app::failpoint::{self, Failpoint},
    net::{FrameReader, FrameWriter},
};

/// One question and its answer, the opening of the stream included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Before a question is asked again for the first and the last time: seven times within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(320);
/// How long a lost node may take to come back before the step counts as lost.
const REATTACH_FOR: Duration = Duration::from_secs(3);
pub(super) const REATTACH_EVERY: Duration = Duration::from_millis(250);
/// Time for an executor to end a cancelled or overdue step and say so.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);
/// An executor that runs past the deadline is told to stop after this.
const LATE: Duration = Duration::from_millis(500);
/// Writing one message to a node that reads takes milliseconds; to one that does not, for ever. A lease lives no longer.
const WRITE: Duration = Duration::from_millis(LEASE_TTL_MS);

/// A step that is followed over one stream.
struct Following<'a> {
    ask: &'a CallAsk,
    node: NodeId,
    remote: RemoteLease,
    deadline: Instant,
    cancel: &'a CancellationToken,
    events: &'a mpsc::Sender<Event>,
    dropped: prometheus::IntCounter,
}

impl Dispatcher {
    /// A question with one answer on a stream of its own.
    pub(super) async fn ask_remote(&self, node: NodeId, question: Message) -> Result<Message, String> {
        let (answer, ..) = self.open(node, question).await?;
        Ok(answer)
    }

    /// Asks on a stream of its own. Of streams that arrive at a node in the same moment some can be dropped before anybody
    /// there has seen them; a question without an answer is therefore asked again, which every question may be.
    async fn open(
        &self,
        node: NodeId,
        question: Message,
    ) -> Result<(Message, FrameReader, FrameWriter), String> {
        let exchange = async {
            let mut pause = FIRST_PAUSE;
            loop {
                if !self.is_connected(node) {
                    return Err("not connected".to_owned());
                }
                let error = match self.exchange(node, question.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                };
                if pause > LAST_PAUSE {
                    return Err(error);
                }
                tracing::debug!(node = node.short(), error, "no answer; the question is asked again");
                // Spread over the pause, so that those who met once don't meet again.
                let [random, ..] = self.0.parts.clock.id_bytes();
                tokio::time::sleep(pause.mul_f64(0.5 + f64::from(random) / 256.0)).await;
                pause *= 2;
            }
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())),
        }
    }

    async fn exchange(
        &self,
        node: NodeId,
        question: Message,
    ) -> Result<(Message, FrameReader, FrameWriter), String> {
        let stream = self.0.parts.net.open_step(node).await.map_err(|e| e.to_string())?;
        let (mut reader, mut writer) = stream.split();
        writer.send(question).await.map_err(|e| e.to_string())?;
        let answer = reader.receive().await.map_err(|e| e.to_string())?;
        Ok((answer, reader, writer))
    }

    pub(super) async fn reserve_remote(
        &self,
        node: NodeId,
        reserve: Reserve,
    ) -> Result<(Result<Granted, Refused>, FrameReader, FrameWriter), String> {
        match self.open(node, reserve.into()).await? {
            (Message::Granted(granted), reader, writer) => Ok((Ok(granted), reader, writer)),
            (Message::Refused(refused), reader, writer) => Ok((Err(refused), reader, writer)),
            (other, ..) => Err(format!("answered a reservation with {}", other.name())),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one attempt")]
    pub(super) async fn run_remote(
        &self,
        ask: &CallAsk,
        node: NodeId,
        remote: RemoteLease,
        arguments: Vec<u8>,
        deadline: Instant,
        cancel: &CancellationToken,
        events: &mpsc::Sender<Event>,
    ) -> Ended {
        let dropped = self.0.parts.metrics.dropped.with_label_values(&["step_events"]);
        let mut following = Following { ask, node, remote, deadline, cancel, events, dropped };
        let start = Start { lease: following.remote.lease, epoch: self.0.parts.epoch, arguments };
        let sent = following.send(start).await;
        failpoint::reached(Failpoint::Started, Some(&ask.key.step));
        let lost = match sent {
            Ok(()) => match following.follow(self.0.parts.epoch).await {
                Ok(ended) => return ended,
                Err(lost) => lost,
            },
            Err(error) => error,
        };
        tracing::debug!(step = %ask.key, node = node.short(), lost, "stream lost; asking for the step");
        self.reattach(&following, &lost).await
    }

    /// Asks for the step on fresh streams until there is an outcome or the node stays away.
    async fn reattach(&self, following: &Following<'_>, lost: &str) -> Ended {
        let mut give_up = Instant::now() + REATTACH_FOR;
        let mut stop_by = following.deadline + STOP_GRACE;
        loop {
            if following.cancel.is_cancelled() {
                stop_by = stop_by.min(Instant::now() + STOP_GRACE);
                let cancel = Cancel { key: following.ask.key.clone(), epoch: self.0.parts.epoch };
                // silent-ok: the status below tells what came of it
                let _ = self.ask_remote(following.node, cancel.into()).await;
            }
            let query = StatusQuery { key: following.ask.key.clone() };
            match self.ask_remote(following.node, query.into()).await {
                Ok(Message::StatusReply(reply)) => {
                    if let Some(ended) = Self::read_status(reply) {
                        return ended;
                    }
                    // It runs on: keep its lease, and follow it to its deadline.
                    let renew = Renew { leases: vec![following.remote.lease] };
                    // silent-ok: the next round asks again
                    let _ = self.ask_remote(following.node, renew.into()).await;
                    give_up = Instant::now() + REATTACH_FOR;
                    if Instant::now() >= stop_by {
                        return Ended::Lost("it runs on although it was told to stop".to_owned());
                    }
                }
                Ok(other) => return Ended::Lost(format!("answered a status query with {}", other.name())),
                Err(error) if Instant::now() >= give_up => return Ended::Lost(format!("{lost}; {error}")),
                Err(_) => {}
            }
            tokio::time::sleep(REATTACH_EVERY).await;
        }
    }
}

impl Following<'_> {
    /// Until the outcome. `Err` when the stream is of no more use.
    async fn follow(&mut self, epoch: u64) -> Result<Ended, String> {
        let mut renew = tokio::time::interval(Duration::from_millis(RENEW_EVERY_MS));
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop_by: Option<Instant> = None;
        loop {
            let limit = stop_by.unwrap_or(self.deadline + LATE);
            // Messages last: an executor that never stops talking must not be the only one that is heard.
            tokio::select! {
                biased;
                () = self.cancel.cancelled(), if stop_by.is_none() => {
                    stop_by = Some(self.stop(epoch).await?);
                }
                () = tokio::time::sleep_until(limit) => match stop_by {
                    Some(_) => return Err("it does not stop".to_owned()),
                    None => stop_by = Some(self.stop(epoch).await?),
                },
                _ = renew.tick() => {
                    let message = Renew { leases: vec![self.remote.lease] };
                    self.send(message).await?;
                }
                message = self.remote.reader.receive() => match message {
                    // Progress is best effort: a reader that is behind loses events, not the outcome.
                    Ok(Message::Event(event)) => {
                        if matches!(self.events.try_send(event), Err(mpsc::error::TrySendError::Full(_))) {
                            self.dropped.inc();
                        }
                    }
                    Ok(Message::Outcome(outcome)) => {
                        // silent-ok: the outcome is here; a node that does not read its end is not waited for
                        let _ = tokio::time::timeout(WRITE, self.remote.writer.close()).await;
                        return Ok(Ended::Outcome(outcome));
                    }
                    // The answer to our cancel.
                    Ok(Message::StatusReply(_)) => {}
                    Ok(other) => return Err(format!("unexpected {}", other.name())),
                    Err(error) => return Err(error.to_string()),
                },
            }
        }
    }

    async fn send(&mut self, message: impl Into<Message>) -> Result<(), String> {
        match tokio::time::timeout(WRITE, self.remote.writer.send(message)).await {
            Ok(sent) => sent.map_err(|e| e.to_string()),
            Err(_) => Err("it does not read".to_owned()),
        }
    }

    async fn stop(&mut self, epoch: u64) -> Result<Instant, String> {
        let cancel = Cancel { key: self.ask.key.clone(), epoch };
        self.send(cancel).await?;
        Ok(Instant::now() + STOP_GRACE)
    }
}
