//! How much of a transfer is under way at once. A stream has the session's connection in common with all others; what stands in its
//! buffers delays them all, and a node that answers late is taken for a dead one.
use octomesh_protocol::{
    blob::{BlobMessage, Ready},
    limits::CHUNK_BYTES,
};

use super::{BlobError, IDLE};
use crate::net::BlobStream;

/// Bytes that are under way at most: a tenth of a second of a slow wireless network, and at a round trip of 50 ms still 10 MB/s.
const UNDER_WAY: u64 = 512 * 1024;
/// The receiver says how far it is after so many bytes.
const TOLD_EVERY: u64 = 128 * 1024;

/// The sender's side.
#[derive(Debug)]
pub(super) struct Sent {
    sent: u64,
    taken: u64,
}

impl Sent {
    pub(super) const fn from(offset: u64) -> Self {
        Self { sent: offset, taken: offset }
    }

    /// Sends bytes in chunks, and waits when too many are under way.
    pub(super) async fn push(&mut self, stream: &mut BlobStream, bytes: &[u8]) -> Result<(), BlobError> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            stream.send(BlobMessage::Chunk(chunk.to_vec()), IDLE).await?;
            self.sent += chunk.len() as u64;
            if self.sent - self.taken >= UNDER_WAY {
                stream.flush(IDLE).await?;
            }
            while self.sent - self.taken >= UNDER_WAY {
                match stream.receive(IDLE).await? {
                    BlobMessage::Ready(ready) if ready.offset > self.taken && ready.offset <= self.sent => {
                        self.taken = ready.offset;
                    }
                    BlobMessage::Refused(refused) => return Err(refused.into()),
                    other => return Err(BlobError::Unexpected(other.name())),
                }
            }
        }
        Ok(())
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Taken {
    told: u64,
}

impl Taken {
    pub(super) const fn from(offset: u64) -> Self {
        Self { told: offset }
    }

    /// All before `offset` are here.
    pub(super) async fn tell(&mut self, stream: &mut BlobStream, offset: u64) -> Result<(), BlobError> {
        if offset - self.told < TOLD_EVERY {
            return Ok(());
        }
        self.told = offset;
        Ok(stream.send(Ready { offset }, IDLE).await?)
    }
}

/// The message after the last chunk; what the receiver said of its progress before is passed over.
pub(super) async fn last_word(stream: &mut BlobStream) -> Result<BlobMessage, BlobError> {
    loop {
        match stream.receive(super::PATIENCE).await? {
            BlobMessage::Ready(_) => {}
            other => return Ok(other),
        }
    }
}
