//! `Noise_XXhfs+psk0_25519+MLKEM768_ChaChaPoly_SHA256`, one type per state.
//!
//! ```text
//!   -> psk, e, e1
//!   <- e, ee, ekem1, s, es
//!   -> s, se
//! ```
//!
//! Payloads of messages 2 and 3 are made by the caller from the transcript hash just before them, so that a signature in the
//! payload covers everything said until then.
use std::fmt;

use zeroize::Zeroizing;

pub use super::params::{InitiatorRandom, Params, ResponderRandom, StaticKey};

use super::{
    cipher::{Refused, TAG_BYTES},
    kem::{self, BadKey, CIPHERTEXT_BYTES, Decapsulator, ENCAPSULATION_KEY_BYTES, Encapsulator},
    params::DH_BYTES,
    secret::{RekeySecret, SessionKey},
    symmetric::{Key, Symmetric},
};
use crate::limits;

/// The name that is hashed first; it says everything about the suite.
pub const NAME: &str = "Noise_XXhfs+psk0_25519+MLKEM768_ChaChaPoly_SHA256";

/// Bytes of message 1: it has no payload, so this is its only legal length.
pub const MESSAGE_1_BYTES: usize = DH_BYTES + ENCAPSULATION_KEY_BYTES + TAG_BYTES + TAG_BYTES;
/// Bytes of message 2 around its payload.
pub const MESSAGE_2_OVERHEAD: usize =
    DH_BYTES + CIPHERTEXT_BYTES + TAG_BYTES + DH_BYTES + TAG_BYTES + TAG_BYTES;
/// Bytes of message 3 around its payload.
pub const MESSAGE_3_OVERHEAD: usize = DH_BYTES + TAG_BYTES + TAG_BYTES;

/// Why a handshake failed. Whatever it was, nothing of the handshake is left; the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum HandshakeError {
    /// Too short to be this message, or over the limit.
    #[error("handshake message has an impossible length")]
    Length,
    /// A tag does not verify: another pre-shared key, another mesh, or a changed message.
    #[error("handshake message does not authenticate")]
    Authentication,
    /// An X25519 key of the other side is a point of low order.
    #[error("the other side's X25519 key is a point of low order")]
    LowOrder,
    /// The ML-KEM key of the other side is not reduced (FIPS 203, section 7.2).
    #[error("the other side's ML-KEM key fails the modulus check")]
    EncapsulationKey,
}

impl From<Refused> for HandshakeError {
    fn from(Refused: Refused) -> Self {
        Self::Authentication
    }
}

/// The handshake hash `h` just before a payload: it covers prologue, suite and every byte until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptHash([u8; 32]);

impl TranscriptHash {
    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A payload of the other side: authenticated by the handshake, not yet by an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The payload.
    pub payload: Vec<u8>,
    /// The transcript hash that a signature in the payload has to cover.
    pub transcript: TranscriptHash,
}

/// What a finished handshake leaves.
#[derive(Debug)]
pub struct Split {
    /// Key of what this side sends; the other side's `receive`.
    pub send: SessionKey,
    /// Key of what this side receives; the other side's `send`.
    pub receive: SessionKey,
    /// Salt of a later rekey.
    pub rekey_secret: RekeySecret,
    /// Hash of the whole handshake; the same on both sides and on no other session.
    pub hash: TranscriptHash,
    /// The Noise static key of the other side.
    pub remote_static: [u8; DH_BYTES],
}

impl Split {
    fn new(symmetric: &Symmetric, initiator: bool, remote_static: [u8; DH_BYTES]) -> Self {
        let [to_responder, to_initiator, rekey] = symmetric.split();
        let (send, receive) =
            if initiator { (to_responder, to_initiator) } else { (to_initiator, to_responder) };
        Self {
            send: SessionKey::from_bytes(*send),
            receive: SessionKey::from_bytes(*receive),
            rekey_secret: RekeySecret::from_bytes(*rekey),
            hash: TranscriptHash(symmetric.hash()),
            remote_static,
        }
    }
}

/// What both sides carry from state to state.
struct State {
    symmetric: Symmetric,
    psk: bool,
    static_key: StaticKey,
    ephemeral: Key,
}

impl State {
    /// Token `e` for writing.
    fn write_ephemeral(&mut self, out: &mut Vec<u8>) {
        let public = kem::x25519_public(&self.ephemeral);
        out.extend_from_slice(&public);
        self.mix_ephemeral(&public);
    }

    /// With a pre-shared key the ephemeral also enters the key, so that nothing is ever encrypted under the psk alone.
    fn mix_ephemeral(&mut self, public: &[u8; DH_BYTES]) {
        self.symmetric.mix_hash(public);
        if self.psk {
            self.symmetric.mix_key(public);
        }
    }

    /// Tokens `ee`, `es`, `se`.
    fn mix_dh(&mut self, shared: Result<Key, BadKey>) -> Result<(), HandshakeError> {
        let shared = shared.map_err(|BadKey| HandshakeError::LowOrder)?;
        self.symmetric.mix_key(&*shared);
        Ok(())
    }

    /// Token `s` for reading.
    fn read_static(&mut self, sealed: &[u8]) -> Result<[u8; DH_BYTES], HandshakeError> {
        let public = self.symmetric.decrypt_and_hash(sealed)?;
        public.try_into().map_err(|_| HandshakeError::Length)
    }

    fn write_payload<E: From<HandshakeError>>(
        &mut self,
        payload: impl FnOnce(TranscriptHash) -> Result<Vec<u8>, E>,
        overhead: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), E> {
        let payload = payload(TranscriptHash(self.symmetric.hash()))?;
        if payload.len() + overhead > limits::HANDSHAKE_MESSAGE_BYTES {
            return Err(HandshakeError::Length.into());
        }
        self.symmetric.encrypt_and_hash(&payload, out).map_err(|refused| HandshakeError::from(refused).into())
    }

    fn read_payload(&mut self, sealed: &[u8]) -> Result<Received, HandshakeError> {
        let transcript = TranscriptHash(self.symmetric.hash());
        Ok(Received { payload: self.symmetric.decrypt_and_hash(sealed)?, transcript })
    }
}

/// Takes `N` bytes off the front of a message.
fn take<'a, const N: usize>(message: &mut &'a [u8]) -> Result<&'a [u8; N], HandshakeError> {
    let (head, rest) = message.split_first_chunk::<N>().ok_or(HandshakeError::Length)?;
    *message = rest;
    Ok(head)
}

const SEALED_STATIC: usize = DH_BYTES + TAG_BYTES;
const SEALED_CIPHERTEXT: usize = CIPHERTEXT_BYTES + TAG_BYTES;

/// The side that dials.
#[derive(Debug)]
pub struct Initiator;

impl Initiator {
    /// Message 1.
    ///
    /// # Errors
    /// None in practice: the cipher refuses only past 2^64 messages.
    pub fn start(
        params: &Params,
        random: InitiatorRandom,
    ) -> Result<(AwaitResponse, Vec<u8>), HandshakeError> {
        let mut state = State {
            symmetric: params.begin(),
            psk: params.psk.is_some(),
            static_key: params.static_key.clone(),
            ephemeral: Zeroizing::new(random.ephemeral),
        };
        let mut message = Vec::with_capacity(MESSAGE_1_BYTES);
        state.write_ephemeral(&mut message);
        let decapsulator = Decapsulator::from_seed(&random.kem_seed);
        state.symmetric.encrypt_and_hash(&decapsulator.public(), &mut message)?;
        state.symmetric.encrypt_and_hash(&[], &mut message)?;
        Ok((AwaitResponse { state, decapsulator }, message))
    }
}

/// Initiator, after message 1.
pub struct AwaitResponse {
    state: State,
    decapsulator: Decapsulator,
}

impl AwaitResponse {
    /// Message 2, and the responder's payload. Message 3 is to be written only if the payload is found good.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn read(self, mut message: &[u8]) -> Result<(SendConfirm, Received), HandshakeError> {
        let Self { mut state, decapsulator } = self;
        if message.len() < MESSAGE_2_OVERHEAD || message.len() > limits::HANDSHAKE_MESSAGE_BYTES {
            return Err(HandshakeError::Length);
        }
        let remote_ephemeral = *take::<DH_BYTES>(&mut message)?;
        state.mix_ephemeral(&remote_ephemeral);
        state.mix_dh(kem::x25519(&state.ephemeral, &remote_ephemeral))?;

        let ciphertext = state.symmetric.decrypt_and_hash(take::<SEALED_CIPHERTEXT>(&mut message)?)?;
        let ciphertext = ciphertext.first_chunk().ok_or(HandshakeError::Length)?;
        state.symmetric.mix_key(&*decapsulator.open(ciphertext));

        let remote_static = state.read_static(take::<SEALED_STATIC>(&mut message)?)?;
        state.mix_dh(kem::x25519(&state.ephemeral, &remote_static))?;
        let received = state.read_payload(message)?;
        Ok((SendConfirm { state, remote_ephemeral, remote_static }, received))
    }
}

/// Initiator, after message 2.
pub struct SendConfirm {
    state: State,
    remote_ephemeral: [u8; DH_BYTES],
    remote_static: [u8; DH_BYTES],
}

impl SendConfirm {
    /// Message 3 with the payload that `payload` makes from the transcript hash, and the keys.
    ///
    /// # Errors
    /// Those of `payload`; [`HandshakeError::LowOrder`]; [`HandshakeError::Length`] for a payload over the limit.
    pub fn write<E: From<HandshakeError>>(
        self,
        payload: impl FnOnce(TranscriptHash) -> Result<Vec<u8>, E>,
    ) -> Result<(Vec<u8>, Split), E> {
        let Self { mut state, remote_ephemeral, remote_static } = self;
        let mut message = Vec::new();
        let public = *state.static_key.public();
        state.symmetric.encrypt_and_hash(&public, &mut message).map_err(HandshakeError::from)?;
        state.mix_dh(kem::x25519(&state.static_key.secret, &remote_ephemeral))?;
        state.write_payload(payload, MESSAGE_3_OVERHEAD, &mut message)?;
        Ok((message, Split::new(&state.symmetric, true, remote_static)))
    }
}

/// Responder, before message 1.
pub struct AwaitHello {
    symmetric: Symmetric,
    psk: bool,
    static_key: StaticKey,
}

impl AwaitHello {
    /// Waits for a message 1 of somebody with the same params.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Self { symmetric: params.begin(), psk: params.psk.is_some(), static_key: params.static_key.clone() }
    }

    /// Message 1. A stranger without the pre-shared key is stopped by one tag, before any X25519 or ML-KEM.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn read(self, mut message: &[u8]) -> Result<SendResponse, HandshakeError> {
        let exact = if self.psk { MESSAGE_1_BYTES } else { MESSAGE_1_BYTES - 2 * TAG_BYTES };
        if message.len() != exact {
            return Err(HandshakeError::Length);
        }
        let mut state = State {
            symmetric: self.symmetric,
            psk: self.psk,
            static_key: self.static_key,
            // Drawn only for a peer that passed message 1.
            ephemeral: Zeroizing::new([0; DH_BYTES]),
        };
        let remote_ephemeral = *take::<DH_BYTES>(&mut message)?;
        state.mix_ephemeral(&remote_ephemeral);
        let payload_bytes = if state.psk { TAG_BYTES } else { 0 };
        let (sealed_key, payload) =
            message.split_at_checked(message.len() - payload_bytes).ok_or(HandshakeError::Length)?;
        let key = state.symmetric.decrypt_and_hash(sealed_key)?;
        state.symmetric.decrypt_and_hash(payload)?;
        let key = key.first_chunk().ok_or(HandshakeError::Length)?;
        let encapsulator = Encapsulator::new(key).map_err(|BadKey| HandshakeError::EncapsulationKey)?;
        Ok(SendResponse { state, remote_ephemeral, encapsulator })
    }
}

/// Responder, after message 1.
pub struct SendResponse {
    state: State,
    remote_ephemeral: [u8; DH_BYTES],
    encapsulator: Encapsulator,
}

impl SendResponse {
    /// Message 2 with the payload that `payload` makes from the transcript hash.
    ///
    /// # Errors
    /// Those of `payload`; [`HandshakeError::LowOrder`]; [`HandshakeError::Length`] for a payload over the limit.
    pub fn write<E: From<HandshakeError>>(
        self,
        random: ResponderRandom,
        payload: impl FnOnce(TranscriptHash) -> Result<Vec<u8>, E>,
    ) -> Result<(Vec<u8>, AwaitConfirm), E> {
        let Self { mut state, remote_ephemeral, encapsulator } = self;
        state.ephemeral = Zeroizing::new(random.ephemeral);
        let mut message = Vec::new();
        state.write_ephemeral(&mut message);
        state.mix_dh(kem::x25519(&state.ephemeral, &remote_ephemeral))?;

        // The ciphertext is encrypted under the key of `ee`, and only then does its secret enter.
        let (ciphertext, shared) = encapsulator.seal(&random.encapsulation);
        state.symmetric.encrypt_and_hash(&ciphertext, &mut message).map_err(HandshakeError::from)?;
        state.symmetric.mix_key(&*shared);

        let public = *state.static_key.public();
        state.symmetric.encrypt_and_hash(&public, &mut message).map_err(HandshakeError::from)?;
        state.mix_dh(kem::x25519(&state.static_key.secret, &remote_ephemeral))?;
        state.write_payload(payload, MESSAGE_2_OVERHEAD, &mut message)?;
        Ok((message, AwaitConfirm { state }))
    }
}

/// Responder, after message 2.
pub struct AwaitConfirm {
    state: State,
}

impl AwaitConfirm {
    /// Message 3, the initiator's payload, and the keys, which are to be used only if the payload is found good.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn read(self, mut message: &[u8]) -> Result<(Received, Split), HandshakeError> {
        let Self { mut state } = self;
        if message.len() < MESSAGE_3_OVERHEAD || message.len() > limits::HANDSHAKE_MESSAGE_BYTES {
            return Err(HandshakeError::Length);
        }
        let remote_static = state.read_static(take::<SEALED_STATIC>(&mut message)?)?;
        state.mix_dh(kem::x25519(&state.ephemeral, &remote_static))?;
        let received = state.read_payload(message)?;
        Ok((received, Split::new(&state.symmetric, false, remote_static)))
    }
}

macro_rules! opaque_debug {
    ($($state:ident)*) => {$(
        impl fmt::Debug for $state {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($state)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque_debug!(AwaitResponse SendConfirm AwaitHello SendResponse AwaitConfirm);

#[cfg(test)]
mod tests;
