//! Frames over a byte stream, for the step protocol. Reading is cancel-safe: a frame that was read by half stays in the
//! reader.
use std::{pin::Pin, task::Poll};

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, io::ReadHalf, io::WriteHalf};
use libp2p::PeerId;
use octomesh_protocol::{
    frame::{self, FrameError, LENGTH_BYTES},
    id::NodeId,
    limits::STEP_FRAME_BYTES,
    step::Message,
};
use tokio::sync::mpsc;

use super::outbound::Carried;

/// Bytes asked of the stream at once.
const CHUNK: usize = 4 * 1024;

/// Why a step stream is of no use any more. None of these says anything about the step itself.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum StreamError {
    /// The stream ended in the middle of a frame or before the exchange was over.
    #[error("the stream ended early")]
    Ended,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// The other side sent something that is no message of this protocol.
    #[error("protocol violation: {0}")]
    Frame(#[from] FrameError),
}

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A stream between two nodes, whatever carries it.
pub(crate) struct ByteStream(Pin<Box<dyn Duplex>>);

impl ByteStream {
    pub(super) fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self(Box::pin(io))
    }

    /// The two halves, each on its own.
    pub(crate) fn split(self) -> (FrameReader, FrameWriter) {
        let (read, write) = self.0.split();
        (FrameReader { io: read, buffer: Vec::new() }, FrameWriter { io: write })
    }
}

/// Receives messages.
pub(crate) struct FrameReader {
    io: ReadHalf<Pin<Box<dyn Duplex>>>,
    buffer: Vec<u8>,
}

impl FrameReader {
    /// The next message. May be dropped and called again without losing a byte.
    pub(crate) async fn receive(&mut self) -> Result<Message, StreamError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            // On the heap, and straight into the buffer: futures are moved about, and a chunk inside of them with them.
            let (io, buffer) = (&mut self.io, &mut self.buffer);
            let read = futures::future::poll_fn(|cx| {
                let held = buffer.len();
                buffer.resize(held + CHUNK, 0);
                let room = buffer.get_mut(held..).unwrap_or_default();
                let polled = Pin::new(&mut *io).poll_read(cx, room);
                let read = match &polled {
                    Poll::Ready(Ok(read)) => (*read).min(CHUNK),
                    Poll::Ready(Err(_)) | Poll::Pending => 0,
                };
                buffer.truncate(held + read);
                polled
            });
            if read.await? == 0 {
                return Err(StreamError::Ended);
            }
        }
    }

    /// The next message if it came with the last one.
    pub(crate) fn buffered(&mut self) -> Result<Option<Message>, StreamError> {
        self.take()
    }

    /// Whether nothing is left of what came.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// A message that is complete in the buffer. The buffer holds at most one frame's limit and a chunk, because the length is
    /// checked as soon as it is there.
    fn take(&mut self) -> Result<Option<Message>, StreamError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let end = LENGTH_BYTES + frame::payload_length(*prefix, STEP_FRAME_BYTES)?;
        let Some(bytes) = self.buffer.get(LENGTH_BYTES..end) else { return Ok(None) };
        let message = Message::from_frame(bytes)?;
        self.buffer.drain(..end);
        Ok(Some(message))
    }
}

/// Sends messages.
pub(crate) struct FrameWriter {
    io: WriteHalf<Pin<Box<dyn Duplex>>>,
}

impl FrameWriter {
    /// Sends and flushes. Not cancel-safe: a dropped call leaves half a frame on the wire.
    pub(crate) async fn send(&mut self, message: impl Into<Message>) -> Result<(), StreamError> {
        let frame = message.into().to_frame()?;
        self.io.write_all(&frame).await?;
        Ok(self.io.flush().await?)
    }

    /// Sends several messages in one piece and flushes; as [`FrameWriter::send`] not cancel-safe.
    pub(crate) async fn send_all(
        &mut self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<(), StreamError> {
        let mut frames = Vec::new();
        for message in messages {
            frames.extend_from_slice(&message.to_frame()?);
        }
        self.io.write_all(&frames).await?;
        Ok(self.io.flush().await?)
    }

    /// A part of a frame, as a peer that stops in the middle would send it.
    #[cfg(test)]
    pub(crate) async fn send_part(&mut self, bytes: &[u8]) {
        self.io.write_all(bytes).await.ok();
        self.io.flush().await.ok();
    }

    /// Closes our direction after the last message.
    pub(crate) async fn close(&mut self) {
        // silent-ok: the exchange is over, the other side has its last message or will ask again
        let _ = self.io.close().await;
    }
}

/// Step streams opened by other nodes.
pub(crate) struct StepListener(pub(super) mpsc::Receiver<(PeerId, Carried)>);

impl StepListener {
    /// One without a network.
    #[cfg(test)]
    pub(crate) fn closed() -> Self {
        Self(mpsc::channel(1).1)
    }

    /// The next stream and the authenticated node behind it; `None` when the network is gone.
    pub(crate) async fn accept(&mut self) -> Option<(NodeId, ByteStream)> {
        loop {
            let (peer, stream) = self.0.recv().await?;
            if let Some(node) = NodeId::from_peer_id_bytes(&peer.to_bytes()) {
                return Some((node, ByteStream::new(stream)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::step::Have;
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;

    #[tokio::test]
    async fn a_dropped_receive_loses_nothing() {
        let (a, b) = tokio::io::duplex(64);
        let (_, mut writer) = ByteStream::new(a.compat()).split();
        let (mut reader, _keep) = ByteStream::new(b.compat()).split();
        let frame = Message::from(Have { bytes: 7 }).to_frame().unwrap();
        let (head, tail) = frame.split_at(3);
        writer.io.write_all(head).await.unwrap();
        writer.io.flush().await.unwrap();
        for _ in 0..3 {
            assert!(futures::poll!(Box::pin(reader.receive())).is_pending());
        }
        writer.io.write_all(tail).await.unwrap();
        assert_eq!(reader.receive().await.unwrap(), Have { bytes: 7 }.into());
        drop(writer);
    }

    #[tokio::test]
    async fn junk_and_truncation_are_errors() {
        for (bytes, what) in [(&b"\xff\xff\xff\xff"[..], "too large"), (&b"\0\0\0\x02\x01\x63"[..], "kind")] {
            let (a, b) = tokio::io::duplex(64);
            let (_, mut writer) = ByteStream::new(a.compat()).split();
            let (mut reader, _keep) = ByteStream::new(b.compat()).split();
            writer.io.write_all(bytes).await.unwrap();
            assert!(matches!(reader.receive().await, Err(StreamError::Frame(_))), "{what}");
        }
        let (a, b) = tokio::io::duplex(64);
        drop(a);
        let (mut reader, _keep) = ByteStream::new(b.compat()).split();
        assert!(matches!(reader.receive().await, Err(StreamError::Ended)));
    }
}
