//! ChaCha20-Poly1305 with the nonce of Noise: four zero bytes, then a 64-bit counter in little endian.
use chacha20poly1305::{AeadInOut as _, ChaCha20Poly1305, KeyInit as _};

/// Bytes of an authentication tag.
pub(crate) const TAG_BYTES: usize = 16;

/// The cipher refused: a tag that does not verify, a buffer without one, or a counter at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

/// One key and its counter. The key schedule is erased when dropped.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Cipher {
    aead: ChaCha20Poly1305,
    counter: u64,
}

impl Cipher {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self { aead: ChaCha20Poly1305::new(key.into()), counter: 0 }
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
        let nonce = self.nonce()?;
        let tag = self
            .aead
            .encrypt_inout_detached(&nonce.into(), associated, buffer.into())
            .map_err(|_| Refused)?;
        self.counter += 1;
        Ok(tag.into())
    }

    /// `sealed` is ciphertext and tag; decrypts in place and gives the plaintext. A failure does not move the counter.
    pub(crate) fn open<'a>(
        &mut self,
        associated: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Refused> {
        let nonce = self.nonce()?;
        let (text, tag) = sealed.split_last_chunk_mut::<TAG_BYTES>().ok_or(Refused)?;
        self.aead
            .decrypt_inout_detached(&nonce.into(), associated, (&mut *text).into(), &(*tag).into())
            .map_err(|_| Refused)?;
        self.counter += 1;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    /// RFC 8439, appendix A.5 has another nonce than Noise can make; section 2.8.2's constant part is not zero either. So the
    /// primitive is checked with the RFC's values and the nonce layout by hand.
    #[test]
    fn rfc_8439_section_2_8_2() {
        let key = hex!("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
        let nonce = hex!("070000004041424344454647");
        let ad = hex!("50515253c0c1c2c3c4c5c6c7");
        let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
        let tag = ChaCha20Poly1305::new(&key.into())
            .encrypt_inout_detached(&nonce.into(), &ad, text.as_mut_slice().into())
            .unwrap();
        assert_eq!(text[..16], hex!("d31a8d34648e60db7b86afbc53ef7ec2"));
        assert_eq!(<[u8; 16]>::from(tag), hex!("1ae10b594f09e26a7e902ecbd0600691"));
    }

    #[test]
    fn nonce_layout_and_end() {
        let mut cipher = Cipher::new(&[1; 32]);
        cipher.counter = 0x0102_0304_0506_0708;
        assert_eq!(cipher.nonce(), Ok([0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]));
        cipher.counter = u64::MAX;
        assert_eq!(cipher.seal(b"", &mut [0; 4]), Err(Refused));
        assert_eq!(cipher.open(b"", &mut [0; 40]), Err(Refused));
    }

    #[test]
    fn a_failed_open_does_not_move_the_counter() {
        let (mut a, mut b) = (Cipher::new(&[1; 32]), Cipher::new(&[1; 32]));
        let mut text = *b"hello";
        let tag = a.seal(b"ad", &mut text).unwrap();
        let sealed = [&text[..], &tag].concat();
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(b.open(b"ad", &mut bad), Err(Refused));
        }
        assert_eq!(b.open(b"other", &mut sealed.clone()), Err(Refused));
        assert_eq!(b.open(b"ad", &mut [0; 15]), Err(Refused));
        assert_eq!(b.open(b"ad", &mut sealed.clone()).unwrap(), b"hello");
        assert_eq!(b.open(b"ad", &mut { sealed }), Err(Refused), "a replay");
    }
}
