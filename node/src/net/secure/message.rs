//! Handshake messages on the wire: `length u16 BE │ message`.
use std::{io, ops::RangeInclusive};

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

pub(crate) async fn send<T: AsyncWrite + Unpin>(io: &mut T, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // One write, so that prefix and message leave in one packet.
    let mut bytes = Vec::with_capacity(2 + message.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    io.write_all(&bytes).await?;
    io.flush().await
}

/// Reads a message whose length is one of `allowed`. Memory grows with what arrives, not with what is announced.
pub(crate) async fn receive<T: AsyncRead + Unpin>(
    io: &mut T,
    allowed: RangeInclusive<usize>,
) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 2];
    io.read_exact(&mut prefix).await?;
    let length = u16::from_be_bytes(prefix);
    if !allowed.contains(&usize::from(length)) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "handshake message has an impossible length"));
    }
    let mut message = Vec::new();
    io.take(u64::from(length)).read_to_end(&mut message).await?;
    if message.len() < usize::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}
