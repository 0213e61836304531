use proptest::prelude::*;

use super::*;
use crate::trust::{
    Role,
    fixtures::{NOW, chain, identity, request, root},
};

fn id(seed: u8) -> NodeId {
    identity(seed).node_id()
}

/// `by` is the seed of an admin; 1 stands for the root.
fn said(by: u8, node: u8, at: u64) -> Arc<SignedRevocation> {
    let signed = if by == 1 {
        SignedRevocation::by_root(&root(), id(node), at, "")
    } else {
        SignedRevocation::by_admin(&identity(by), &chain(by, Role::Admin), id(node), at, "")
    };
    Arc::new(signed.unwrap())
}

fn set(list: &[&Arc<SignedRevocation>]) -> RevocationSet {
    let mut set = RevocationSet::default();
    for signed in list {
        set.learn(Arc::clone(signed));
    }
    set
}

#[test]
fn a_revoked_leaf_and_what_a_revoked_admin_issued_are_refused() {
    let set = set(&[&said(1, 2, NOW)]);
    let admin = chain(2, Role::Admin);
    let refused = set.check(admin.leaf().unwrap()).unwrap_err();
    assert!(matches!(&refused, RevokedError::Node { node, .. } if *node == id(2)), "{refused}");
    let leaf = admin.issue(&identity(2), request(5, Role::Worker)).unwrap();
    let refused = set.check(leaf.leaf().unwrap()).unwrap_err();
    assert!(matches!(&refused, RevokedError::Issuer { issuer, .. } if *issuer == id(2)), "{refused}");
    // The same node with a certificate by the root, and what another admin issued.
    set.check(chain(5, Role::Worker).leaf().unwrap()).unwrap();
    let other = chain(3, Role::Admin).issue(&identity(3), request(6, Role::Worker)).unwrap();
    set.check(other.leaf().unwrap()).unwrap();
}

#[test]
fn a_revoked_admin_that_issues() {
    let (early, against) = (said(2, 5, NOW - 1000), said(1, 2, NOW));
    // Held before its issuer was revoked: stays. Heard afterwards: void, whatever time is written in it.
    let mut before = set(&[&early, &against]);
    assert!(before.is_revoked(id(5)));
    let mut after = set(&[&against]);
    assert_eq!(after.learn(Arc::clone(&early)), Learned::Void);
    assert!(!after.is_revoked(id(5)));
    // Said again by somebody who may: everybody ends with that one.
    let again = said(3, 5, NOW);
    assert_eq!(before.learn(Arc::clone(&again)), Learned::Instead);
    assert_eq!(after.learn(Arc::clone(&again)), Learned::New);
    assert_eq!(before, after);
    assert_eq!(before.learn(early), Learned::Void, "it does not come back");
    assert_eq!(before.issued_by(id(3)).count(), 1);
}

#[test]
fn the_root_has_the_last_word() {
    let mut both = set(&[&said(2, 5, NOW - 10)]);
    assert_eq!(both.learn(said(3, 5, NOW)), Learned::Known, "later");
    assert_eq!(both.learn(said(1, 5, NOW + 1000)), Learned::Instead);
    assert_eq!(both.learn(said(3, 5, NOW - 100)), Learned::Known);
    assert_eq!(both.of(id(5)).unwrap().issuer, Issuer::Root);
    assert_eq!(both.len(), 1);
}

#[test]
fn there_is_a_bound() {
    let mut full = RevocationSet::default();
    let template = said(1, 5, NOW);
    for n in 0..limits::REVOCATIONS {
        let mut bytes = [0xee; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        let held = Held { id: RevocationId::from_bytes(bytes), signed: Arc::clone(&template) };
        full.by_node.insert(NodeId::from_bytes(bytes), held);
    }
    assert_eq!(full.learn(said(1, 6, NOW)), Learned::Full);
    assert!(!full.is_revoked(id(6)));
    assert_eq!(full.ids().len(), limits::REVOCATIONS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Members that hear the same revocations in any order, and again and again as sync brings them, end with the same, as long as no
    /// revoked admin is among the issuers.
    #[test]
    fn the_order_does_not_matter(order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle()) {
        let all = [
            said(2, 5, NOW), said(3, 5, NOW), said(1, 6, NOW + 5), said(2, 6, NOW), said(3, 7, NOW), said(3, 8, NOW + 1),
        ];
        let mut heard = RevocationSet::default();
        for at in order.iter().chain(&order) {
            let _ = heard.learn(Arc::clone(&all[*at]));
        }
        let straight = set(&all.iter().collect::<Vec<_>>());
        prop_assert_eq!(heard.ids(), straight.ids());
        prop_assert_eq!(heard.len(), 4);
    }
}
