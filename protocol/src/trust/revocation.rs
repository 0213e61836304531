//! A revocation: the root or an admin says that a node is thrown out. It is about the node's key, so it covers every certificate that
//! the node has or will get, and it is kept for ever by everybody.
//!
//! Any admin may revoke any node, also another admin and the node on which the root key lies; the root key itself is no node and goes
//! on signing wherever it is. A node does not revoke itself.
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{
    certificate::Issuer,
    chain::{CertificateChain, MeshRoot},
    identity::NodeIdentity,
    keys::Domain,
    statement::{Statement, StatementError},
};
use crate::{
    codec::{self, CodecError},
    id::{MeshId, NodeId, RevocationId},
    limits,
};

/// Version of a revocation.
pub const REVOCATION_VERSION: u8 = 1;
/// Content without the signatures.
const CONTENT_BYTES: usize = 512;

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// [`REVOCATION_VERSION`].
    pub version: u8,
    /// The mesh it holds in.
    pub mesh: MeshId,
    /// Who is thrown out.
    pub node: NodeId,
    /// When, unix seconds by the issuer's clock. The certificate of an admin must have held then; for the rest it is for people.
    pub at: u64,
    /// Why, in the owner's words; at most 200 bytes.
    pub reason: String,
    /// Who says so.
    pub issuer: Issuer,
}

/// A revocation with all that is needed to check it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedRevocation {
    revocation: Revocation,
    statement: Statement,
}

impl SignedRevocation {
    fn content(
        mesh: MeshId,
        node: NodeId,
        at: u64,
        reason: &str,
        issuer: Issuer,
    ) -> Result<(Revocation, Vec<u8>), StatementError> {
        if reason.len() > limits::REASON_BYTES {
            return Err(StatementError::Reason);
        }
        if issuer == Issuer::Admin(node) {
            return Err(StatementError::Itself);
        }
        let revocation =
            Revocation { version: REVOCATION_VERSION, mesh, node, at, reason: reason.to_owned(), issuer };
        let bytes = codec::encode::<_, CONTENT_BYTES>(&revocation)?;
        Ok((revocation, bytes))
    }

    /// The root revokes `node` at `at`, unix seconds.
    ///
    /// # Errors
    /// [`StatementError::Reason`], [`StatementError::Signing`].
    pub fn by_root(root: &MeshRoot, node: NodeId, at: u64, reason: &str) -> Result<Self, StatementError> {
        let (revocation, content) = Self::content(root.mesh_id(), node, at, reason, Issuer::Root)?;
        Ok(Self { revocation, statement: Statement::by_root(root, Domain::Revocation, content)? })
    }

    /// The admin `admin`, whose certificate from the root is `chain`, revokes `node` at `at`, unix seconds.
    ///
    /// # Errors
    /// [`StatementError::NotAdmin`], [`StatementError::Itself`], [`StatementError::Reason`], [`StatementError::Signing`].
    pub fn by_admin(
        admin: &NodeIdentity,
        chain: &CertificateChain,
        node: NodeId,
        at: u64,
        reason: &str,
    ) -> Result<Self, StatementError> {
        let issuer = Issuer::Admin(admin.node_id());
        let (revocation, content) = Self::content(chain.root().mesh_id(), node, at, reason, issuer)?;
        Ok(Self { revocation, statement: Statement::by_admin(admin, chain, Domain::Revocation, content)? })
    }

    /// The bytes that travel and are stored.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        self.statement.to_bytes().map(|bytes| bytes.to_vec())
    }

    /// Reads [`SignedRevocation::to_bytes`]; nothing of it is to be believed before [`SignedRevocation::verify`].
    ///
    /// # Errors
    /// [`StatementError::Codec`], [`StatementError::Version`], [`StatementError::Reason`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatementError> {
        let statement = Statement::from_bytes(bytes)?;
        match statement.content.first() {
            Some(&REVOCATION_VERSION) => {}
            Some(version) => return Err(StatementError::Version(*version)),
            None => return Err(CodecError::Malformed.into()),
        }
        let revocation: Revocation = codec::decode::<_, CONTENT_BYTES>(&statement.content)?;
        // One revocation has one form, so that the hash of it names it.
        if Zeroizing::new(codec::encode::<_, CONTENT_BYTES>(&revocation)?) != statement.content {
            return Err(CodecError::Malformed.into());
        }
        if revocation.reason.len() > limits::REASON_BYTES {
            return Err(StatementError::Reason);
        }
        Ok(Self { revocation, statement })
    }

    /// Names what is said, not who vouches for it in which form.
    #[must_use]
    pub fn id(&self) -> RevocationId {
        let hash = Sha256::new()
            .chain_update(b"octomesh-revocation-id-v1")
            .chain_update(&*self.statement.content)
            .finalize();
        RevocationId::from_bytes(hash.into())
    }

    /// What it says; not to be believed before [`SignedRevocation::verify`].
    #[must_use]
    pub const fn unverified(&self) -> &Revocation {
        &self.revocation
    }

    /// Checks that the root of `mesh` said this, or who was an admin of it at that time. Whether that admin was itself revoked is
    /// asked by [`super::RevocationSet::learn`].
    ///
    /// # Errors
    /// [`StatementError`] with the first thing that is wrong.
    pub fn verify(&self, mesh: MeshId) -> Result<&Revocation, StatementError> {
        let said = &self.revocation;
        if said.mesh != mesh {
            return Err(StatementError::OtherMesh { wanted: mesh, got: said.mesh });
        }
        if self.statement.authority.issuer() != Some(said.issuer) {
            return Err(StatementError::IssuerMismatch);
        }
        if said.issuer == Issuer::Admin(said.node) {
            return Err(StatementError::Itself);
        }
        self.statement.verify(mesh, said.at, Domain::Revocation)?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests;
