//! A transport whose connections a simulation makes: it decides when bytes arrive, and whether. Only in builds with the feature
//! `testing`.
use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Ready, ready},
};
use libp2p::{
    Multiaddr,
    core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent},
    multiaddr::Protocol,
};
use tokio::time::timeout;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use super::zone::CONNECT_TIMEOUT;

/// Both directions of one connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One end of a connection.
pub type Line = Box<dyn Duplex>;

/// The lines of one node: how it reaches others, and they it. Places are numbers, in addresses `memory:NUMBER`.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Listens at `place`. Each connection comes with a number of its own, which no other connection has, as a port would be.
    ///
    /// # Errors
    /// When somebody listens there.
    fn listen(&self, place: u64) -> io::Result<mpsc::Receiver<(u64, Line)>>;

    /// Connects to whoever listens at `place`; may take for ever.
    fn dial(&self, place: u64) -> BoxFuture<'static, io::Result<Line>>;
}

struct Listener {
    id: ListenerId,
    address: Multiaddr,
    incoming: mpsc::Receiver<(u64, Line)>,
}

type Event = TransportEvent<Ready<io::Result<Compat<Line>>>, io::Error>;

/// The transport over a node's lines.
pub(super) struct Simulated {
    lines: Arc<dyn Lines>,
    listeners: Vec<Listener>,
    events: VecDeque<Event>,
    waker: Option<Waker>,
}

impl Simulated {
    pub(super) fn new(lines: Arc<dyn Lines>) -> Self {
        Self { lines, listeners: Vec::new(), events: VecDeque::new(), waker: None }
    }

    fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

fn place(address: &Multiaddr) -> Option<u64> {
    address.iter().find_map(|part| match part {
        Protocol::Memory(place) => Some(place),
        _ => None,
    })
}

fn at(place: u64) -> Multiaddr {
    Multiaddr::empty().with(Protocol::Memory(place))
}

impl Transport for Simulated {
    type Output = Compat<Line>;
    type Error = io::Error;
    type ListenerUpgrade = Ready<io::Result<Compat<Line>>>;
    type Dial = BoxFuture<'static, io::Result<Compat<Line>>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        let Some(place) = place(&address) else {
            return Err(TransportError::MultiaddrNotSupported(address));
        };
        let incoming = self.lines.listen(place).map_err(TransportError::Other)?;
        let address = at(place);
        self.listeners.push(Listener { id, address: address.clone(), incoming });
        self.tell(TransportEvent::NewAddress { listener_id: id, listen_addr: address });
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|listener| listener.id != id);
        let removed = self.listeners.len() < before;
        if removed {
            self.tell(TransportEvent::ListenerClosed { listener_id: id, reason: Ok(()) });
        }
        removed
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        match place(&address) {
            Some(place) => {
                let dial = timeout(CONNECT_TIMEOUT, self.lines.dial(place));
                let unanswered = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
                Ok(dial.map(move |line| line.unwrap_or_else(unanswered).map(Line::compat)).boxed())
            }
            None => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        for listener in &mut self.listeners {
            if let Poll::Ready(Some((number, line))) = listener.incoming.poll_recv(context) {
                return Poll::Ready(TransportEvent::Incoming {
                    listener_id: listener.id,
                    upgrade: ready(Ok(line.compat())),
                    local_addr: listener.address.clone(),
                    send_back_addr: at(number),
                });
            }
        }
        self.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
