//! What a connection from outside says before anybody is believed: the negotiation and a first message that opens with a secret of
//! this mesh. Both are heard by the doorkeeper, at the cost of one read and a few microseconds of symmetric work. The swarm, in which
//! each connection is a task with timers and events of its own, sees those that passed, and sees them as if nothing had been said:
//! what was heard is there to be read again, and what was answered already is not sent twice.
use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{AsyncRead, AsyncWrite};
use multistream_select::listener_select_proto;
use octomesh_protocol::join;
use tokio::{runtime::Handle, time::timeout};

use super::{Cause, Diagnosis, HANDSHAKE, SecureError, Security, UpgradeInfo, diagnose, offer::offered};
use crate::net::{handover::Handover, refusal};

/// A negotiation with a few proposals and a first message: the shortest is a third of this.
const KNOCK_BYTES: usize = 4096;

/// A connection on which everything that is heard is kept.
struct Knocking<T> {
    io: T,
    heard: Vec<u8>,
    /// How much of it was taken.
    taken: usize,
    /// The answers, which wait until the other side does: whoever said everything at once and wrong costs no packet.
    said: Vec<u8>,
    sent: usize,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Knocking<T> {
    fn new(io: T) -> Self {
        Self { io, heard: Vec::new(), taken: 0, said: Vec::new(), sent: 0 }
    }

    fn poll_hear(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.heard.len();
        if before >= KNOCK_BYTES {
            let words = "too much was said before a first message";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, words)));
        }
        self.heard.resize(KNOCK_BYTES, 0);
        let room = self.heard.get_mut(before..).unwrap_or_default();
        let read = Pin::new(&mut self.io).poll_read(cx, room);
        let came = if let Poll::Ready(Ok(came)) = &read { *came } else { 0 };
        self.heard.truncate(before + came);
        match read {
            Poll::Ready(result) => Poll::Ready(result.map(drop)),
            Poll::Pending => {
                // The other side waits, perhaps for an answer.
                self.say(cx)?;
                Poll::Pending
            }
        }
    }

    /// Sends as much of the answers as can be sent now.
    fn say(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(rest) = self.said.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.io).poll_write(cx, rest)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(sent) => self.sent = self.sent.saturating_add(sent),
                Poll::Pending => return Ok(()),
            }
        }
        let _ = Pin::new(&mut self.io).poll_flush(cx)?;
        Ok(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Knocking<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.taken >= this.heard.len() {
            ready!(this.poll_hear(cx))?;
        }
        let taken = copy(this.heard.get(this.taken..).unwrap_or_default(), out);
        this.taken = this.taken.saturating_add(taken);
        Poll::Ready(Ok(taken))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Knocking<T> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // An answer is never longer than what it answers, but for a list of one or two protocols to each who asks for it.
        if self.said.len() >= KNOCK_BYTES {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        self.said.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

/// A connection that begins anew, from before the first byte.
pub(in crate::net) struct Anew<T> {
    io: T,
    heard: Vec<u8>,
    taken: usize,
    /// So much of what is said next was sent already.
    sent: usize,
}

impl<T> Anew<T> {
    /// One on which nothing was said: this side dialled.
    pub(in crate::net) fn fresh(io: T) -> Self {
        Self { io, heard: Vec::new(), taken: 0, sent: 0 }
    }
}

impl<T: Handover> Handover for Anew<T> {
    fn hand_over(self, runtime: &Handle) -> io::Result<Self> {
        let Self { io, heard, taken, sent } = self;
        Ok(Self { io: io.hand_over(runtime)?, heard, taken, sent })
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Anew<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match this.heard.get(this.taken..) {
            Some(rest) if !rest.is_empty() => {
                let taken = copy(rest, out);
                this.taken = this.taken.saturating_add(taken);
                if this.taken >= this.heard.len() {
                    (this.heard, this.taken) = (Vec::new(), 0);
                }
                Poll::Ready(Ok(taken))
            }
            _ => Pin::new(&mut this.io).poll_read(cx, out),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Anew<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let skipped = self.sent.min(bytes.len());
        if skipped > 0 {
            self.sent -= skipped;
            return Poll::Ready(Ok(skipped));
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.sent > 0 {
            let part = parts.iter().find(|part| !part.is_empty());
            return self.poll_write(cx, part.map_or(&[], |part| part));
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

/// As much as fits.
fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let length = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..length), to.get_mut(..length)) {
        to.copy_from_slice(from);
    }
    length
}

/// The negotiation and the first message, and whether it opens.
async fn hear<T>(io: &mut Knocking<T>, security: &Security) -> Result<(), Diagnosis>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let told = |error: SecureError| diagnose(&error, Cause::Io);
    let negotiated = listener_select_proto(io, security.protocol_info()).await;
    let (protocol, mut io) = negotiated.map_err(|error| diagnose(&error, Cause::Io))?;
    match &security.join {
        Some(service) if protocol == join::PROTOCOL => service.hear(&security.config, &mut io).await,
        _ => security.config.hear(&mut io).await,
    }
    .map_err(told)
}

/// Lets a connection say its first message. The one that comes out has passed and begins anew.
pub(in crate::net) async fn knock<T>(io: T, security: &Security) -> Result<Anew<T>, Diagnosis>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut knocking = Knocking::new(io);
    let heard = timeout(HANDSHAKE, hear(&mut knocking, security)).await;
    match heard.unwrap_or_else(|_| Err(diagnose(&SecureError::Timeout, Cause::Timeout))) {
        Ok(()) => {
            let Knocking { io, heard, sent, .. } = knocking;
            Ok(Anew { io, heard, taken: 0, sent })
        }
        Err(found) => {
            if matches!(found.cause, Cause::ClassicalOnly | Cause::NoNegotiation) {
                // It may be an honest program, which should learn that there is no such protocol here.
                // silent-ok: whoever does not listen does not learn it
                let _ = poll_fn(|cx| Poll::Ready(knocking.say(cx))).await;
            }
            Err(refusal::with_offer(found, offered(&knocking.heard).as_deref()))
        }
    }
}

#[cfg(test)]
mod tests;
