//! Streams that this node opens, for steps, for blobs and for membership. Of several connections to a node a new stream takes the best one: a direct
//! one before one over a relay, an older one before a younger one.
use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures::{AsyncRead, AsyncWrite};
use libp2p::{
    Multiaddr, OutboundUpgrade, PeerId, Stream, StreamProtocol,
    core::{Endpoint, UpgradeInfo, transport::PortUse, upgrade::DeniedUpgrade},
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
        NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
        handler::ConnectionEvent,
    },
};
use tokio::sync::{mpsc, oneshot};

use super::circuit;

/// Streams asked for on one connection that its handler has not come to yet: a burst of calls to one node.
const WAITING: usize = 256;

/// How many streams of steps and blobs are open on each connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Open(Arc<Mutex<HashMap<ConnectionId, usize>>>);

impl Open {
    fn table(&self) -> MutexGuard<'_, HashMap<ConnectionId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more until the result is dropped.
    pub(super) fn enter(&self, connection: ConnectionId) -> Counted {
        *self.table().entry(connection).or_default() += 1;
        Counted { open: self.clone(), connection }
    }

    /// Streams of steps on a connection.
    pub(super) fn on(&self, connection: ConnectionId) -> usize {
        self.table().get(&connection).copied().unwrap_or(0)
    }
}

/// A stream that is counted.
#[derive(Debug)]
pub(super) struct Counted {
    open: Open,
    connection: ConnectionId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut table = self.open.table();
        if let Some(count) = table.get_mut(&self.connection) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.connection);
            }
        }
    }
}

/// A stream, counted while it is open if it carries a step or a blob.
#[derive(Debug)]
pub(super) struct Carried {
    stream: Stream,
    counted: Option<Counted>,
}

impl Carried {
    pub(super) fn new(stream: Stream, counted: Option<Counted>) -> Self {
        Self { stream, counted }
    }
}

impl Carried {
    /// The connection that it is on; known of streams of steps.
    pub(super) fn route(&self) -> Option<Route> {
        self.counted.as_ref().map(|counted| Route(counted.connection))
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, bytes)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// Why there is no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum OpenError {
    /// No session is open.
    #[error("there is no session with it")]
    NotConnected,
    /// The session ended meanwhile, or the other side takes no streams of this kind.
    #[error("its session ended, or it takes no such stream")]
    Refused,
    /// Too many wait.
    #[error("too many streams to it are being opened")]
    Busy,
}

/// The connection that a stream is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route(ConnectionId);

type Answer = oneshot::Sender<Result<Carried, OpenError>>;

/// A connection on which streams can be opened. Orders go to its handler, and not by way of the driver, which may be busy.
#[derive(Debug)]
struct Way {
    relayed: bool,
    connection: ConnectionId,
    orders: mpsc::Sender<Order>,
}

type Ways = HashMap<PeerId, Vec<Way>>;

/// Asks for streams; cheap to clone.
#[derive(Clone)]
pub(crate) struct Opener {
    ways: Arc<Mutex<Ways>>,
    /// Streams of these kinds are counted in `open`.
    counted: Arc<[StreamProtocol]>,
    open: Open,
}

impl Opener {
    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream to a connected node. It may take as long as the other side likes; callers have their own patience.
    pub(super) async fn open(&self, peer: PeerId, protocol: StreamProtocol) -> Result<Carried, OpenError> {
        let (answer, opened) = oneshot::channel();
        self.order(peer, protocol, answer)?;
        opened.await.unwrap_or(Err(OpenError::Refused))
    }

    /// Where a new stream would be.
    pub(super) fn route(&self, peer: PeerId) -> Option<Route> {
        self.ways().get(&peer).and_then(|ways| best(ways)).map(|way| Route(way.connection))
    }

    fn order(&self, peer: PeerId, protocol: StreamProtocol, answer: Answer) -> Result<(), OpenError> {
        let ways = self.ways();
        let best = ways.get(&peer).and_then(|ways| best(ways)).ok_or(OpenError::NotConnected)?;
        let counted = self.counted.contains(&protocol).then(|| self.open.enter(best.connection));
        best.orders.try_send(Order { protocol, answer, counted }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => OpenError::Busy,
            mpsc::error::TrySendError::Closed(_) => OpenError::Refused,
        })
    }

    fn add(&self, peer: PeerId, relayed: bool, connection: ConnectionId) -> Handler {
        let (sender, orders) = mpsc::channel(WAITING);
        let mut ways = self.ways();
        let of_peer = ways.entry(peer).or_default();
        // What was denied for a limit never closes by an event.
        of_peer.retain(|way| !way.orders.is_closed());
        of_peer.push(Way { relayed, connection, orders: sender });
        Handler { orders }
    }

    fn remove(&self, peer: PeerId, connection: ConnectionId) {
        let mut ways = self.ways();
        let Some(of_peer) = ways.get_mut(&peer) else { return };
        of_peer.retain(|way| way.connection != connection && !way.orders.is_closed());
        if of_peer.is_empty() {
            ways.remove(&peer);
        }
    }
}

fn best(ways: &[Way]) -> Option<&Way> {
    let open = ways.iter().filter(|way| !way.orders.is_closed());
    open.min_by_key(|way| (way.relayed, way.connection))
}

/// Opens the streams.
pub(super) struct Outbound(Opener);

impl Outbound {
    /// Streams of the kinds `counted` are counted in `open`.
    pub(super) fn new(counted: &[StreamProtocol], open: Open) -> Self {
        Self(Opener { ways: Arc::default(), counted: counted.into(), open })
    }

    pub(super) fn opener(&self) -> Opener {
        self.0.clone()
    }
}

impl NetworkBehaviour for Outbound {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.0.add(peer, circuit::is_circuit(local), connection))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.0.add(peer, circuit::is_circuit(address), connection))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ConnectionClosed(closed) = event {
            self.0.remove(closed.peer_id, closed.connection_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// A stream to be opened. As the upgrade of that stream it answers by itself, whatever the order in which they come.
#[derive(Debug)]
pub(super) struct Order {
    protocol: StreamProtocol,
    answer: Answer,
    counted: Option<Counted>,
}

impl UpgradeInfo for Order {
    type Info = StreamProtocol;
    type InfoIter = std::iter::Once<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(self.protocol.clone())
    }
}

impl OutboundUpgrade<Stream> for Order {
    type Output = ();
    type Error = Infallible;
    type Future = std::future::Ready<Result<(), Infallible>>;

    fn upgrade_outbound(self, stream: Stream, _: StreamProtocol) -> Self::Future {
        // silent-ok: whoever asked does not wait any more
        let _ = self.answer.send(Ok(Carried::new(stream, self.counted)));
        std::future::ready(Ok(()))
    }
}

/// The part of it on one connection.
pub(super) struct Handler {
    orders: mpsc::Receiver<Order>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = Order;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(DeniedUpgrade, ())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), Self::ToBehaviour>> {
        match self.orders.poll_recv(cx) {
            Poll::Ready(Some(order)) => Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(order, ()),
            }),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        match event {}
    }

    fn on_connection_event(&mut self, _: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol>) {
    }
}
