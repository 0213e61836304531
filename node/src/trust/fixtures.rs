//! A mesh of a root and a few nodes, for the tests of this room and those above.
use octomesh_protocol::{
    id::{NodeId, NodeName},
    session::secret::MeshSecret,
    trust::{
        CertificateChain, CertificateRequest, Grants, MeshRoot, NodeIdentity, RevocationSet, Role,
        SignedRevocation, SignedRotation, certificate::LIFETIME_S,
    },
};

use super::{Secrets, Trust};

pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

pub(crate) fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 64])
}

pub(crate) fn id(seed: u8) -> NodeId {
    identity(seed).node_id()
}

pub(crate) fn request(seed: u8, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity(seed).public().clone(),
        name: NodeName::parse(&format!("node-{seed}")).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

pub(crate) fn chain(seed: u8, role: Role) -> CertificateChain {
    root().issue(request(seed, role)).unwrap()
}

pub(crate) fn secret(byte: u8) -> MeshSecret {
    MeshSecret::from_bytes([byte; 32])
}

pub(crate) fn trust(seed: u8, role: Role) -> Trust {
    Trust::new(id(seed), chain(seed, role), Secrets::first(secret(7)), RevocationSet::default())
}

/// The root says that a node is out.
pub(crate) fn out(seed: u8) -> SignedRevocation {
    SignedRevocation::by_root(&root(), id(seed), NOW, "lost").unwrap()
}

pub(crate) fn rotation(generation: u64, byte: u8) -> SignedRotation {
    SignedRotation::by_root(&root(), generation, NOW, secret(byte)).unwrap()
}
