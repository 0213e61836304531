//! The records of a session as a byte stream. One buffer each way, sealed and opened in place.
use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use futures::{AsyncRead, AsyncWrite};
use octomesh_protocol::session::{
    record::{
        CloseReason, HEADER_BYTES, LENGTH_BYTES, MAX_BODY_BYTES, MAX_SEALED_BYTES, Opener, RecordError,
    },
    rekey::{Opened, Session},
};
use zeroize::Zeroize as _;

use super::{Farewell, SecureError};
use crate::app::clock::Clock;

mod ahead;
mod ending;
mod rekeying;

use ahead::Ahead;
use rekeying::{Rekeying, Turn};

/// Two whole records: while one waits for its rest, the one before it can still be read out.
const READ_BUFFER: usize = 2 * (LENGTH_BYTES + MAX_SEALED_BYTES);

/// How many bytes went over the wire in each direction, ciphertext and all, and how often the keys were renewed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes_in: Arc<AtomicU64>,
    pub(crate) bytes_out: Arc<AtomicU64>,
    pub(crate) rekeys: Arc<AtomicU64>,
    /// Of all sessions of this node.
    pub(crate) all_rekeys: Option<prometheus::IntCounter>,
    /// What this side's close record says when it is set; it also bounds how long the end may take.
    pub(crate) farewell: Arc<OnceLock<Farewell>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// The buffer holds a header's room and plaintext.
    Plain,
    /// The buffer holds a record of which this many bytes are written.
    Sealed(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Open,
    /// The close record is in the buffer.
    CloseQueued,
    /// Nothing more is written.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The other side closed.
    Closed,
    /// A record was bad, or the connection was cut.
    Dead,
}

/// A session over `T`.
pub(crate) struct SecureStream<T> {
    io: T,
    session: Session,
    rekeying: Rekeying,
    clock: Arc<dyn Clock>,
    pub(super) traffic: Traffic,
    out: Vec<u8>,
    writing: Writing,
    ending: Ending,
    input: Box<[u8]>,
    /// What arrived and was not opened yet.
    start: usize,
    end: usize,
    /// What was opened and not read out yet.
    plain_start: usize,
    plain_end: usize,
    /// What was read while a writer waited.
    ahead: Ahead,
    reading: Reading,
    patience: ending::Patience,
}

impl<T> Drop for SecureStream<T> {
    fn drop(&mut self) {
        self.out.zeroize();
        self.input.zeroize();
    }
}

/// Who is to be woken; mostly it is the same task again.
fn remember(waiting: &mut Option<Waker>, cx: &Context<'_>) {
    match waiting {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waiting = Some(cx.waker().clone()),
    }
}

fn invalid(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<T> SecureStream<T> {
    /// `session` is what the handshake left, `clock` the source of randomness for later keys. Needs the runtime's timers.
    pub(crate) fn new(io: T, session: Session, traffic: Traffic, clock: Arc<dyn Clock>) -> Self {
        Self {
            io,
            session,
            rekeying: Rekeying::new(),
            clock,
            traffic,
            out: vec![0; HEADER_BYTES],
            writing: Writing::Plain,
            ending: Ending::Open,
            input: vec![0; READ_BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            plain_start: 0,
            plain_end: 0,
            ahead: Ahead::default(),
            reading: Reading::Open,
            patience: ending::Patience::default(),
        }
    }

    /// Makes the buffered plaintext a record. At the limit the session says so and ends.
    fn seal(&mut self) -> io::Result<()> {
        match self.session.seal(&mut self.out) {
            Ok(()) => self.writing = Writing::Sealed(0),
            Err(error) => {
                self.queue_close(CloseReason::LimitReached, "")?;
                return Err(invalid(error));
            }
        }
        Ok(())
    }

    fn queue_close(&mut self, reason: CloseReason, detail: &str) -> io::Result<()> {
        self.out.zeroize();
        self.out = self.session.close_with(reason, detail).map_err(invalid)?;
        self.writing = Writing::Sealed(0);
        self.ending = Ending::CloseQueued;
        Ok(())
    }

    /// Opens the next record if it is complete; otherwise says how many bytes it has from `start` on.
    fn open_next(&mut self) -> io::Result<Option<usize>> {
        let waiting = self.input.get_mut(self.start..self.end).unwrap_or_default();
        let Some((prefix, rest)) = waiting.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(Some(LENGTH_BYTES));
        };
        let sealed_bytes = Opener::sealed_bytes(*prefix).map_err(invalid)?;
        let Some(sealed) = rest.get_mut(..sealed_bytes) else {
            return Ok(Some(LENGTH_BYTES + sealed_bytes));
        };
        let turn = match self.session.open(sealed).map_err(invalid)? {
            Opened::Data(body) => {
                self.plain_start = self.start + HEADER_BYTES;
                self.plain_end = self.plain_start + body.len();
                None
            }
            Opened::Close(reason) if reason.is_refusal() => {
                let farewell = Farewell::heard(reason, self.session.close_detail());
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionRefused,
                    SecureError::RefusedByPeer(farewell),
                ));
            }
            Opened::Close(reason) => {
                tracing::debug!(%reason, "the other side ended the session");
                self.reading = Reading::Closed;
                Some(Turn::Over)
            }
            other => Some(Turn::of(other)),
        };
        if let Some(turn) = turn {
            self.turned(turn)?;
        }
        self.start += LENGTH_BYTES + sealed_bytes;
        Ok(None)
    }

    /// Makes room for `needed` bytes from `start` on.
    fn make_room(&mut self, needed: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + needed > self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

impl<T: AsyncRead + Unpin> SecureStream<T> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let room = self.input.get_mut(self.end..).unwrap_or_default();
        let read = match ready!(Pin::new(&mut self.io).poll_read(cx, room)) {
            Ok(read) => read,
            Err(error) => {
                self.died();
                return Poll::Ready(Err(error));
            }
        };
        if read == 0 {
            // Without a close record this may be somebody cutting the line: never a clean end.
            self.died();
            let cut =
                io::Error::new(io::ErrorKind::UnexpectedEof, "session was cut without its close record");
            return Poll::Ready(Err(cut));
        }
        self.end = (self.end + read).min(self.input.len());
        self.traffic.bytes_in.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> SecureStream<T> {
    /// Writes the sealed record in the buffer, if there is one, and then what a rekey has to say. Nothing is sealed before both are
    /// out, so that records leave in the order of their counters.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Writing::Sealed(sent) = self.writing {
            let rest = self.out.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                self.out.truncate(HEADER_BYTES);
                self.writing = Writing::Plain;
                break;
            }
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.writing = Writing::Sealed(sent + written);
            self.traffic.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        }
        while !self.rekeying.rest().is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, self.rekeying.rest()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.rekeying.wrote(written);
            self.traffic.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> SecureStream<T> {
    fn poll_seal_and_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if self.ending == Ending::Open && self.out.len() > HEADER_BYTES {
            if self.waits_for_key(cx, self.out.len() - HEADER_BYTES)? {
                self.poll_time(cx)?;
                return Poll::Pending;
            }
            // The answer to a rekey may have come, and have something to say first.
            ready!(self.poll_drain(cx))?;
            self.seal()?;
        }
        self.poll_drain(cx)
    }

    fn poll_write_some(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        const FULL: usize = HEADER_BYTES + MAX_BODY_BYTES;
        if self.traffic.farewell.get().is_some() && self.ending != Ending::Ended {
            // The multiplexer's own good-bye would end the other side's reading before it comes to the reason. So the reason comes
            // first, and what is written after it goes nowhere.
            ready!(self.poll_last_words(cx))?;
            return Poll::Ready(Ok(bytes.len()));
        }
        if self.ending != Ending::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // The reader watches the timer, and so does a writer that has to wait.
        self.start_if_due(false)?;
        ready!(self.poll_drain(cx))?;
        if self.out.len() == FULL {
            // It waited for a new key.
            ready!(self.poll_seal_and_drain(cx))?;
        }
        let room = FULL.saturating_sub(self.out.len());
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.out.extend_from_slice(taken);
        if self.out.len() == FULL && !self.must_wait(MAX_BODY_BYTES) {
            let sealed = self.seal();
            // Sends it on its way; when the socket is full the next call waits.
            if let Poll::Ready(result) = self.poll_drain(cx) {
                result?;
            }
            sealed?;
        }
        Poll::Ready(Ok(taken.len()))
    }

    /// The close record of a session that its owner ends, after what is already sealed.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if self.ending == Ending::Open
            && let Some(Farewell { reason, detail }) = self.traffic.farewell.get().cloned()
        {
            self.queue_close(reason, &detail)?;
        }
        self.poll_drain(cx)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.traffic.farewell.get().is_some() {
            ready!(self.poll_last_words(cx))?;
        }
        ready!(self.poll_seal_and_drain(cx))?;
        if self.ending == Ending::Open {
            self.queue_close(CloseReason::Done, "")?;
        }
        ready!(self.poll_drain(cx))?;
        self.ending = Ending::Ended;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        Pin::new(&mut self.io).poll_close(cx)
    }

    /// Remembers who waits, so that reading can wake it. Somebody who is sent away does not wait for long.
    fn waits<O>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<O>>) -> Poll<io::Result<O>> {
        if result.is_pending() {
            remember(&mut self.rekeying.writer, cx);
            if self.traffic.farewell.get().is_some() {
                return self.patience.poll(cx);
            }
        }
        result
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> SecureStream<T> {
    fn poll_read_some(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            self.push_control(cx);
            let taken = self.ahead.take(out);
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            if let Some(plain) = self.input.get(self.plain_start..self.plain_end)
                && !plain.is_empty()
            {
                let taken = plain.len().min(out.len());
                if let (Some(to), Some(from)) = (out.get_mut(..taken), plain.get(..taken)) {
                    to.copy_from_slice(from);
                }
                self.plain_start += taken;
                return Poll::Ready(Ok(taken));
            }
            match self.reading {
                Reading::Open => {}
                Reading::Closed => return Poll::Ready(Ok(0)),
                Reading::Dead => return Poll::Ready(Err(invalid(RecordError::Closed))),
            }
            match self.open_next() {
                Ok(None) => {}
                Ok(Some(needed)) => {
                    // Once for what came together, not for each record: the timer costs as much as a short one.
                    self.poll_time(cx)?;
                    self.push_control(cx);
                    self.make_room(needed);
                    ready!(self.poll_fill(cx))?;
                }
                Err(error) => {
                    self.died();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl<T> fmt::Debug for SecureStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecureStream").field("session", &self.session).finish_non_exhaustive()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecureStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let result = self.poll_read_some(cx, out);
        if result.is_pending() {
            remember(&mut self.rekeying.reader, cx);
        }
        result
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecureStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = self.poll_write_some(cx, bytes);
        self.waits(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = self.poll_seal_and_drain(cx);
        ready!(self.waits(cx, result))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = self.poll_end(cx);
        self.waits(cx, result)
    }
}
