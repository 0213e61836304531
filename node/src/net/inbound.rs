//! Streams that other nodes open, for steps, for blobs and for membership. They wait in one bounded queue: a burst of a hundred calls is ordinary here, and a
//! stream that were dropped for want of a reader would look to its caller like a lost node.
use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{
        Endpoint,
        transport::PortUse,
        upgrade::{DeniedUpgrade, ReadyUpgrade},
    },
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
        NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
        handler::{ConnectionEvent, FullyNegotiatedInbound},
    },
};
use tokio::sync::mpsc;

use super::outbound::{Carried, Open};

/// Streams that wait for whoever serves them, over all nodes; each was negotiated and holds no data yet.
const WAITING: usize = 1024;

/// Accepts streams of one protocol on every connection.
pub(super) struct Inbound {
    protocol: StreamProtocol,
    streams: mpsc::Sender<(PeerId, Carried)>,
    /// Where they are counted, if they carry steps or blobs.
    open: Option<Open>,
}

impl Inbound {
    /// The behaviour, and the end where the streams come out.
    pub(super) fn new(
        protocol: StreamProtocol,
        open: Option<Open>,
    ) -> (Self, mpsc::Receiver<(PeerId, Carried)>) {
        let (streams, waiting) = mpsc::channel(WAITING);
        (Self { protocol, streams, open }, waiting)
    }

    fn handler(&self, peer: PeerId, connection: ConnectionId) -> Handler {
        let (protocol, streams, open) = (self.protocol.clone(), self.streams.clone(), self.open.clone());
        Handler { peer, connection, protocol, streams, open }
    }
}

impl NetworkBehaviour for Inbound {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// The part of it on one connection.
pub(super) struct Handler {
    peer: PeerId,
    connection: ConnectionId,
    protocol: StreamProtocol,
    streams: mpsc::Sender<(PeerId, Carried)>,
    open: Option<Open>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = ReadyUpgrade<StreamProtocol>;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol> {
        SubstreamProtocol::new(ReadyUpgrade::new(self.protocol.clone()), ())
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, (), Self::ToBehaviour>> {
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, Self::InboundProtocol, Self::OutboundProtocol>,
    ) {
        if let ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: stream, .. }) =
            event
        {
            let counted = self.open.as_ref().map(|open| open.enter(self.connection));
            if self.streams.try_send((self.peer, Carried::new(stream, counted))).is_err() {
                tracing::warn!(peer = %self.peer, "more streams than can wait; one was closed");
            }
        }
    }
}
