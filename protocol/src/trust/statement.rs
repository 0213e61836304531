//! What the root or an admin says to the whole mesh: content, who says it, both signatures. Whoever knows the mesh id can check it
//! alone, also years later and when it came from somebody else.
use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    CLOCK_TOLERANCE_S,
    certificate::{CertificateError, Issuer},
    chain::{CertificateChain, MeshRoot},
    identity::NodeIdentity,
    keys::{Domain, PublicKeys, Signature, SigningFailed},
    role::Role,
};
use crate::{
    codec::{self, CodecError},
    id::MeshId,
    limits,
};

/// Why a statement is refused, or can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum StatementError {
    /// Not a statement, or over 14 KiB.
    #[error("statement: {0}")]
    Codec(#[from] CodecError),
    /// Made by a newer or older program.
    #[error("statement version {0} is not known here: use the same version of the program on all machines")]
    Version(u8),
    /// It is about another mesh.
    #[error("a statement about mesh {got} came where mesh {wanted} is expected")]
    OtherMesh {
        /// The own mesh.
        wanted: MeshId,
        /// The statement's.
        got: MeshId,
    },
    /// The certificate of the admin that signed it did not hold then.
    #[error("its issuer: {0}")]
    Certificate(#[from] CertificateError),
    /// Who signed it is a member, but no admin.
    #[error("its issuer is no admin")]
    NotAdmin,
    /// It names another issuer than the one that signed it.
    #[error("it names another issuer than the one that signed it")]
    IssuerMismatch,
    /// Not both signatures are the issuer's.
    #[error("its signature is not its issuer's")]
    Signature,
    /// The reason is longer than 200 bytes.
    #[error("a reason has at most {} bytes", limits::REASON_BYTES)]
    Reason,
    /// An admin that revokes itself.
    #[error("a node does not revoke itself")]
    Itself,
    /// No signature came about.
    #[error(transparent)]
    Signing(#[from] SigningFailed),
}

/// Who makes statements, with what others need to check it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Authority {
    /// The root, by its public keys, whose hash is the mesh id.
    Root(PublicKeys),
    /// An admin, by its own certificate from the root.
    Admin(CertificateChain),
}

impl Authority {
    /// Who it is; not to be believed before the statement was verified.
    #[must_use]
    pub fn issuer(&self) -> Option<Issuer> {
        match self {
            Self::Root(_) => Some(Issuer::Root),
            Self::Admin(chain) => chain.leaf().map(|own| Issuer::Admin(own.node)),
        }
    }

    /// The keys that signed, if it was an authority of `mesh` at `at` (unix seconds). An admin's certificate that has ended since
    /// changes nothing.
    fn keys(&self, mesh: MeshId, at: u64) -> Result<PublicKeys, StatementError> {
        match self {
            Self::Root(keys) if keys.mesh_id() == mesh => Ok(keys.clone()),
            Self::Root(keys) => Err(StatementError::OtherMesh { wanted: mesh, got: keys.mesh_id() }),
            Self::Admin(chain) => {
                let own = chain.verify(mesh, at, CLOCK_TOLERANCE_S)?.certificate;
                // Only the root makes admins, so that a chain of two is none of an admin.
                if own.role != Role::Admin || own.issuer != Issuer::Root {
                    return Err(StatementError::NotAdmin);
                }
                Ok(own.keys())
            }
        }
    }
}

/// Content and signatures. Its `Debug` shows nothing: the content of a rotation is a secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Statement {
    // Verified as it came, not as it would be encoded again.
    pub(super) content: Zeroizing<Vec<u8>>,
    pub(super) authority: Authority,
    signature: Signature,
}

impl fmt::Debug for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statement").field("issuer", &self.authority.issuer()).finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    content: std::borrow::Cow<'a, [u8]>,
    authority: std::borrow::Cow<'a, Authority>,
    signature: std::borrow::Cow<'a, Signature>,
}

impl Statement {
    pub(super) fn by_root(root: &MeshRoot, domain: Domain, content: Vec<u8>) -> Result<Self, StatementError> {
        let content = Zeroizing::new(content);
        let signature = root.sign(domain, &content)?;
        Ok(Self { content, authority: Authority::Root(root.public().clone()), signature })
    }

    pub(super) fn by_admin(
        admin: &NodeIdentity,
        chain: &CertificateChain,
        domain: Domain,
        content: Vec<u8>,
    ) -> Result<Self, StatementError> {
        let content = Zeroizing::new(content);
        let own = chain.leaf().filter(|own| own.keys() == *admin.public());
        if !own.is_some_and(|own| own.role == Role::Admin && own.issuer == Issuer::Root) {
            return Err(StatementError::NotAdmin);
        }
        let signature = admin.sign(domain, &content)?;
        Ok(Self { content, authority: Authority::Admin(chain.clone()), signature })
    }

    #[cfg(test)]
    pub(super) fn with_signature(&self, bytes: [u8; super::keys::SIGNATURE_BYTES]) -> Self {
        Self { signature: Signature::from_bytes(bytes), ..self.clone() }
    }

    pub(super) fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, CodecError> {
        use std::borrow::Cow::Borrowed;
        let wire = Wire {
            content: Borrowed(&self.content),
            authority: Borrowed(&self.authority),
            signature: Borrowed(&self.signature),
        };
        codec::encode::<_, { limits::STATEMENT_BYTES }>(&wire).map(Zeroizing::new)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let wire: Wire<'static> = codec::decode::<_, { limits::STATEMENT_BYTES }>(bytes)?;
        Ok(Self {
            content: Zeroizing::new(wire.content.into_owned()),
            authority: wire.authority.into_owned(),
            signature: wire.signature.into_owned(),
        })
    }

    /// Checks that an authority of `mesh` at `at` made this for `domain`.
    pub(super) fn verify(&self, mesh: MeshId, at: u64, domain: Domain) -> Result<(), StatementError> {
        let keys = self.authority.keys(mesh, at)?;
        if self.signature.verifies(&keys, domain, &self.content) {
            Ok(())
        } else {
            Err(StatementError::Signature)
        }
    }
}
