//! The same handshake in the `snow` crate: an independent implementation of Noise's state machine. It has no ML-KEM, so a resolver
//! supplies ours; the name that is hashed is a public field of its parameters.
use chacha20poly1305::{AeadInOut as _, ChaCha20Poly1305, KeyInit as _};
use ml_kem::{
    DecapsulationKey768, EncapsulationKey768,
    kem::{Decapsulate as _, KeyExport as _},
};
use octomesh_protocol::{
    id::MeshId,
    session::{self, handshake},
};
use sha2::Digest as _;
use snow::{
    Builder, Error,
    params::{CipherChoice, DHChoice, HashChoice, KemChoice, NoiseParams},
    resolvers::CryptoResolver,
    types::{Cipher, Dh, Hash, Kem, Random},
};

/// Draws the same byte for ever, as the fixed randomness of our own side.
struct Fixed(u8);

impl Random for Fixed {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        out.fill(self.0);
        Ok(())
    }
}

#[derive(Default)]
struct X25519 {
    secret: [u8; 32],
    public: [u8; 32],
}

impl X25519 {
    fn take(&mut self, secret: [u8; 32]) {
        self.secret = secret;
        self.public = x25519_dalek::x25519(secret, x25519_dalek::X25519_BASEPOINT_BYTES);
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }
    fn pub_len(&self) -> usize {
        32
    }
    fn priv_len(&self) -> usize {
        32
    }
    fn set(&mut self, secret: &[u8]) {
        self.take(secret.try_into().unwrap());
    }
    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = [0; 32];
        random.try_fill_bytes(&mut secret)?;
        self.take(secret);
        Ok(())
    }
    fn pubkey(&self) -> &[u8] {
        &self.public
    }
    fn privkey(&self) -> &[u8] {
        &self.secret
    }
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public: [u8; 32] = public[..32].try_into().map_err(|_| Error::Dh)?;
        out[..32].copy_from_slice(&x25519_dalek::x25519(self.secret, public));
        Ok(())
    }
}

#[derive(Default)]
struct Sha256(sha2::Sha256);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }
    fn block_len(&self) -> usize {
        64
    }
    fn hash_len(&self) -> usize {
        32
    }
    fn reset(&mut self) {
        self.0 = sha2::Sha256::default();
    }
    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&std::mem::take(&mut self.0).finalize());
    }
}

struct ChaChaPoly(ChaCha20Poly1305);

fn nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }
    fn set(&mut self, key: &[u8; 32]) {
        self.0 = ChaCha20Poly1305::new(key.into());
    }
    fn encrypt(&self, counter: u64, ad: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plain.len());
        text.copy_from_slice(plain);
        let tag = self.0.encrypt_inout_detached(&nonce(counter).into(), ad, text.into()).unwrap();
        rest[..16].copy_from_slice(&tag);
        plain.len() + 16
    }
    fn decrypt(&self, counter: u64, ad: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let (text, tag) = sealed.split_last_chunk::<16>().ok_or(Error::Decrypt)?;
        let out = &mut out[..text.len()];
        out.copy_from_slice(text);
        self.0
            .decrypt_inout_detached(&nonce(counter).into(), ad, out.into(), &(*tag).into())
            .map_err(|_| Error::Decrypt)?;
        Ok(text.len())
    }
}

struct MlKem768 {
    random: u8,
    key: Option<DecapsulationKey768>,
    public: Vec<u8>,
}

impl Kem for MlKem768 {
    fn name(&self) -> &'static str {
        "MLKEM768"
    }
    fn pub_len(&self) -> usize {
        1184
    }
    fn ciphertext_len(&self) -> usize {
        1088
    }
    fn shared_secret_len(&self) -> usize {
        32
    }
    fn generate(&mut self, random: &mut dyn Random) {
        let mut seed = [0; 64];
        random.try_fill_bytes(&mut seed).unwrap();
        let key = DecapsulationKey768::from_seed(seed.into());
        self.public = key.encapsulation_key().to_bytes().to_vec();
        self.key = Some(key);
    }
    fn pubkey(&self) -> &[u8] {
        &self.public
    }
    fn encapsulate(&self, public: &[u8], secret: &mut [u8], out: &mut [u8]) -> Result<(usize, usize), Error> {
        let public: [u8; 1184] = public.try_into().map_err(|_| Error::Kem)?;
        let key = EncapsulationKey768::new(&public.into()).map_err(|_| Error::Kem)?;
        let (ciphertext, shared) = key.encapsulate_deterministic(&[self.random; 32].into());
        out[..1088].copy_from_slice(&ciphertext);
        secret[..32].copy_from_slice(&shared);
        Ok((32, 1088))
    }
    fn decapsulate(&self, ciphertext: &[u8], secret: &mut [u8]) -> Result<usize, Error> {
        let ciphertext: [u8; 1088] = ciphertext.try_into().map_err(|_| Error::Kem)?;
        let key = self.key.as_ref().ok_or(Error::Kem)?;
        secret[..32].copy_from_slice(&key.decapsulate(&ciphertext.into()));
        Ok(32)
    }
}

struct Resolver(u8);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Fixed(self.0)))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::<Sha256>::default() as _)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let empty = || ChaChaPoly(ChaCha20Poly1305::new(&[0; 32].into()));
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::new(empty()) as _)
    }
    fn resolve_kem(&self, _: &KemChoice) -> Option<Box<dyn Kem>> {
        Some(Box::new(MlKem768 { random: self.0, key: None, public: Vec::new() }))
    }
}

/// A side in `snow` with the parameters of `support::params`, all its randomness being the byte `random`.
pub(crate) fn builder<'a>(static_key: &'a [u8; 32], psk: &'a [u8; 32], random: u8) -> Builder<'a> {
    let mut params: NoiseParams = "Noise_XXhfs+psk0_25519+Kyber1024_ChaChaPoly_SHA256".parse().unwrap();
    params.name = handshake::NAME.to_owned();
    // Leaked: the builder borrows it, and the process ends soon.
    let prologue = session::prologue(MeshId::from_bytes([0xaa; 32])).leak();
    Builder::with_resolver(params, Box::new(Resolver(random)))
        .local_private_key(static_key)
        .unwrap()
        .prologue(prologue)
        .unwrap()
        .psk(0, psk)
        .unwrap()
}
