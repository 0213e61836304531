//! Bytes that are too large for a frame: results and arguments of steps, and files of workspaces that are copied.
//!
//! ```text
//!   store     whole blobs by their hash, parts of blobs that are on their way, who may have which and until when
//!   feed      where the bytes of a transfer come from: a blob or a file here, or another node
//!   incoming  where they go: beside their place, and into it only when they are all there and have the hash
//!   serve     streams of other nodes          client    streams to other nodes
//! ```
//!
//! Nothing incomplete is ever seen in its place, and a transfer goes on where it was after its connection, or either node, was gone.
mod client;
mod feed;
mod files;
mod incoming;
mod index;
mod serve;
mod store;
#[cfg(test)]
mod tests;
mod window;

use std::{io, time::Duration};

use octomesh_protocol::blob::{BlobRefusal, Refused};

use crate::net::StreamError;

pub(crate) use self::{
    client::BlobClient,
    feed::Feed,
    files::Files,
    serve::{ServeParts, serve},
    store::Store,
};

/// No byte for so long, and the transfer ends; whoever wants it asks again.
const IDLE: Duration = Duration::from_secs(20);
/// A file is read as a whole for its hash before the first byte goes out, and made durable after the last: a large one on a small
/// machine takes its time.
const PATIENCE: Duration = Duration::from_secs(180);
/// Bytes of a file that are read or written at once.
const PIECE: usize = 1024 * 1024;
/// What the disk must have left: without it the node could not note what it starts.
const DISK_RESERVE: u64 = 64 << 20;

/// Why there was no transfer. The variant's name is the code that people see.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum BlobError {
    /// The connection broke, or there is none.
    #[error("the transfer was interrupted: {0}")]
    Interrupted(String),
    /// The other node, or this one, says no.
    #[error("{detail}")]
    Refused { reason: BlobRefusal, detail: String },
    /// The bytes are not those that were announced.
    #[error("the bytes that came do not have the SHA-256 that was announced; they were thrown away")]
    Damaged,
    /// No room.
    #[error("{0}")]
    Full(String),
    /// This machine could not read or write.
    #[error("{0}")]
    Io(String),
    /// The other side does not keep to the protocol.
    #[error("the other node sent {0} where it does not belong")]
    Unexpected(&'static str),
}

impl BlobError {
    /// Whether the same transfer may go on from where it was.
    pub(crate) const fn is_passing(&self) -> bool {
        match self {
            Self::Interrupted(_) => true,
            Self::Refused { reason, .. } => reason.is_passing(),
            Self::Damaged | Self::Full(_) | Self::Io(_) | Self::Unexpected(_) => false,
        }
    }

    /// The code that people and programs see.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Refused { reason, .. } => reason.into(),
            other => other.into(),
        }
    }

    /// What the other side is told.
    fn refusal(&self) -> Refused {
        let reason = match self {
            Self::Refused { reason, .. } => *reason,
            Self::Damaged => BlobRefusal::Damaged,
            Self::Full(_) => BlobRefusal::Full,
            Self::Interrupted(_) | Self::Io(_) | Self::Unexpected(_) => BlobRefusal::Failed,
        };
        let detail: String = self.to_string().chars().take(1000).collect();
        Refused { reason, detail }
    }

    fn refused(reason: BlobRefusal, detail: impl Into<String>) -> Self {
        Self::Refused { reason, detail: detail.into() }
    }
}

impl From<StreamError> for BlobError {
    fn from(error: StreamError) -> Self {
        Self::Interrupted(error.to_string())
    }
}

impl From<Refused> for BlobError {
    fn from(refused: Refused) -> Self {
        Self::Refused { reason: refused.reason, detail: refused.detail }
    }
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full(format!("the disk is full: {error}"))
            }
            _ => Self::Io(error.to_string()),
        }
    }
}

/// Runs work on a thread that may block.
async fn blocking<T, F>(work: F) -> Result<T, BlobError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, BlobError> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(BlobError::Io(e.to_string())))
}
