//! One yamux stream over a secured connection, and the orders that its near end gives.
//!
//! An order is 16 bytes: how many bytes follow it and how many the far end answers with, both as `u64` in big endian.
use std::{fmt, future::poll_fn, time::Duration};

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::{
    core::{
        UpgradeInfo as _,
        muxing::{StreamMuxerBox, StreamMuxerExt as _, SubstreamBox},
        upgrade::{InboundConnectionUpgrade as _, OutboundConnectionUpgrade as _},
    },
    yamux,
};
use tokio::time::Instant;

use super::{
    BenchError,
    meter::{Cost, Meter},
    suite::Secured,
};
use crate::app::supervise::Supervisor;

const ORDER_BYTES: usize = 16;
/// What a round trip carries each way.
const ROUND_TRIP_BYTES: usize = 64;
/// What is written or read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The near end of a stream; the far end and both multiplexers live in tasks, which end when this is dropped.
pub(crate) struct Link {
    stream: SubstreamBox,
    chunk: Vec<u8>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

fn broken(error: impl Into<std::io::Error>) -> BenchError {
    BenchError::Io(error.into())
}

impl Link {
    pub(super) async fn over(
        near: Secured,
        far: Secured,
        supervisor: &Supervisor,
    ) -> Result<Self, BenchError> {
        let config = yamux::Config::default();
        let Some(name) = config.protocol_info().next() else {
            return Err(BenchError::BrokeOff("yamux has no name"));
        };
        let mut near =
            StreamMuxerBox::new(config.clone().upgrade_outbound(near, name).await.map_err(broken)?);
        let mut far = StreamMuxerBox::new(config.upgrade_inbound(far, name).await.map_err(broken)?);
        supervisor.spawn("bench far end", async move {
            let Ok(stream) = poll_fn(|cx| far.poll_inbound_unpin(cx)).await else { return };
            let serve = serve(stream);
            tokio::pin!(serve);
            tokio::select! {
                _ = poll_fn(|cx| far.poll_unpin(cx)) => {}
                _ = &mut serve => {}
            }
        });
        let stream = poll_fn(|cx| near.poll_outbound_unpin(cx)).await.map_err(broken)?;
        supervisor.spawn("bench near end", async move {
            // silent-ok: the stream says what is wrong
            let _ = poll_fn(|cx| near.poll_unpin(cx)).await;
        });
        Ok(Self { stream, chunk: vec![0x5a; CHUNK_BYTES] })
    }

    /// Sends `bytes`; ends when the far end says that it has them.
    pub(crate) async fn bulk(&mut self, bytes: u64) -> Result<Cost, BenchError> {
        let meter = Meter::start()?;
        self.stream.write_all(&order(bytes, 1)).await?;
        let mut left = bytes;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            self.stream.write_all(self.chunk.get(..part).unwrap_or_default()).await?;
            left -= part as u64;
        }
        self.stream.flush().await?;
        self.stream.read_exact(&mut [0]).await?;
        Ok(meter.read()?)
    }

    /// `count` round trips of 64 bytes, one after the other, and the CPU time of one.
    pub(crate) async fn round_trips(&mut self, count: u32) -> Result<(Vec<Duration>, Duration), BenchError> {
        let mut message = [0x5a; ROUND_TRIP_BYTES];
        let (head, body) = message.split_at_mut(ORDER_BYTES);
        head.copy_from_slice(&order(body.len() as u64, ROUND_TRIP_BYTES as u64));
        let mut answer = [0; ROUND_TRIP_BYTES];
        let mut took = Vec::new();
        let meter = Meter::start()?;
        for _ in 0..count {
            let began = Instant::now();
            self.stream.write_all(&message).await?;
            self.stream.flush().await?;
            self.stream.read_exact(&mut answer).await?;
            took.push(began.elapsed());
        }
        Ok((took, meter.read()?.cpu / count.max(1)))
    }
}

fn order(send: u64, answer: u64) -> [u8; ORDER_BYTES] {
    (u128::from(send) << 64 | u128::from(answer)).to_be_bytes()
}

/// The far end: does what it is told until the stream ends.
async fn serve(mut stream: SubstreamBox) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let mut order = [0; ORDER_BYTES];
        stream.read_exact(&mut order).await?;
        let order = u128::from_be_bytes(order);
        let mut left = u64::try_from(order >> 64).unwrap_or_default();
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let read = stream.read(chunk.get_mut(..part).unwrap_or_default()).await?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            left -= read as u64;
        }
        let answer = usize::try_from(order & u128::from(u64::MAX)).unwrap_or_default().min(CHUNK_BYTES);
        stream.write_all(chunk.get(..answer).unwrap_or_default()).await?;
        stream.flush().await?;
    }
}
