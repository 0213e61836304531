//! A rotation: the root or an admin replaces the mesh secret, so that a revoked node can't even begin a handshake. It is handed from
//! member to member inside sessions, never to a revoked one.
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
    id::{MeshId, RotationId},
    session::secret::{self, MeshSecret},
};

/// Version of a rotation.
pub const ROTATION_VERSION: u8 = 1;
/// Content without the signatures.
const CONTENT_BYTES: usize = 256;

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// [`ROTATION_VERSION`].
    pub version: u8,
    /// The mesh whose secret it is.
    pub mesh: MeshId,
    /// One more than that of the secret it replaces; a mesh begins with 0.
    pub generation: u64,
    /// When, unix seconds by the issuer's clock.
    pub at: u64,
    /// Who says so.
    pub issuer: Issuer,
    /// The new secret.
    #[serde(with = "secret::mesh_secret")]
    pub secret: MeshSecret,
}

/// Which secret a node has. The greater one replaces the other: of two rotations made at the same time everybody ends with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecretStamp {
    /// How often the secret was replaced.
    pub generation: u64,
    /// By which rotation; zeros for the first secret of a mesh.
    pub id: RotationId,
}

impl SecretStamp {
    /// The secret with which a mesh begins.
    pub const FIRST: Self = Self { generation: 0, id: RotationId::from_bytes([0; 32]) };
}

/// A rotation with all that is needed to check it. Its bytes hold the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedRotation {
    rotation: Rotation,
    statement: Statement,
}

impl SignedRotation {
    fn content(
        mesh: MeshId,
        generation: u64,
        at: u64,
        issuer: Issuer,
        secret: MeshSecret,
    ) -> Result<(Rotation, Vec<u8>), StatementError> {
        let rotation = Rotation { version: ROTATION_VERSION, mesh, generation, at, issuer, secret };
        let bytes = codec::encode::<_, CONTENT_BYTES>(&rotation)?;
        Ok((rotation, bytes))
    }

    /// The root replaces the secret.
    ///
    /// # Errors
    /// [`StatementError::Signing`].
    pub fn by_root(
        root: &MeshRoot,
        generation: u64,
        at: u64,
        secret: MeshSecret,
    ) -> Result<Self, StatementError> {
        let (rotation, content) = Self::content(root.mesh_id(), generation, at, Issuer::Root, secret)?;
        Ok(Self { rotation, statement: Statement::by_root(root, Domain::Rotation, content)? })
    }

    /// The admin `admin`, whose certificate from the root is `chain`, replaces the secret.
    ///
    /// # Errors
    /// [`StatementError::NotAdmin`], [`StatementError::Signing`].
    pub fn by_admin(
        admin: &NodeIdentity,
        chain: &CertificateChain,
        generation: u64,
        at: u64,
        secret: MeshSecret,
    ) -> Result<Self, StatementError> {
        let issuer = Issuer::Admin(admin.node_id());
        let (rotation, content) = Self::content(chain.root().mesh_id(), generation, at, issuer, secret)?;
        Ok(Self { rotation, statement: Statement::by_admin(admin, chain, Domain::Rotation, content)? })
    }

    /// The bytes that travel inside a session and are stored like a key.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, CodecError> {
        self.statement.to_bytes()
    }

    /// Reads [`SignedRotation::to_bytes`]; nothing of it is to be believed before [`SignedRotation::verify`].
    ///
    /// # Errors
    /// [`StatementError::Codec`], [`StatementError::Version`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StatementError> {
        let statement = Statement::from_bytes(bytes)?;
        match statement.content.first() {
            Some(&ROTATION_VERSION) => {}
            Some(version) => return Err(StatementError::Version(*version)),
            None => return Err(CodecError::Malformed.into()),
        }
        let rotation: Rotation = codec::decode::<_, CONTENT_BYTES>(&statement.content)?;
        if Zeroizing::new(codec::encode::<_, CONTENT_BYTES>(&rotation)?) != statement.content {
            return Err(CodecError::Malformed.into());
        }
        Ok(Self { rotation, statement })
    }

    /// Which secret this is.
    #[must_use]
    pub fn stamp(&self) -> SecretStamp {
        let hash = Sha256::new()
            .chain_update(b"octomesh-rotation-id-v1")
            .chain_update(&*self.statement.content)
            .finalize();
        SecretStamp { generation: self.rotation.generation, id: RotationId::from_bytes(hash.into()) }
    }

    /// What it says; not to be believed before [`SignedRotation::verify`].
    #[must_use]
    pub const fn unverified(&self) -> &Rotation {
        &self.rotation
    }

    /// Checks that the root of `mesh` said this, or who was an admin of it at that time.
    ///
    /// # Errors
    /// [`StatementError`] with the first thing that is wrong.
    pub fn verify(&self, mesh: MeshId) -> Result<&Rotation, StatementError> {
        let said = &self.rotation;
        if said.mesh != mesh {
            return Err(StatementError::OtherMesh { wanted: mesh, got: said.mesh });
        }
        if self.statement.authority.issuer() != Some(said.issuer) {
            return Err(StatementError::IssuerMismatch);
        }
        self.statement.verify(mesh, said.at, Domain::Rotation)?;
        Ok(said)
    }
}

#[cfg(test)]
mod tests;
