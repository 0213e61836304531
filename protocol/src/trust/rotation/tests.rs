use super::*;
use crate::trust::{
    Role, SignedRevocation,
    fixtures::{NOW, chain, identity, root},
};

fn secret() -> MeshSecret {
    MeshSecret::from_bytes([0xab; 32])
}

fn by_admin() -> SignedRotation {
    SignedRotation::by_admin(&identity(2), &chain(2, Role::Admin), 3, NOW, secret()).unwrap()
}

#[test]
fn root_and_admins_rotate() {
    let mesh = root().mesh_id();
    for signed in [SignedRotation::by_root(&root(), 3, NOW, secret()).unwrap(), by_admin()] {
        let came = SignedRotation::from_bytes(&signed.to_bytes().unwrap()).unwrap();
        let said = came.verify(mesh).unwrap();
        assert_eq!((said.generation, &said.secret), (3, &secret()));
        assert_eq!(came.stamp(), signed.stamp());
        assert!(came.stamp() > SecretStamp::FIRST);
    }
    let worker = SignedRotation::by_admin(&identity(3), &chain(3, Role::Worker), 3, NOW, secret());
    assert_eq!(worker.unwrap_err(), StatementError::NotAdmin);
}

/// Frozen.
#[test]
fn golden_bytes() {
    let bytes = by_admin().to_bytes().unwrap();
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(&*bytes));
    assert_eq!((bytes.len(), hash.as_str()), GOLDEN);
    assert_eq!(by_admin().stamp().id.to_string(), GOLDEN_ID);
}

const GOLDEN: (usize, &str) = (10_891, "36b9d8c605005cc3d125620dcbf443da4edf7a66e41a16c40dfbb710b70c8d44");
const GOLDEN_ID: &str = "479b8bc2ba9d147947b1f5021a0147568430eba9876ebceb3d6d225376c74ce0";

#[test]
fn every_changed_bit_is_noticed() {
    let mesh = root().mesh_id();
    let good = by_admin().to_bytes().unwrap();
    for at in (0..good.len()).step_by(61).chain(0..150) {
        let mut bad = good.to_vec();
        bad[at] ^= 4;
        let verified = SignedRotation::from_bytes(&bad).and_then(|s| s.verify(mesh).cloned());
        assert!(verified.is_err(), "byte {at}");
    }
}

#[test]
fn of_two_at_once_everybody_takes_the_same() {
    let (a, b) = (by_admin(), SignedRotation::by_root(&root(), 3, NOW, secret()).unwrap());
    assert_ne!(a.stamp(), b.stamp());
    assert_ne!(a.stamp() > b.stamp(), b.stamp() > a.stamp());
    let next = SignedRotation::by_root(&root(), 4, NOW, secret()).unwrap();
    assert!(next.stamp() > a.stamp() && next.stamp() > b.stamp());
}

#[test]
fn debug_shows_no_secret_and_a_revocation_is_no_rotation() {
    let text = format!("{:?}", by_admin());
    assert!(!text.contains("ab, ab") && !text.contains("171") && !text.contains("abab"), "{text}");
    let revocation = SignedRevocation::by_root(&root(), identity(9).node_id(), NOW, "").unwrap();
    assert!(SignedRotation::from_bytes(&revocation.to_bytes().unwrap()).is_err());
}
