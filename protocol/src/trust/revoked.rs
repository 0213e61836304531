//! All revocations that a node holds: who is out, and which certificates are void.
//!
//! Each node has at most one revocation here, the one that everybody ends with whatever the order in which they come: the root's
//! before those of admins, then those of admins that are members before those of revoked ones, then the earliest, then by id.
//!
//! A revoked admin could write any time into what it signs. So what it has signed counts where it is held already, and is void where
//! it comes later. Whoever revokes an admin signs that admin's revocations again, so that they go on to hold everywhere.
use std::{collections::BTreeMap, sync::Arc};

use super::{
    certificate::{Certificate, Issuer},
    revocation::{Revocation, SignedRevocation},
};
use crate::{
    id::{NodeId, NodeName, RevocationId},
    limits,
};

/// Why a certificate that verifies is refused all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum RevokedError {
    /// Its node was revoked.
    #[error("node {name} ({}) was revoked{}", node.short(), because(reason))]
    Node {
        /// Who.
        node: NodeId,
        /// The name in the certificate.
        name: NodeName,
        /// Why, in the owner's words; may be empty.
        reason: String,
    },
    /// The admin that issued it was revoked.
    #[error("the certificate of node {name} is void: the admin that issued it ({}) was revoked", issuer.short())]
    Issuer {
        /// The name in the certificate.
        name: NodeName,
        /// Who issued it.
        issuer: NodeId,
    },
}

fn because(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// What became of a revocation that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Learned {
    /// Its node was a member until now.
    New,
    /// Its node was revoked already; this takes the place of the revocation that was held.
    Instead,
    /// It is held already, or a better one of the same node is.
    Known,
    /// Its issuer is revoked, and it was not held before.
    Void,
    /// There is no room for another.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    id: RevocationId,
    signed: Arc<SignedRevocation>,
}

/// The revocations of one mesh, one for each node. Only verified ones come in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RevocationSet {
    by_node: BTreeMap<NodeId, Held>,
}

impl RevocationSet {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_node.len()
    }

    /// Whether nobody was revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// The revocation of `node`, if there is one.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&Revocation> {
        self.by_node.get(&node).map(|held| held.signed.unverified())
    }

    /// Whether `node` is out.
    #[must_use]
    pub fn is_revoked(&self, node: NodeId) -> bool {
        self.by_node.contains_key(&node)
    }

    /// The nodes that are out.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.by_node.keys().copied()
    }

    /// Names of all of them, at most [`limits::REVOCATIONS`].
    #[must_use]
    pub fn ids(&self) -> Vec<RevocationId> {
        self.by_node.values().map(|held| held.id).collect()
    }

    /// The revocation with that name.
    #[must_use]
    pub fn get(&self, id: RevocationId) -> Option<&Arc<SignedRevocation>> {
        self.by_node.values().find(|held| held.id == id).map(|held| &held.signed)
    }

    /// The signed revocation of `node`.
    #[must_use]
    pub fn signed(&self, node: NodeId) -> Option<&Arc<SignedRevocation>> {
        self.by_node.get(&node).map(|held| &held.signed)
    }

    /// The revocations that `issuer` signed.
    pub fn issued_by(&self, issuer: NodeId) -> impl Iterator<Item = &Revocation> {
        self.by_node
            .values()
            .map(|held| held.signed.unverified())
            .filter(move |said| said.issuer == Issuer::Admin(issuer))
    }

    /// Takes in a revocation that [`SignedRevocation::verify`] found good for this mesh.
    pub fn learn(&mut self, signed: Arc<SignedRevocation>) -> Learned {
        let id = signed.id();
        let node = signed.unverified().node;
        let held = self.by_node.get(&node);
        if held.is_some_and(|held| held.id == id) {
            return Learned::Known;
        }
        let fresh = Held { id, signed };
        if self.rank(&fresh).0 == ISSUER_REVOKED {
            return Learned::Void;
        }
        match held {
            Some(held) if self.rank(held) <= self.rank(&fresh) => return Learned::Known,
            None if self.by_node.len() >= limits::REVOCATIONS => return Learned::Full,
            _ => {}
        }
        if self.by_node.insert(node, fresh).is_some() { Learned::Instead } else { Learned::New }
    }

    /// Puts back what was held before, from this node's own disk: also what a revoked admin signed while it was none.
    pub fn restore(&mut self, signed: Arc<SignedRevocation>) {
        if self.by_node.len() < limits::REVOCATIONS {
            let held = Held { id: signed.id(), signed };
            self.by_node.insert(held.signed.unverified().node, held);
        }
    }

    fn rank(&self, held: &Held) -> (u8, u64, RevocationId) {
        let said = held.signed.unverified();
        let class = match said.issuer {
            Issuer::Root => 0,
            Issuer::Admin(issuer) if self.is_revoked(issuer) => ISSUER_REVOKED,
            Issuer::Admin(_) => 1,
        };
        (class, said.at, held.id)
    }

    /// Whether a verified certificate may be used: its node is a member, and so is the admin that issued it.
    ///
    /// # Errors
    /// [`RevokedError`].
    pub fn check(&self, certificate: &Certificate) -> Result<(), RevokedError> {
        let name = || certificate.name.clone();
        if let Some(said) = self.of(certificate.node) {
            return Err(RevokedError::Node {
                node: certificate.node,
                name: name(),
                reason: said.reason.clone(),
            });
        }
        match certificate.issuer {
            Issuer::Admin(issuer) if self.is_revoked(issuer) => {
                Err(RevokedError::Issuer { name: name(), issuer })
            }
            _ => Ok(()),
        }
    }
}

const ISSUER_REVOKED: u8 = 2;

#[cfg(test)]
mod tests;
