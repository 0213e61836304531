//! Streams to other nodes.
use std::{sync::Arc, time::Duration};

use octomesh_protocol::{
    blob::{BlobMessage, BlobRef, BlobRefusal, End, Fetch, Offer, Source, Stored, Target},
    id::{BlobHash, NodeId},
};
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, time::Instant};

use super::{
    BlobError, IDLE, PATIENCE, Store,
    serve::drain,
    window::{Sent, Taken, last_word},
};
use crate::{
    membership::MeshView,
    net::{BlobStream, NetHandle},
};

/// How long a node that is gone in the middle of a transfer may take to come back.
const COMES_BACK: Duration = Duration::from_secs(60);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(300);

/// Opens transfers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BlobClient {
    pub(crate) me: NodeId,
    pub(crate) net: NetHandle,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) store: Store,
}

/// The file or blob is another one than that whose beginning is here.
fn changed() -> BlobError {
    BlobError::refused(BlobRefusal::Changed, "it changed while it was copied; copy it again")
}

impl BlobClient {
    async fn open(&self, node: NodeId) -> Result<BlobStream, BlobError> {
        self.net.open_blob(node).await.map_err(|e| BlobError::Interrupted(e.to_string()))
    }

    /// Waits a moment before the next try; gives whether there is one.
    async fn again(&self, node: NodeId, error: &BlobError, until: Instant) -> bool {
        if !error.is_passing() || Instant::now() >= until {
            return false;
        }
        tracing::debug!(node = node.short(), %error, "a transfer goes on when the node is there again");
        tokio::time::sleep(AGAIN).await;
        let mut view = self.view.clone();
        let back = view.wait_for(|v| v.get(node).is_some_and(|m| m.connected));
        // silent-ok: without a session the next try says so
        let _ = tokio::time::timeout_at(until, back).await;
        Instant::now() < until
    }

    /// Brings the arguments of a step to the node that is to run it, unless it has them from this node already. Gives how many bytes
    /// went.
    pub(crate) async fn bring_input(&self, node: NodeId, bytes: &[u8]) -> Result<u64, BlobError> {
        let hash = BlobHash::from_bytes(Sha256::digest(bytes).into());
        let blob = BlobRef { hash, bytes: bytes.len() as u64 };
        let mut stream = self.open(node).await?;
        stream.send(Offer { target: Target::Input, blob }, IDLE).await?;
        let offset = ready(&mut stream).await?;
        if offset < blob.bytes {
            let left = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
            Sent::from(offset).push(&mut stream, left).await?;
        }
        stream.send(End { hash }, IDLE).await?;
        stored(&mut stream, hash).await?;
        stream.close().await;
        Ok(blob.bytes.saturating_sub(offset))
    }

    /// Gets the result of a step of this node into the own store, kept as long as `lasts`. Goes on after interruptions for as long as the
    /// node may come back.
    pub(crate) async fn fetch_result(
        &self,
        node: NodeId,
        blob: BlobRef,
        lasts: Duration,
    ) -> Result<(), BlobError> {
        if self.store.may_read(blob.hash, self.me) && self.store.read(blob.hash).await.is_ok() {
            return Ok(());
        }
        let mut until = Instant::now() + COMES_BACK;
        let mut had = 0;
        loop {
            let mut incoming = self.store.receive(node, blob, true).await?;
            if incoming.have() > had {
                until = Instant::now() + COMES_BACK;
            }
            had = incoming.have();
            let fetched = async {
                let mut stream = self.open(node).await?;
                let expect = Some(blob.hash);
                let fetch = Fetch { source: Source::Result(blob.hash), offset: incoming.have(), expect };
                stream.send(fetch, IDLE).await?;
                let sending = sending(&mut stream).await?;
                if sending.0 != blob || sending.1 != incoming.have() {
                    return Err(changed());
                }
                drain(&mut incoming, &mut stream).await?;
                Ok(stream)
            };
            match fetched.await {
                Ok(mut stream) => {
                    let whole = match incoming.finish().await {
                        Ok(whole) => whole,
                        Err(error) => {
                            // silent-ok: it is told why; what it makes of that is its own business
                            let _ = stream.send(error.refusal(), IDLE).await;
                            return Err(error);
                        }
                    };
                    self.store.take(whole, self.me, lasts).await?;
                    // silent-ok: a node that does not hear it keeps the blob for longer
                    let _ = stream.send(Stored { hash: blob.hash }, IDLE).await;
                    stream.close().await;
                    return Ok(());
                }
                Err(error) => {
                    if error.is_passing() {
                        incoming.pause().await;
                    }
                    if !self.again(node, &error, until).await {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// A file of another node's workspace, from byte `offset` on; `expect` is what the bytes before belong to.
    pub(crate) async fn fetch_file(
        &self,
        node: NodeId,
        path: String,
        offset: u64,
        expect: Option<BlobHash>,
    ) -> Result<Download, BlobError> {
        let mut stream = self.open(node).await?;
        let source = Source::File(path);
        stream.send(Fetch { source: source.clone(), offset, expect }, IDLE).await?;
        let (blob, at) = sending(&mut stream).await?;
        if at != offset || expect.is_some_and(|e| e != blob.hash) {
            return Err(changed());
        }
        // Of a part the end can be told by whoever has the beginning.
        let hash = (offset == 0).then(Sha256::new);
        Ok(Download {
            client: self.clone(),
            node,
            source,
            blob,
            at,
            hash,
            stream: Some(stream),
            over: false,
            taken: Taken::from(offset),
        })
    }

    /// Brings a file to another node's workspace, where it takes the place of what is at `path`.
    pub(crate) async fn put_file(
        &self,
        node: NodeId,
        path: String,
        blob: BlobRef,
    ) -> Result<Upload, BlobError> {
        let mut stream = self.open(node).await?;
        stream.send(Offer { target: Target::File(path), blob }, IDLE).await?;
        let offset = ready(&mut stream).await?;
        if offset > blob.bytes {
            return Err(BlobError::Unexpected("an offset beyond the end"));
        }
        Ok(Upload { stream, blob, offset, sent: Sent::from(offset) })
    }
}

async fn ready(stream: &mut BlobStream) -> Result<u64, BlobError> {
    match stream.receive(PATIENCE).await? {
        BlobMessage::Ready(ready) => Ok(ready.offset),
        BlobMessage::Refused(refused) => Err(refused.into()),
        other => Err(BlobError::Unexpected(other.name())),
    }
}

async fn sending(stream: &mut BlobStream) -> Result<(BlobRef, u64), BlobError> {
    match stream.receive(PATIENCE).await? {
        BlobMessage::Sending(sending) => Ok((sending.blob, sending.offset)),
        BlobMessage::Refused(refused) => Err(refused.into()),
        other => Err(BlobError::Unexpected(other.name())),
    }
}

async fn stored(stream: &mut BlobStream, hash: BlobHash) -> Result<(), BlobError> {
    match last_word(stream).await? {
        BlobMessage::Stored(stored) if stored.hash == hash => Ok(()),
        BlobMessage::Stored(_) => Err(BlobError::Damaged),
        BlobMessage::Refused(refused) => Err(refused.into()),
        other => Err(BlobError::Unexpected(other.name())),
    }
}

/// A file that comes from another node, and goes on to come after that node was gone for a while.
pub(crate) struct Download {
    client: BlobClient,
    node: NodeId,
    source: Source,
    blob: BlobRef,
    at: u64,
    hash: Option<Sha256>,
    stream: Option<BlobStream>,
    over: bool,
    taken: Taken,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("blob", &self.blob).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Download {
    pub(crate) const fn blob(&self) -> BlobRef {
        self.blob
    }

    /// The next bytes; empty at the end, when their hash is right.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, BlobError> {
        if self.over {
            return Ok(Vec::new());
        }
        let until = Instant::now() + COMES_BACK;
        loop {
            match self.take().await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    self.stream = None;
                    if !self.client.again(self.node, &error, until).await {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn take(&mut self) -> Result<Vec<u8>, BlobError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let mut stream = self.client.open(self.node).await?;
                let expect = Some(self.blob.hash);
                stream.send(Fetch { source: self.source.clone(), offset: self.at, expect }, IDLE).await?;
                if sending(&mut stream).await? != (self.blob, self.at) {
                    return Err(changed());
                }
                self.taken = Taken::from(self.at);
                self.stream.insert(stream)
            }
        };
        match stream.receive(IDLE).await? {
            BlobMessage::Chunk(bytes) => {
                self.at += bytes.len() as u64;
                if self.at > self.blob.bytes {
                    return Err(BlobError::Damaged);
                }
                if let Some(hash) = &mut self.hash {
                    hash.update(&bytes);
                }
                self.taken.tell(stream, self.at).await?;
                Ok(bytes)
            }
            BlobMessage::End(_) => {
                let found = self.hash.take().map(|h| BlobHash::from_bytes(h.finalize().into()));
                if self.at != self.blob.bytes || found.is_some_and(|found| found != self.blob.hash) {
                    return Err(BlobError::Damaged);
                }
                // silent-ok: the bytes are here; the other side waits for it no longer than it likes
                let _ = stream.send(Stored { hash: self.blob.hash }, IDLE).await;
                self.over = true;
                Ok(Vec::new())
            }
            BlobMessage::Refused(refused) => Err(refused.into()),
            other => Err(BlobError::Unexpected(other.name())),
        }
    }
}

/// A file on its way to another node.
#[derive(Debug)]
pub(crate) struct Upload {
    stream: BlobStream,
    blob: BlobRef,
    offset: u64,
    sent: Sent,
}

impl Upload {
    /// From which byte on it is wanted.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.sent.push(&mut self.stream, bytes).await
    }

    /// It is in its place at the other node when this returns.
    pub(crate) async fn finish(mut self) -> Result<(), BlobError> {
        self.stream.send(End { hash: self.blob.hash }, IDLE).await?;
        stored(&mut self.stream, self.blob.hash).await?;
        self.stream.close().await;
        Ok(())
    }
}
