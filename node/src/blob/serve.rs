//! Streams of other nodes. Who asks is the node whose certificate the session showed; what it may have is decided here.
//!
//! A member may fetch a result that it was told of as the coordinator of its step, and nothing else of the store; it may fetch and put
//! files as far as it may call `file_read` and `file_write`; it may bring arguments when this node runs steps of others.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use octomesh_protocol::{
    blob::{BlobMessage, BlobRefusal, Fetch, Offer, Ready, Sending, Source, Stored, Target},
    id::NodeId,
};
use octomesh_tools::tool::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    BlobError, Files, IDLE, Store,
    incoming::Incoming,
    window::{Taken, last_word},
};
use crate::{
    app::supervise::Supervisor,
    membership::MeshView,
    net::{BlobListener, BlobStream},
    trust::TrustReader,
};

/// Transfers at once that others began: each holds a piece of a file and a task, and all share one disk.
pub(super) const TRANSFERS: usize = 32;
/// Of these for one node.
pub(super) const TRANSFERS_PER_NODE: usize = 4;
/// The first message follows the opening of a stream at once.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// A session may be a moment ahead of the view.
const VIEW_PATIENCE: Duration = Duration::from_secs(2);
/// How long a transfer waits for this node to hear from others who was revoked.
const CATCH_UP: Duration = Duration::from_millis(1_500);
/// Arguments that were brought and not used go when their room is needed after this.
const INPUT_LASTS: Duration = Duration::from_secs(600);

/// What serving needs.
pub(crate) struct ServeParts {
    pub(crate) listener: BlobListener,
    pub(crate) store: Store,
    pub(crate) files: Files,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) trust: TrustReader,
    pub(crate) supervisor: Supervisor,
}

/// Places of transfers: so many in all, and so many of one node.
#[derive(Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    by_node: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

/// One place; dropping it gives it back.
pub(super) struct Place {
    places: Places,
    node: NodeId,
    _one_of_all: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(TRANSFERS)), by_node: Arc::default() }
    }

    pub(super) fn take(&self, node: NodeId) -> Option<Place> {
        let one_of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut by_node = self.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = by_node.entry(node).or_default();
        if *taken >= TRANSFERS_PER_NODE {
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

/// Serves streams until `stop`.
pub(crate) async fn serve(parts: ServeParts, stop: CancellationToken) {
    let ServeParts { mut listener, store, files, view, trust, supervisor } = parts;
    let places = Places::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Some((node, stream)) = accepted else { break };
        let place = places.take(node);
        let host =
            Host { store: store.clone(), files: files.clone(), view: view.clone(), trust: trust.clone() };
        let stop = stop.clone();
        supervisor.spawn("blob stream", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = host.guest(node, place, stream) => {}
            }
        });
    }
}

/// What one transfer is served with.
pub(super) struct Host {
    pub(super) store: Store,
    pub(super) files: Files,
    pub(super) view: watch::Receiver<Arc<MeshView>>,
    pub(super) trust: TrustReader,
}

impl Host {
    async fn guest(mut self, node: NodeId, place: Option<Place>, mut stream: BlobStream) {
        let served = match place {
            Some(_) => self.answer(node, &mut stream).await,
            // One that is refused is told so, and may come again.
            None => Err(BlobError::refused(BlobRefusal::Busy, "this node has too many transfers at once")),
        };
        if let Err(error) = served {
            tracing::debug!(node = node.short(), %error, "a transfer ended early");
            if !matches!(error, BlobError::Interrupted(_)) {
                // silent-ok: whoever has gone hears nothing
                let _ = stream.send(error.refusal(), IDLE).await;
            }
        }
        stream.close().await;
        drop(place);
    }

    async fn answer(&mut self, node: NodeId, stream: &mut BlobStream) -> Result<(), BlobError> {
        let caller = self.caller(node).await?;
        serve_one(&self.store, &self.files, &caller, stream).await
    }

    /// Whoever is at the other end, if it is a member and this node can know that it still is one.
    async fn caller(&mut self, node: NodeId) -> Result<Caller, BlobError> {
        let stranger = || BlobError::refused(BlobRefusal::Policy, "the caller is no member of this mesh");
        let known = self.view.wait_for(|v| v.get(node).is_some_and(|m| m.connected));
        let known = tokio::time::timeout(VIEW_PATIENCE, known).await;
        if !known.is_ok_and(|k| k.is_ok()) {
            return Err(stranger());
        }
        let caught_up = self.view.wait_for(|view| view.may_trust(node));
        if !tokio::time::timeout(CATCH_UP, caught_up).await.is_ok_and(|k| k.is_ok()) {
            let why = "this node was away and still asks other members who was revoked meanwhile";
            return Err(BlobError::refused(BlobRefusal::CatchingUp, why));
        }
        let view = self.view.borrow();
        let member = view.get(node).ok_or_else(stranger)?;
        let trust = self.trust.borrow();
        let void = member.certificate.as_ref().is_some_and(|c| trust.check(c).is_err());
        if trust.is_revoked(node) || void {
            return Err(stranger());
        }
        Ok(Caller {
            node,
            name: member.name.clone(),
            role: member.role,
            grants: member.grants.clone(),
            local: false,
        })
    }
}

/// One transfer with a member.
pub(super) async fn serve_one(
    store: &Store,
    files: &Files,
    caller: &Caller,
    stream: &mut BlobStream,
) -> Result<(), BlobError> {
    match stream.receive(FIRST_MESSAGE).await? {
        BlobMessage::Fetch(fetch) => send(store, files, caller, fetch, stream).await,
        BlobMessage::Offer(offer) => receive(store, files, caller, offer, stream).await,
        other => Err(BlobError::Unexpected(other.name())),
    }
}

async fn send(
    store: &Store,
    files: &Files,
    caller: &Caller,
    fetch: Fetch,
    stream: &mut BlobStream,
) -> Result<(), BlobError> {
    let outgoing = match &fetch.source {
        // Whoever may not have it can't learn whether it is here.
        Source::Result(hash) if !store.may_read(*hash, caller.node) => {
            let detail = format!("there is no blob {hash} for {} on this node", caller.name);
            return Err(BlobError::refused(BlobRefusal::NotFound, detail));
        }
        Source::Result(hash) => store.send(*hash).await?,
        Source::File(path) => files.open(caller, path.clone()).await?,
    };
    let blob = outgoing.blob();
    if fetch.expect.is_some_and(|expected| expected != blob.hash) || fetch.offset > blob.bytes {
        let detail = "it is not what it was when the transfer began";
        return Err(BlobError::refused(BlobRefusal::Changed, detail));
    }
    stream.send(Sending { blob, offset: fetch.offset }, IDLE).await?;
    outgoing.from(fetch.offset).pour(stream).await?;
    match last_word(stream).await? {
        BlobMessage::Stored(stored) if stored.hash == blob.hash => {
            if let Source::Result(hash) = fetch.source {
                store.release(hash, caller.node).await;
            }
            Ok(())
        }
        BlobMessage::Refused(refused) => {
            tracing::warn!(node = %caller.name, blob = %blob.hash, why = refused.detail, "what was sent was not taken");
            Ok(())
        }
        other => Err(BlobError::Unexpected(other.name())),
    }
}

async fn receive(
    store: &Store,
    files: &Files,
    caller: &Caller,
    offer: Offer,
    stream: &mut BlobStream,
) -> Result<(), BlobError> {
    let blob = offer.blob;
    match &offer.target {
        Target::Input if !files.offers_tools => {
            let why = "this node is a client: it runs no steps of others";
            return Err(BlobError::refused(BlobRefusal::Policy, why));
        }
        // Only for whoever brought it before: that others have it here is not told.
        Target::Input if store.may_read(blob.hash, caller.node) => {
            stream.send(Ready { offset: blob.bytes }, IDLE).await?;
            match stream.receive(IDLE).await? {
                BlobMessage::End(end) if end.hash == blob.hash => {}
                other => return Err(BlobError::Unexpected(other.name())),
            }
            return Ok(stream.send(Stored { hash: blob.hash }, IDLE).await?);
        }
        Target::Input => {}
        Target::File(path) => files.may_put(caller, path.clone()).await?,
    }
    let to_store = matches!(offer.target, Target::Input);
    let mut incoming = store.receive(caller.node, blob, to_store).await?;
    let mut came = stream.send(Ready { offset: incoming.have() }, IDLE).await.map_err(BlobError::from);
    if came.is_ok() {
        came = drain(&mut incoming, stream).await;
    }
    if let Err(error) = came {
        if error.is_passing() {
            incoming.pause().await;
        }
        return Err(error);
    }
    let whole = incoming.finish().await?;
    match offer.target {
        Target::Input => drop(store.take(whole, caller.node, INPUT_LASTS).await?),
        Target::File(path) => files.put(whole, path).await?,
    }
    Ok(stream.send(Stored { hash: blob.hash }, IDLE).await?)
}

/// Takes chunks until the other side says that it was all.
pub(super) async fn drain(incoming: &mut Incoming, stream: &mut BlobStream) -> Result<(), BlobError> {
    let mut taken = Taken::from(incoming.have());
    loop {
        match stream.receive(IDLE).await? {
            BlobMessage::Chunk(bytes) => {
                incoming.push(&bytes).await?;
                taken.tell(stream, incoming.have()).await?;
            }
            BlobMessage::End(end) if end.hash == incoming.blob().hash => return Ok(()),
            BlobMessage::End(_) => return Err(BlobError::Damaged),
            BlobMessage::Refused(refused) => return Err(refused.into()),
            other => return Err(BlobError::Unexpected(other.name())),
        }
    }
}
