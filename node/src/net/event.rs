//! What the driver tells the rooms above.
use std::time::Duration;

use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    id::{NodeId, NodeName},
    trust::{Certificate, Role},
};
use tokio::sync::oneshot;

/// How a session goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The other end, when it is connected directly.
    pub(crate) address: Option<String>,
    /// Who carries it otherwise.
    pub(crate) relay: Option<NodeId>,
}

/// Something that happened on the network.
#[derive(Debug)]
pub(crate) enum NetEvent {
    /// We listen here.
    Listening { address: String },
    /// A session is open; its certificate was checked in the handshake. `address` and `relay` are of the best session with that node,
    /// which need not be this one; `dialled` is where this one's dial reached the node directly.
    Connected {
        node: NodeId,
        certificate: Box<Certificate>,
        address: Option<String>,
        dialled: Option<String>,
        relay: Option<NodeId>,
    },
    /// A session ended; `last` when no other is open to this node, else `path` is that of the best one which is left. `revoked`: the
    /// other side says that this node is.
    Disconnected { node: NodeId, last: bool, path: Path, reason: String, revoked: bool },
    /// No circuit of `relay` to `node`. `revoked`: the other side says that this node is.
    CircuitFailed { node: NodeId, relay: NodeId, reason: String, revoked: bool },
    /// `relay` keeps no circuits open to this node.
    NotReserved { relay: NodeId, reason: String },
    /// A dial failed. `revoked`: the other side says that this node is. `refused`: nobody listens at its port.
    DialFailed { node: Option<NodeId>, address: Option<String>, reason: String, revoked: bool, refused: bool },
    /// Somebody who dialled us was refused.
    Refused { address: Option<String>, reason: String },
    /// A measured round trip.
    Rtt { node: NodeId, rtt: Duration },
    /// An advert, signed by `origin` (gossip) or sent by it over its own session (sync).
    Advert { origin: NodeId, bytes: Vec<u8> },
    /// A sync request; the answer goes back over the same exchange.
    Sync { node: NodeId, bytes: Vec<u8>, reply: oneshot::Sender<Vec<u8>> },
    /// A request for cards.
    Cards { request: CardsRequest, reply: oneshot::Sender<CardsReply> },
}

/// An open session, for people.
#[derive(Debug, Clone)]
pub(crate) struct SessionReport {
    pub(crate) node: NodeId,
    pub(crate) outbound: bool,
    pub(crate) address: Option<String>,
    pub(crate) relay: Option<NodeId>,
    pub(crate) established: Duration,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) rekeys: u64,
    /// From the certificate of the handshake.
    pub(crate) certificate_name: NodeName,
    pub(crate) role: Role,
    /// Unix seconds.
    pub(crate) certificate_expires: u64,
}
