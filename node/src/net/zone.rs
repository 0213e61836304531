//! TCP that also dials link-local IPv6 addresses: on a network without router there may be no others. libp2p's own TCP drops the
//! zone, without which such an address leads nowhere.
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use libp2p::{
    Multiaddr,
    core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent},
    tcp,
};
use tokio::time::timeout;

use super::address;

/// To connect, which takes a round trip: one lost packet is sent again after a second. A dead address of hundreds must not keep
/// its place for long.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Tcp = tcp::tokio::Transport;

/// libp2p's TCP, but for link-local addresses.
pub(super) struct Zoned(Tcp);

impl Zoned {
    pub(super) fn new() -> Self {
        Self(Tcp::new(tcp::Config::default().nodelay(true)))
    }
}

fn zoned(address: &Multiaddr) -> Option<SocketAddr> {
    let socket = address::from_multiaddr(address)?.parse().ok()?;
    address::zone(&socket).map(|_| socket)
}

async fn connect(address: SocketAddr) -> io::Result<tcp::tokio::TcpStream> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(tcp::tokio::TcpStream(stream))
}

impl Transport for Zoned {
    type Output = tcp::tokio::TcpStream;
    type Error = io::Error;
    type ListenerUpgrade = <Tcp as Transport>::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<tcp::tokio::TcpStream>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.0.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = match zoned(&address) {
            Some(socket) => connect(socket).boxed(),
            None => self.0.dial(address, options)?,
        };
        // Not with libp2p's own wrapper, which gives each connection from outside a timer, too, and wakes a thread for it.
        Ok(async move {
            timeout(CONNECT_TIMEOUT, dial).await.unwrap_or_else(|_| {
                let message = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            })
        }
        .boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.0).poll(context)
    }
}
