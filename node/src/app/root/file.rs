//! The root key as a file: in the clear, or under a passphrase. Bytes only; where the file lies is the business of
//! [`super::RootPlace`].
//!
//! ```text
//!   in the clear   the seeds of both keys (64)
//!   sealed         "octomesh-root" │ version (1) │ memory KiB (4) │ passes (4) │ lanes (4) │ salt (16) │ nonce (24) │ mesh id (32)
//!                  │ XChaCha20-Poly1305 of the seeds (64 + 16), with everything before it as additional data
//! ```
//!
//! The key of the cipher is Argon2id (RFC 9106) of the passphrase; numbers are big-endian. In a home, and in a copy, the bytes
//! are written in hexadecimal like every other key.
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use octomesh_protocol::{
    id::MeshId,
    trust::{MeshRoot, keys::SEED_BYTES},
};
use zeroize::Zeroizing;

const MAGIC: &[u8; 13] = b"octomesh-root";
const VERSION: u8 = 1;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const MESH_BYTES: usize = 32;
const SEALED_BYTES: usize = SEED_BYTES + TAG_BYTES;
/// Random bytes of one sealed file.
pub(crate) const RANDOM_BYTES: usize = SALT_BYTES + NONCE_BYTES;
/// Longest passphrase that is read: a bound on what a terminal or a pipe can make us keep.
pub(crate) const LONGEST_PASSPHRASE: usize = 1024;
/// Shorter ones are guessed from a stolen file.
const SHORTEST_PASSPHRASE: usize = 10;

/// What a guess at the passphrase costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl Cost {
    /// The second recommended setting of RFC 9106, section 4, for machines with little memory: 64 MiB, 3 passes, 4 lanes. A
    /// small computer needs about a second.
    pub(crate) const NEW: Self = Self { memory_kib: 64 * 1024, passes: 3, lanes: 4 };
    /// The cheapest that is read: tests use it.
    #[cfg(test)]
    pub(crate) const LEAST: Self = Self { memory_kib: 8 * 1024, passes: 1, lanes: 1 };

    /// A file says itself what it costs to open. Below these bounds it protects nothing; above, it could take all memory of the
    /// machine, or hours.
    const fn is_acceptable(self) -> bool {
        self.memory_kib >= 8 * 1024
            && self.memory_kib <= 256 * 1024
            && self.passes >= 1
            && self.passes <= 16
            && self.lanes >= 1
            && self.lanes <= 16
    }
}

/// Why a file is no root key, or does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum RootFileError {
    #[error("not a root key")]
    NotARoot,
    #[error("version {0} of the file of a root key is not {VERSION}: use the program that wrote it")]
    Version(u8),
    #[error("the file asks for more memory or time than a root key of this program costs to open")]
    Cost,
    #[error("the passphrase is wrong, or the file is damaged")]
    Passphrase,
    #[error("a passphrase has {SHORTEST_PASSPHRASE} to {LONGEST_PASSPHRASE} bytes")]
    PassphraseLength,
    #[error("the file names another mesh than its key has")]
    OtherMesh,
}

/// What opens a sealed root. Without `Debug`.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// As it was typed.
    #[must_use]
    pub fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// Whether it is the same, to find a typing error.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }

    /// What was typed, for the one request that carries it to the own node.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a file may be sealed with it.
    pub(crate) fn check(&self) -> Result<(), RootFileError> {
        if (SHORTEST_PASSPHRASE..=LONGEST_PASSPHRASE).contains(&self.0.len()) {
            Ok(())
        } else {
            Err(RootFileError::PassphraseLength)
        }
    }
}

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// A root key as it lies in a file.
#[derive(Debug)]
pub(crate) enum RootFile {
    /// Anybody who can read the file has it.
    Clear(MeshRoot),
    /// Needs its passphrase.
    Sealed(SealedRoot),
}

/// A root key under a passphrase.
#[derive(Debug)]
pub(crate) struct SealedRoot {
    cost: Cost,
    salt: [u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
    mesh: MeshId,
    sealed: [u8; SEALED_BYTES],
}

impl RootFile {
    /// Reads either form.
    ///
    /// # Errors
    /// [`RootFileError`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, RootFileError> {
        if let Ok(seed) = <[u8; SEED_BYTES]>::try_from(bytes) {
            return Ok(Self::Clear(MeshRoot::from_seed(seed)));
        }
        SealedRoot::from_bytes(bytes).map(Self::Sealed)
    }

    pub(crate) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Clear(root) => root.expose_seed().to_vec(),
            Self::Sealed(sealed) => sealed.to_bytes(),
        })
    }

    /// The mesh that it is the root of, as far as the file says.
    pub(crate) fn mesh(&self) -> MeshId {
        match self {
            Self::Clear(root) => root.mesh_id(),
            Self::Sealed(sealed) => sealed.mesh,
        }
    }

    pub(crate) const fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(_))
    }
}

impl SealedRoot {
    /// Seals `root` under a passphrase; `random` must be fresh.
    ///
    /// # Errors
    /// [`RootFileError::PassphraseLength`].
    pub(crate) fn seal(
        root: &MeshRoot,
        passphrase: &Passphrase,
        cost: Cost,
        random: &[u8; RANDOM_BYTES],
    ) -> Result<Self, RootFileError> {
        passphrase.check()?;
        let (mut salt, mut nonce) = ([0; SALT_BYTES], [0; NONCE_BYTES]);
        salt.iter_mut().chain(nonce.iter_mut()).zip(random).for_each(|(to, from)| *to = *from);
        let mut file = Self { cost, salt, nonce, mesh: root.mesh_id(), sealed: [0; SEALED_BYTES] };
        let seed = root.expose_seed();
        let sealed = file
            .cipher(passphrase)?
            .encrypt(&XNonce::from(file.nonce), Payload { msg: &*seed, aad: &file.header() })
            .map_err(|_| RootFileError::Cost)?;
        file.sealed = sealed.try_into().map_err(|_| RootFileError::NotARoot)?;
        Ok(file)
    }

    /// The root. Takes the time and memory of its [`Cost`]: not on a thread that others wait for.
    ///
    /// # Errors
    /// [`RootFileError`].
    pub(crate) fn open(&self, passphrase: &Passphrase) -> Result<MeshRoot, RootFileError> {
        let payload = Payload { msg: &self.sealed, aad: &self.header() };
        let seed = self
            .cipher(passphrase)?
            .decrypt(&XNonce::from(self.nonce), payload)
            .map(Zeroizing::new)
            .map_err(|_| RootFileError::Passphrase)?;
        let seed: Zeroizing<[u8; SEED_BYTES]> =
            Zeroizing::new(seed.as_slice().try_into().map_err(|_| RootFileError::NotARoot)?);
        let root = MeshRoot::from_seed(*seed);
        if root.mesh_id() == self.mesh { Ok(root) } else { Err(RootFileError::OtherMesh) }
    }

    fn cipher(&self, passphrase: &Passphrase) -> Result<XChaCha20Poly1305, RootFileError> {
        let params = Params::new(self.cost.memory_kib, self.cost.passes, self.cost.lanes, Some(32))
            .map_err(|_| RootFileError::Cost)?;
        let mut key = Zeroizing::new([0; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(passphrase.0.as_bytes(), &self.salt, &mut *key)
            .map_err(|_| RootFileError::Cost)?;
        Ok(XChaCha20Poly1305::new((&*key).into()))
    }

    fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        for number in [self.cost.memory_kib, self.cost.passes, self.cost.lanes] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(self.mesh.as_bytes());
        bytes
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.extend_from_slice(&self.sealed);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, RootFileError> {
        let mut rest = bytes;
        if take::<{ MAGIC.len() }>(&mut rest)? != *MAGIC {
            return Err(RootFileError::NotARoot);
        }
        let [version] = take(&mut rest)?;
        if version != VERSION {
            return Err(RootFileError::Version(version));
        }
        let mut number = || take(&mut rest).map(u32::from_be_bytes);
        let cost = Cost { memory_kib: number()?, passes: number()?, lanes: number()? };
        if !cost.is_acceptable() {
            return Err(RootFileError::Cost);
        }
        let (salt, nonce) = (take(&mut rest)?, take(&mut rest)?);
        let mesh = MeshId::from_bytes(take::<MESH_BYTES>(&mut rest)?);
        let sealed = take(&mut rest)?;
        if !rest.is_empty() {
            return Err(RootFileError::NotARoot);
        }
        Ok(Self { cost, salt, nonce, mesh, sealed })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], RootFileError> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(RootFileError::NotARoot)?;
    *bytes = rest;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrase(text: &str) -> Passphrase {
        Passphrase::new(Zeroizing::new(text.to_owned()))
    }

    fn sealed() -> SealedRoot {
        let root = MeshRoot::from_seed([2; SEED_BYTES]);
        SealedRoot::seal(&root, &phrase("correct horse"), Cost::LEAST, &[7; RANDOM_BYTES]).unwrap()
    }

    fn read(bytes: &[u8]) -> RootFileError {
        RootFile::from_bytes(bytes).unwrap_err()
    }

    #[test]
    fn a_root_comes_back_with_its_passphrase_only() {
        let bytes = RootFile::Sealed(sealed()).to_bytes();
        let seed = MeshRoot::from_seed([2; SEED_BYTES]).expose_seed();
        assert!(!bytes.windows(16).any(|w| w == &seed[..16]), "the seed stands in the file");
        let file = RootFile::from_bytes(&bytes).unwrap();
        assert_eq!(file.mesh(), MeshRoot::from_seed([2; SEED_BYTES]).mesh_id());
        let RootFile::Sealed(file) = file else { panic!("in the clear") };
        assert_eq!(*file.open(&phrase("correct horse")).unwrap().expose_seed(), *seed);
        assert_eq!(file.open(&phrase("correct horsf")).unwrap_err(), RootFileError::Passphrase);
    }

    #[test]
    fn every_changed_byte_is_found() {
        let good = RootFile::Sealed(sealed()).to_bytes();
        // One key derivation each: a byte of every field is enough.
        for at in [0, 13, 14, 17, 21, 25, 27, 45, 70, 105, 170, good.len() - 1] {
            let mut bytes = good.to_vec();
            bytes[at] ^= 1;
            match RootFile::from_bytes(&bytes) {
                Err(_) => {}
                Ok(RootFile::Sealed(file)) => drop(file.open(&phrase("correct horse")).unwrap_err()),
                Ok(RootFile::Clear(_)) => panic!("byte {at} made it a key in the clear"),
            }
        }
        for length in 0..good.len() {
            assert!(length == SEED_BYTES || RootFile::from_bytes(&good[..length]).is_err(), "{length}");
        }
        assert_eq!(read(&[&good[..], &[0]].concat()), RootFileError::NotARoot);
    }

    #[test]
    fn a_file_can_not_ask_for_all_memory() {
        let good = RootFile::Sealed(sealed()).to_bytes().to_vec();
        for (at, bytes) in [
            (14, u32::MAX.to_be_bytes()),
            (14, (256 * 1024 + 1u32).to_be_bytes()),
            (14, 8u32.to_be_bytes()),
            (18, 17u32.to_be_bytes()),
            (18, 0u32.to_be_bytes()),
            (22, 0u32.to_be_bytes()),
            (22, 17u32.to_be_bytes()),
        ] {
            let mut file = good.clone();
            file[at..at + 4].copy_from_slice(&bytes);
            assert_eq!(read(&file), RootFileError::Cost, "{at} {bytes:?}");
        }
        let mut newer = good;
        newer[13] = 2;
        assert_eq!(read(&newer), RootFileError::Version(2));
    }

    #[test]
    fn passphrases_have_a_length_and_no_debug() {
        let root = MeshRoot::from_seed([2; SEED_BYTES]);
        let seal = |text: &str| {
            SealedRoot::seal(&root, &phrase(text), Cost::LEAST, &[7; RANDOM_BYTES]).map(drop).unwrap_err()
        };
        assert_eq!(seal("short"), RootFileError::PassphraseLength);
        assert_eq!(seal(&"x".repeat(LONGEST_PASSPHRASE + 1)), RootFileError::PassphraseLength);
        assert_eq!(format!("{:?}", phrase("correct horse")), "[secret]");
        assert!(!format!("{:?}", RootFile::Clear(root)).contains("2, 2"));
    }

    /// The cost that new files have, once.
    #[test]
    fn the_usual_cost_is_acceptable_and_works() {
        assert!(Cost::NEW.is_acceptable());
        let root = MeshRoot::from_seed([3; SEED_BYTES]);
        let file = SealedRoot::seal(&root, &phrase("correct horse"), Cost::NEW, &[1; RANDOM_BYTES]).unwrap();
        assert_eq!(file.open(&phrase("correct horse")).unwrap().mesh_id(), root.mesh_id());
    }
}
