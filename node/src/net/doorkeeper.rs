//! Who stands at the door: takes connections from the listeners, turns away those that are too many, hears the first message of the
//! others and passes on to the swarm whoever said the right thing. It has a thread of its own, with a reactor of its own and less right to
//! the processor than all else, so that a flood of strangers neither wakes nor delays those who carry the members' traffic.
use std::{
    fmt, io,
    ops::ControlFlow,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, ready},
};

use futures::{
    AsyncRead, AsyncWrite, FutureExt as _, StreamExt as _, TryFutureExt as _,
    channel::mpsc,
    future::{self, BoxFuture, MapOk, Ready},
    stream::FuturesUnordered,
    task::AtomicWaker,
};
use libp2p::{
    Multiaddr,
    core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent},
};
use tokio::{runtime::Handle, time::Instant};

use super::{
    address,
    event::NetEvent,
    handover::Handover,
    refusal::Refusals,
    secure::{Anew, Cause, Crowded, Diagnosis, Gate, MEMBERS, STRANGERS, Security, Visitor, diagnose, knock},
};
use crate::{app::supervise::Supervisor, metrics::NetMetrics};

/// On their way to the swarm: as many as can be inside the door at once.
const ARRIVALS: usize = STRANGERS + MEMBERS;
/// Connections that are looked at before the stop signal is: a millisecond or two.
const AT_ONCE: usize = 64;

/// Where the doorkeeper tells of those whom it refused.
#[derive(Clone)]
pub(super) struct Book {
    pub(super) metrics: NetMetrics,
    pub(super) refusals: Refusals,
    pub(super) events: tokio::sync::mpsc::Sender<NetEvent>,
}

impl Book {
    /// Counted and remembered each; told as often as somebody could read it.
    fn refused(&self, at: &Multiaddr, from: &Multiaddr, found: Diagnosis, gate: &Gate) {
        self.metrics.handshake_failed("in", found.cause.into());
        let address = address::from_multiaddr(from);
        self.refusals.add(false, address.as_deref(), None, &found, Instant::now());
        if gate.tells(at, from) {
            // silent-ok: whoever reads them is behind, and `doctor` shows the refusal
            let _ = self.events.try_send(NetEvent::Refused { address, reason: found.message });
        }
    }

    fn turned_away(&self, why: Crowded) {
        let reason: &'static str = why.into();
        self.metrics.turned_away.with_label_values(&[reason]).inc();
    }
}

/// Not started yet. Nothing comes in while it does not run.
pub(super) struct Doorkeeper {
    work: BoxFuture<'static, ()>,
    /// Where the thread's reactor becomes known to whoever listens; `None` for a task among others.
    reactor: Option<Arc<dyn Reactor>>,
}

impl fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorkeeper")
    }
}

impl Doorkeeper {
    /// Of a transport that nobody guards.
    #[cfg(feature = "testing")]
    pub(super) fn absent() -> Self {
        Self { work: future::pending().boxed(), reactor: None }
    }

    /// Starts it. It runs until the node stops, or until there is no swarm any more; nothing may listen before.
    ///
    /// # Errors
    /// When the system gives no thread or no reactor.
    pub(super) async fn start(self, tasks: &Supervisor) -> io::Result<()> {
        let (stop, work) = (tasks.stop_token().clone(), self.work);
        let task = async move {
            // silent-ok: both are its end
            let _ = stop.run_until_cancelled(work).await;
        };
        match self.reactor {
            Some(reactor) => reactor.is(tasks.thread_critical("doorkeeper", task).await?),
            None => tasks.spawn_critical("doorkeeper", task),
        }
        Ok(())
    }
}

type Event<T> = TransportEvent<
    Ready<Result<Anew<<T as Transport>::Output>, <T as Transport>::Error>>,
    <T as Transport>::Error,
>;

/// How a knock ended.
struct Knocked<T> {
    id: Visitor,
    local: Multiaddr,
    remote: Multiaddr,
    result: Result<Anew<T>, Diagnosis>,
    listener: ListenerId,
}

/// The transport below, of which the swarm dials and the doorkeeper listens.
struct Shared<T> {
    transport: Mutex<T>,
    /// The doorkeeper, when there is another listener.
    keeper: AtomicWaker,
    /// Where listeners are heard, when that is not where everything else is.
    reactor: OnceLock<Handle>,
}

/// Whoever waits for the reactor of the doorkeeper's thread.
trait Reactor: Send + Sync {
    fn is(&self, handle: Handle);
}

impl<T: Send> Reactor for Shared<T> {
    fn is(&self, handle: Handle) {
        // silent-ok: a doorkeeper starts once
        let _ = self.reactor.set(handle);
    }
}

impl<T> Shared<T> {
    fn transport(&self) -> MutexGuard<'_, T> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Keeper<T: Transport> {
    shared: Arc<Shared<T>>,
    gate: Gate,
    security: Security,
    book: Book,
    /// As many as the gate lets in.
    knocking: FuturesUnordered<BoxFuture<'static, Knocked<T::Output>>>,
    arrivals: mpsc::Sender<Event<T>>,
    last: Visitor,
    /// Where those who pass live.
    home: Handle,
}

impl<T> Keeper<T>
where
    T: Transport + Unpin,
    T::Output: Handover + AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    /// Until the swarm is gone.
    async fn keep(mut self) {
        while future::poll_fn(|cx| self.turn(cx)).await.is_continue() {
            tokio::task::yield_now().await;
        }
    }

    /// Ready when something was done.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        self.shared.keeper.register(cx.waker());
        for done in 0..AT_ONCE {
            match self.step(cx) {
                Poll::Ready(ControlFlow::Continue(())) => {}
                Poll::Pending if done > 0 => break,
                otherwise => return otherwise,
            }
        }
        Poll::Ready(ControlFlow::Continue(()))
    }

    /// One event.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        if ready!(self.arrivals.poll_ready(cx)).is_err() {
            return Poll::Ready(ControlFlow::Break(()));
        }
        if let Poll::Ready(Some(knocked)) = self.knocking.poll_next_unpin(cx) {
            self.knocked(knocked);
            return Poll::Ready(ControlFlow::Continue(()));
        }
        let event = Pin::new(&mut *self.shared.transport()).poll(cx);
        match ready!(event) {
            TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr } => {
                self.came(listener_id, upgrade, local_addr, send_back_addr);
            }
            TransportEvent::NewAddress { listener_id, listen_addr } => {
                self.pass(TransportEvent::NewAddress { listener_id, listen_addr });
            }
            TransportEvent::AddressExpired { listener_id, listen_addr } => {
                self.pass(TransportEvent::AddressExpired { listener_id, listen_addr });
            }
            TransportEvent::ListenerClosed { listener_id, reason } => {
                self.pass(TransportEvent::ListenerClosed { listener_id, reason });
            }
            TransportEvent::ListenerError { listener_id, error } => {
                self.pass(TransportEvent::ListenerError { listener_id, error });
            }
        }
        Poll::Ready(ControlFlow::Continue(()))
    }

    fn came(
        &mut self,
        listener_id: ListenerId,
        upgrade: T::ListenerUpgrade,
        local_addr: Multiaddr,
        remote: Multiaddr,
    ) {
        self.last = self.last.saturating_add(1);
        let id = self.last;
        if let Err(why) = self.gate.enter(id, &local_addr, &remote) {
            return self.book.turned_away(why);
        }
        let (security, home) = (self.security.clone(), self.home.clone());
        let knock = async move {
            let passed = async {
                let io = upgrade.await.map_err(|error| diagnose(&error, Cause::Io))?;
                let io = knock(io, &security).await?;
                io.hand_over(&home).map_err(|error| diagnose(&error, Cause::Io))
            };
            Knocked { id, result: passed.await, local: local_addr, remote, listener: listener_id }
        };
        self.knocking.push(knock.boxed());
    }

    fn knocked(&mut self, knocked: Knocked<T::Output>) {
        let Knocked { id, local, remote, result, listener } = knocked;
        match result {
            Ok(io) => self.pass(TransportEvent::Incoming {
                listener_id: listener,
                upgrade: future::ready(Ok(io)),
                local_addr: local,
                send_back_addr: remote,
            }),
            Err(found) => {
                self.gate.failed(id, &remote);
                self.book.refused(&local, &remote, found, &self.gate);
            }
        }
    }

    fn pass(&mut self, event: Event<T>) {
        // silent-ok: there was room a moment ago, and nobody else sends; else the swarm is gone
        let _ = self.arrivals.try_send(event);
    }
}

/// The transport as the swarm sees it: of those who come from outside, the ones that passed.
pub(super) struct Guarded<T: Transport> {
    shared: Arc<Shared<T>>,
    arrivals: mpsc::Receiver<Event<T>>,
}

impl<T: Transport> Drop for Guarded<T> {
    fn drop(&mut self) {
        self.arrivals.close();
        self.shared.keeper.wake();
    }
}

/// Puts a doorkeeper before `transport`, whose connections live in the runtime `home`. One of `sockets` gets a thread.
pub(super) fn guard<T>(
    transport: T,
    (gate, security, book): (Gate, Security, Book),
    home: Handle,
    sockets: bool,
) -> (Guarded<T>, Doorkeeper)
where
    T: Transport + Send + Unpin + 'static,
    T::Output: Handover + AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    let shared = Arc::new(Shared {
        transport: Mutex::new(transport),
        keeper: AtomicWaker::new(),
        reactor: OnceLock::new(),
    });
    let (sender, arrivals) = mpsc::channel(ARRIVALS);
    let keeper = Keeper {
        shared: Arc::clone(&shared),
        gate,
        security,
        book,
        knocking: FuturesUnordered::new(),
        arrivals: sender,
        last: 0,
        home,
    };
    let work = keeper.keep().boxed();
    let reactor = sockets.then(|| Arc::clone(&shared) as Arc<dyn Reactor>);
    (Guarded { shared, arrivals }, Doorkeeper { work, reactor })
}

impl<T> Transport for Guarded<T>
where
    T: Transport + Unpin,
{
    type Output = Anew<T::Output>;
    type Error = T::Error;
    type ListenerUpgrade = Ready<Result<Self::Output, T::Error>>;
    type Dial = MapOk<T::Dial, fn(T::Output) -> Self::Output>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        let reactor = self.shared.reactor.get().map(Handle::enter);
        let result = self.shared.transport().listen_on(id, address);
        drop(reactor);
        self.shared.keeper.wake();
        result
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let found = self.shared.transport().remove_listener(id);
        self.shared.keeper.wake();
        found
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<T::Error>> {
        let dial = self.shared.transport().dial(address, options)?;
        Ok(dial.map_ok(Anew::fresh as fn(T::Output) -> Self::Output))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, T::Error>> {
        match ready!(self.arrivals.poll_next_unpin(cx)) {
            Some(event) => Poll::Ready(event),
            // The doorkeeper has gone, and the node stops.
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests;
