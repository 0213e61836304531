//! The libp2p boundary: the only room that names libp2p. One task, the driver, owns the swarm; everything else holds a
//! [`NetHandle`]. Above this room there are nodes ([`octomesh_protocol::id::NodeId`]), addresses as `IP:PORT` text and byte
//! streams.

mod address;
mod behaviour;
#[cfg(feature = "bench-sessions")]
pub(crate) mod bench;
mod blob;
mod circuit;
mod codec;
mod doorkeeper;
mod driver;
mod event;
mod handle;
mod handover;
mod inbound;
pub(crate) mod join;
#[cfg(test)]
pub(crate) mod linked;
mod measure;
mod outbound;
#[cfg(feature = "testing")]
mod plaintext;
mod refusal;
pub(crate) mod secure;
#[cfg(feature = "testing")]
pub(crate) mod simulated;
mod stream;
mod swim;
#[cfg(test)]
pub(crate) mod tests;
mod transport;
pub(crate) mod version;
mod zone;

pub(crate) use blob::{BlobListener, BlobStream};
pub(crate) use driver::{NetConfig, Network, OPENED_QUEUE, StartError, check_free, start};
pub(crate) use event::{NetEvent, Path, SessionReport};
pub(crate) use handle::{NetError, NetHandle};
pub(crate) use outbound::Route;
pub(crate) use refusal::RefusalReport;
pub(crate) use stream::{FrameReader, FrameWriter, StepListener, StreamError};
pub(crate) use swim::{SwimLink, SwimTraffic};
pub(crate) use transport::TransportKind;

use refusal::printable;

/// Whether `text` is an address that can be dialled from any machine, `IP:PORT`: one with a zone can be from this one only.
pub(crate) fn is_address(text: &str) -> bool {
    let zoned = text.parse().is_ok_and(|address| address::zone(&address).is_some());
    !zoned && address::to_multiaddr(text).is_some()
}

/// A log filter with what libp2p says of itself at `info` left out, unless the filter asks for it by name.
pub(crate) fn log_filter(filter: &str) -> String {
    if filter.contains("libp2p") {
        return filter.to_owned();
    }
    format!("libp2p=warn,libp2p_swarm=warn,libp2p_gossipsub=error,yamux=error,{filter}")
}
