//! The records of a session as a byte stream. One buffer each way, sealed and opened in place.
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::{AsyncRead, AsyncWrite};
use octomesh_protocol::session::{
    handshake::Split,
    record::{
        CloseReason, HEADER_BYTES, LENGTH_BYTES, MAX_BODY_BYTES, MAX_SEALED_BYTES, Opener, Record,
        RecordError, RecordLimits, Sealer,
    },
};
use zeroize::Zeroize as _;

/// Two whole records: while one waits for its rest, the one before it can still be read out.
const READ_BUFFER: usize = 2 * (LENGTH_BYTES + MAX_SEALED_BYTES);

/// How many bytes went over the wire in each direction, ciphertext and all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes_in: Arc<AtomicU64>,
    pub(crate) bytes_out: Arc<AtomicU64>,
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
#[derive(Debug)]
pub(crate) struct SecureStream<T> {
    io: T,
    sealer: Sealer,
    opener: Opener,
    traffic: Traffic,
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
    reading: Reading,
}

impl<T> Drop for SecureStream<T> {
    fn drop(&mut self) {
        self.out.zeroize();
        self.input.zeroize();
    }
}

fn invalid(error: RecordError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<T> SecureStream<T> {
    pub(crate) fn new(io: T, split: &Split, traffic: Traffic) -> Self {
        Self::with_limits(io, split, traffic, RecordLimits::default())
    }

    pub(super) fn with_limits(io: T, split: &Split, traffic: Traffic, limits: RecordLimits) -> Self {
        Self {
            io,
            sealer: Sealer::new(&split.send, limits),
            opener: Opener::new(&split.receive, limits),
            traffic,
            out: vec![0; HEADER_BYTES],
            writing: Writing::Plain,
            ending: Ending::Open,
            input: vec![0; READ_BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            plain_start: 0,
            plain_end: 0,
            reading: Reading::Open,
        }
    }

    /// Makes the buffered plaintext a record. At the limit the session says so and ends.
    fn seal(&mut self) -> io::Result<()> {
        match self.sealer.seal(&mut self.out) {
            Ok(()) => self.writing = Writing::Sealed(0),
            Err(error) => {
                self.queue_close(CloseReason::LimitReached)?;
                return Err(invalid(error));
            }
        }
        Ok(())
    }

    fn queue_close(&mut self, reason: CloseReason) -> io::Result<()> {
        self.out.zeroize();
        self.out = self.sealer.close(reason).map_err(invalid)?;
        self.writing = Writing::Sealed(0);
        self.ending = Ending::CloseQueued;
        Ok(())
    }

    /// Opens the next record if it is complete; otherwise says how many bytes it has from `start` on.
    fn open_next(&mut self) -> Result<Option<usize>, RecordError> {
        let waiting = self.input.get_mut(self.start..self.end).unwrap_or_default();
        let Some((prefix, rest)) = waiting.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(Some(LENGTH_BYTES));
        };
        let sealed_bytes = Opener::sealed_bytes(*prefix)?;
        let Some(sealed) = rest.get_mut(..sealed_bytes) else {
            return Ok(Some(LENGTH_BYTES + sealed_bytes));
        };
        match self.opener.open(sealed)? {
            Record::Data(body) => {
                self.plain_start = self.start + HEADER_BYTES;
                self.plain_end = self.plain_start + body.len();
            }
            Record::Close(reason) => {
                tracing::debug!(%reason, "the other side ended the session");
                self.reading = Reading::Closed;
            }
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
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, room))?;
        if read == 0 {
            // Without a close record this may be somebody cutting the line: never a clean end.
            self.reading = Reading::Dead;
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
    /// Writes the sealed record in the buffer, if there is one.
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
        Poll::Ready(Ok(()))
    }

    fn poll_seal_and_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if self.ending == Ending::Open && self.out.len() > HEADER_BYTES {
            self.seal()?;
        }
        self.poll_drain(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SecureStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(plain) = this.input.get(this.plain_start..this.plain_end)
                && !plain.is_empty()
            {
                let taken = plain.len().min(out.len());
                out.iter_mut().zip(plain).for_each(|(to, from)| *to = *from);
                this.plain_start += taken;
                return Poll::Ready(Ok(taken));
            }
            match this.reading {
                Reading::Open => {}
                Reading::Closed => return Poll::Ready(Ok(0)),
                Reading::Dead => return Poll::Ready(Err(invalid(RecordError::Closed))),
            }
            match this.open_next() {
                Ok(None) => {}
                Ok(Some(needed)) => {
                    this.make_room(needed);
                    ready!(this.poll_fill(cx))?;
                }
                Err(error) => {
                    this.reading = Reading::Dead;
                    return Poll::Ready(Err(invalid(error)));
                }
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SecureStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.ending != Ending::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_drain(cx))?;
        let room = (HEADER_BYTES + MAX_BODY_BYTES).saturating_sub(this.out.len());
        let taken = bytes.get(..room).unwrap_or(bytes);
        this.out.extend_from_slice(taken);
        if this.out.len() == HEADER_BYTES + MAX_BODY_BYTES {
            let sealed = this.seal();
            // Sends it on its way; when the socket is full the next call waits.
            if let Poll::Ready(result) = this.poll_drain(cx) {
                result?;
            }
            sealed?;
        }
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_seal_and_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_seal_and_drain(cx))?;
        if this.ending == Ending::Open {
            this.queue_close(CloseReason::Done)?;
        }
        ready!(this.poll_drain(cx))?;
        this.ending = Ending::Ended;
        ready!(Pin::new(&mut this.io).poll_flush(cx))?;
        Pin::new(&mut this.io).poll_close(cx)
    }
}
