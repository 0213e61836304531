//! What goes into a handshake: the keys, the common knowledge, the randomness.
use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{handshake::NAME, kem, secret::PreSharedKey, symmetric::Symmetric};

/// Bytes of an X25519 key or result.
pub(super) const DH_BYTES: usize = 32;
#[cfg(test)]
const NAME_WITHOUT_PSK: &str = "Noise_XXhfs_25519+MLKEM768_ChaChaPoly_SHA256";

/// The Noise static key `s`: fresh in every process, vouched for by the identity in the payload.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct StaticKey {
    pub(super) secret: Box<[u8; DH_BYTES]>,
    #[zeroize(skip)]
    public: [u8; DH_BYTES],
}

impl StaticKey {
    /// From 32 random bytes.
    #[must_use]
    pub fn from_secret(mut secret: [u8; DH_BYTES]) -> Self {
        let key = Self { public: kem::x25519_public(&secret), secret: Box::new(secret) };
        secret.zeroize();
        key
    }

    /// The public half.
    #[must_use]
    pub const fn public(&self) -> &[u8; DH_BYTES] {
        &self.public
    }
}

impl fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticKey([secret])")
    }
}

/// What both sides know before the first message, and the own static key.
#[derive(Clone)]
pub struct Params {
    pub(super) psk: Option<PreSharedKey>,
    prologue: Vec<u8>,
    pub(super) static_key: StaticKey,
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Params").finish_non_exhaustive()
    }
}

impl Params {
    /// `prologue` is what both sides must agree on; see [`crate::session::prologue`] and [`crate::join::prologue`].
    #[must_use]
    pub fn new(psk: PreSharedKey, prologue: Vec<u8>, static_key: StaticKey) -> Self {
        Self { psk: Some(psk), prologue, static_key }
    }

    /// The pattern of the public test vectors. Only tests can name it: a session without a pre-shared key does not exist.
    #[cfg(test)]
    pub(super) fn without_psk(prologue: Vec<u8>, static_key: StaticKey) -> Self {
        Self { psk: None, prologue, static_key }
    }

    pub(super) fn begin(&self) -> Symmetric {
        #[cfg(test)]
        let name = if self.psk.is_some() { NAME } else { NAME_WITHOUT_PSK };
        #[cfg(not(test))]
        let name = NAME;
        let mut symmetric = Symmetric::new(name);
        symmetric.mix_hash(&self.prologue);
        if let Some(psk) = &self.psk {
            symmetric.mix_key_and_hash(psk.expose());
        }
        symmetric
    }
}

/// Randomness of one handshake of an initiator. Used twice, it would give two sessions the same ephemeral keys, hence no `Clone`.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct InitiatorRandom {
    pub(super) ephemeral: [u8; DH_BYTES],
    pub(super) kem_seed: [u8; 64],
}

impl InitiatorRandom {
    /// Bytes needed.
    pub const BYTES: usize = DH_BYTES + 64;

    /// From fresh random bytes: ephemeral X25519 secret, then the ML-KEM seed.
    #[must_use]
    pub fn from_bytes(bytes: &Zeroizing<[u8; Self::BYTES]>) -> Self {
        let mut random = Self { ephemeral: [0; DH_BYTES], kem_seed: [0; 64] };
        let (ephemeral, kem_seed) = bytes.split_at(DH_BYTES);
        random.ephemeral.copy_from_slice(ephemeral);
        random.kem_seed.copy_from_slice(kem_seed);
        random
    }
}

impl fmt::Debug for InitiatorRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Randomness of one handshake of a responder; see [`InitiatorRandom`].
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ResponderRandom {
    pub(super) ephemeral: [u8; DH_BYTES],
    pub(super) encapsulation: [u8; 32],
}

impl ResponderRandom {
    /// Bytes needed.
    pub const BYTES: usize = DH_BYTES + 32;

    /// From fresh random bytes: ephemeral X25519 secret, then the encapsulation's.
    #[must_use]
    pub fn from_bytes(bytes: &Zeroizing<[u8; Self::BYTES]>) -> Self {
        let mut random = Self { ephemeral: [0; DH_BYTES], encapsulation: [0; 32] };
        let (ephemeral, encapsulation) = bytes.split_at(DH_BYTES);
        random.ephemeral.copy_from_slice(ephemeral);
        random.encapsulation.copy_from_slice(encapsulation);
        random
    }
}

impl fmt::Debug for ResponderRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
