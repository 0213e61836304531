//! A step on another node, over its stream. Losing the stream says nothing about the step: the node is asked again.
use std::time::Duration;

use octomesh_protocol::{
    advert::LoadState,
    id::NodeId,
    step::{
        Cancel, Event, LEASE_TTL_MS, Message, Outcome, RENEW_EVERY_MS, RENEW_LOST_MS, Refused, Renew,
        Reserve, StartIfFree, StatusQuery,
    },
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{CallAsk, Dispatcher, Ended, attempt::RemoteLease, payload, streams::StepStream};
use crate::app::failpoint::{self, Failpoint};

/// One question and its answer, the opening of the stream included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Before a question is asked again for the first and the last time: seven times within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(320);
/// How long a lost node may take to come back before the step counts as lost. A step that may run twice is better off on another node
/// soon; of one that may not, nothing more can be known than what that node tells.
const REATTACH_FOR: Duration = Duration::from_secs(3);
const REATTACH_REPEATABLE_FOR: Duration = Duration::from_millis(400);
pub(super) const REATTACH_EVERY: Duration = Duration::from_millis(250);
/// Time for an executor to end a cancelled or overdue step and say so.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);
/// An executor that runs past the deadline is told to stop after this.
const LATE: Duration = Duration::from_millis(500);
/// Writing one message to a node that reads takes milliseconds; to one that does not, for ever. A lease lives no longer.
const WRITE: Duration = Duration::from_millis(LEASE_TTL_MS);
/// Every renewal is answered. So many without an answer, the last one half a period old, and the executor stands still or is gone: by then
/// a lease is lost on its side, too.
const UNANSWERED: u32 = 3;
const LAST_ANSWER: Duration = Duration::from_millis(RENEW_LOST_MS - UNANSWERED as u64 * RENEW_EVERY_MS);

/// Why a step is no longer followed on its stream.
enum Broken {
    Stream(String),
    /// The stream is open and nothing comes.
    Silent,
}

impl<E: ToString> From<E> for Broken {
    fn from(error: E) -> Self {
        Self::Stream(error.to_string())
    }
}

/// Renewals that were not answered. They are counted, not timed: a coordinator that stood still itself sent none meanwhile.
#[derive(Default)]
struct Unanswered {
    renewals: u32,
    sent_at: Option<Instant>,
}

impl Unanswered {
    /// Anything that comes is a sign of life.
    fn heard(&mut self) {
        self.renewals = 0;
    }

    fn sent(&mut self, now: Instant) {
        let period = Duration::from_millis(RENEW_EVERY_MS);
        // This process stood still: what came meanwhile may not be read yet.
        if self.sent_at.is_some_and(|before| now.saturating_duration_since(before) >= 2 * period) {
            self.renewals = 0;
        }
        self.renewals += 1;
        self.sent_at = Some(now);
    }

    /// When the other side counts as silent, unless something comes.
    fn silent_at(&self) -> Option<Instant> {
        self.sent_at.filter(|_| self.renewals >= UNANSWERED).map(|at| at + LAST_ANSWER)
    }
}

/// A step that is followed over one stream.
struct Following<'a> {
    ask: &'a CallAsk,
    node: NodeId,
    remote: RemoteLease,
    deadline: Instant,
    cancel: &'a CancellationToken,
    events: &'a mpsc::Sender<Event>,
    dropped: prometheus::IntCounter,
    /// Whether the other side may have messages of ours to read when it has sent the outcome.
    spoke: bool,
}

/// Whether a stream that was used before will do for a question: its answers are unlike anything that could be left of an earlier
/// exchange. The others come when something went wrong, and have a stream of their own.
const fn may_share(question: &Message) -> bool {
    matches!(question, Message::Probe(_) | Message::Reserve(_) | Message::StartIfFree(_))
}

/// Whether that can be the answer. On a stream that was used before anything else is left of an earlier exchange.
const fn answers(question: &Message, answer: &Message) -> bool {
    match question {
        Message::Probe(_) => matches!(answer, Message::Have(_) | Message::Missing(_)),
        Message::Reserve(_) => matches!(answer, Message::Granted(_) | Message::Refused(_)),
        Message::StartIfFree(_) => {
            matches!(answer, Message::Started(_) | Message::Granted(_) | Message::Refused(_))
        }
        _ => true,
    }
}

impl Dispatcher {
    /// A question with one answer.
    pub(super) async fn ask_remote(&self, node: NodeId, question: Message) -> Result<Message, String> {
        let shared = may_share(&question);
        let (answer, stream) = self.open(node, question).await?;
        if shared && matches!(answer, Message::Have(_) | Message::Missing(_)) {
            self.0.streams.put(node, stream, Instant::now());
        }
        Ok(answer)
    }

    /// Asks and keeps the stream. Of streams that arrive at a node in the same moment some can be dropped before anybody
    /// there has seen them; a question without an answer is therefore asked again, which every question may be.
    async fn open(&self, node: NodeId, question: Message) -> Result<(Message, StepStream), String> {
        let exchange = async {
            let mut pause = FIRST_PAUSE;
            loop {
                if !self.is_connected(node) {
                    return Err("not connected".to_owned());
                }
                if may_share(&question)
                    && let Some(stream) = self.0.streams.take(node, self.0.parts.net.route(node))
                {
                    match exchange(stream, question.clone()).await {
                        Ok((answer, stream)) if answers(&question, &answer) => return Ok((answer, stream)),
                        Ok((stray, _)) => {
                            tracing::debug!(
                                node = node.short(),
                                stray = stray.name(),
                                "a stream that was kept is of no use"
                            );
                        }
                        // It had ended; the next one is as likely to have, and a new one is not.
                        Err(error) => {
                            tracing::debug!(node = node.short(), error, "a stream that was kept is of no use")
                        }
                    }
                }
                let asked = async {
                    let opened = StepStream::open(&self.0.parts.net, node).await;
                    exchange(opened.map_err(|e| e.to_string())?, question.clone()).await
                };
                let error = match asked.await {
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

    /// Asks for a place. With `arguments` the step may begin at once.
    pub(super) async fn reserve_remote(
        &self,
        node: NodeId,
        reserve: Reserve,
        arguments: Option<Vec<u8>>,
    ) -> Result<Result<(LoadState, RemoteLease), Refused>, String> {
        let at_once = arguments.is_some();
        let effect = reserve.effect;
        let question = match arguments {
            Some(arguments) => StartIfFree { reserve, arguments }.into(),
            None => reserve.into(),
        };
        match self.open(node, question).await? {
            (Message::Granted(m), stream) => {
                Ok(Ok((m.state, RemoteLease { lease: m.lease, effect, stream, begun: false })))
            }
            (Message::Started(m), stream) if at_once => {
                Ok(Ok((m.state, RemoteLease { lease: m.lease, effect, stream, begun: true })))
            }
            (Message::Refused(refused), stream) => {
                self.0.streams.put(node, stream, Instant::now());
                Ok(Err(refused))
            }
            (other, _) => Err(format!("answered a reservation with {}", other.name())),
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
        let mut following = Following { ask, node, remote, deadline, cancel, events, dropped, spoke: false };
        let sent = if following.remote.begun {
            Ok(())
        } else {
            let start = payload::start(following.remote.lease, self.0.parts.epoch, arguments);
            following.send(start).await
        };
        failpoint::reached(Failpoint::Started, Some(&ask.key.step));
        let lost = match sent {
            Ok(()) => match following.follow(self.0.parts.epoch).await {
                Ok(outcome) => {
                    let Following { mut remote, spoke, .. } = following;
                    if spoke {
                        // silent-ok: the outcome is here; a node that does not read its end is not waited for
                        let _ = tokio::time::timeout(WRITE, remote.stream.writer.close()).await;
                    } else {
                        self.0.streams.put(node, remote.stream, Instant::now());
                    }
                    return Ended::Outcome(outcome);
                }
                Err(Broken::Silent) if following.remote.effect.may_repeat() => {
                    return Ended::Silent(format!("not heard for {RENEW_LOST_MS} ms"));
                }
                Err(Broken::Silent) => format!("not heard for {RENEW_LOST_MS} ms"),
                Err(Broken::Stream(lost)) => lost,
            },
            Err(error) => error,
        };
        tracing::debug!(step = %ask.key, node = node.short(), lost, "stream lost; asking for the step");
        self.reattach(&following, &lost).await
    }

    /// Asks for the step on fresh streams until there is an outcome or the node stays away.
    async fn reattach(&self, following: &Following<'_>, lost: &str) -> Ended {
        let repeatable = following.remote.effect.may_repeat();
        let patience = if repeatable { REATTACH_REPEATABLE_FOR } else { REATTACH_FOR };
        let mut give_up = Instant::now() + patience;
        let mut stop_by = following.deadline + STOP_GRACE;
        loop {
            if following.cancel.is_cancelled() {
                stop_by = stop_by.min(Instant::now() + STOP_GRACE);
                let cancel = Cancel { key: following.ask.key.clone(), epoch: self.0.parts.epoch };
                // silent-ok: the status below tells what came of it
                let _ = self.ask_remote(following.node, cancel.into()).await;
            }
            let query = StatusQuery { key: following.ask.key.clone() };
            let asked = tokio::time::timeout(patience, self.ask_remote(following.node, query.into()));
            match asked.await.unwrap_or_else(|_| Err("no answer".to_owned())) {
                Ok(Message::StatusReply(reply)) => {
                    if let Some(ended) = Self::read_status(reply) {
                        return ended;
                    }
                    // It runs on: keep its lease, and follow it to its deadline.
                    let renew = Renew { leases: vec![following.remote.lease] };
                    // silent-ok: the next round asks again
                    let _ = self.ask_remote(following.node, renew.into()).await;
                    give_up = Instant::now() + patience;
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

async fn exchange(mut stream: StepStream, question: Message) -> Result<(Message, StepStream), String> {
    stream.writer.send(question).await.map_err(|e| e.to_string())?;
    let answer = stream.reader.receive().await.map_err(|e| e.to_string())?;
    Ok((answer, stream))
}

impl Following<'_> {
    /// Until the outcome. `Err` when the stream is of no more use.
    async fn follow(&mut self, epoch: u64) -> Result<Outcome, Broken> {
        // What came together with the start of a short step is all there is of it.
        while let Some(message) = self.remote.stream.reader.buffered()? {
            if let Some(outcome) = self.heard(message)? {
                return Ok(outcome);
            }
        }
        // The start itself was the first sign of life.
        let every = Duration::from_millis(RENEW_EVERY_MS);
        let mut renew = tokio::time::interval_at(Instant::now() + every, every);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop_by: Option<Instant> = None;
        let mut unanswered = Unanswered::default();
        loop {
            let limit = stop_by.unwrap_or(self.deadline + LATE);
            let silent_at = unanswered.silent_at();
            // Messages last: an executor that never stops talking must not be the only one that is heard.
            tokio::select! {
                biased;
                () = self.cancel.cancelled(), if stop_by.is_none() => {
                    stop_by = Some(self.stop(epoch).await?);
                }
                () = tokio::time::sleep_until(limit) => match stop_by {
                    Some(_) => return Err("it does not stop".into()),
                    None => stop_by = Some(self.stop(epoch).await?),
                },
                _ = renew.tick() => {
                    let message = Renew { leases: vec![self.remote.lease] };
                    self.spoke = true;
                    self.send(message).await?;
                    unanswered.sent(Instant::now());
                }
                message = self.remote.stream.reader.receive() => {
                    unanswered.heard();
                    if let Some(outcome) = self.heard(message?)? {
                        return Ok(outcome);
                    }
                }
                // After the messages: what lies there unread was said.
                () = tokio::time::sleep_until(silent_at.unwrap_or(limit)), if silent_at.is_some() => {
                    return Err(Broken::Silent);
                }
            }
        }
    }

    /// The outcome, if that is what came.
    fn heard(&self, message: Message) -> Result<Option<Outcome>, String> {
        match message {
            // Progress is best effort: a reader that is behind loses events, not the outcome.
            Message::Event(event) => {
                if matches!(self.events.try_send(event), Err(mpsc::error::TrySendError::Full(_))) {
                    self.dropped.inc();
                }
                Ok(None)
            }
            Message::Outcome(outcome) => Ok(Some(outcome)),
            // The answer to a renewal, or to our cancel.
            Message::StatusReply(_) => Ok(None),
            other => Err(format!("unexpected {}", other.name())),
        }
    }

    async fn send(&mut self, message: impl Into<Message>) -> Result<(), String> {
        match tokio::time::timeout(WRITE, self.remote.stream.writer.send(message)).await {
            Ok(sent) => sent.map_err(|e| e.to_string()),
            Err(_) => Err("it does not read".to_owned()),
        }
    }

    async fn stop(&mut self, epoch: u64) -> Result<Instant, String> {
        let cancel = Cancel { key: self.ask.key.clone(), epoch };
        self.spoke = true;
        self.send(cancel).await?;
        Ok(Instant::now() + STOP_GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_renewals_without_an_answer_are_silence_and_a_pause_of_our_own_is_not() {
        let (begun, period) = (Instant::now(), Duration::from_millis(RENEW_EVERY_MS));
        let mut unanswered = Unanswered::default();
        for n in 0..3 {
            assert_eq!(unanswered.silent_at(), None, "{n}");
            unanswered.sent(begun + n * period);
        }
        let silent_at = unanswered.silent_at().unwrap();
        assert_eq!(silent_at - begun, 2 * period + LAST_ANSWER);
        // What was said last came right before the first of them, a period after the answer before.
        assert!(silent_at + period - begun <= Duration::from_millis(RENEW_LOST_MS));
        unanswered.heard();
        assert_eq!(unanswered.silent_at(), None);
        // Two without an answer, then this process stands still: the count begins again.
        let mut unanswered = Unanswered::default();
        unanswered.sent(begun);
        unanswered.sent(begun + period);
        unanswered.sent(begun + 60 * period);
        assert_eq!(unanswered.silent_at(), None);
    }
}
