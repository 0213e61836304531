//! The handle that every room above holds.
use std::{sync::Arc, time::Duration};

use libp2p::{PeerId, StreamProtocol};
use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    id::NodeId,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    behaviour::{BLOB_PROTOCOL, STEP_PROTOCOL},
    blob::BlobStream,
    event::SessionReport,
    outbound::{Carried, Opener, Route},
    refusal::RefusalReport,
    stream::ByteStream,
};

/// Opening a stream takes two round trips of multistream; a peer that needs longer is as good as gone.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Why the network could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum NetError {
    /// The driver has stopped.
    #[error("the network of this node has stopped")]
    Stopped,
    /// No stream could be opened in time.
    #[error("no stream to the node within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    /// No stream could be opened.
    #[error("no stream to the node: {0}")]
    Open(String),
    /// The exchange failed.
    #[error("exchange failed: {0}")]
    Exchange(String),
    /// The other side does not have it (any more).
    #[error("the node does not have what was asked for")]
    Unknown,
}

/// Commands to the driver.
pub(super) enum NetCommand {
    Dial {
        node: Option<NodeId>,
        addresses: Vec<String>,
    },
    /// Over a circuit of `relay`.
    DialOver {
        node: NodeId,
        relay: NodeId,
    },
    /// Be reachable for circuits at these members.
    Reserve {
        relays: Vec<NodeId>,
    },
    /// An address that anybody may have named: a dial like others, but it makes nobody welcome.
    Try {
        address: String,
    },
    Publish {
        advert: Vec<u8>,
    },
    Cards {
        node: NodeId,
        request: CardsRequest,
        reply: oneshot::Sender<Result<CardsReply, NetError>>,
    },
    Sync {
        node: NodeId,
        bytes: Vec<u8>,
        reply: oneshot::Sender<Result<Vec<u8>, NetError>>,
    },
    /// The certificate of a connected node has ended.
    Expired {
        node: NodeId,
    },
    /// A connected node does not answer any more.
    Silent {
        node: NodeId,
    },
    Sessions {
        reply: oneshot::Sender<Vec<SessionReport>>,
    },
}

/// Sends commands to the driver; cheap to clone.
#[derive(Clone)]
pub(crate) struct NetHandle {
    pub(super) commands: mpsc::Sender<NetCommand>,
    pub(super) control: Opener,
    pub(super) refusals: watch::Receiver<Arc<Vec<RefusalReport>>>,
    /// Where streams go in place of sessions.
    #[cfg(test)]
    pub(super) links: Option<super::linked::Links>,
}

impl NetHandle {
    /// Dials a node at its addresses unless it is connected or being dialled. The result comes as an event. Gives whether the
    /// driver took the command: it may be busy, and dialling is retried by its caller anyway.
    pub(crate) fn dial(&self, node: Option<NodeId>, addresses: Vec<String>) -> bool {
        self.commands.try_send(NetCommand::Dial { node, addresses }).is_ok()
    }

    /// Dials an address that was heard on the network, to learn who is there. As [`NetHandle::dial`], but whoever comes from there is
    /// still a stranger: anybody can announce an address.
    pub(crate) fn try_address(&self, address: String) -> bool {
        self.commands.try_send(NetCommand::Try { address }).is_ok()
    }

    /// Dials a node over a circuit of `relay`, which has a session with this node. What comes of it comes as an event. Gives whether the
    /// driver took the command.
    pub(crate) fn dial_over(&self, node: NodeId, relay: NodeId) -> bool {
        self.commands.try_send(NetCommand::DialOver { node, relay }).is_ok()
    }

    /// Asks `relays` to keep circuits open to this node, unless they do. Gives whether the driver took the command.
    pub(crate) fn reserve(&self, relays: Vec<NodeId>) -> bool {
        self.commands.try_send(NetCommand::Reserve { relays }).is_ok()
    }

    /// Gossips an advert. Gives whether the driver took it; the next one comes in seconds.
    pub(crate) fn publish(&self, advert: Vec<u8>) -> bool {
        self.commands.try_send(NetCommand::Publish { advert }).is_ok()
    }

    /// Ends the sessions with a node whose certificate has ended, and says so. Gives whether the driver took the command.
    pub(crate) fn expired(&self, node: NodeId) -> bool {
        self.commands.try_send(NetCommand::Expired { node }).is_ok()
    }

    /// Ends the sessions with a node that is down. Gives whether the driver took the command.
    pub(crate) fn silent(&self, node: NodeId) -> bool {
        self.commands.try_send(NetCommand::Silent { node }).is_ok()
    }

    /// Fetches a manifest or cards.
    pub(crate) async fn cards(&self, node: NodeId, request: CardsRequest) -> Result<CardsReply, NetError> {
        self.ask(|reply| NetCommand::Cards { node, request, reply }).await?
    }

    /// Exchanges sync messages.
    pub(crate) async fn sync(&self, node: NodeId, bytes: Vec<u8>) -> Result<Vec<u8>, NetError> {
        self.ask(|reply| NetCommand::Sync { node, bytes, reply }).await?
    }

    /// All open sessions.
    pub(crate) async fn sessions(&self) -> Result<Vec<SessionReport>, NetError> {
        self.ask(|reply| NetCommand::Sessions { reply }).await
    }

    /// Whom this node refused lately, and who refused it.
    pub(crate) fn refusals(&self) -> Arc<Vec<RefusalReport>> {
        Arc::clone(&self.refusals.borrow())
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> NetCommand) -> Result<T, NetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| NetError::Stopped)?;
        answer.await.map_err(|_| NetError::Stopped)
    }

    /// The connection that a stream to a node is opened on now; a stream on another one is better given up. `None` without a session.
    pub(crate) fn route(&self, node: NodeId) -> Option<Route> {
        self.control.route(peer_id(node)?)
    }

    /// Opens a step stream to a connected node.
    pub(crate) async fn open_step(&self, node: NodeId) -> Result<ByteStream, NetError> {
        self.open_routed(node).await.map(|(stream, _)| stream)
    }

    /// Opens a step stream, and says on which connection.
    pub(crate) async fn open_routed(&self, node: NodeId) -> Result<(ByteStream, Option<Route>), NetError> {
        #[cfg(test)]
        if let Some(links) = &self.links {
            let opened = tokio::time::timeout(OPEN_TIMEOUT, links(node)).await;
            return opened.unwrap_or(Err(NetError::OpenTimeout)).map(|stream| (stream, None));
        }
        let stream = self.open(node, STEP_PROTOCOL).await?;
        let route = stream.route();
        Ok((ByteStream::new(stream), route))
    }

    /// Opens a stream for one blob to a connected node.
    pub(crate) async fn open_blob(&self, node: NodeId) -> Result<BlobStream, NetError> {
        self.open(node, BLOB_PROTOCOL).await.map(BlobStream::new)
    }

    async fn open(&self, node: NodeId, protocol: StreamProtocol) -> Result<Carried, NetError> {
        let peer = peer_id(node).ok_or(NetError::Unknown)?;
        match tokio::time::timeout(OPEN_TIMEOUT, self.control.open(peer, protocol)).await {
            Err(_) => Err(NetError::OpenTimeout),
            Ok(Err(error)) => Err(NetError::Open(error.to_string())),
            Ok(Ok(stream)) => Ok(stream),
        }
    }
}

/// The libp2p form of a node id.
pub(super) fn peer_id(node: NodeId) -> Option<PeerId> {
    PeerId::from_bytes(&node.to_peer_id_bytes()).ok()
}

/// The node behind a peer id; `None` for other key types, which no certificate can name.
pub(super) fn node_id(peer: &PeerId) -> Option<NodeId> {
    NodeId::from_peer_id_bytes(&peer.to_bytes())
}
