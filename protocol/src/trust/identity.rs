//! A node's own key, and signatures.
use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize as _;

use crate::id::NodeId;

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; SIGNATURE_BYTES]);

impl Signature {
    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; SIGNATURE_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; SIGNATURE_BYTES] {
        &self.0
    }

    /// Whether `key` made this over `domain` and `message`. Strict: no point of small order, one form per signature.
    #[must_use]
    pub fn verifies(&self, key: &[u8; 32], domain: Domain, message: &[u8]) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(key) else { return false };
        let signature = ed25519_dalek::Signature::from_bytes(&self.0);
        key.verify_strict(&domain.covers(message), &signature).is_ok()
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(..)")
    }
}

// As two halves: serde has no arrays over 32. The bytes are the same.
impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let (low, high) = self.0.split_at(SIGNATURE_BYTES / 2);
        let mut halves = ([0; SIGNATURE_BYTES / 2], [0; SIGNATURE_BYTES / 2]);
        halves.0.copy_from_slice(low);
        halves.1.copy_from_slice(high);
        halves.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let halves = <([u8; SIGNATURE_BYTES / 2], [u8; SIGNATURE_BYTES / 2])>::deserialize(d)?;
        let mut bytes = [0; SIGNATURE_BYTES];
        let (low, high) = bytes.split_at_mut(SIGNATURE_BYTES / 2);
        low.copy_from_slice(&halves.0);
        high.copy_from_slice(&halves.1);
        Ok(Self(bytes))
    }
}

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
}

impl Domain {
    // No label is the beginning of another, so that label and message can't be cut apart in two ways.
    pub(super) const fn label(self) -> &'static [u8] {
        match self {
            Self::Certificate => b"octomesh-certificate-v1",
            Self::Identity => b"octomesh-identity-v1",
            Self::Join => b"octomesh-join-v1",
        }
    }

    fn covers(self, message: &[u8]) -> Vec<u8> {
        [self.label(), message].concat()
    }
}

/// A node's identity. Losing it means a new node; copying it means that one of the two is refused.
pub struct NodeIdentity {
    key: SigningKey,
}

impl NodeIdentity {
    /// From the 32 secret bytes that are kept in the node's home.
    #[must_use]
    pub fn from_seed(mut seed: [u8; 32]) -> Self {
        let key = SigningKey::from_bytes(&seed);
        seed.zeroize();
        Self { key }
    }

    /// The secret bytes, to be kept in a file of mode 0600, or to make libp2p's form of the key.
    #[must_use]
    pub fn expose_seed(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Who this is.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId::from_bytes(self.key.verifying_key().to_bytes())
    }

    /// Signs `message` for one purpose.
    #[must_use]
    pub fn sign(&self, domain: Domain, message: &[u8]) -> Signature {
        Signature(self.key.sign(&domain.covers(message)).to_bytes())
    }
}

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeIdentity({})", self.node_id().short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_one_key_domain_and_message() {
        let identity = NodeIdentity::from_seed([1; 32]);
        let id = identity.node_id();
        let signature = identity.sign(Domain::Join, b"hello");
        assert!(signature.verifies(id.as_bytes(), Domain::Join, b"hello"));
        assert!(!signature.verifies(id.as_bytes(), Domain::Identity, b"hello"));
        assert!(!signature.verifies(id.as_bytes(), Domain::Join, b"hellp"));
        let other = NodeIdentity::from_seed([2; 32]).node_id();
        assert!(!signature.verifies(other.as_bytes(), Domain::Join, b"hello"));
        // The all-zero key is a point of small order, under which a zero signature would verify without the strict form.
        assert!(!Signature::from_bytes([0; 64]).verifies(&[0; 32], Domain::Join, b"hello"));
    }

    #[test]
    fn debug_shows_no_seed() {
        let text = format!("{:?}", NodeIdentity::from_seed([0xab; 32]));
        assert!(!text.contains("ab, ab") && !text.contains("171"), "{text}");
    }

    #[test]
    fn a_signature_is_its_64_bytes_on_the_wire() {
        let signature = NodeIdentity::from_seed([1; 32]).sign(Domain::Join, b"x");
        let bytes = crate::codec::encode::<_, 64>(&signature).unwrap();
        assert_eq!(bytes, signature.as_bytes());
        assert_eq!(crate::codec::decode::<Signature, 64>(&bytes).unwrap(), signature);
    }
}
