//! Chains of certificates, and who makes them.
//!
//! ```text
//!   root key ── signs ──> admin ── signs ──> worker or client        chain: [leaf, admin]
//!   root key ── signs ──> any member                                 chain: [leaf]
//! ```
//!
//! The mesh id is the hash of the root's public key, so whoever knows the mesh id needs nothing else to check a chain.
use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

use super::{
    certificate::{Certificate, CertificateError, CertificateRequest, Issuer, RootKey, SignedCertificate},
    identity::{Domain, NodeIdentity, Signature},
    role::Role,
};
use crate::{
    codec::{self, CodecError},
    id::MeshId,
    limits,
};

/// A node's certificate with all that is needed to check it against a mesh id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateChain {
    root: RootKey,
    certificates: Vec<SignedCertificate>,
}

/// A chain that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The node's certificate.
    pub certificate: Certificate,
    /// The root key, which is the mesh's.
    pub root: RootKey,
}

impl CertificateChain {
    /// A chain from its parts; [`CertificateChain::verify`] says whether it is one.
    #[must_use]
    pub const fn new(root: RootKey, certificates: Vec<SignedCertificate>) -> Self {
        Self { root, certificates }
    }

    /// The root key that it is said to come from.
    #[must_use]
    pub const fn root(&self) -> RootKey {
        self.root
    }

    /// The node's own certificate; not to be believed before [`CertificateChain::verify`], except in the own home.
    #[must_use]
    pub fn leaf(&self) -> Option<&Certificate> {
        self.certificates.first().map(SignedCertificate::unverified)
    }

    /// The bytes of a home's file.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, { limits::IDENTITY_PAYLOAD_BYTES }>(self)
    }

    /// Reads [`CertificateChain::to_bytes`].
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode::<_, { limits::IDENTITY_PAYLOAD_BYTES }>(bytes)
    }

    /// Checks every link up to the root of `mesh`; `now` is unix seconds.
    ///
    /// # Errors
    /// [`CertificateError`] with the first thing that is wrong.
    pub fn verify(&self, mesh: MeshId, now: u64, tolerance_s: u64) -> Result<Verified, CertificateError> {
        let got = self.root.mesh_id();
        if got != mesh {
            return Err(CertificateError::OtherMesh { wanted: mesh, got });
        }
        let (leaf, issuer) = match self.certificates.as_slice() {
            [leaf] => (leaf, None),
            [leaf, admin] => (leaf, Some(admin)),
            other => return Err(CertificateError::ChainLength(other.len())),
        };
        let key = match (leaf.certificate.issuer, issuer) {
            (Issuer::Root, None) => self.root.as_bytes(),
            (Issuer::Admin(id), Some(admin)) if id == admin.certificate.node => {
                self.check_admin(leaf, admin, now, tolerance_s)?;
                admin.certificate.node.as_bytes()
            }
            _ => return Err(CertificateError::IssuerMismatch(leaf.certificate.name.clone())),
        };
        leaf.check(mesh, key, now, tolerance_s)?;
        Ok(Verified { certificate: leaf.certificate.clone(), root: self.root })
    }

    fn check_admin(
        &self,
        leaf: &SignedCertificate,
        admin: &SignedCertificate,
        now: u64,
        tolerance_s: u64,
    ) -> Result<(), CertificateError> {
        if admin.certificate.issuer != Issuer::Root {
            return Err(CertificateError::IssuerMismatch(admin.certificate.name.clone()));
        }
        admin.check(self.root.mesh_id(), self.root.as_bytes(), now, tolerance_s)?;
        if admin.certificate.role != Role::Admin {
            return Err(CertificateError::IssuerRole {
                name: leaf.certificate.name.clone(),
                issuer: admin.certificate.name.clone(),
            });
        }
        if leaf.certificate.role == Role::Admin {
            return Err(CertificateError::AdminByAdmin(leaf.certificate.name.clone()));
        }
        Ok(())
    }

    /// Issues as the admin whose chain this is.
    ///
    /// # Errors
    /// [`CertificateError::IssuerRole`] if this is no admin's chain or not `admin`'s, [`CertificateError::AdminByAdmin`].
    pub fn issue(&self, admin: &NodeIdentity, request: CertificateRequest) -> Result<Self, CertificateError> {
        let own = match self.certificates.as_slice() {
            [own] => own,
            other => return Err(CertificateError::ChainLength(other.len())),
        };
        if own.certificate.role != Role::Admin || own.certificate.node != admin.node_id() {
            return Err(CertificateError::IssuerRole {
                name: request.name,
                issuer: own.certificate.name.clone(),
            });
        }
        if request.role == Role::Admin {
            return Err(CertificateError::AdminByAdmin(request.name));
        }
        let certificate = request.certificate(own.certificate.mesh, Issuer::Admin(admin.node_id()));
        let leaf = SignedCertificate::sign(certificate, |bytes| admin.sign(Domain::Certificate, bytes))?;
        Ok(Self { root: self.root, certificates: vec![leaf, own.clone()] })
    }
}

/// The root of a mesh: needed to make admins, and kept away otherwise.
pub struct MeshRoot {
    key: SigningKey,
}

impl MeshRoot {
    /// From 32 secret bytes.
    #[must_use]
    pub fn from_seed(mut seed: [u8; 32]) -> Self {
        let key = SigningKey::from_bytes(&seed);
        seed.zeroize();
        Self { key }
    }

    /// The secret bytes, for a file of mode 0600.
    #[must_use]
    pub fn expose_seed(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> RootKey {
        RootKey::from_bytes(self.key.verifying_key().to_bytes())
    }

    /// The mesh of this root.
    #[must_use]
    pub fn mesh_id(&self) -> MeshId {
        self.public().mesh_id()
    }

    /// Issues a certificate for any role.
    ///
    /// # Errors
    /// [`CertificateError::Codec`] for grants that make it larger than 4 KiB.
    pub fn issue(&self, request: CertificateRequest) -> Result<CertificateChain, CertificateError> {
        let certificate = request.certificate(self.mesh_id(), Issuer::Root);
        let leaf = SignedCertificate::sign(certificate, |bytes| {
            let message = [Domain::Certificate.label(), bytes].concat();
            Signature::from_bytes(self.key.sign(&message).to_bytes())
        })?;
        Ok(CertificateChain { root: self.public(), certificates: vec![leaf] })
    }
}

impl fmt::Debug for MeshRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshRoot({})", self.mesh_id().short())
    }
}

#[cfg(test)]
mod tests;
