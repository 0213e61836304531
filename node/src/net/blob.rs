//! Frames of the blob protocol over a byte stream. There is one transfer on each, and one side speaks at a time.
use std::{io, pin::Pin, time::Duration};

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::PeerId;
use octomesh_protocol::{
    blob::BlobMessage,
    frame::{self, LENGTH_BYTES},
    id::NodeId,
    limits::BLOB_FRAME_BYTES,
};
use tokio::sync::mpsc;

use super::{
    outbound::Carried,
    stream::{Duplex, StreamError},
};

/// Closing after the last message: a side that does not read is not waited for.
const CLOSE: Duration = Duration::from_secs(2);

/// A stream for one blob, whatever carries it.
pub(crate) struct BlobStream {
    io: Pin<Box<dyn Duplex>>,
    frame: Vec<u8>,
}

impl std::fmt::Debug for BlobStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobStream").finish_non_exhaustive()
    }
}

impl BlobStream {
    pub(super) fn new(io: impl futures::AsyncRead + futures::AsyncWrite + Send + 'static) -> Self {
        Self { io: Box::pin(io), frame: Vec::new() }
    }

    /// Two ends of one, without a network.
    #[cfg(test)]
    pub(crate) fn pair() -> (Self, Self) {
        use tokio_util::compat::TokioAsyncReadCompatExt as _;
        let (a, b) = tokio::io::duplex(256 * 1024);
        (Self::new(a.compat()), Self::new(b.compat()))
    }

    /// Sends a message within `patience`. Not cancel-safe: a dropped call leaves half a frame on the wire. Only what is no chunk is flushed:
    /// after chunks there is always a message that is none.
    pub(crate) async fn send(
        &mut self,
        message: impl Into<BlobMessage>,
        patience: Duration,
    ) -> Result<(), StreamError> {
        let message = message.into();
        let frame = message.to_frame()?;
        let written = async {
            self.io.write_all(&frame).await?;
            if matches!(message, BlobMessage::Chunk(_)) { Ok(()) } else { self.io.flush().await }
        };
        Ok(in_time(patience, written).await?)
    }

    /// Sends what was written on its way.
    pub(crate) async fn flush(&mut self, patience: Duration) -> Result<(), StreamError> {
        Ok(in_time(patience, self.io.flush()).await?)
    }

    /// The next message, within `patience`. Not cancel-safe.
    pub(crate) async fn receive(&mut self, patience: Duration) -> Result<BlobMessage, StreamError> {
        let mut prefix = [0; LENGTH_BYTES];
        in_time(patience, self.io.read_exact(&mut prefix)).await.map_err(ended)?;
        // Checked before there is room for it.
        let size = frame::payload_length(prefix, BLOB_FRAME_BYTES)?;
        self.frame.resize(size, 0);
        in_time(patience, self.io.read_exact(&mut self.frame)).await.map_err(ended)?;
        Ok(BlobMessage::from_frame(&self.frame)?)
    }

    /// Closes our direction after the last message.
    pub(crate) async fn close(mut self) {
        // silent-ok: the exchange is over, and whoever does not read its end is not waited for
        let _ = tokio::time::timeout(CLOSE, self.io.close()).await;
    }

    /// Any bytes, as a peer that keeps to no protocol would send them.
    #[cfg(test)]
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.ok();
        self.io.flush().await.ok();
    }
}

async fn in_time<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(patience, work).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the other side stands still")),
    }
}

fn ended(error: io::Error) -> StreamError {
    if error.kind() == io::ErrorKind::UnexpectedEof { StreamError::Ended } else { StreamError::Io(error) }
}

/// Streams of blobs that other nodes open.
pub(crate) struct BlobListener(pub(super) mpsc::Receiver<(PeerId, Carried)>);

impl BlobListener {
    /// The next stream and the authenticated node behind it; `None` when the network is gone.
    pub(crate) async fn accept(&mut self) -> Option<(NodeId, BlobStream)> {
        loop {
            let (peer, stream) = self.0.recv().await?;
            if let Some(node) = NodeId::from_peer_id_bytes(&peer.to_bytes()) {
                return Some((node, BlobStream::new(stream)));
            }
        }
    }
}
