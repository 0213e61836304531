//! The crate `chacha20poly1305`: Rust, no C compiler, the default.
use chacha20poly1305::{AeadInOut as _, ChaCha20Poly1305, KeyInit as _};

use super::{Aead, Refused, TAG_BYTES};

/// The key is erased when dropped.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct RustCrypto(ChaCha20Poly1305);

impl Aead for RustCrypto {
    fn new(key: &[u8; 32]) -> Self {
        Self(ChaCha20Poly1305::new(key.into()))
    }

    fn seal(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        buffer: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Refused> {
        let tag = self.0.encrypt_inout_detached(nonce.into(), associated, buffer.into());
        Ok(tag.map_err(|_| Refused)?.into())
    }

    fn open(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        self.0.decrypt_inout_detached(nonce.into(), associated, text.into(), tag.into()).map_err(|_| Refused)
    }
}
