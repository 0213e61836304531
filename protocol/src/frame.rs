//! Frames on a stream: `length u32 BE │ version u8 │ kind u8 │ body`. The length counts version, kind and body.
//!
//! A stream of yamux ends in a clean EOF also when the other end died, so no exchange takes EOF for an end: each has a last
//! message of its own.

/// Version of every frame body in this crate.
pub const VERSION: u8 = 1;
/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 4;
/// Bytes of version and kind.
pub const HEADER_BYTES: usize = 2;

/// Why a frame is refused. Every variant closes the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum FrameError {
    /// The length prefix is over the stream's limit; nothing was allocated.
    #[error("frame of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes claimed.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Shorter than version and kind.
    #[error("frame is shorter than its header")]
    TooShort,
    /// The peer speaks another version.
    #[error("frame version {0} is not {VERSION}")]
    Version(u8),
    /// The kind is not one of this stream's.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The body does not decode.
    #[error("frame body: {0}")]
    Body(#[from] crate::codec::CodecError),
}

/// Checks a length prefix and gives the number of bytes that follow it.
///
/// # Errors
/// [`FrameError::TooLarge`] or [`FrameError::TooShort`], before any allocation.
pub fn payload_length(prefix: [u8; LENGTH_BYTES], limit: usize) -> Result<usize, FrameError> {
    let size = u32::from_be_bytes(prefix) as usize;
    if size > limit {
        return Err(FrameError::TooLarge { size, limit });
    }
    if size < HEADER_BYTES {
        return Err(FrameError::TooShort);
    }
    Ok(size)
}

/// Splits a frame, its length prefix removed, into kind and body.
///
/// # Errors
/// [`FrameError::TooShort`], [`FrameError::Version`].
pub fn split(frame: &[u8]) -> Result<(u8, &[u8]), FrameError> {
    let [version, kind, body @ ..] = frame else { return Err(FrameError::TooShort) };
    if *version != VERSION {
        return Err(FrameError::Version(*version));
    }
    Ok((*kind, body))
}

/// A whole frame, its length prefix included.
///
/// # Errors
/// [`FrameError::TooLarge`] when version, kind and body are over `limit`.
pub fn join(kind: u8, body: &[u8], limit: usize) -> Result<Vec<u8>, FrameError> {
    let size = HEADER_BYTES + body.len();
    let prefix = match u32::try_from(size) {
        Ok(prefix) if size <= limit => prefix,
        _ => return Err(FrameError::TooLarge { size, limit }),
    };
    let mut frame = Vec::with_capacity(LENGTH_BYTES + size);
    frame.extend_from_slice(&prefix.to_be_bytes());
    frame.extend_from_slice(&[VERSION, kind]);
    frame.extend_from_slice(body);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(join(9, b"ab", 16).unwrap(), [0, 0, 0, 4, 1, 9, b'a', b'b']);
        assert_eq!(split(&[1, 9, b'a']).unwrap(), (9, &b"a"[..]));
    }

    #[test]
    fn hostile_headers() {
        assert_eq!(payload_length([0xff; 4], 64), Err(FrameError::TooLarge { size: 0xffff_ffff, limit: 64 }));
        assert_eq!(payload_length([0, 0, 0, 1], 64), Err(FrameError::TooShort));
        assert_eq!(split(&[1]), Err(FrameError::TooShort));
        assert_eq!(split(&[2, 0]), Err(FrameError::Version(2)));
        assert_eq!(join(1, &[0; 15], 16), Err(FrameError::TooLarge { size: 17, limit: 16 }));
    }
}
