//! Step streams between two exchanges. Opening one takes a round trip of multistream-select and more; a small call on a stream that is open
//! already takes one round trip in all.
//!
//! A stream comes back after an exchange that left nothing behind on it, and is used again while it is on the connection that a new one
//! would be opened on. It is closed when nobody needed it for some seconds: sooner than the other side gives it up, so that a question
//! rarely meets the end of its stream; one that does is asked again on a new one.
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use octomesh_protocol::id::NodeId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Dispatcher;
use crate::net::{FrameReader, FrameWriter, NetError, NetHandle, Route};

/// Streams to one node that wait for their next exchange: calls in flight to a large machine. Half of what the other side keeps.
const KEPT_PER_NODE: usize = 64;
/// A stream that nobody needed for so long is closed.
const KEPT_FOR: Duration = Duration::from_secs(8);
const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// Saying good-bye to a node that reads takes no time.
const CLOSE: Duration = Duration::from_secs(1);

/// An open stream.
pub(super) struct StepStream {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    route: Option<Route>,
}

impl StepStream {
    pub(super) async fn open(net: &NetHandle, node: NodeId) -> Result<Self, NetError> {
        let (stream, route) = net.open_routed(node).await?;
        let (reader, writer) = stream.split();
        Ok(Self { reader, writer, route })
    }
}

struct Kept {
    stream: StepStream,
    since: Instant,
}

#[derive(Default)]
pub(super) struct Streams(Mutex<HashMap<NodeId, Vec<Kept>>>);

impl Streams {
    fn table(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Kept>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream that was used last. Those on other connections than `route` are dropped.
    pub(super) fn take(&self, node: NodeId, route: Option<Route>) -> Option<StepStream> {
        let mut table = self.table();
        let kept = table.get_mut(&node)?;
        while let Some(last) = kept.pop() {
            if route.is_some() && last.stream.route == route {
                return Some(last.stream);
            }
        }
        table.remove(&node);
        None
    }

    /// Keeps a stream whose exchange is over. One on which something came that nobody asked for is of no use.
    pub(super) fn put(&self, node: NodeId, stream: StepStream, now: Instant) {
        if !stream.reader.is_empty() {
            return;
        }
        let mut table = self.table();
        let kept = table.entry(node).or_default();
        if kept.len() < KEPT_PER_NODE {
            kept.push(Kept { stream, since: now });
        }
    }

    /// Those that nobody needed.
    fn outdated(&self, now: Instant) -> Vec<StepStream> {
        let mut old = Vec::new();
        self.table().retain(|_, kept| {
            // The longest unused come first.
            let young = kept.partition_point(|k| now.saturating_duration_since(k.since) >= KEPT_FOR);
            old.extend(kept.drain(..young).map(|k| k.stream));
            !kept.is_empty()
        });
        old
    }
}

impl Dispatcher {
    /// Closes streams that nobody needs any more, until `stop`.
    pub(crate) async fn keep_streams(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SWEEP_EVERY) => {}
            }
            let closing = self.0.streams.outdated(Instant::now()).into_iter().map(|mut stream| async move {
                // silent-ok: a node that does not read its end is not waited for
                let _ = tokio::time::timeout(CLOSE, stream.writer.close()).await;
            });
            futures::future::join_all(closing).await;
        }
    }
}
