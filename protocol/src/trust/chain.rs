//! Chains of certificates, and who makes them.
//!
//! ```text
//!   root key ── signs ──> admin ── signs ──> worker or client        chain: [leaf, admin]
//!   root key ── signs ──> any member                                 chain: [leaf]
//! ```
//!
//! The mesh id is the hash of the root's two public keys, so whoever knows the mesh id needs nothing else to check a chain.
use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    certificate::{Certificate, CertificateError, CertificateRequest, Issuer, SignedCertificate},
    identity::NodeIdentity,
    keys::{Domain, KeyPair, PublicKeys, SEED_BYTES, Signature, SigningFailed},
    links::VerifiedLinks,
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
    root: PublicKeys,
    certificates: Vec<SignedCertificate>,
}

/// A chain that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The node's certificate.
    pub certificate: Certificate,
    /// The root's keys, which are the mesh's.
    pub root: PublicKeys,
}

impl CertificateChain {
    /// A chain from its parts; [`CertificateChain::verify`] says whether it is one.
    #[must_use]
    pub const fn new(root: PublicKeys, certificates: Vec<SignedCertificate>) -> Self {
        Self { root, certificates }
    }

    /// The root's keys that it is said to come from.
    #[must_use]
    pub const fn root(&self) -> &PublicKeys {
        &self.root
    }

    /// The node's own certificate; not to be believed before [`CertificateChain::verify`], except in the own home.
    #[must_use]
    pub fn leaf(&self) -> Option<&Certificate> {
        self.certificates.first().map(SignedCertificate::unverified)
    }

    /// Last second in which all of it holds, unix: a chain ends with the first of its certificates. Not checked.
    #[must_use]
    pub fn ends(&self) -> Option<u64> {
        self.certificates.iter().map(|signed| signed.unverified().not_after).min()
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
        self.verify_with(mesh, now, tolerance_s, &VerifiedLinks::new())
    }

    /// As [`CertificateChain::verify`], but signatures that `links` knows are not checked again.
    ///
    /// # Errors
    /// [`CertificateError`] with the first thing that is wrong.
    pub fn verify_with(
        &self,
        mesh: MeshId,
        now: u64,
        tolerance_s: u64,
        links: &VerifiedLinks,
    ) -> Result<Verified, CertificateError> {
        let got = self.root.mesh_id();
        if got != mesh {
            return Err(CertificateError::OtherMesh { wanted: mesh, got });
        }
        let (leaf, issuer) = match self.certificates.as_slice() {
            [leaf] => (leaf, None),
            [leaf, admin] => (leaf, Some(admin)),
            other => return Err(CertificateError::ChainLength(other.len())),
        };
        let keys = match (leaf.certificate.issuer, issuer) {
            (Issuer::Root, None) => self.root.clone(),
            (Issuer::Admin(id), Some(admin)) if id == admin.certificate.node => {
                self.check_admin(leaf, admin, now, tolerance_s, links)?;
                admin.certificate.keys()
            }
            _ => return Err(CertificateError::IssuerMismatch(leaf.certificate.name.clone())),
        };
        leaf.check(mesh, &keys, now, tolerance_s, links)?;
        Ok(Verified { certificate: leaf.certificate.clone(), root: self.root.clone() })
    }

    fn check_admin(
        &self,
        leaf: &SignedCertificate,
        admin: &SignedCertificate,
        now: u64,
        tolerance_s: u64,
        links: &VerifiedLinks,
    ) -> Result<(), CertificateError> {
        if admin.certificate.issuer != Issuer::Root {
            return Err(CertificateError::IssuerMismatch(admin.certificate.name.clone()));
        }
        admin.check(self.root.mesh_id(), &self.root, now, tolerance_s, links)?;
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
        if own.certificate.role != Role::Admin || own.certificate.keys() != *admin.public() {
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
        Ok(Self { root: self.root.clone(), certificates: vec![leaf, own.clone()] })
    }
}

/// The root of a mesh: needed to make admins, and kept away otherwise.
pub struct MeshRoot(KeyPair);

impl MeshRoot {
    /// From its secret bytes: 32 for each of the two keys.
    #[must_use]
    pub fn from_seed(seed: [u8; SEED_BYTES]) -> Self {
        Self(KeyPair::from_seed(&Zeroizing::new(seed)))
    }

    /// The secret bytes, for a file of mode 0600.
    #[must_use]
    pub fn expose_seed(&self) -> Zeroizing<[u8; SEED_BYTES]> {
        self.0.seed()
    }

    /// The public keys.
    #[must_use]
    pub const fn public(&self) -> &PublicKeys {
        self.0.public()
    }

    /// The mesh of this root.
    #[must_use]
    pub fn mesh_id(&self) -> MeshId {
        self.public().mesh_id()
    }

    /// Issues a certificate for any role.
    ///
    /// # Errors
    /// [`CertificateError::Codec`] for grants that make it larger than 3 KiB.
    pub fn issue(&self, request: CertificateRequest) -> Result<CertificateChain, CertificateError> {
        let certificate = request.certificate(self.mesh_id(), Issuer::Root);
        let leaf = SignedCertificate::sign(certificate, |bytes| self.0.sign(Domain::Certificate, bytes))?;
        Ok(CertificateChain { root: self.public().clone(), certificates: vec![leaf] })
    }
}

impl MeshRoot {
    /// Signs `message` for one purpose, with both keys.
    pub(super) fn sign(&self, domain: Domain, message: &[u8]) -> Result<Signature, SigningFailed> {
        self.0.sign(domain, message)
    }
}

impl fmt::Debug for MeshRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshRoot({})", self.mesh_id().short())
    }
}

#[cfg(test)]
mod tests;
