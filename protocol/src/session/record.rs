//! Records: `length u16 BE (17..=65535) │ ciphertext │ tag`; plaintext is `kind u8 │ body`.
//!
//! The nonce is a counter that both sides keep and nobody sends, so a record that is repeated, left out, changed or sent back to
//! where it came from does not authenticate. Every error is final for its direction.
use std::fmt;

use super::{
    cipher::{Cipher, TAG_BYTES},
    secret::SessionKey,
};

/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 2;
/// Bytes before the body in a buffer for [`Sealer::seal`]: length and kind.
pub const HEADER_BYTES: usize = LENGTH_BYTES + 1;
/// Bytes of the tag after the body.
pub const RECORD_TAG_BYTES: usize = TAG_BYTES;
/// Longest ciphertext with its tag: what a `u16` can say, and Noise allows.
pub const MAX_SEALED_BYTES: usize = u16::MAX as usize;
/// Shortest: a kind and no body.
pub const MIN_SEALED_BYTES: usize = 1 + TAG_BYTES;
/// Longest body.
pub const MAX_BODY_BYTES: usize = MAX_SEALED_BYTES - MIN_SEALED_BYTES;
/// Longest text in a close record: a node's name and an address, or a code with a number.
pub const MAX_CLOSE_DETAIL_BYTES: usize = 192;

const DATA: u8 = 0;
pub(super) const REKEY_INIT: u8 = 1;
pub(super) const REKEY_ANSWER: u8 = 2;
pub(super) const REKEY_DONE: u8 = 3;
const CLOSE: u8 = 4;

/// Why one side ended a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr, strum::FromRepr)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
#[non_exhaustive]
pub enum CloseReason {
    /// Nothing left to say.
    Done = 0,
    /// The node stops.
    Shutdown = 1,
    /// Another node with this identity is connected.
    IdentityInUse = 2,
    /// The keys have been used for as much as they may be.
    LimitReached = 3,
    /// The node that hears this was revoked, or the admin that issued its certificate was.
    Revoked = 4,
    /// The other side's identity is not accepted; the detail is a code that says why.
    Refused = 5,
}

impl CloseReason {
    /// Whether it says that the node is not wanted, not just that this session is over.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::IdentityInUse | Self::Revoked | Self::Refused)
    }
}

/// The longest beginning of `text` that fits into a close record.
fn close_detail(text: &str) -> &str {
    let mut end = text.len().min(MAX_CLOSE_DETAIL_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// How much one key may be used for. See [`super::rekey::Session`] for what happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// Records in one direction.
    pub records: u64,
    /// Bytes of ciphertext in one direction.
    pub bytes: u64,
}

impl RecordLimits {
    /// Twice as much.
    #[must_use]
    pub const fn doubled(self) -> Self {
        Self { records: self.records.saturating_mul(2), bytes: self.bytes.saturating_mul(2) }
    }
}

impl Default for RecordLimits {
    /// 2^32 records and 64 GiB: far below what the cipher bears, so that a long session gets fresh secrets now and then.
    fn default() -> Self {
        Self { records: 1 << 32, bytes: 64 << 30 }
    }
}

/// Why a record could not be made or read. The direction is dead afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum RecordError {
    /// Shorter than kind and tag, or longer than a record can be.
    #[error("record has an impossible length")]
    Length,
    /// Changed, repeated, left out or reflected.
    #[error("record does not authenticate")]
    Authentication,
    /// Authentic, but not a kind this version knows, or a body that its kind does not have.
    #[error("record kind {0} is unknown or malformed")]
    Kind(u8),
    /// A rekey message that is malformed or comes at the wrong time.
    #[error("the other side sent a wrong rekey message")]
    Rekey,
    /// As many records or bytes in one direction as its key may be used for.
    #[error("session reached its limit and has to be made anew")]
    LimitReached,
    /// After a close record or an earlier error.
    #[error("session is closed")]
    Closed,
}

#[cfg_attr(test, derive(Clone))]
struct Direction {
    cipher: Cipher,
    limits: RecordLimits,
    records: u64,
    bytes: u64,
    ended: bool,
}

impl Direction {
    fn new(key: &SessionKey, limits: RecordLimits) -> Self {
        Self { cipher: Cipher::new(key.expose()), limits, records: 0, bytes: 0, ended: false }
    }

    const fn has_room(&self, sealed: usize) -> bool {
        self.records < self.limits.records && self.bytes.saturating_add(sealed as u64) <= self.limits.bytes
    }

    /// Counts a data record of `sealed` bytes.
    const fn count(&mut self, sealed: usize) -> Result<(), RecordError> {
        if !self.has_room(sealed) {
            return Err(RecordError::LimitReached);
        }
        self.records += 1;
        self.bytes = self.bytes.saturating_add(sealed as u64);
        Ok(())
    }

    const fn reached(&self, limits: RecordLimits) -> bool {
        self.records >= limits.records || self.bytes >= limits.bytes
    }

    /// Goes on with another key; the old one is erased.
    fn switch(&mut self, key: &SessionKey) {
        (self.cipher, self.records, self.bytes) = (Cipher::new(key.expose()), 0, 0);
    }

    /// Runs one step unless the direction has ended, and ends it if the step fails.
    fn step<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, RecordError>) -> Result<T, RecordError> {
        if self.ended {
            return Err(RecordError::Closed);
        }
        let result = step(self);
        self.ended |= result.is_err();
        result
    }

    fn seal(&mut self, kind: u8, record: &mut Vec<u8>) -> Result<(), RecordError> {
        let sealed = record.len().checked_sub(LENGTH_BYTES).ok_or(RecordError::Length)? + TAG_BYTES;
        let length = u16::try_from(sealed).map_err(|_| RecordError::Length)?;
        let Some((prefix, plain)) = record.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Err(RecordError::Length);
        };
        *prefix = length.to_be_bytes();
        *plain.first_mut().ok_or(RecordError::Length)? = kind;
        let tag = self.cipher.seal(&[], plain).map_err(|_| RecordError::LimitReached)?;
        record.extend_from_slice(&tag);
        Ok(())
    }
}

/// The sending direction.
#[cfg_attr(test, derive(Clone))]
pub struct Sealer(Direction);

impl Sealer {
    /// For [`super::handshake::Split::send`].
    #[must_use]
    pub fn new(key: &SessionKey, limits: RecordLimits) -> Self {
        Self(Direction::new(key, limits))
    }

    /// Makes `record` a data record in place: it holds [`HEADER_BYTES`] of anything and then the body, at most
    /// [`MAX_BODY_BYTES`]; afterwards it is what goes on the wire.
    ///
    /// # Errors
    /// [`RecordError::Length`], [`RecordError::LimitReached`], [`RecordError::Closed`].
    pub fn seal(&mut self, record: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.0.ended {
            return Err(RecordError::Closed);
        }
        // At its limit the direction can still say so: the close record is not counted.
        self.0.count(record.len().saturating_sub(LENGTH_BYTES) + TAG_BYTES)?;
        self.0.step(|direction| direction.seal(DATA, record))
    }

    /// A message of a rekey, kind and body. Not counted: it is what makes room.
    pub(super) fn control(&mut self, message: &[u8]) -> Result<Vec<u8>, RecordError> {
        self.0.step(|direction| {
            let (kind, body) = message.split_first().ok_or(RecordError::Length)?;
            let mut record = vec![0; HEADER_BYTES];
            record.extend_from_slice(body);
            direction.seal(*kind, &mut record)?;
            Ok(record)
        })
    }

    pub(super) fn switch(&mut self, key: &SessionKey) {
        self.0.switch(key);
    }

    pub(super) const fn reached(&self, limits: RecordLimits) -> bool {
        self.0.reached(limits)
    }

    pub(super) const fn has_room(&self, body: usize) -> bool {
        self.0.has_room(body + MIN_SEALED_BYTES)
    }

    pub(super) const fn ended(&self) -> bool {
        self.0.ended
    }

    /// The authenticated end of this direction. Nothing can be sealed after it.
    ///
    /// # Errors
    /// [`RecordError::Closed`] the second time.
    pub fn close(&mut self, reason: CloseReason) -> Result<Vec<u8>, RecordError> {
        self.close_with(reason, "")
    }

    /// The same with more about the reason, cut at [`MAX_CLOSE_DETAIL_BYTES`].
    ///
    /// # Errors
    /// [`RecordError::Closed`] the second time.
    pub fn close_with(&mut self, reason: CloseReason, detail: &str) -> Result<Vec<u8>, RecordError> {
        self.0.step(|direction| {
            let mut record = vec![0; HEADER_BYTES];
            record.push(reason as u8);
            record.extend_from_slice(close_detail(detail).as_bytes());
            direction.seal(CLOSE, &mut record)?;
            direction.ended = true;
            Ok(record)
        })
    }
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Bytes of the stream.
    Data(&'a [u8]),
    /// The other side has ended its direction; an end of the connection without this is a truncation.
    Close(CloseReason),
    /// A message of a rekey: kind and body.
    Rekey(&'a [u8]),
}

/// The receiving direction.
#[cfg_attr(test, derive(Clone))]
pub struct Opener(Direction, String);

impl Opener {
    /// For [`super::handshake::Split::receive`].
    #[must_use]
    pub fn new(key: &SessionKey, limits: RecordLimits) -> Self {
        Self(Direction::new(key, limits), String::new())
    }

    /// What the close record said besides its reason; empty before it. The other side's words: at most
    /// [`MAX_CLOSE_DETAIL_BYTES`], but any characters.
    #[must_use]
    pub fn close_detail(&self) -> &str {
        &self.1
    }

    pub(super) fn switch(&mut self, key: &SessionKey) {
        self.0.switch(key);
    }

    pub(super) const fn reached(&self, limits: RecordLimits) -> bool {
        self.0.reached(limits)
    }

    /// Opens nothing any more.
    pub(super) const fn end(&mut self) {
        self.0.ended = true;
    }

    /// Bytes that follow a length prefix.
    ///
    /// # Errors
    /// [`RecordError::Length`] for less than a kind and a tag.
    pub fn sealed_bytes(prefix: [u8; LENGTH_BYTES]) -> Result<usize, RecordError> {
        let sealed = usize::from(u16::from_be_bytes(prefix));
        if sealed < MIN_SEALED_BYTES { Err(RecordError::Length) } else { Ok(sealed) }
    }

    /// Reads a record, its length prefix removed, in place. The body of data begins at the second byte of `sealed`.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<Record<'a>, RecordError> {
        let Self(direction, close_detail) = self;
        direction.step(|direction| {
            let length = sealed.len();
            if !(MIN_SEALED_BYTES..=MAX_SEALED_BYTES).contains(&length) {
                return Err(RecordError::Length);
            }
            let plain = direction.cipher.open(&[], sealed).map_err(|_| RecordError::Authentication)?;
            match &*plain {
                [DATA, body @ ..] => {
                    direction.count(length)?;
                    Ok(Record::Data(body))
                }
                [CLOSE, reason, detail @ ..] if detail.len() <= MAX_CLOSE_DETAIL_BYTES => {
                    let reason = CloseReason::from_repr(*reason).ok_or(RecordError::Kind(CLOSE))?;
                    let detail = std::str::from_utf8(detail).map_err(|_| RecordError::Kind(CLOSE))?;
                    detail.clone_into(close_detail);
                    direction.ended = true;
                    Ok(Record::Close(reason))
                }
                message @ [REKEY_INIT..=REKEY_DONE, ..] => Ok(Record::Rekey(message)),
                [kind, ..] => Err(RecordError::Kind(*kind)),
                [] => Err(RecordError::Length),
            }
        })
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("records", &self.0.records).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("records", &self.0.records).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
