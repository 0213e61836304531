//! Messages of `/octomesh/blob/1`: bytes that are too large for a frame, one stream for each transfer.
//!
//! ```text
//!   asks for it                             has it         has it                        is to get it
//!     │ Fetch{source, offset, expect} ───────▶ │             │ Offer{target, blob} ───────▶ │
//!     │ ◀────────── Sending{blob, offset}      │             │ ◀──────────── Ready{offset}  │
//!     │ ◀────────── Chunk … End{hash}          │             │ Chunk … End{hash} ─────────▶ │
//!     │ Stored{hash} ────────────────────────▶ │             │ ◀──────────── Stored{hash}   │
//! ```
//!
//! While chunks come, the receiver says with `Ready` how far it is, every 128 KiB at the latest: a sender has at most 512 KiB under way
//! that it was not told of, because other streams of the session wait behind them. After `End` such a word has no meaning any more.
//!
//! Instead of any answer: `Refused{reason, detail}`. Whoever receives says from which byte on: after a broken connection a transfer
//! goes on where it was, on a new stream. It counts when all bytes have the hash that was named before the first of them; the end of
//! the stream says nothing.
use serde::{Deserialize, Serialize};

use crate::{
    codec::{self, CodecError},
    frame::{self, FrameError},
    id::BlobHash,
    limits,
};

/// Names a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobRef {
    /// SHA-256 of its bytes.
    pub hash: BlobHash,
    /// How many there are.
    pub bytes: u64,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The result of a step of the asking node.
    Result(BlobHash),
    /// A file of the workspace.
    File(String),
}

/// What is brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// Arguments of a step that the bringing node will ask for.
    Input,
    /// A file of the workspace, which it replaces.
    File(String),
}

/// Asks for bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which.
    pub source: Source,
    /// The first byte that is wanted; those before it are there already.
    pub offset: u64,
    /// What those that are there belong to. A file that has changed since is refused.
    pub expect: Option<BlobHash>,
}

/// The answer to [`Fetch`]; chunks follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// All of it.
    pub blob: BlobRef,
    /// The first byte that comes.
    pub offset: u64,
}

/// Brings bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What for.
    pub target: Target,
    /// All of it.
    pub blob: BlobRef,
}

/// The answer to [`Offer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The first byte that is wanted; all of them are there when it is the blob's size.
    pub offset: u64,
}

/// The sender's last word: a stream that just ends is no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Of all bytes, those before the offset included.
    pub hash: BlobHash,
}

/// The receiver's last word: the bytes are on its disk and have the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Of all bytes.
    pub hash: BlobHash,
}

/// Why there is no transfer. The name is the code that people and metrics see.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BlobRefusal {
    /// There is no such file or blob, or it is not the asking node's.
    NotFound,
    /// The asking node's role or grants do not allow it here.
    Policy,
    /// No such path is possible, or it leads out of the workspace.
    Invalid,
    /// The file is not the one whose beginning the asking node has.
    Changed,
    /// Over a limit.
    TooLarge,
    /// No room on the disk or in the store.
    Full,
    /// Too many transfers at once; later there will be fewer.
    Busy,
    /// The bytes do not have the hash that was named.
    Damaged,
    /// The node was away, and has not heard yet who was revoked meanwhile.
    CatchingUp,
    /// The node could not read or write.
    Failed,
}

impl BlobRefusal {
    /// Whether the same question can have another answer soon.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Busy | Self::CatchingUp)
    }
}

/// No.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The code.
    pub reason: BlobRefusal,
    /// One sentence for people.
    pub detail: String,
}

/// Any message of the blob protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is documented at its type")]
pub enum BlobMessage {
    Fetch(Fetch),
    Sending(Sending),
    Offer(Offer),
    Ready(Ready),
    /// Bytes as they are, not encoded.
    Chunk(Vec<u8>),
    End(End),
    Stored(Stored),
    Refused(Refused),
}

impl BlobMessage {
    /// The whole frame, length prefix included.
    ///
    /// # Errors
    /// [`FrameError::Body`] or [`FrameError::TooLarge`] when the message is over its limit.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Fetch(m) => join(1, m),
            Self::Sending(m) => join(2, m),
            Self::Offer(m) => join(3, m),
            Self::Ready(m) => join(4, m),
            Self::Chunk(bytes) => frame::join(5, bytes, limits::BLOB_FRAME_BYTES),
            Self::End(m) => join(6, m),
            Self::Stored(m) => join(7, m),
            Self::Refused(m) => join(8, m),
        }
    }

    /// Decodes a frame whose length prefix was removed, and checks the bounds of its parts.
    ///
    /// # Errors
    /// Any [`FrameError`].
    pub fn from_frame(bytes: &[u8]) -> Result<Self, FrameError> {
        let (kind, body) = frame::split(bytes)?;
        let message = match kind {
            1 => Self::Fetch(decode(body)?),
            2 => Self::Sending(decode(body)?),
            3 => Self::Offer(decode(body)?),
            4 => Self::Ready(decode(body)?),
            5 => Self::Chunk(body.to_vec()),
            6 => Self::End(decode(body)?),
            7 => Self::Stored(decode(body)?),
            8 => Self::Refused(decode(body)?),
            other => return Err(FrameError::Kind(other)),
        };
        if message.fits() { Ok(message) } else { Err(FrameError::Body(CodecError::Malformed)) }
    }

    fn fits(&self) -> bool {
        let path = |path: &str| (1..=limits::PATH_BYTES).contains(&path.len());
        match self {
            Self::Fetch(m) => {
                m.offset <= limits::FILE_BYTES
                    // Bytes of nothing in particular can't be gone on with.
                    && (m.offset == 0 || m.expect.is_some())
                    && match &m.source {
                        Source::Result(_) => true,
                        Source::File(name) => path(name),
                    }
            }
            Self::Sending(m) => m.blob.bytes <= limits::FILE_BYTES && m.offset <= m.blob.bytes,
            Self::Offer(m) => match &m.target {
                Target::Input => m.blob.bytes <= limits::INPUT_BYTES as u64,
                Target::File(name) => m.blob.bytes <= limits::FILE_BYTES && path(name),
            },
            Self::Ready(m) => m.offset <= limits::FILE_BYTES,
            Self::Chunk(bytes) => (1..=limits::CHUNK_BYTES).contains(&bytes.len()),
            Self::Refused(m) => m.detail.len() <= limits::TEXT_BYTES,
            Self::End(_) | Self::Stored(_) => true,
        }
    }

    /// The message's name, for logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fetch(_) => "Fetch",
            Self::Sending(_) => "Sending",
            Self::Offer(_) => "Offer",
            Self::Ready(_) => "Ready",
            Self::Chunk(_) => "Chunk",
            Self::End(_) => "End",
            Self::Stored(_) => "Stored",
            Self::Refused(_) => "Refused",
        }
    }
}

fn join<T: Serialize>(kind: u8, body: &T) -> Result<Vec<u8>, FrameError> {
    let body = codec::encode::<_, { limits::BLOB_FRAME_BYTES }>(body)?;
    frame::join(kind, &body, limits::BLOB_FRAME_BYTES)
}

fn decode<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(codec::decode::<T, { limits::BLOB_FRAME_BYTES }>(body)?)
}

macro_rules! into_message {
    ($($name:ident)*) => {
        $(impl From<$name> for BlobMessage {
            fn from(body: $name) -> Self {
                Self::$name(body)
            }
        })*
    };
}

into_message!(Fetch Sending Offer Ready End Stored Refused);

#[cfg(test)]
mod tests {
    use super::*;

    fn hash() -> BlobHash {
        BlobHash::from_bytes([5; 32])
    }

    fn blob(bytes: u64) -> BlobRef {
        BlobRef { hash: hash(), bytes }
    }

    /// One message of each kind with its bytes; `H` is the hash. A change here is a new protocol version.
    fn golden() -> Vec<(BlobMessage, &'static str)> {
        vec![
            (
                Fetch { source: Source::File("a/b".into()), offset: 300, expect: Some(hash()) }.into(),
                "0000002b01010103612f62fb2c0101H",
            ),
            (Fetch { source: Source::Result(hash()), offset: 0, expect: None }.into(), "00000025010100H0000"),
            (Sending { blob: blob(300), offset: 7 }.into(), "000000260102Hfb2c0107"),
            (Offer { target: Target::Input, blob: blob(1) }.into(), "00000024010300H01"),
            (Offer { target: Target::File("a".into()), blob: blob(1) }.into(), "000000260103010161H01"),
            (Ready { offset: 300 }.into(), "000000050104fb2c01"),
            (BlobMessage::Chunk(vec![0, 251, 255]), "00000005010500fbff"),
            (End { hash: hash() }.into(), "000000220106H"),
            (Stored { hash: hash() }.into(), "000000220107H"),
            (Refused { reason: BlobRefusal::Changed, detail: "x".into() }.into(), "000000050108030178"),
        ]
    }

    #[test]
    fn golden_bytes() {
        for (message, hex) in golden() {
            let frame = message.to_frame().unwrap();
            let shown = data_encoding::HEXLOWER.encode(&frame).replace(&"05".repeat(32), "H");
            assert_eq!(shown, hex, "{}", message.name());
            assert_eq!(BlobMessage::from_frame(&frame[frame::LENGTH_BYTES..]).unwrap(), message);
        }
    }

    #[test]
    fn what_is_over_a_bound_is_refused() {
        let file = |path: String| Source::File(path);
        let bad: Vec<BlobMessage> = vec![
            Fetch { source: file(String::new()), offset: 0, expect: None }.into(),
            Fetch { source: file("x".repeat(limits::PATH_BYTES + 1)), offset: 0, expect: None }.into(),
            Fetch { source: file("x".into()), offset: 1, expect: None }.into(),
            Fetch { source: file("x".into()), offset: limits::FILE_BYTES + 1, expect: Some(hash()) }.into(),
            Sending { blob: blob(7), offset: 8 }.into(),
            Sending { blob: blob(limits::FILE_BYTES + 1), offset: 0 }.into(),
            Offer { target: Target::Input, blob: blob(limits::INPUT_BYTES as u64 + 1) }.into(),
            Offer { target: Target::File("x".into()), blob: blob(limits::FILE_BYTES + 1) }.into(),
            BlobMessage::Chunk(Vec::new()),
            BlobMessage::Chunk(vec![0; limits::CHUNK_BYTES + 1]),
            Refused { reason: BlobRefusal::Full, detail: "x".repeat(limits::TEXT_BYTES + 1) }.into(),
        ];
        for message in bad {
            let frame = message.to_frame().unwrap();
            assert!(BlobMessage::from_frame(&frame[frame::LENGTH_BYTES..]).is_err(), "{}", message.name());
        }
        assert!(BlobMessage::Chunk(vec![0; limits::BLOB_FRAME_BYTES]).to_frame().is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), kind in 0u8..12) {
            let _ = BlobMessage::from_frame(&bytes);
            let mut framed = vec![frame::VERSION, kind];
            framed.extend_from_slice(&bytes);
            let _ = BlobMessage::from_frame(&framed);
        }

        #[test]
        fn a_cut_message_is_an_error(cut in 0usize..200, which in 0usize..10) {
            let message = golden().swap_remove(which).0;
            let frame = message.to_frame().unwrap();
            let body = &frame[frame::LENGTH_BYTES..];
            // A chunk that was cut is a shorter chunk: its frame's length is what tells.
            if cut < body.len() && !matches!(message, BlobMessage::Chunk(_)) {
                proptest::prop_assert!(BlobMessage::from_frame(&body[..cut]).is_err());
            }
        }
    }
}
