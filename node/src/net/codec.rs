//! Request-response messages: one frame each way, sizes checked before anything is allocated.
use std::{io, marker::PhantomData};

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::{StreamProtocol, request_response};
use octomesh_protocol::{
    codec,
    frame::{self, HEADER_BYTES, LENGTH_BYTES},
};
use serde::{Serialize, de::DeserializeOwned};

/// Kinds of the two frames of an exchange.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

/// Requests `Q` of at most `QMAX` bytes, replies `R` of at most `RMAX`.
pub(super) struct WireCodec<Q, R, const QMAX: usize, const RMAX: usize>(PhantomData<fn() -> (Q, R)>);

impl<Q, R, const QMAX: usize, const RMAX: usize> Default for WireCodec<Q, R, QMAX, RMAX> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Q, R, const QMAX: usize, const RMAX: usize> Clone for WireCodec<Q, R, QMAX, RMAX> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn read<T: DeserializeOwned, I: AsyncRead + Unpin + Send, const MAX: usize>(
    io: &mut I,
    kind: u8,
) -> io::Result<T> {
    let mut prefix = [0; LENGTH_BYTES];
    io.read_exact(&mut prefix).await?;
    let size = frame::payload_length(prefix, MAX + HEADER_BYTES).map_err(invalid)?;
    // `take` grows with what really arrives: a peer that claims the maximum and sends nothing has cost nothing.
    let mut bytes = Vec::new();
    io.take(size as u64).read_to_end(&mut bytes).await?;
    if bytes.len() != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match frame::split(&bytes).map_err(invalid)? {
        (got, body) if got == kind => codec::decode::<T, MAX>(body).map_err(invalid),
        (other, _) => Err(invalid(frame::FrameError::Kind(other))),
    }
}

async fn write<T: Serialize, I: AsyncWrite + Unpin + Send, const MAX: usize>(
    io: &mut I,
    kind: u8,
    value: &T,
) -> io::Result<()> {
    let body = codec::encode::<_, MAX>(value).map_err(invalid)?;
    io.write_all(&frame::join(kind, &body, MAX + HEADER_BYTES).map_err(invalid)?).await
}

impl<Q, R, const QMAX: usize, const RMAX: usize> request_response::Codec for WireCodec<Q, R, QMAX, RMAX>
where
    Q: Serialize + DeserializeOwned + Send + Sync,
    R: Serialize + DeserializeOwned + Send + Sync,
{
    type Protocol = StreamProtocol;
    type Request = Q;
    type Response = R;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Q>
    where
        T: AsyncRead + Unpin + Send,
    {
        read::<Q, T, QMAX>(io, REQUEST).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<R>
    where
        T: AsyncRead + Unpin + Send,
    {
        read::<R, T, RMAX>(io, REPLY).await
    }

    async fn write_request<T>(&mut self, _: &StreamProtocol, io: &mut T, request: Q) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        write::<Q, T, QMAX>(io, REQUEST, &request).await
    }

    async fn write_response<T>(&mut self, _: &StreamProtocol, io: &mut T, reply: R) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        write::<R, T, RMAX>(io, REPLY, &reply).await
    }
}
