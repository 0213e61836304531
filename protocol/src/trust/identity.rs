//! A node's own keys.
use std::fmt;

use zeroize::Zeroizing;

pub use super::keys::{Domain, SEED_BYTES, SIGNATURE_BYTES, Signature, SigningFailed};
use super::keys::{KeyPair, PublicKeys};
use crate::id::NodeId;

/// A node's identity. Losing it means a new node; copying it means that one of the two is refused.
pub struct NodeIdentity(KeyPair);

impl NodeIdentity {
    /// From the secret bytes that are kept in the node's home: 32 for each of the two keys.
    #[must_use]
    pub fn from_seed(seed: [u8; SEED_BYTES]) -> Self {
        Self(KeyPair::from_seed(&Zeroizing::new(seed)))
    }

    /// The secret bytes, to be kept in a file of mode 0600.
    #[must_use]
    pub fn expose_seed(&self) -> Zeroizing<[u8; SEED_BYTES]> {
        self.0.seed()
    }

    /// The seed of the Ed25519 key, to make libp2p's form of it.
    #[must_use]
    pub fn expose_ed25519_seed(&self) -> &[u8; 32] {
        self.0.ed25519_seed()
    }

    /// The public keys.
    #[must_use]
    pub const fn public(&self) -> &PublicKeys {
        self.0.public()
    }

    /// Who this is.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        self.0.public().node_id()
    }

    /// Signs `message` for one purpose, with both keys.
    ///
    /// # Errors
    /// [`SigningFailed`].
    pub fn sign(&self, domain: Domain, message: &[u8]) -> Result<Signature, SigningFailed> {
        self.0.sign(domain, message)
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
    fn debug_shows_no_seed() {
        let text = format!("{:?}", NodeIdentity::from_seed([0xab; SEED_BYTES]));
        assert!(!text.contains("ab, ab") && !text.contains("171"), "{text}");
    }

    #[test]
    fn the_seed_comes_back() {
        let identity = NodeIdentity::from_seed([7; SEED_BYTES]);
        assert_eq!(*identity.expose_seed(), [7; SEED_BYTES]);
        assert_eq!(identity.expose_ed25519_seed(), &[7; 32]);
    }
}
