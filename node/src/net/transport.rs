//! What carries sessions. The transport is injected: TCP in the program, memory in simulations. Both have the same upgrade on
//! top; nothing else is ever offered.
use std::{io, time::Duration};

use libp2p::{
    PeerId, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{
            Boxed,
            timeout::{TransportTimeout, TransportTimeoutError},
        },
        upgrade::Version,
    },
    yamux,
};
use tokio::sync::mpsc;

use super::{
    secure::{Heard, Offer, Places, Security},
    zone::Zoned,
};

/// Connect, security and multiplexer together; the handshake itself has 5 s of this.
const SETUP_TIMEOUT: Duration = Duration::from_secs(8);

/// To connect, which takes a round trip: one lost packet is sent again after a second. A dead address of hundreds must not keep
/// its place for long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

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
    places: Places,
    offers: mpsc::Sender<Offer>,
) -> Boxed<(PeerId, StreamMuxerBox)> {
    #[cfg(feature = "testing")]
    if plaintext {
        return super::plaintext::build(&security, SETUP_TIMEOUT);
    }
    // Without the feature there is nothing but sessions.
    let _ = plaintext;
    match kind {
        TransportKind::Tcp => {
            let tcp = TransportTimeout::with_outgoing_timeout(Zoned::new(), CONNECT_TIMEOUT);
            secured(tcp.map_err(unanswered), security, places, offers)
        }
        #[cfg(any(test, feature = "testing"))]
        TransportKind::Memory => {
            secured(libp2p::core::transport::MemoryTransport::default(), security, places, offers)
        }
    }
}

fn unanswered(error: TransportTimeoutError<io::Error>) -> io::Error {
    match error {
        TransportTimeoutError::Timeout => {
            let message = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, message)
        }
        TransportTimeoutError::TimerError(error) | TransportTimeoutError::Other(error) => error,
    }
}

fn secured<T>(
    transport: T,
    security: Security,
    places: Places,
    offers: mpsc::Sender<Offer>,
) -> Boxed<(PeerId, StreamMuxerBox)>
where
    T: Transport + Send + Unpin + 'static,
    T::Output: futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    transport
        .map(move |io, point| places.watch(Heard::new(io, &point, offers), &point))
        .upgrade(Version::V1)
        .authenticate(security)
        .multiplex(yamux::Config::default())
        .timeout(SETUP_TIMEOUT)
        .boxed()
}
