//! Whose adverts are passed on: of nodes that had a session here, with a certificate that still counts. Anybody can make keys and sign
//! with them, so that without this one member could have the others carry whatever it invents.
use std::collections::{BTreeMap, VecDeque};

use octomesh_protocol::{
    id::NodeId,
    trust::{Certificate, Issuer},
};

use crate::trust::Trust;

/// As many as there can be members; the one that was met first is forgotten first.
const MET: usize = 1024;

/// Nodes that had a session since the start, and who issued their certificates.
#[derive(Debug, Default)]
pub(super) struct Met {
    issuers: BTreeMap<NodeId, Issuer>,
    order: VecDeque<NodeId>,
}

impl Met {
    /// A session with a certificate that was checked.
    pub(super) fn met(&mut self, certificate: &Certificate) {
        if self.issuers.insert(certificate.node, certificate.issuer).is_none() {
            self.order.push_back(certificate.node);
        }
        while self.order.len() > MET {
            if let Some(first) = self.order.pop_front() {
                self.issuers.remove(&first);
            }
        }
    }

    /// Whether that node was met and may still be here. The end of its certificate is not looked at: it may have been renewed, and its
    /// advert grants nothing.
    pub(super) fn is_one(&self, node: NodeId, trust: &Trust) -> bool {
        let void = |issuer: &Issuer| matches!(issuer, Issuer::Admin(admin) if trust.is_revoked(*admin));
        node == trust.node
            || (!trust.is_revoked(node) && self.issuers.get(&node).is_some_and(|issuer| !void(issuer)))
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::trust::Role;

    use super::*;
    use crate::trust::fixtures::{chain, id, identity, request, trust};

    #[test]
    fn only_who_was_met_and_so_many() {
        let (mut met, trust) = (Met::default(), trust(3, Role::Worker));
        assert!(met.is_one(id(3), &trust), "this node itself");
        assert!(!met.is_one(id(4), &trust));
        let by_admin = chain(2, Role::Admin).issue(&identity(2), request(4, Role::Worker)).unwrap();
        let mut certificate = by_admin.leaf().unwrap().clone();
        met.met(&certificate);
        assert!(met.is_one(id(4), &trust));
        for n in 0..2 * MET {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            certificate.node = NodeId::from_bytes(bytes);
            met.met(&certificate);
            met.met(&certificate);
        }
        assert_eq!((met.issuers.len(), met.order.len()), (MET, MET));
        assert!(!met.is_one(id(4), &trust));
    }
}
