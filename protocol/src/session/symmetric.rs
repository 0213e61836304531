//! The symmetric state of Noise (revision 34, section 5.2): chaining key, transcript hash, and the key of the moment.
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::cipher::{Cipher, Refused};

pub(super) type Key = Zeroizing<[u8; 32]>;

/// HMAC-SHA256 with a key of 32 bytes. HMAC fills a short key up with zeros to the block of 64, which is done here, because a
/// key of the block's size can't be refused.
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Key {
    let mut block = Zeroizing::new([0; 64]);
    let (head, _) = block.split_at_mut(32);
    head.copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new((&*block).into());
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().into())
}

/// Noise's HKDF with its three outputs.
pub(super) fn hkdf(chaining_key: &[u8; 32], input: &[u8]) -> [Key; 3] {
    let extracted = hmac(chaining_key, &[input]);
    let first = hmac(&extracted, &[&[1]]);
    let second = hmac(&extracted, &[&*first, &[2]]);
    let third = hmac(&extracted, &[&*second, &[3]]);
    [first, second, third]
}

/// HKDF-SHA256 of RFC 5869 with a salt of 32 bytes and an output of 96.
pub(super) fn hkdf_sha256(salt: &[u8; 32], input: &[&[u8]], info: &[&[u8]]) -> [Key; 3] {
    let extracted = hmac(salt, input);
    let block = |before: &[u8], counter: u8| {
        let mut parts = vec![before];
        parts.extend_from_slice(info);
        let counter = [counter];
        parts.push(&counter);
        hmac(&extracted, &parts)
    };
    let first = block(&[], 1);
    let second = block(&*first, 2);
    let third = block(&*second, 3);
    [first, second, third]
}

pub(super) struct Symmetric {
    hash: [u8; 32],
    chaining_key: Key,
    cipher: Option<Cipher>,
}

impl Symmetric {
    /// Begins with the hash of the protocol's name; all our names are longer than a hash.
    pub(super) fn new(name: &str) -> Self {
        let hash: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        Self { hash, chaining_key: Zeroizing::new(hash), cipher: None }
    }

    pub(super) fn hash(&self) -> [u8; 32] {
        self.hash
    }

    pub(super) fn mix_hash(&mut self, bytes: &[u8]) {
        self.hash = Sha256::new().chain_update(self.hash).chain_update(bytes).finalize().into();
    }

    pub(super) fn mix_key(&mut self, input: &[u8]) {
        let [chaining_key, key, _] = hkdf(&self.chaining_key, input);
        self.chaining_key = chaining_key;
        self.cipher = Some(Cipher::new(&key));
    }

    pub(super) fn mix_key_and_hash(&mut self, input: &[u8]) {
        let [chaining_key, hash, key] = hkdf(&self.chaining_key, input);
        self.chaining_key = chaining_key;
        self.mix_hash(&*hash);
        self.cipher = Some(Cipher::new(&key));
    }

    /// Appends `plain`, encrypted once there is a key, to `out`.
    pub(super) fn encrypt_and_hash(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let mut sealed = plain.to_vec();
        if let Some(cipher) = &mut self.cipher {
            let tag = cipher.seal(&self.hash, &mut sealed)?;
            sealed.extend_from_slice(&tag);
        }
        self.mix_hash(&sealed);
        out.extend_from_slice(&sealed);
        Ok(())
    }

    pub(super) fn decrypt_and_hash(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut text = sealed.to_vec();
        if let Some(cipher) = &mut self.cipher {
            let length = cipher.open(&self.hash, &mut text)?.len();
            text.truncate(length);
        }
        self.mix_hash(sealed);
        Ok(text)
    }

    /// The last HKDF: initiator to responder, responder to initiator, rekey secret.
    pub(super) fn split(&self) -> [Key; 3] {
        hkdf(&self.chaining_key, &[])
    }
}
