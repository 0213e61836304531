//! Steps of other nodes: the executor's end of `/octomesh/step/1`. Who asks is the node whose certificate the session showed;
//! what it may do is decided by the executor, for each message.
//!
//! A stream carries one exchange after the other. Between two of them it rests, and takes nobody's place.
mod places;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use octomesh_protocol::{
    id::NodeId,
    step::{
        Event, Granted, LEASE_TTL_MS, Message, Missing, Outcome, RefuseReason, Refused, Reserve, Start,
        Started, StatusReply,
    },
};
use octomesh_tools::tool::Caller;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::places::{Place, Places};
use super::{ExecutorGone, ExecutorHandle, handle::AtOnce};
use crate::{
    app::supervise::Supervisor,
    membership::{Member, MeshView},
    net::{FrameReader, FrameWriter, StepListener, StreamError},
    trust::TrustReader,
};

/// Writing one message to a node that reads takes milliseconds; to one that does not, for ever.
const WRITE: Duration = Duration::from_secs(10);
/// The first message follows the opening of a stream at once.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// How long a stream may rest between two exchanges. Callers close theirs sooner, so that no question meets a stream's end.
const REST: Duration = Duration::from_secs(60);
/// Events of one step on their way to its coordinator; a slow one loses the newest.
const EVENTS: usize = 64;
/// A session may be a moment ahead of the view.
const VIEW_PATIENCE: Duration = Duration::from_secs(2);
/// How long a step waits for this node to hear from others who was revoked; its caller waits two seconds for an answer.
const CATCH_UP: Duration = Duration::from_millis(1_500);
const CATCHING_UP: &str =
    "this node was away and still asks other members who was revoked meanwhile; try again in a few seconds";

/// Why serving a stream ended before its exchange was over. The step itself goes on.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Executor(#[from] ExecutorGone),
    #[error("{0} is no message to begin with")]
    Unexpected(&'static str),
    #[error("nothing came in time")]
    Silent,
    #[error("the other side does not read")]
    Deaf,
    #[error("not a member of the view")]
    Stranger,
    #[error("the caller was revoked")]
    Revoked,
    #[error("too many streams of this node are served")]
    Full,
}

/// What serving needs.
pub(crate) struct ServeParts {
    pub(crate) listener: StepListener,
    pub(crate) executor: ExecutorHandle,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) trust: TrustReader,
    pub(crate) supervisor: Supervisor,
    /// Counts the steps that others started here.
    pub(crate) started: Arc<AtomicU64>,
}

/// Serves streams until `stop`, and stops the steps of nodes that are revoked.
pub(crate) async fn serve(parts: ServeParts, stop: CancellationToken) {
    let ServeParts { mut listener, executor, view, mut trust, supervisor, started } = parts;
    let places = Places::new();
    let mut trusting = true;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            changed = trust.changed(), if trusting => {
                trusting = changed.is_ok();
                let now = Arc::clone(&trust.borrow_and_update());
                let void = {
                    let view = view.borrow();
                    let showed = |m: &&Arc<Member>| m.certificate.as_ref().is_some_and(|c| now.check(c).is_err());
                    view.members.values().filter(showed).map(|m| m.node).collect::<Vec<_>>()
                };
                for node in now.revocations.nodes().chain(void) {
                    // silent-ok: an executor that has gone runs nothing
                    let _ = executor.evict(node).await;
                }
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Some((node, stream)) = accepted else { break };
        let Some(place) = places.take(node) else {
            tracing::warn!(node = node.short(), "too many step streams; one was closed");
            continue;
        };
        let (executor, view, trust) = (executor.clone(), view.clone(), trust.clone());
        let (started, stop) = (Arc::clone(&started), stop.clone());
        supervisor.spawn("step stream", async move {
            let (reader, writer) = stream.split();
            let mut serving = Serving { executor, reader, writer: Answers(writer), view, trust, started };
            match serving.exchanges(node, place, &stop).await {
                // silent-ok: the exchange is over; a node that does not read its end is not waited for
                Ok(()) => drop(tokio::time::timeout(WRITE, serving.writer.0.close()).await),
                Err(error) => tracing::debug!(node = node.short(), %error, "step stream ended early"),
            }
        });
    }
}

/// Serves one stream of `node` as [`serve`] does those that its listener has.
#[cfg(test)]
pub(crate) async fn serve_stream(
    stream: crate::net::linked::ByteStream,
    node: NodeId,
    executor: ExecutorHandle,
    view: watch::Receiver<Arc<MeshView>>,
    trust: TrustReader,
) {
    let (reader, writer) = stream.split();
    let started = Arc::default();
    let Some(place) = Places::new().take(node) else { return };
    let mut serving = Serving { executor, reader, writer: Answers(writer), view, trust, started };
    if serving.exchanges(node, place, &CancellationToken::new()).await.is_ok() {
        serving.writer.0.close().await;
    }
}

async fn caller(node: NodeId, mut view: watch::Receiver<Arc<MeshView>>) -> Option<Caller> {
    let known = view.wait_for(|v| v.get(node).is_some_and(|m| m.connected));
    let view = tokio::time::timeout(VIEW_PATIENCE, known).await.ok()?.ok()?;
    let member = view.get(node)?;
    Some(Caller {
        node,
        name: member.name.clone(),
        role: member.role,
        grants: member.grants.clone(),
        local: false,
    })
}

struct Serving {
    executor: ExecutorHandle,
    reader: FrameReader,
    writer: Answers,
    view: watch::Receiver<Arc<MeshView>>,
    trust: TrustReader,
    started: Arc<AtomicU64>,
}

/// What goes back to the caller; a caller that does not read is left.
struct Answers(FrameWriter);

impl Answers {
    async fn send_all(&mut self, messages: impl IntoIterator<Item = Message>) -> Result<(), ServeError> {
        let sent = tokio::time::timeout(WRITE, self.0.send_all(messages)).await;
        Ok(sent.map_err(|_| ServeError::Deaf)??)
    }

    async fn send(&mut self, message: impl Into<Message>) -> Result<(), ServeError> {
        let sent = tokio::time::timeout(WRITE, self.0.send(message)).await;
        Ok(sent.map_err(|_| ServeError::Deaf)??)
    }
}

fn began(granted: Granted) -> Message {
    Started { lease: granted.lease, state: granted.state }.into()
}

impl Serving {
    /// Whether the caller is still a member. Asked again for each message that makes this node work.
    fn member(&self, node: NodeId) -> Result<(), ServeError> {
        let view = self.view.borrow();
        let certificate = view.get(node).and_then(|m| m.certificate.as_ref());
        let trust = self.trust.borrow();
        let out = trust.is_revoked(node) || certificate.is_some_and(|c| trust.check(c).is_err());
        if out { Err(ServeError::Revoked) } else { Ok(()) }
    }

    /// Whether this node can know by now if the caller was revoked while it was away (PROTOCOL 2).
    async fn caught_up(&mut self, node: NodeId) -> bool {
        let knows = self.view.wait_for(|view| view.may_trust(node));
        tokio::time::timeout(CATCH_UP, knows).await.is_ok_and(|knows| knows.is_ok())
    }

    /// One exchange after the other, until the caller closes the stream or leaves it for long.
    async fn exchanges(
        &mut self,
        node: NodeId,
        mut place: Place,
        stop: &CancellationToken,
    ) -> Result<(), ServeError> {
        self.member(node)?;
        let first = tokio::time::timeout(FIRST_MESSAGE, self.reader.receive()).await;
        let mut message = first.map_err(|_| ServeError::Silent)??;
        loop {
            self.one(node, message).await?;
            let Some(resting) = place.rest() else { return Ok(()) };
            let next = tokio::select! {
                next = tokio::time::timeout(REST, self.reader.receive()) => next,
                () = stop.cancelled() => return Ok(()),
            };
            message = match next {
                Err(_) | Ok(Err(StreamError::Ended)) => return Ok(()),
                Ok(next) => next?,
            };
            place = resting.wake().ok_or(ServeError::Full)?;
        }
    }

    async fn one(&mut self, node: NodeId, message: Message) -> Result<(), ServeError> {
        self.member(node)?;
        let caller = caller(node, self.view.clone()).await.ok_or(ServeError::Stranger)?;
        match message {
            Message::Probe(_) if !self.caught_up(node).await => {
                self.writer.send(Missing { detail: CATCHING_UP.to_owned() }).await?;
            }
            Message::Probe(probe) => match self.executor.probe(&probe, &caller).await {
                Ok(have) => self.writer.send(have).await?,
                Err(missing) => self.writer.send(missing).await?,
            },
            Message::Reserve(reserve) => return self.step(reserve, None, caller).await,
            Message::StartIfFree(ask) => return self.step(ask.reserve, Some(ask.arguments), caller).await,
            Message::Cancel(cancel) => {
                let reply = self.executor.cancel(cancel.key, cancel.epoch, caller).await?;
                self.writer.send(reply).await?;
            }
            Message::Status(query) => {
                let reply = self.executor.status(query.key, caller).await?;
                self.writer.send(reply).await?;
            }
            Message::Renew(renew) => {
                // Without leases it only asks whether somebody answers here.
                if !renew.leases.is_empty() {
                    self.executor.renew(renew.leases, node).await?;
                }
                self.writer.send(StatusReply::Running).await?;
            }
            other => return Err(ServeError::Unexpected(other.name())),
        }
        Ok(())
    }

    /// A reservation and the step that follows. With `arguments` it may begin at once.
    async fn step(
        &mut self,
        reserve: Reserve,
        arguments: Option<Vec<u8>>,
        caller: Caller,
    ) -> Result<(), ServeError> {
        if !self.caught_up(caller.node).await {
            let state = *self.executor.load().borrow();
            let detail = CATCHING_UP.to_owned();
            return self.writer.send(Refused { reason: RefuseReason::CatchingUp, detail, state }).await;
        }
        self.member(caller.node)?;
        let answer = match arguments {
            None => self.executor.reserve(reserve, caller.clone()).await?,
            Some(arguments) => {
                let (sender, events) = mpsc::channel::<Event>(EVENTS);
                let asked = self.executor.start_if_free(reserve, arguments, caller.clone(), sender).await?;
                match asked {
                    Ok(AtOnce::Over(granted, outcome)) => return self.over(granted, outcome, events).await,
                    Ok(AtOnce::Runs(granted, running)) => {
                        self.started.fetch_add(1, Ordering::Relaxed);
                        self.writer.send(began(granted)).await?;
                        return self.follow(running, events, caller).await;
                    }
                    Ok(AtOnce::Waits(granted)) => Ok(granted),
                    Err(refused) => Err(refused),
                }
            }
        };
        match answer {
            Ok(granted) => self.writer.send(granted).await?,
            Err(refused) => return self.writer.send(refused).await,
        }
        let ttl = Duration::from_millis(LEASE_TTL_MS);
        match tokio::time::timeout(ttl, self.reader.receive()).await.map_err(|_| ServeError::Silent)?? {
            Message::Start(start) => self.start(start, caller).await,
            other => Err(ServeError::Unexpected(other.name())),
        }
    }

    /// All of a step that began with its reservation and is over already, in one piece.
    async fn over(
        &mut self,
        granted: Granted,
        outcome: Outcome,
        mut events: mpsc::Receiver<Event>,
    ) -> Result<(), ServeError> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let said = std::iter::from_fn(|| events.try_recv().ok()).map(Message::from);
        self.writer.send_all(std::iter::once(began(granted)).chain(said).chain([outcome.into()])).await
    }

    async fn start(&mut self, start: Start, caller: Caller) -> Result<(), ServeError> {
        let (sender, events) = mpsc::channel::<Event>(EVENTS);
        self.member(caller.node)?;
        self.started.fetch_add(1, Ordering::Relaxed);
        let running = self.executor.start(start, caller.clone(), sender).await?;
        self.follow(running, events, caller).await
    }

    /// Events out, renewals and cancels in, the outcome last. When the stream is lost the step runs on, and its coordinator
    /// asks for it.
    async fn follow(
        &mut self,
        mut running: oneshot::Receiver<Outcome>,
        mut events: mpsc::Receiver<Event>,
        caller: Caller,
    ) -> Result<(), ServeError> {
        let Self { executor, reader, writer, .. } = self;
        // A renewal is answered: its coordinator hears that this node lives. Several at once need one answer.
        let renewed = Notify::new();
        // On their own, so that a caller that reads slowly is still heard: its renewals keep the step alive.
        let heard = async {
            loop {
                match reader.receive().await? {
                    Message::Renew(renew) => {
                        executor.renew(renew.leases, caller.node).await?;
                        renewed.notify_one();
                    }
                    Message::Cancel(cancel) => {
                        // The outcome is the answer.
                        executor.cancel(cancel.key, cancel.epoch, caller.clone()).await?;
                    }
                    other => return Err(ServeError::Unexpected(other.name())),
                }
            }
        };
        let told = async {
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut running => {
                        while let Ok(event) = events.try_recv() {
                            writer.send(event).await?;
                        }
                        return writer.send(outcome.map_err(|_| ExecutorGone)?).await;
                    }
                    () = renewed.notified() => writer.send(StatusReply::Running).await?,
                    Some(event) = events.recv() => writer.send(event).await?,
                }
            }
        };
        tokio::select! {
            ended = heard => ended.map(|never: Infallible| match never {}),
            ended = told => ended,
        }
    }
}

#[cfg(test)]
mod tests;
