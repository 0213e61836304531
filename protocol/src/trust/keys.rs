//! Keys and signatures of two algorithms at once: Ed25519 and ML-DSA-65 (FIPS 204, pure, with an empty context). A signature holds
//! only if both of its halves do, so that it takes a break of both algorithms to forge one.
use std::{fmt, sync::Arc};

use ed25519_dalek::{Signer as _, VerifyingKey};
use ml_dsa::{EncodedVerifyingKey, KeyExport as _, Keypair as _, MlDsa65, signature::MultipartVerifier as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use crate::id::{MeshId, NodeId};

/// Secret bytes of a key pair: the seed of the Ed25519 key, then that of the ML-DSA-65 key.
pub const SEED_BYTES: usize = 64;
/// Bytes of an ML-DSA-65 public key.
pub const ML_DSA_KEY_BYTES: usize = 1952;
const ED25519_SIGNATURE_BYTES: usize = 64;
const ML_DSA_SIGNATURE_BYTES: usize = 3309;
/// Bytes of a signature: that of Ed25519, then that of ML-DSA-65.
pub const SIGNATURE_BYTES: usize = ED25519_SIGNATURE_BYTES + ML_DSA_SIGNATURE_BYTES;

/// What a signature is for. A signature made for one purpose is worthless for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Domain {
    /// A certificate.
    Certificate,
    /// The identity payload of a handshake.
    Identity,
    /// The request of a node that joins.
    Join,
    /// A revocation.
    Revocation,
    /// A rotation of the mesh secret.
    Rotation,
}

impl Domain {
    // No label is the beginning of another, so that label and message can't be cut apart in two ways.
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Certificate => b"octomesh-certificate-v1",
            Self::Identity => b"octomesh-identity-v1",
            Self::Join => b"octomesh-join-v1",
            Self::Revocation => b"octomesh-revocation-v1",
            Self::Rotation => b"octomesh-rotation-v1",
        }
    }
}

/// An ML-DSA-65 public key as it travels. Any bytes of this length are one; shared, because certificates are copied around.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MlDsaKey(Arc<[u8; ML_DSA_KEY_BYTES]>);

impl MlDsaKey {
    /// From its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; ML_DSA_KEY_BYTES]) -> Self {
        Self(Arc::new(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; ML_DSA_KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for MlDsaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self.0.first_chunk::<8>().map(|head| data_encoding::HEXLOWER.encode(head));
        write!(f, "MlDsaKey({}..)", head.unwrap_or_default())
    }
}

/// The two public keys of a node or of a mesh's root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PublicKeys {
    ed25519: [u8; 32],
    ml_dsa: MlDsaKey,
}

impl PublicKeys {
    /// Those of the node `node`, whose id is its Ed25519 key.
    #[must_use]
    pub const fn of_node(node: NodeId, ml_dsa: MlDsaKey) -> Self {
        Self { ed25519: *node.as_bytes(), ml_dsa }
    }

    /// The node with these keys.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        NodeId::from_bytes(self.ed25519)
    }

    /// The mesh whose root has these keys: the SHA-256 of both.
    #[must_use]
    pub fn mesh_id(&self) -> MeshId {
        MeshId::from_bytes(
            Sha256::new().chain_update(self.ed25519).chain_update(*self.ml_dsa.0).finalize().into(),
        )
    }

    /// The Ed25519 key.
    #[must_use]
    pub const fn ed25519(&self) -> &[u8; 32] {
        &self.ed25519
    }

    /// The ML-DSA-65 key.
    #[must_use]
    pub const fn ml_dsa(&self) -> &MlDsaKey {
        &self.ml_dsa
    }
}

/// The signatures of both keys of a pair over one message.
#[derive(Clone, PartialEq, Eq)]
pub struct Signature(Box<[u8; SIGNATURE_BYTES]>);

impl Signature {
    /// From its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SIGNATURE_BYTES]) -> Self {
        Self(Box::new(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; SIGNATURE_BYTES] {
        &self.0
    }

    /// Whether both keys of `keys` made this over `domain` and `message`. Ed25519 is strict (no point of small order, one form per
    /// signature) and comes first, being the cheaper one.
    #[must_use]
    pub fn verifies(&self, keys: &PublicKeys, domain: Domain, message: &[u8]) -> bool {
        self.verifies_with(keys, || DecodedKey::of(&keys.ml_dsa), domain, message)
    }

    /// As [`Signature::verifies`]; `decoded` is asked for the ML-DSA key of `keys` if the Ed25519 signature holds.
    pub(super) fn verifies_with(
        &self,
        keys: &PublicKeys,
        decoded: impl FnOnce() -> DecodedKey,
        domain: Domain,
        message: &[u8],
    ) -> bool {
        let Some((classical, post_quantum)) = self.0.split_first_chunk::<ED25519_SIGNATURE_BYTES>() else {
            return false;
        };
        verifies_ed25519(&keys.ed25519, domain, message, classical)
            && decoded().verifies(domain, message, post_quantum)
    }
}

/// An ML-DSA-65 key as it is used: its matrix written out, some 45 KiB. Making it takes as long as verifying with it.
#[derive(Clone)]
pub(super) struct DecodedKey(Arc<ml_dsa::VerifyingKey<MlDsa65>>);

impl DecodedKey {
    pub(super) fn of(key: &MlDsaKey) -> Self {
        let encoded = EncodedVerifyingKey::<MlDsa65>::from(*key.as_bytes());
        Self(Arc::new(ml_dsa::VerifyingKey::<MlDsa65>::decode(&encoded)))
    }

    fn verifies(&self, domain: Domain, message: &[u8], signature: &[u8]) -> bool {
        let Ok(signature) = ml_dsa::Signature::<MlDsa65>::try_from(signature) else { return false };
        self.0.multipart_verify(&[domain.label(), message], &signature).is_ok()
    }
}

fn verifies_ed25519(
    key: &[u8; 32],
    domain: Domain,
    message: &[u8],
    signature: &[u8; ED25519_SIGNATURE_BYTES],
) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(key) else { return false };
    let signature = ed25519_dalek::Signature::from_bytes(signature);
    key.verify_strict(&[domain.label(), message].concat(), &signature).is_ok()
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(..)")
    }
}

/// Bytes whose number is fixed; serde has no arrays over 32.
struct Exactly<const N: usize>;

impl<const N: usize> de::Visitor<'_> for Exactly<N> {
    type Value = [u8; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N} bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
        bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
    }
}

impl Serialize for MlDsaKey {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&*self.0)
    }
}

impl<'de> Deserialize<'de> for MlDsaKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_byte_buf(Exactly).map(Self::from_bytes)
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&*self.0)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_byte_buf(Exactly).map(Self::from_bytes)
    }
}

/// No signature came about: ML-DSA draws candidates until one fits, and gave up. It has not been seen to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ML-DSA-65 signature could not be made")]
pub struct SigningFailed;

/// Both secret keys, expanded, since expanding the ML-DSA key costs more than a signature. Erased when dropped.
pub(super) struct KeyPair {
    ed25519: ed25519_dalek::SigningKey,
    ml_dsa: Box<ml_dsa::SigningKey<MlDsa65>>,
    public: PublicKeys,
}

impl KeyPair {
    /// From two independent seeds of 32 bytes.
    pub(super) fn from_seed(seed: &Zeroizing<[u8; SEED_BYTES]>) -> Self {
        let mut classical = Zeroizing::new([0; 32]);
        let mut post_quantum = ml_dsa::Seed::default();
        let (first, second) = seed.split_at(SEED_BYTES / 2);
        classical.copy_from_slice(first);
        post_quantum.copy_from_slice(second);
        let ed25519 = ed25519_dalek::SigningKey::from_bytes(&classical);
        let ml_dsa = Box::new(ml_dsa::SigningKey::<MlDsa65>::from_seed(&post_quantum));
        post_quantum.zeroize();
        let public = PublicKeys {
            ed25519: ed25519.verifying_key().to_bytes(),
            ml_dsa: MlDsaKey::from_bytes(ml_dsa.verifying_key().to_bytes().into()),
        };
        Self { ed25519, ml_dsa, public }
    }

    pub(super) fn seed(&self) -> Zeroizing<[u8; SEED_BYTES]> {
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        let (first, second) = seed.split_at_mut(SEED_BYTES / 2);
        first.copy_from_slice(self.ed25519.as_bytes());
        second.copy_from_slice(self.ml_dsa.as_seed());
        seed
    }

    pub(super) fn ed25519_seed(&self) -> &[u8; 32] {
        self.ed25519.as_bytes()
    }

    pub(super) const fn public(&self) -> &PublicKeys {
        &self.public
    }

    /// Deterministic (FIPS 204 allows it): the same message gives the same signature, and no random source can spoil it.
    pub(super) fn sign(&self, domain: Domain, message: &[u8]) -> Result<Signature, SigningFailed> {
        let message = [domain.label(), message].concat();
        let classical = self.ed25519.sign(&message).to_bytes();
        let post_quantum =
            self.ml_dsa.expanded_key().sign_deterministic(&message, &[]).map_err(|_| SigningFailed)?.encode();
        let mut bytes = Box::new([0; SIGNATURE_BYTES]);
        let (first, second) = bytes.split_at_mut(ED25519_SIGNATURE_BYTES);
        first.copy_from_slice(&classical);
        second.copy_from_slice(&post_quantum);
        Ok(Signature(bytes))
    }
}

#[cfg(test)]
mod tests;
