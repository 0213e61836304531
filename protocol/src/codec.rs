//! The only user of bincode: encode and decode with a limit per message.
//!
//! bincode 2 (standard configuration: little endian, variable-length integers) is not self-describing; a field more in any
//! message is a new protocol version. It is no longer maintained (RUSTSEC-2025-0141), which is why nothing else names it:
//! replacing it is a change of this file and of the golden bytes.
use serde::{Serialize, de::DeserializeOwned};

/// Why bytes could not be turned into a message, or a message into bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum CodecError {
    /// The message is larger than its kind allows.
    #[error("message of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of the message.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The bytes are not a message of this type: cut short, a length beyond the limit, an unknown variant, invalid UTF-8.
    #[error("malformed message")]
    Malformed,
    /// Bytes are left after the message.
    #[error("{0} bytes are left after the message")]
    Trailing(usize),
    /// The value has no encoding (a map of unknown length, say). A bug of ours, not of a peer.
    #[error("value can't be encoded")]
    Unencodable,
}

/// Encodes `value`; refuses a result over `MAX` bytes.
///
/// # Errors
/// [`CodecError::TooLarge`], [`CodecError::Unencodable`].
pub fn encode<T: Serialize, const MAX: usize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::standard())
        .map_err(|_| CodecError::Unencodable)?;
    if bytes.len() > MAX {
        return Err(CodecError::TooLarge { size: bytes.len(), limit: MAX });
    }
    Ok(bytes)
}

/// Decodes a whole message of at most `MAX` bytes. A length prefix inside it that claims far more memory than such a
/// message can need is refused before anything is allocated for it.
///
/// # Errors
/// Any [`CodecError`] but `Unencodable`.
pub fn decode<T: DeserializeOwned, const MAX: usize>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX {
        return Err(CodecError::TooLarge { size: bytes.len(), limit: MAX });
    }
    // bincode's own limit counts the memory that a length prefix claims (elements times their size in memory), not bytes of the
    // message, so it has to be larger than `MAX`; it bounds what a lying prefix can make us allocate.
    let (value, used) =
        if MAX <= SMALL_MESSAGE { claim::<T, SMALL_CLAIM>(bytes) } else { claim::<T, LARGE_CLAIM>(bytes) }?;
    match bytes.len() - used {
        0 => Ok(value),
        left => Err(CodecError::Trailing(left)),
    }
}

/// For `#[serde(with)]` on bytes: they are copied whole and not one by one. What is on the wire is the same.
pub(crate) mod bytes {
    use std::fmt;

    use serde::{Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// Messages up to this size may claim [`SMALL_CLAIM`] bytes of memory, larger ones [`LARGE_CLAIM`].
const SMALL_MESSAGE: usize = 20 * 1024;
const SMALL_CLAIM: usize = 512 * 1024;
const LARGE_CLAIM: usize = 16 * 1024 * 1024;

fn claim<T: DeserializeOwned, const CLAIM: usize>(bytes: &[u8]) -> Result<(T, usize), CodecError> {
    bincode::serde::decode_from_slice(bytes, bincode::config::standard().with_limit::<CLAIM>())
        .map_err(|_| CodecError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_length_is_refused_before_allocation() {
        let mut evil = vec![253u8];
        evil.extend_from_slice(&(1u64 << 60).to_le_bytes());
        assert_eq!(decode::<Vec<u8>, 1024>(&evil), Err(CodecError::Malformed));
        // Text is read into memory of the length claimed: without the limit this ends the process.
        assert_eq!(decode::<String, 1024>(&evil), Err(CodecError::Malformed));
    }

    #[test]
    fn trailing_and_oversized_are_errors() {
        let mut bytes = encode::<_, 64>(&("hi", 7u64)).unwrap();
        assert_eq!(decode::<(String, u64), 64>(&bytes).unwrap(), ("hi".into(), 7));
        bytes.push(0);
        assert_eq!(decode::<(String, u64), 64>(&bytes), Err(CodecError::Trailing(1)));
        assert_eq!(encode::<_, 16>(&vec![0u8; 17]), Err(CodecError::TooLarge { size: 18, limit: 16 }));
        assert_eq!(decode::<u8, 1>(&[1, 2]), Err(CodecError::TooLarge { size: 2, limit: 1 }));
    }
}
