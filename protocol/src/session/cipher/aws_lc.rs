//! AWS-LC through `aws-lc-rs`: C and assembler, faster with small records and on any processor without a special build.
//!
//! The key lives in memory of the C library, which erases what it frees (`OPENSSL_free`). What it leaves in registers and on the
//! stack it does not promise to erase; nor does the other one.
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::{Aead, Refused, TAG_BYTES};

/// `None` when the library had no memory for a key: then everything is refused.
pub(crate) struct AwsLc {
    key: Option<LessSafeKey>,
    #[cfg(test)]
    bytes: [u8; 32],
}

/// Tests that explore every order of events copy whole sessions.
#[cfg(test)]
impl Clone for AwsLc {
    fn clone(&self) -> Self {
        Self::new(&self.bytes)
    }
}

impl AwsLc {
    fn key(&self) -> Result<&LessSafeKey, Refused> {
        self.key.as_ref().ok_or(Refused)
    }
}

impl Aead for AwsLc {
    fn new(key: &[u8; 32]) -> Self {
        Self {
            key: UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(LessSafeKey::new),
            #[cfg(test)]
            bytes: *key,
        }
    }

    fn seal(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        buffer: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Refused> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self.key()?.seal_in_place_separate_tag(nonce, Aad::from(associated), buffer);
        tag.map_err(|_| Refused)?.as_ref().try_into().map_err(|_| Refused)
    }

    fn open(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key()?.open_in_place_separate_tag(nonce, Aad::from(associated), tag, text);
        opened.map(drop).map_err(|_| Refused)
    }
}
