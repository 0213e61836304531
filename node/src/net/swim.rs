//! Streams of `/octomesh/swim/1`: each node opens one to each connected peer and sends its own messages on it. A queue of eight
//! per peer, the oldest dropped: an old probe is worth nothing, and nobody waits for a slow peer.
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::Duration,
};

use futures::{
    AsyncReadExt, AsyncWriteExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream, FuturesUnordered, SelectAll},
};
use libp2p::PeerId;
use octomesh_protocol::{
    frame::{self, LENGTH_BYTES},
    id::NodeId,
    swim::{FRAME_BYTES, Message},
};
use prometheus::IntCounterVec;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    behaviour::SWIM_PROTOCOL,
    handle::{node_id, peer_id},
    outbound::{Carried, Opener},
    stream::StreamError,
};
use crate::metrics::NetMetrics;

/// Messages to one peer that wait for its stream.
const QUEUE: usize = 8;
/// A message that waited longer says something about a moment that is over.
const STALE: Duration = Duration::from_secs(1);
/// Opening a stream takes two round trips; a write ends when the peer's window takes it. Whoever needs longer is as good as gone.
const PATIENCE: Duration = Duration::from_secs(3);
/// Messages of all peers on their way to or from membership; a burst of a join in a large mesh.
const WAITING: usize = 256;
/// Streams that one peer may have open to us: one per connection, and one that is just being replaced.
const STREAMS_PER_PEER: usize = 3;
/// Messages that one stream may bring at once, and each second. An honest node sends two or three a second.
const BURST: f64 = 128.0;
const PER_SECOND: f64 = 64.0;

enum Command {
    Send {
        to: NodeId,
        message: Message,
    },
    /// Answered when everything was sent.
    Flush {
        done: oneshot::Sender<()>,
    },
}

/// Sends and receives membership messages.
pub(crate) struct SwimLink {
    commands: mpsc::Sender<Command>,
    incoming: mpsc::Receiver<(NodeId, Message)>,
}

impl SwimLink {
    /// Sends to a connected node, if there is room. Gives whether there was.
    pub(crate) fn send(&self, to: NodeId, message: Message) -> bool {
        self.commands.try_send(Command::Send { to, message }).is_ok()
    }

    /// Waits until what was sent has left, or until that can't be hoped for any more.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.commands.send(Command::Flush { done }).await.is_ok() {
            // silent-ok: the network has stopped, so nothing leaves any more
            let _ = tokio::time::timeout(STALE, flushed).await;
        }
    }

    /// The next message, from an authenticated node; never ends.
    pub(crate) async fn receive(&mut self) -> (NodeId, Message) {
        match self.incoming.recv().await {
            Some(message) => message,
            None => std::future::pending().await,
        }
    }
}

type Opened = (NodeId, Result<Carried, String>);
/// What a stream of a peer brought.
struct Received {
    node: NodeId,
    /// Of the stream.
    number: u64,
    /// A message and the length of its frame; `None` is the end of the stream.
    message: Option<(Message, usize)>,
}

/// What goes to one peer.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<(Instant, Message)>,
    stream: Option<Carried>,
    /// A stream is being opened or written.
    busy: bool,
}

/// The task behind a [`SwimLink`].
pub(crate) struct SwimTraffic {
    commands: mpsc::Receiver<Command>,
    incoming: mpsc::Sender<(NodeId, Message)>,
    streams: mpsc::Receiver<(PeerId, Carried)>,
    control: Opener,
    outboxes: BTreeMap<NodeId, Outbox>,
    writes: FuturesUnordered<BoxFuture<'static, Opened>>,
    reads: SelectAll<BoxStream<'static, Received>>,
    /// The streams of each peer, oldest first, by their numbers, and how to give one up.
    reading: BTreeMap<NodeId, VecDeque<(u64, CancellationToken)>>,
    accepted: u64,
    flushes: Vec<oneshot::Sender<()>>,
    metrics: NetMetrics,
    dropped: IntCounterVec,
}

/// The link and its task. `streams` are those that others open.
pub(super) fn link(
    streams: mpsc::Receiver<(PeerId, Carried)>,
    control: Opener,
    metrics: NetMetrics,
    dropped: IntCounterVec,
) -> (SwimLink, SwimTraffic) {
    let (commands_out, commands) = mpsc::channel(WAITING);
    let (incoming, received) = mpsc::channel(WAITING);
    let traffic = SwimTraffic {
        commands,
        incoming,
        streams,
        control,
        outboxes: BTreeMap::new(),
        writes: FuturesUnordered::new(),
        reads: SelectAll::new(),
        reading: BTreeMap::new(),
        accepted: 0,
        flushes: Vec::new(),
        metrics,
        dropped,
    };
    (SwimLink { commands: commands_out, incoming: received }, traffic)
}

impl SwimTraffic {
    /// Runs until `stop`, or until membership is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(Command::Send { to, message }) => self.queue(to, message),
                    Some(Command::Flush { done }) => self.flushes.push(done),
                    None => return,
                },
                Some((peer, stream)) = self.streams.recv() => self.accepted(&peer, stream),
                Some((node, result)) = self.writes.next(), if !self.writes.is_empty() => self.written(node, result),
                Some(received) = self.reads.next(), if !self.reads.is_empty() => self.read(received),
            }
            if self.writes.is_empty() && self.commands.is_empty() {
                // silent-ok: whoever waited has gone
                for done in self.flushes.drain(..) {
                    let _ = done.send(());
                }
            }
        }
    }

    fn drop_one(&self) {
        self.dropped.with_label_values(&["swim"]).inc();
    }

    fn queue(&mut self, to: NodeId, message: Message) {
        let outbox = self.outboxes.entry(to).or_default();
        let full = outbox.queue.len() >= QUEUE;
        if full {
            outbox.queue.pop_front();
        }
        outbox.queue.push_back((Instant::now(), message));
        if full {
            self.drop_one();
        }
        self.go_on(to);
    }

    /// Writes the next message of a peer, on a new stream if there is none.
    fn go_on(&mut self, to: NodeId) {
        let Some(outbox) = self.outboxes.get_mut(&to).filter(|o| !o.busy) else { return };
        let now = Instant::now();
        let waiting = outbox.queue.len();
        outbox.queue.retain(|(since, _)| now.duration_since(*since) < STALE);
        let stale = waiting - outbox.queue.len();
        let next = outbox.queue.pop_front();
        let Some((_, message)) = next else { return (0..stale).for_each(|_| self.drop_one()) };
        outbox.busy = true;
        let stream = outbox.stream.take();
        (0..stale).for_each(|_| self.drop_one());
        let frame = match message.to_frame() {
            Ok(frame) => frame,
            Err(error) => {
                // The core keeps to the limits: a fault of ours.
                tracing::error!(%error, "a membership message can't be sent");
                return self.written(to, stream.ok_or_else(|| error.to_string()));
            }
        };
        self.metrics.swim("out", frame.len());
        let control = self.control.clone();
        self.writes.push(Box::pin(async move {
            let write = async {
                if let Some(mut stream) = stream
                    && send(&mut stream, &frame).await.is_ok()
                {
                    return Ok(stream);
                }
                // None was open, or its connection has ended since and there may be another one. Whoever gets a message twice
                // learns nothing new.
                let peer = peer_id(to).ok_or("no such node")?;
                let mut stream = control.open(peer, SWIM_PROTOCOL).await.map_err(|e| e.to_string())?;
                send(&mut stream, &frame).await.map_err(|e| e.to_string())?;
                Ok(stream)
            };
            let written = tokio::time::timeout(PATIENCE, write).await;
            (to, written.unwrap_or_else(|_| Err("no stream in time".to_owned())))
        }));
    }

    fn written(&mut self, node: NodeId, result: Result<Carried, String>) {
        let Some(outbox) = self.outboxes.get_mut(&node) else { return };
        outbox.busy = false;
        match result {
            Ok(stream) => outbox.stream = Some(stream),
            Err(error) => {
                tracing::debug!(node = node.short(), error, "a membership message was lost");
                self.drop_one();
            }
        }
        self.go_on(node);
        // Nothing waits and nothing is open: it may be gone for ever.
        self.outboxes.retain(|id, o| *id != node || o.busy || o.stream.is_some());
    }

    fn accepted(&mut self, peer: &PeerId, stream: Carried) {
        let Some(node) = node_id(peer) else { return };
        let open = self.reading.entry(node).or_default();
        // The newest is the one that is written to. An older one may be of a connection whose end nobody has told of.
        if open.len() >= STREAMS_PER_PEER
            && let Some((_, oldest)) = open.pop_front()
        {
            tracing::debug!(
                node = node.short(),
                "more membership streams than connections; the oldest was closed"
            );
            oldest.cancel();
        }
        self.accepted += 1;
        let given_up = CancellationToken::new();
        open.push_back((self.accepted, given_up.clone()));
        let messages = messages(node, self.accepted, stream);
        self.reads.push(messages.take_until(given_up.cancelled_owned()).boxed());
    }

    fn read(&mut self, received: Received) {
        let Received { node, number, message } = received;
        match message {
            Some((message, size)) => {
                self.metrics.swim("in", size);
                if self.incoming.try_send((node, message)).is_err() {
                    self.drop_one();
                }
            }
            None => {
                if let Some(open) = self.reading.get_mut(&node) {
                    open.retain(|(n, _)| *n != number);
                }
                self.reading.retain(|_, open| !open.is_empty());
            }
        }
    }
}

async fn send(stream: &mut Carried, frame: &[u8]) -> io::Result<()> {
    stream.write_all(frame).await?;
    stream.flush().await
}

/// Counts what a stream may still bring.
struct Allowance {
    left: f64,
    counted: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { left: BURST, counted: now }
    }

    fn takes(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        self.left = (self.left + since.as_secs_f64() * PER_SECOND).min(BURST);
        let enough = self.left >= 1.0;
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}

/// The messages of a stream. Whoever sends too much is read no faster than that.
fn messages(node: NodeId, number: u64, stream: Carried) -> BoxStream<'static, Received> {
    let begin = Some((stream, Allowance::new(Instant::now())));
    Box::pin(stream::unfold(begin, move |state| async move {
        let (mut stream, mut allowance) = state?;
        while !allowance.takes(Instant::now()) {
            tokio::time::sleep(Duration::from_secs_f64(1.0 / PER_SECOND)).await;
        }
        match receive(&mut stream).await {
            Ok(message) => {
                let message = Some(message);
                Some((Received { node, number, message }, Some((stream, allowance))))
            }
            Err(error) => {
                match error {
                    StreamError::Frame(error) => {
                        tracing::warn!(node = node.short(), %error, "a membership stream was closed")
                    }
                    error => tracing::debug!(node = node.short(), %error, "a membership stream ended"),
                }
                Some((Received { node, number, message: None }, None))
            }
        }
    }))
}

async fn receive(stream: &mut Carried) -> Result<(Message, usize), StreamError> {
    let mut prefix = [0; LENGTH_BYTES];
    stream.read_exact(&mut prefix).await?;
    let size = frame::payload_length(prefix, FRAME_BYTES)?;
    let mut bytes = vec![0; size];
    stream.read_exact(&mut bytes).await?;
    Ok((Message::from_frame(&bytes)?, LENGTH_BYTES + size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_read_at_the_pace_of_honest_nodes() {
        let begin = Instant::now();
        let mut allowance = Allowance::new(begin);
        let taken = (0..1000).filter(|_| allowance.takes(begin)).count();
        assert_eq!(taken, 128);
        let taken = (0..1000).filter(|_| allowance.takes(begin + Duration::from_secs(1))).count();
        assert_eq!(taken, 64);
    }
}
