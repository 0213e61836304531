//! What carries sessions. The transport is injected: TCP in the program, memory in simulations. Both have the same upgrade on
//! top; nothing else is ever offered.
use std::time::Duration;

use libp2p::{
    PeerId, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, OrTransport},
        upgrade::Version,
    },
    relay, tcp, yamux,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::runtime::Handle;

use super::{
    doorkeeper::{Book, Doorkeeper, guard},
    handover::Handover,
    secure::{Gate, Security},
    zone::Zoned,
};

/// Connect, security and multiplexer together; the handshake itself has 5 s of this.
const SETUP_TIMEOUT: Duration = Duration::from_secs(8);

/// A session on which nothing comes is tried by the kernel after this long, and then this often: four times, since packets get lost.
/// That costs no time of the process, and about 25 bytes a second and session, less when there is traffic.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(4);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Linux only. What was sent and not answered for so long won't be: power, cable or address of one side are gone. Of packets sent again after
/// 0.2, 0.6, 1.4, 3 and 6.2 s not all are lost by chance, except on very bad radio.
#[cfg(target_os = "linux")]
const UNANSWERED: Duration = Duration::from_secs(8);

/// Which transport a node uses.
#[derive(Debug, Clone)]
pub(crate) enum TransportKind {
    /// TCP, IPv4 and IPv6.
    Tcp,
    /// In this process: `memory:N` addresses.
    #[cfg(any(test, feature = "testing"))]
    Memory,
    /// Over the lines of a simulation, which have the same addresses.
    #[cfg(feature = "testing")]
    Simulated(std::sync::Arc<dyn super::simulated::Lines>),
}

/// The transport, whose connections live in the runtime `home`, who stands at its door, and what drives its circuits: they are the
/// second way to a node, and sessions go over them as over the first, through the same door.
pub(super) fn build(
    kind: TransportKind,
    security: Security,
    plaintext: bool,
    door: (Gate, Book),
    home: Handle,
    local: PeerId,
) -> (Boxed<(PeerId, StreamMuxerBox)>, Doorkeeper, Option<relay::client::Behaviour>) {
    #[cfg(feature = "testing")]
    if plaintext {
        // It has no door.
        return (super::plaintext::build(&security, SETUP_TIMEOUT), Doorkeeper::absent(), None);
    }
    // Without the feature there is nothing but sessions.
    let _ = plaintext;
    let (over, circuits) = relay::client::new(local);
    let (transport, doorkeeper) = match kind {
        TransportKind::Tcp => {
            // Those who come are watched when they have passed.
            let tcp =
                Zoned::new().map(|stream, point| if point.is_dialer() { watched(stream) } else { stream });
            secured(OrTransport::new(over, tcp), security, door, home, true)
        }
        #[cfg(any(test, feature = "testing"))]
        TransportKind::Memory => {
            let memory = libp2p::core::transport::MemoryTransport::default();
            secured(OrTransport::new(over, memory), security, door, home, false)
        }
        #[cfg(feature = "testing")]
        TransportKind::Simulated(lines) => {
            let simulated = super::simulated::Simulated::new(lines);
            secured(OrTransport::new(over, simulated), security, door, home, false)
        }
    };
    (transport, doorkeeper, Some(circuits))
}

/// A connection that ends by itself when its other end is gone.
pub(super) fn watched(stream: tcp::tokio::TcpStream) -> tcp::tokio::TcpStream {
    let socket = SockRef::from(&stream.0);
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE_AFTER).with_interval(KEEP_ALIVE_EVERY);
    let set = socket.set_tcp_keepalive(&keep_alive);
    #[cfg(target_os = "linux")]
    let set = set.and_then(|()| socket.set_tcp_user_timeout(Some(UNANSWERED)));
    if let Err(error) = set {
        // SWIM and pings find out later.
        tracing::debug!(%error, "the kernel does not watch a connection");
    }
    stream
}

fn secured<T>(
    transport: T,
    security: Security,
    (gate, book): (Gate, Book),
    home: Handle,
    sockets: bool,
) -> (Boxed<(PeerId, StreamMuxerBox)>, Doorkeeper)
where
    T: Transport + Send + Unpin + 'static,
    T::Output: Handover + futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    let places = gate.places();
    let watched = transport.map(move |io, point| places.watch(io, &point));
    let (guarded, doorkeeper) = guard(watched, (gate, security.clone(), book), home, sockets);
    let transport = guarded
        .upgrade(Version::V1)
        .authenticate(security)
        .multiplex(yamux::Config::default())
        .timeout(SETUP_TIMEOUT)
        .boxed();
    (transport, doorkeeper)
}
