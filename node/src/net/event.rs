//! What the driver tells the rooms above.
use std::time::Duration;

use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    id::NodeId,
    trust::Certificate,
};
use tokio::sync::oneshot;

/// Something that happened on the network.
#[derive(Debug)]
pub(crate) enum NetEvent {
    /// We listen here.
    Listening { address: String },
    /// A session is open; its certificate was checked in the handshake.
    Connected { node: NodeId, certificate: Box<Certificate>, address: Option<String>, outbound: bool },
    /// A session ended; `last` when no other is open to this node.
    Disconnected { node: NodeId, last: bool, reason: String },
    /// A dial failed.
    DialFailed { node: Option<NodeId>, address: Option<String>, reason: String },
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
    pub(crate) established: Duration,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) rekeys: u64,
}
