//! Steps of other nodes: the executor's end of `/octomesh/step/1`. Who asks is the node whose certificate the session showed;
//! what it may do is decided by the executor, for each message.
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use octomesh_protocol::{
    id::NodeId,
    step::{Event, LEASE_TTL_MS, Message, Missing, RefuseReason, Refused, Reserve, Start, StatusReply},
};
use octomesh_tools::tool::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{ExecutorGone, ExecutorHandle};
use crate::{
    app::supervise::Supervisor,
    membership::{Member, MeshView},
    net::{FrameReader, FrameWriter, StepListener, StreamError},
    trust::TrustReader,
};

/// Streams served at once; more than a node can run, and each is a task.
const STREAMS: usize = 1024;
/// Of these for one node: the leases of a large machine and the questions in between, never all places.
const STREAMS_PER_NODE: usize = 256;
/// Writing one message to a node that reads takes milliseconds; to one that does not, for ever.
const WRITE: Duration = Duration::from_secs(10);
/// The first message follows the opening of a stream at once.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
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
}

/// Places of streams that are served: so many in all, and so many of one node.
#[derive(Clone)]
struct Places {
    all: Arc<Semaphore>,
    by_node: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

/// One place; dropping it gives it back.
struct Place {
    places: Places,
    node: NodeId,
    _one_of_all: OwnedSemaphorePermit,
}

impl Places {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(STREAMS)), by_node: Arc::default() }
    }

    fn take(&self, node: NodeId) -> Option<Place> {
        let one_of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut by_node = self.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = by_node.entry(node).or_default();
        if *taken >= STREAMS_PER_NODE {
            return None;
        }
        *taken += 1;
        Some(Place { places: self.clone(), node, _one_of_all: one_of_all })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_node = self.places.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = by_node.get_mut(&self.node) {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                by_node.remove(&self.node);
            }
        }
    }
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
        let started = Arc::clone(&started);
        supervisor.spawn("step stream", async move {
            let _place = place;
            let (reader, writer) = stream.split();
            let mut serving = Serving { executor, reader, writer: Answers(writer), view, trust, started };
            match serving.one(node).await {
                // silent-ok: the exchange is over; a node that does not read its end is not waited for
                Ok(()) => drop(tokio::time::timeout(WRITE, serving.writer.0.close()).await),
                Err(error) => tracing::debug!(node = node.short(), %error, "step stream ended early"),
            }
        });
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
    async fn send(&mut self, message: impl Into<Message>) -> Result<(), ServeError> {
        let sent = tokio::time::timeout(WRITE, self.0.send(message)).await;
        Ok(sent.map_err(|_| ServeError::Deaf)??)
    }
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

    async fn one(&mut self, node: NodeId) -> Result<(), ServeError> {
        self.member(node)?;
        let caller = caller(node, self.view.clone()).await.ok_or(ServeError::Stranger)?;
        let first = tokio::time::timeout(FIRST_MESSAGE, self.reader.receive()).await;
        match first.map_err(|_| ServeError::Silent)?? {
            Message::Probe(_) if !self.caught_up(node).await => {
                self.writer.send(Missing { detail: CATCHING_UP.to_owned() }).await?;
            }
            Message::Probe(probe) => match self.executor.probe(&probe, &caller).await {
                Ok(have) => self.writer.send(have).await?,
                Err(missing) => self.writer.send(missing).await?,
            },
            Message::Reserve(reserve) => return self.step(reserve, caller).await,
            Message::Cancel(cancel) => {
                let reply = self.executor.cancel(cancel.key, cancel.epoch, caller).await?;
                self.writer.send(reply).await?;
            }
            Message::Status(query) => {
                let reply = self.executor.status(query.key, caller).await?;
                self.writer.send(reply).await?;
            }
            Message::Renew(renew) => {
                self.executor.renew(renew.leases, node).await?;
                self.writer.send(StatusReply::Running).await?;
            }
            other => return Err(ServeError::Unexpected(other.name())),
        }
        Ok(())
    }

    async fn step(&mut self, reserve: Reserve, caller: Caller) -> Result<(), ServeError> {
        if !self.caught_up(caller.node).await {
            let state = *self.executor.load().borrow();
            let detail = CATCHING_UP.to_owned();
            return self.writer.send(Refused { reason: RefuseReason::CatchingUp, detail, state }).await;
        }
        self.member(caller.node)?;
        match self.executor.reserve(reserve, caller.clone()).await? {
            Ok(granted) => self.writer.send(granted).await?,
            Err(refused) => return self.writer.send(refused).await,
        }
        let ttl = Duration::from_millis(LEASE_TTL_MS);
        match tokio::time::timeout(ttl, self.reader.receive()).await.map_err(|_| ServeError::Silent)?? {
            Message::Start(start) => self.follow(start, caller).await,
            other => Err(ServeError::Unexpected(other.name())),
        }
    }

    /// Events out, renewals and cancels in, the outcome last. When the stream is lost the step runs on, and its coordinator
    /// asks for it.
    async fn follow(&mut self, start: Start, caller: Caller) -> Result<(), ServeError> {
        let (sender, mut events) = mpsc::channel::<Event>(EVENTS);
        self.member(caller.node)?;
        let executor = self.executor.clone();
        self.started.fetch_add(1, Ordering::Relaxed);
        let mut running = executor.start(start, caller.clone(), sender).await?;
        let Self { executor, reader, writer, .. } = self;
        // On their own, so that a caller that reads slowly is still heard: its renewals keep the step alive.
        let heard = async {
            loop {
                match reader.receive().await? {
                    Message::Renew(renew) => executor.renew(renew.leases, caller.node).await?,
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
