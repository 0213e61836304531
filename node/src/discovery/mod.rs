//! Finding each other on a network, and this machine's own addresses.
//!
//! Nothing here is trusted: a hint is an address to dial, and the session's certificate decides who is there.
mod beacon;
mod dns;
mod interfaces;
mod socket;
mod task;

use std::time::Duration;

pub(crate) use interfaces::{Network, read as interfaces};
pub(crate) use task::{Discovery, DiscoveryParts};

/// Somebody of this mesh was heard on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    /// Where, `IP:PORT`, the best first; link-local IPv6 addresses have a zone.
    pub(crate) addresses: Vec<String>,
    /// Whether the other side is to dial first, so that not both do.
    pub(crate) yields: bool,
    /// On which interface.
    pub(crate) interface: String,
}

/// How it stands with multicast DNS on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentReport {
    pub(crate) interface: String,
    pub(crate) networks: Vec<Network>,
    /// How long it has been listened on.
    pub(crate) listening: Duration,
    /// Nodes of this mesh heard lately.
    pub(crate) heard: u32,
    /// Nodes of other meshes.
    pub(crate) foreign: u32,
    /// Why nothing can be sent or heard.
    pub(crate) problem: Option<String>,
}

/// What is known of the network, for whoever asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetworkReport {
    /// Whether multicast DNS is switched on.
    pub(crate) mdns: bool,
    pub(crate) segments: Vec<SegmentReport>,
}
