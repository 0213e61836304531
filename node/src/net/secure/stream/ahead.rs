//! Reading on while writing waits for a new key.
//!
//! The key comes with a record of the other side. Whoever owns the stream may not read it as long as he can't write: a multiplexer stops
//! reading when it owes an answer to a ping. Both ends would then wait for each other. So the waiting writer reads on itself and keeps
//! what is not for it.
use std::{
    io,
    task::{Context, Poll},
};

use futures::{AsyncRead, AsyncWrite};
use octomesh_protocol::session::record::MAX_BODY_BYTES;
use zeroize::Zeroize as _;

use super::{Reading, SecureStream};

/// As much as the other side can send before it has to wait itself at the lowest limit that there is, of ten records: twice as many. The
/// limits that sessions really have are thousands of times what is ever under way, so that nobody waits at all.
const MOST: usize = 20 * MAX_BODY_BYTES;

/// Plaintext that was read ahead; older than what lies in the input buffer.
#[derive(Default)]
pub(super) struct Ahead {
    bytes: Vec<u8>,
    start: usize,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl Ahead {
    fn put(&mut self, plain: &[u8]) {
        if self.bytes.capacity() == 0 {
            // Never grown: a buffer that moves leaves plaintext behind.
            self.bytes.reserve_exact(MOST + MAX_BODY_BYTES);
        }
        self.bytes.extend_from_slice(plain);
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= MOST
    }

    /// As many bytes as there are and `out` takes.
    pub(super) fn take(&mut self, out: &mut [u8]) -> usize {
        let rest = self.bytes.get(self.start..).unwrap_or_default();
        let taken = rest.len().min(out.len());
        out.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.start += taken;
        if self.start == self.bytes.len() && taken > 0 {
            self.bytes.zeroize();
            (self.bytes, self.start) = (Vec::new(), 0);
        }
        taken
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> SecureStream<T> {
    /// Whether `bytes` still have to wait for a new key after everything that has come was read.
    pub(super) fn waits_for_key(&mut self, cx: &mut Context<'_>, bytes: usize) -> io::Result<bool> {
        while self.must_wait(bytes) && !self.ahead.is_full() {
            let plain = self.input.get(self.plain_start..self.plain_end).unwrap_or_default();
            if !plain.is_empty() {
                self.ahead.put(plain);
                self.plain_start = self.plain_end;
            }
            match self.open_next() {
                Ok(None) => self.push_control(cx),
                Ok(Some(needed)) => {
                    self.make_room(needed);
                    match self.poll_fill(cx) {
                        Poll::Ready(filled) => filled?,
                        Poll::Pending => break,
                    }
                }
                Err(error) => {
                    self.died();
                    return Err(error);
                }
            }
        }
        // A reader in another task: there is something for it, and it has to ask the connection to wake it again.
        if let Some(reader) = self.rekeying.reader.take() {
            reader.wake();
        }
        Ok(self.reading == Reading::Open && self.must_wait(bytes))
    }
}
