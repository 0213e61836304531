//! ChaCha20-Poly1305 with the nonce of Noise: four zero bytes, then a 64-bit counter in little endian. Two libraries know how; one
//! is built in.

#[cfg(feature = "aead-aws-lc")]
mod aws_lc;
// With the other one it stays for the tests, which hold both to the same.
#[cfg(any(test, not(feature = "aead-aws-lc")))]
mod rust_crypto;

#[cfg(feature = "aead-aws-lc")]
type Provider = aws_lc::AwsLc;
#[cfg(not(feature = "aead-aws-lc"))]
type Provider = rust_crypto::RustCrypto;

/// The library that seals and opens in this build.
pub const AEAD_PROVIDER: &str = if cfg!(feature = "aead-aws-lc") { "aws-lc-rs" } else { "chacha20poly1305" };

/// Bytes of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;

/// The cipher refused: a tag that does not verify, a buffer without one, or a counter at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

/// One key of ChaCha20-Poly1305 (RFC 8439). What a library of it has to do, and all that it is asked.
pub(crate) trait Aead {
    fn new(key: &[u8; 32]) -> Self;

    /// Encrypts in place and gives the tag.
    fn seal(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        buffer: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Refused>;

    /// Decrypts in place; of a text that is refused nothing may be used.
    fn open(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused>;
}

/// One key and its counter. The key is erased when dropped.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Cipher<A = Provider> {
    aead: A,
    counter: u64,
}

impl<A: Aead> Cipher<A> {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self { aead: A::new(key), counter: 0 }
    }

    /// The nonce of the next message; the last value is never used, so that the counter can't wrap.
    fn nonce(&self) -> Result<[u8; 12], Refused> {
        if self.counter == u64::MAX {
            return Err(Refused);
        }
        let mut nonce = [0; 12];
        let (_, counter) = nonce.split_at_mut(4);
        counter.copy_from_slice(&self.counter.to_le_bytes());
        Ok(nonce)
    }

    /// Encrypts in place and gives the tag.
    pub(crate) fn seal(&mut self, associated: &[u8], buffer: &mut [u8]) -> Result<[u8; TAG_BYTES], Refused> {
        let tag = self.aead.seal(&self.nonce()?, associated, buffer)?;
        self.counter += 1;
        Ok(tag)
    }

    /// `sealed` is ciphertext and tag; decrypts in place and gives the plaintext. A failure does not move the counter.
    pub(crate) fn open<'a>(
        &mut self,
        associated: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Refused> {
        let nonce = self.nonce()?;
        let (text, tag) = sealed.split_last_chunk_mut::<TAG_BYTES>().ok_or(Refused)?;
        self.aead.open(&nonce, associated, text, tag)?;
        self.counter += 1;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
