//! X25519 and ML-KEM-768 (FIPS 203) with their checks. The forms that take their randomness as an argument are used: those that
//! draw it themselves panic when the system's source fails.
use ml_kem::{
    DecapsulationKey768, EncapsulationKey768,
    kem::{Decapsulate as _, KeyExport as _},
};
use subtle::ConstantTimeEq as _;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize as _, Zeroizing};

use super::symmetric::Key;

/// Bytes of an ML-KEM-768 encapsulation key.
pub(super) const ENCAPSULATION_KEY_BYTES: usize = 1184;
/// Bytes of an ML-KEM-768 ciphertext.
pub(super) const CIPHERTEXT_BYTES: usize = 1088;

/// A public key that must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadKey;

/// X25519; refuses an all-zero result, which is what a point of low order gives and what would take this exchange out of the
/// session key.
pub(super) fn x25519(secret: &[u8; 32], public: &[u8; 32]) -> Result<Key, BadKey> {
    let shared = Zeroizing::new(x25519_dalek::x25519(*secret, *public));
    if bool::from(shared.ct_eq(&[0; 32])) { Err(BadKey) } else { Ok(shared) }
}

/// By a table of multiples of the base point: a third of the time of [`x25519`] with it.
pub(super) fn x25519_public(secret: &[u8; 32]) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(*secret)).to_bytes()
}

/// Boxed: 2 KiB that would otherwise be copied with every move of a handshake state.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Decapsulator(Box<DecapsulationKey768>);

impl Decapsulator {
    pub(super) fn from_seed(seed: &[u8; 64]) -> Self {
        Self(Box::new(DecapsulationKey768::from_seed((*seed).into())))
    }

    pub(super) fn public(&self) -> Vec<u8> {
        self.0.encapsulation_key().to_bytes().to_vec()
    }

    /// A wrong ciphertext gives a wrong secret (implicit rejection), which shows at the next tag.
    pub(super) fn open(&self, ciphertext: &[u8; CIPHERTEXT_BYTES]) -> Key {
        let mut shared = self.0.decapsulate(&(*ciphertext).into());
        let key = Zeroizing::new(shared.into());
        shared.zeroize();
        key
    }
}

pub(super) struct Encapsulator(Box<EncapsulationKey768>);

impl Encapsulator {
    /// Does the modulus check of FIPS 203 section 7.2.
    pub(super) fn new(public: &[u8; ENCAPSULATION_KEY_BYTES]) -> Result<Self, BadKey> {
        EncapsulationKey768::new(&(*public).into()).map(|key| Self(Box::new(key))).map_err(|_| BadKey)
    }

    /// Ciphertext and shared secret.
    pub(super) fn seal(&self, random: &[u8; 32]) -> (Vec<u8>, Key) {
        let (ciphertext, mut shared) = self.0.encapsulate_deterministic(&(*random).into());
        let key = Zeroizing::new(shared.into());
        shared.zeroize();
        (ciphertext.to_vec(), key)
    }
}

#[cfg(test)]
mod tests;
