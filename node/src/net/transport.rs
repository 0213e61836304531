//! What carries sessions. The transport is injected: TCP in the program, memory in simulations. Both have the same upgrade on
//! top; nothing else is ever offered.
use std::time::Duration;

use libp2p::{
    PeerId, Transport,
    core::{muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    tcp, yamux,
};

use super::secure::Security;

/// Connect, security and multiplexer together; the handshake itself has 5 s of this.
const SETUP_TIMEOUT: Duration = Duration::from_secs(8);

/// Which transport a node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransportKind {
    /// TCP, IPv4 and IPv6.
    Tcp,
    /// In this process: `memory:N` addresses.
    #[cfg(any(test, feature = "testing"))]
    Memory,
}

pub(super) fn build(
    kind: TransportKind,
    security: Security,
    plaintext: bool,
) -> Boxed<(PeerId, StreamMuxerBox)> {
    #[cfg(feature = "testing")]
    if plaintext {
        return super::plaintext::build(&security, SETUP_TIMEOUT);
    }
    // Without the feature there is nothing but sessions.
    let _ = plaintext;
    match kind {
        TransportKind::Tcp => {
            secured(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)), security)
        }
        #[cfg(any(test, feature = "testing"))]
        TransportKind::Memory => secured(libp2p::core::transport::MemoryTransport::default(), security),
    }
}

fn secured<T>(transport: T, security: Security) -> Boxed<(PeerId, StreamMuxerBox)>
where
    T: Transport + Send + Unpin + 'static,
    T::Output: futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    transport
        .upgrade(Version::V1)
        .authenticate(security)
        .multiplex(yamux::Config::default())
        .timeout(SETUP_TIMEOUT)
        .boxed()
}
