//! A certificate: the root, or an admin certified by the root, says that a key is a member.
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    keys::{Domain, MlDsaKey, PublicKeys, Signature, SigningFailed},
    links::VerifiedLinks,
    role::{Grants, Role},
    span,
};
use crate::{
    codec::{self, CodecError},
    id::{MeshId, NodeId, NodeName},
    limits,
};

/// Version of a certificate.
pub const CERTIFICATE_VERSION: u8 = 1;
/// How far a certificate's beginning lies before its issue: a new member's clock may be a day behind.
pub const BACKDATED_S: u64 = 24 * 3600;
/// How long a certificate holds unless told otherwise: a year.
pub const LIFETIME_S: u64 = 365 * 24 * 3600;

/// Who signed a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Issuer {
    /// The root of the mesh.
    Root,
    /// An admin, whose own certificate is the next in the chain.
    Admin(NodeId),
}

/// What the issuer says of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// [`CERTIFICATE_VERSION`].
    pub version: u8,
    /// The mesh it holds in.
    pub mesh: MeshId,
    /// Who signed it.
    pub issuer: Issuer,
    /// Whose it is: the node's Ed25519 key.
    pub node: NodeId,
    /// The node's ML-DSA-65 key.
    pub ml_dsa: MlDsaKey,
    /// The node's name, unique in its mesh.
    pub name: NodeName,
    /// What it is in the mesh.
    pub role: Role,
    /// Limits on what it may call.
    pub grants: Grants,
    /// Number, unique at its issuer.
    pub serial: u64,
    /// First second in which it holds, unix.
    pub not_before: u64,
    /// Last second in which it holds, unix.
    pub not_after: u64,
}

impl Certificate {
    /// When it was issued, unix seconds.
    #[must_use]
    pub const fn issued_at(&self) -> u64 {
        self.not_before.saturating_add(BACKDATED_S)
    }

    /// Both public keys of the node.
    #[must_use]
    pub fn keys(&self) -> PublicKeys {
        PublicKeys::of_node(self.node, self.ml_dsa.clone())
    }
}

/// What a new certificate is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// For whom.
    pub keys: PublicKeys,
    /// Under which name.
    pub name: NodeName,
    /// As what.
    pub role: Role,
    /// With which limits.
    pub grants: Grants,
    /// Number, unique at the issuer.
    pub serial: u64,
    /// Now, in unix seconds.
    pub now: u64,
    /// How long, in seconds; [`LIFETIME_S`] as a rule.
    pub lifetime_s: u64,
}

impl CertificateRequest {
    pub(super) fn certificate(self, mesh: MeshId, issuer: Issuer) -> Certificate {
        Certificate {
            version: CERTIFICATE_VERSION,
            mesh,
            issuer,
            node: self.keys.node_id(),
            ml_dsa: self.keys.ml_dsa().clone(),
            name: self.name,
            role: self.role,
            grants: self.grants,
            serial: self.serial,
            not_before: self.now.saturating_sub(BACKDATED_S),
            not_after: self.now.saturating_add(self.lifetime_s),
        }
    }
}

/// Why a certificate or a chain is refused, or can't be issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum CertificateError {
    /// Not a certificate, or over 3 KiB.
    #[error("certificate: {0}")]
    Codec(#[from] CodecError),
    /// Made by a newer or older program.
    #[error("certificate version {0} is not {CERTIFICATE_VERSION}")]
    Version(u8),
    /// The root's keys are not those that the mesh id is the hash of.
    #[error("certificates of mesh {got} came where mesh {wanted} is expected")]
    OtherMesh {
        /// The own mesh.
        wanted: MeshId,
        /// The mesh of the chain's root.
        got: MeshId,
    },
    /// A certificate in the chain is for another mesh than its root's.
    #[error("certificate of {0} is for another mesh than its root's")]
    MixedMesh(NodeName),
    /// No certificate, or more than two.
    #[error("chain of {0} certificates; one or two are allowed")]
    ChainLength(usize),
    /// The issuer named is not the one whose certificate follows.
    #[error("certificate of {0} names another issuer than the chain has")]
    IssuerMismatch(NodeName),
    /// The issuer is no admin.
    #[error("certificate of {name} was issued by {issuer}, which is no admin")]
    IssuerRole {
        /// Whose certificate.
        name: NodeName,
        /// Who issued it.
        issuer: NodeName,
    },
    /// An admin made an admin; only the root does.
    #[error("{0} was made an admin by an admin; only the root makes admins")]
    AdminByAdmin(NodeName),
    /// Not both signatures are the issuer's.
    #[error("signature on the certificate of {0} is not its issuer's")]
    Signature(NodeName),
    /// No signature came about.
    #[error(transparent)]
    Signing(#[from] SigningFailed),
    /// It ended.
    #[error("certificate of {name}: clocks differ by {} or the certificate ended then", span(*ago_s))]
    Expired {
        /// Whose certificate.
        name: NodeName,
        /// Seconds since its end, by this clock.
        ago_s: u64,
    },
    /// It has not begun.
    #[error("certificate of {name}: clocks differ by {} or the certificate begins then", span(*in_s))]
    NotYetValid {
        /// Whose certificate.
        name: NodeName,
        /// Seconds until its beginning, by this clock.
        in_s: u64,
    },
}

/// A certificate with the bytes that were signed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct SignedCertificate {
    pub(super) certificate: Certificate,
    // Verified as they came, not as they would be encoded again.
    bytes: Vec<u8>,
    pub(super) signature: Signature,
}

impl fmt::Debug for SignedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The bytes say the same again, in 2 KiB of numbers.
        f.debug_tuple("SignedCertificate").field(&self.certificate).finish()
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Wire {
    bytes: Vec<u8>,
    signature: Signature,
}

impl From<SignedCertificate> for Wire {
    fn from(signed: SignedCertificate) -> Self {
        Self { bytes: signed.bytes, signature: signed.signature }
    }
}

impl TryFrom<Wire> for SignedCertificate {
    type Error = CertificateError;

    fn try_from(wire: Wire) -> Result<Self, CertificateError> {
        // The version comes first in every version, and decides how the rest is read.
        match wire.bytes.first() {
            Some(&CERTIFICATE_VERSION) => {}
            Some(version) => return Err(CertificateError::Version(*version)),
            None => return Err(CodecError::Malformed.into()),
        }
        let certificate: Certificate = codec::decode::<_, { limits::CERTIFICATE_BYTES }>(&wire.bytes)?;
        // One certificate has one form, so that a hash of it names it.
        if codec::encode::<_, { limits::CERTIFICATE_BYTES }>(&certificate)? != wire.bytes {
            return Err(CodecError::Malformed.into());
        }
        Ok(Self { certificate, bytes: wire.bytes, signature: wire.signature })
    }
}

impl SignedCertificate {
    pub(super) fn sign(
        certificate: Certificate,
        sign: impl FnOnce(&[u8]) -> Result<Signature, SigningFailed>,
    ) -> Result<Self, CertificateError> {
        let bytes = codec::encode::<_, { limits::CERTIFICATE_BYTES }>(&certificate)?;
        let signature = sign(&bytes)?;
        Ok(Self { certificate, bytes, signature })
    }

    /// What it says; not to be believed before [`super::CertificateChain::verify`].
    #[must_use]
    pub const fn unverified(&self) -> &Certificate {
        &self.certificate
    }

    /// Names this certificate with these signatures of this issuer.
    fn link(&self, issuer: &PublicKeys) -> [u8; 32] {
        // Keys and signature have fixed lengths, so that the parts can't be cut apart in another way.
        Sha256::new()
            .chain_update(b"octomesh-link-v1")
            .chain_update(issuer.ed25519())
            .chain_update(issuer.ml_dsa().as_bytes())
            .chain_update(self.signature.as_bytes())
            .chain_update(&self.bytes)
            .finalize()
            .into()
    }

    pub(super) fn check(
        &self,
        mesh: MeshId,
        issuer: &PublicKeys,
        now: u64,
        tolerance_s: u64,
        links: &VerifiedLinks,
    ) -> Result<(), CertificateError> {
        let certificate = &self.certificate;
        let name = || certificate.name.clone();
        if certificate.mesh != mesh {
            return Err(CertificateError::MixedMesh(name()));
        }
        let holds = || self.signature.verifies(issuer, Domain::Certificate, &self.bytes);
        if !links.check(self.link(issuer), holds) {
            return Err(CertificateError::Signature(name()));
        }
        let ago_s = now.saturating_sub(certificate.not_after);
        if ago_s > tolerance_s {
            return Err(CertificateError::Expired { name: name(), ago_s });
        }
        let in_s = certificate.not_before.saturating_sub(now);
        if in_s > tolerance_s {
            return Err(CertificateError::NotYetValid { name: name(), in_s });
        }
        Ok(())
    }
}
