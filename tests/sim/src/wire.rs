//! The network between the nodes: every connection is two pipes, one each way, that hold bytes until they are due. A direction between
//! two places can be cut: its bytes then wait, as those of TCP do, and what is due when it heals arrives at once.
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use octomesh::testing::simulated::{Line, Lines};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, watch},
    time::{Instant, Sleep, sleep, sleep_until},
};

use crate::entropy;

/// Bytes on their way in one direction of a connection, as a TCP window.
const WINDOW: usize = 256 * 1024;
/// Connections that a listener has not taken yet; beyond it a dial is refused, as by a full backlog.
const BACKLOG: usize = 128;
/// The first number of a connection; places of nodes are smaller.
const NUMBERS: u64 = 1_000_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What went over the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Connections that came about.
    pub(crate) connections: u64,
    /// Writes, and their bytes.
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
    /// Writes that were not read to their end: the reader was gone.
    pub(crate) lost: u64,
    /// Writes on their way.
    pub(crate) flying: u64,
}

struct Inner {
    begin: Instant,
    seed: u64,
    listeners: BTreeMap<u64, mpsc::Sender<(u64, Line)>>,
    /// Directions that nothing passes.
    cut: BTreeSet<(u64, u64)>,
    /// Added to every direction that touches a place.
    slow: BTreeMap<u64, Duration>,
    pipes: Vec<Weak<Pipe>>,
    traffic: Traffic,
    digest: Sha256,
}

/// The network; clones are the same one.
#[derive(Clone)]
pub(crate) struct Network {
    inner: Arc<Mutex<Inner>>,
    changed: watch::Sender<()>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let inner = Inner {
            begin: Instant::now(),
            seed,
            listeners: BTreeMap::new(),
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            pipes: Vec::new(),
            traffic: Traffic::default(),
            digest: Sha256::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), changed: watch::channel(()).0 }
    }

    /// Nothing goes from `from` to `to` any more, or it does again.
    pub(crate) fn set_cut(&self, from: u64, to: u64, cut: bool) {
        let mut inner = lock(&self.inner);
        if cut {
            inner.cut.insert((from, to));
            return;
        }
        inner.cut.remove(&(from, to));
        inner.pipes.retain(|pipe| pipe.strong_count() > 0);
        let pipes: Vec<Arc<Pipe>> = inner.pipes.iter().filter_map(Weak::upgrade).collect();
        drop(inner);
        for pipe in pipes.iter().filter(|pipe| (pipe.from, pipe.to) == (from, to)) {
            lock(&pipe.state).wake_all();
        }
        self.changed.send_replace(());
    }

    /// Everything to and from `place` takes so much longer.
    pub(crate) fn set_slow(&self, place: u64, by: Duration) {
        lock(&self.inner).slow.insert(place, by);
    }

    pub(crate) fn is_cut(&self, from: u64, to: u64) -> bool {
        lock(&self.inner).cut.contains(&(from, to))
    }

    pub(crate) fn traffic(&self) -> Traffic {
        lock(&self.inner).traffic
    }

    /// A line of the story, into the digest.
    pub(crate) fn note(&self, text: &str) {
        lock(&self.inner).digest.update(text);
    }

    /// Of every byte on every wire, with its time and place, and of all notes.
    pub(crate) fn digest(&self) -> String {
        lock(&self.inner).digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The lines of the node at `place`.
    pub(crate) fn lines(&self, place: u64) -> Arc<dyn Lines> {
        Arc::new(Port { network: self.clone(), place })
    }

    /// One way, in whole milliseconds, which is what tokio's clock tells apart: 1 to 20, the same for a pair in the whole run.
    fn latency(&self, from: u64, to: u64) -> Duration {
        let inner = lock(&self.inner);
        let pair = (from.min(to) << 32) | from.max(to);
        let (_, drawn) = entropy::next(inner.seed ^ pair.wrapping_mul(0x9e37_79b9));
        let slow = |place| inner.slow.get(&place).copied().unwrap_or_default();
        Duration::from_millis(1 + drawn % 20) + slow(from) + slow(to)
    }

    async fn passable(&self, from: u64, to: u64) {
        let mut changed = self.changed.subscribe();
        while self.is_cut(from, to) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn connect(&self, from: u64, to: u64) -> io::Result<Line> {
        let there = Arc::new(Pipe::new(self.clone(), from, to));
        let back = Arc::new(Pipe::new(self.clone(), to, from));
        let mut inner = lock(&self.inner);
        let refused = || io::Error::from_raw_os_error(CONNECTION_REFUSED);
        let listener = inner.listeners.get(&to).cloned().ok_or_else(refused)?;
        inner.traffic.connections += 1;
        let number = NUMBERS + inner.traffic.connections;
        inner.pipes.retain(|pipe| pipe.strong_count() > 0);
        inner.pipes.extend([Arc::downgrade(&there), Arc::downgrade(&back)]);
        drop(inner);
        let theirs: Line = Box::new(End::new(Arc::clone(&there), Arc::clone(&back)));
        let ours: Line = Box::new(End::new(back, there));
        match listener.try_send((number, theirs)) {
            Ok(()) => Ok(ours),
            Err(_) => Err(refused()),
        }
    }
}

/// Of Linux.
const CONNECTION_REFUSED: i32 = 111;

#[derive(Debug)]
struct Port {
    network: Network,
    place: u64,
}

impl Lines for Port {
    fn listen(&self, place: u64) -> io::Result<mpsc::Receiver<(u64, Line)>> {
        let (incoming, accepted) = mpsc::channel(BACKLOG);
        let mut inner = lock(&self.network.inner);
        let taken = inner.listeners.get(&place).is_some_and(|listener| !listener.is_closed());
        if taken || place != self.place {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        inner.listeners.insert(place, incoming);
        Ok(accepted)
    }

    fn dial(&self, to: u64) -> Pin<Box<dyn Future<Output = io::Result<Line>> + Send>> {
        let (network, from) = (self.network.clone(), self.place);
        Box::pin(async move {
            let latency = network.latency(from, to);
            sleep(latency).await;
            network.passable(from, to).await;
            let connected = network.connect(from, to);
            sleep(latency).await;
            network.passable(to, from).await;
            connected
        })
    }
}

#[derive(Default)]
struct PipeState {
    /// When they are due, and from where on they are not read yet.
    writes: VecDeque<(Instant, usize, Vec<u8>)>,
    waiting: usize,
    /// When the last write arrives; the next does not overtake it.
    last: Option<Instant>,
    /// The writer has gone; the reader learns of it then.
    closed: Option<Instant>,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeState {
    fn wake_all(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

/// One direction of a connection.
struct Pipe {
    network: Network,
    from: u64,
    to: u64,
    state: Mutex<PipeState>,
}

impl Pipe {
    fn new(network: Network, from: u64, to: u64) -> Self {
        Self { network, from, to, state: Mutex::default() }
    }

    fn write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let due = Instant::now() + self.network.latency(self.from, self.to);
        let cut = self.network.is_cut(self.to, self.from);
        let mut state = lock(&self.state);
        if state.closed.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // The reset comes back the other way.
        if state.reader_gone && !cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.waiting >= WINDOW {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let due = state.last.map_or(due, |last| last.max(due));
        state.last = Some(due);
        state.waiting += bytes.len();
        let mut inner = lock(&self.network.inner);
        let now = inner.begin.elapsed().as_millis();
        inner.traffic.writes += 1;
        if state.reader_gone {
            inner.traffic.lost += 1;
        } else {
            state.writes.push_back((due, 0, bytes.to_vec()));
            state.reader.take().into_iter().for_each(Waker::wake);
            inner.traffic.flying += 1;
        }
        inner.traffic.bytes += bytes.len() as u64;
        inner.digest.update(format!("{now} {} {} {}\n", self.from, self.to, bytes.len()));
        inner.digest.update(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// When there is nothing to read now: when there will be, if that is known.
    fn read(&self, buffer: &mut ReadBuf<'_>, context: &mut Context<'_>) -> Result<(), Option<Instant>> {
        let cut = self.network.is_cut(self.from, self.to);
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.reader = Some(context.waker().clone());
        if cut {
            return Err(None);
        }
        let closed = state.closed;
        match (state.writes.front_mut(), closed) {
            (Some((due, at, bytes)), _) if *due <= now => {
                let rest = bytes.get(*at..).unwrap_or_default();
                let taken = rest.len().min(buffer.remaining());
                buffer.put_slice(rest.get(..taken).unwrap_or_default());
                *at += taken;
                let whole = *at == bytes.len();
                state.waiting = state.waiting.saturating_sub(taken);
                if whole {
                    state.writes.pop_front();
                    lock(&self.network.inner).traffic.flying -= 1;
                }
                state.writer.take().into_iter().for_each(Waker::wake);
                Ok(())
            }
            (Some((due, ..)), _) => Err(Some(*due)),
            (None, Some(due)) if due <= now => Ok(()),
            (None, due) => Err(due),
        }
    }

    fn close(&self) {
        let arrives = Instant::now() + self.network.latency(self.from, self.to);
        let mut state = lock(&self.state);
        let arrives = state.last.map_or(arrives, |last| last.max(arrives));
        state.closed.get_or_insert(arrives);
        state.reader.take().into_iter().for_each(Waker::wake);
    }

    fn abandon(&self) {
        let mut state = lock(&self.state);
        state.reader_gone = true;
        let unread = state.writes.len() as u64;
        state.writes.clear();
        state.writer.take().into_iter().for_each(Waker::wake);
        let mut inner = lock(&self.network.inner);
        inner.traffic.lost += unread;
        inner.traffic.flying -= unread;
    }
}

/// One end of a connection.
struct End {
    input: Arc<Pipe>,
    output: Arc<Pipe>,
    timer: Pin<Box<Sleep>>,
}

impl End {
    fn new(input: Arc<Pipe>, output: Arc<Pipe>) -> Self {
        Self { input, output, timer: Box::pin(sleep_until(Instant::now())) }
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.input.read(buffer, context) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(None) => return Poll::Pending,
                Err(Some(due)) => {
                    self.timer.as_mut().reset(due);
                    if self.timer.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.output.write(bytes, context)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.output.close();
        self.input.abandon();
    }
}
