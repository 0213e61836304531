//! Keys and chains for the tests of what the root and admins say.
use super::{
    CertificateChain, CertificateRequest, Grants, MeshRoot, NodeIdentity, Role, certificate::LIFETIME_S,
};
use crate::id::NodeName;

pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 64])
}

pub(crate) fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

pub(crate) fn request(seed: u8, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity(seed).public().clone(),
        name: NodeName::parse(&format!("node-{seed}")).unwrap(),
        role,
        grants: Grants::default(),
        serial: u64::from(seed),
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

/// By the root, for the node with this seed.
pub(crate) fn chain(seed: u8, role: Role) -> CertificateChain {
    root().issue(request(seed, role)).unwrap()
}
