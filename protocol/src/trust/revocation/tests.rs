use super::*;
use crate::{
    session::secret::MeshSecret,
    trust::{
        Role, SignedRotation,
        certificate::{BACKDATED_S, CertificateError, LIFETIME_S},
        fixtures::{NOW, chain, identity, request, root},
    },
};

fn node() -> NodeId {
    identity(9).node_id()
}

fn by_admin(at: u64) -> SignedRevocation {
    SignedRevocation::by_admin(&identity(2), &chain(2, Role::Admin), node(), at, "stolen").unwrap()
}

fn travelled(signed: &SignedRevocation) -> SignedRevocation {
    SignedRevocation::from_bytes(&signed.to_bytes().unwrap()).unwrap()
}

#[test]
fn root_and_admins_revoke() {
    let mesh = root().mesh_id();
    let root_said = travelled(&SignedRevocation::by_root(&root(), node(), NOW, "").unwrap());
    assert_eq!(root_said.verify(mesh).unwrap().issuer, Issuer::Root);
    let admin_said = travelled(&by_admin(NOW));
    let said = admin_said.verify(mesh).unwrap();
    assert_eq!((said.node, said.at, said.reason.as_str()), (node(), NOW, "stolen"));
    assert_eq!(said.issuer, Issuer::Admin(identity(2).node_id()));
    assert_ne!(root_said.id(), admin_said.id());
    assert_eq!(admin_said.id(), by_admin(NOW).id());
}

/// Frozen: both forms, with all keys and signatures, which ML-DSA-65 makes deterministically.
#[test]
fn golden_bytes() {
    let sha256 = |bytes: &[u8]| data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
    let root_said = SignedRevocation::by_root(&root(), node(), NOW, "stolen").unwrap();
    let bytes = root_said.to_bytes().unwrap();
    assert_eq!((bytes.len(), sha256(&bytes).as_str()), GOLDEN_ROOT);
    let bytes = by_admin(NOW).to_bytes().unwrap();
    assert_eq!((bytes.len(), sha256(&bytes).as_str()), GOLDEN_ADMIN);
    assert_eq!(root_said.id().to_string(), GOLDEN_ID);
}

const GOLDEN_ROOT: (usize, &str) = (5443, "882e8cadf1d98710f215aede829e05f0e3ce05c3eff3c564293bbf337999d93a");
const GOLDEN_ADMIN: (usize, &str) =
    (10_897, "f6243aa770ad804fdf385b99097e5b9144230bc936c343a30737b7b1cd3b8cf1");
const GOLDEN_ID: &str = "9d5690f77ca2140481a1ab535564ca2febdbac0ef9962272cbd20291565ab990";

#[test]
fn only_one_good_signature_is_refused() {
    let mesh = root().mesh_id();
    let good = by_admin(NOW).to_bytes().unwrap();
    // The same said by a thief who has one of the two keys: its own signature where it lacks the other.
    let mut forged = by_admin(NOW);
    let content = forged.statement.content.to_vec();
    let thief = identity(7).sign(Domain::Revocation, &content).unwrap();
    let real = *identity(2).sign(Domain::Revocation, &content).unwrap().as_bytes();
    for (ed25519, ml_dsa) in [(&real, thief.as_bytes()), (thief.as_bytes(), &real)] {
        let mut mixed = *ed25519;
        mixed[64..].copy_from_slice(&ml_dsa[64..]);
        forged.statement = forged.statement.with_signature(mixed);
        assert_eq!(travelled(&forged).verify(mesh), Err(StatementError::Signature));
    }
    forged.statement = forged.statement.with_signature(real);
    assert!(forged.verify(mesh).is_ok());
    assert_eq!(forged.to_bytes().unwrap(), good);
}

#[test]
fn every_changed_bit_is_noticed() {
    let mesh = root().mesh_id();
    let good = by_admin(NOW).to_bytes().unwrap();
    for at in (0..good.len()).step_by(61).chain(0..80) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        let verified = SignedRevocation::from_bytes(&bad).and_then(|s| s.verify(mesh).cloned());
        assert!(verified.is_err(), "byte {at}");
    }
    for end in (0..good.len()).step_by(97) {
        assert!(SignedRevocation::from_bytes(&good[..end]).is_err());
    }
    assert!(SignedRevocation::from_bytes(&[&good[..], &[0]].concat()).is_err());
}

#[test]
fn another_mesh_is_refused() {
    let other = MeshRoot::from_seed([8; 64]);
    let foreign = SignedRevocation::by_root(&other, node(), NOW, "").unwrap();
    let refused = foreign.verify(root().mesh_id()).unwrap_err();
    assert_eq!(refused, StatementError::OtherMesh { wanted: root().mesh_id(), got: other.mesh_id() });
    // This mesh in the content, another one's root under it.
    let (revocation, content) =
        SignedRevocation::content(root().mesh_id(), node(), NOW, "", Issuer::Root).unwrap();
    let statement = Statement::by_root(&other, Domain::Revocation, content).unwrap();
    let mixed = SignedRevocation { revocation, statement };
    assert!(matches!(mixed.verify(root().mesh_id()), Err(StatementError::OtherMesh { .. })));
}

#[test]
fn who_is_no_admin_revokes_nobody() {
    let worker = SignedRevocation::by_admin(&identity(3), &chain(3, Role::Worker), node(), NOW, "");
    assert_eq!(worker.unwrap_err(), StatementError::NotAdmin);
    // Signed all the same, by a worker and by somebody with an admin's certificate that is not its own.
    for (seed, own) in [(3, chain(3, Role::Worker)), (3, chain(2, Role::Admin))] {
        let issuer = own.leaf().unwrap().node;
        let (revocation, content) =
            SignedRevocation::content(root().mesh_id(), node(), NOW, "", Issuer::Admin(issuer)).unwrap();
        let mut statement =
            Statement::by_admin(&identity(2), &chain(2, Role::Admin), Domain::Revocation, content.clone())
                .unwrap();
        statement.authority = crate::trust::Authority::Admin(own);
        let signature = identity(seed).sign(Domain::Revocation, &content).unwrap();
        let forged =
            SignedRevocation { revocation, statement: statement.with_signature(*signature.as_bytes()) };
        let refused = travelled(&forged).verify(root().mesh_id()).unwrap_err();
        assert!(matches!(refused, StatementError::NotAdmin | StatementError::Signature), "{refused}");
    }
    // An admin of an admin: only the root makes admins, and a chain of two is none of an admin.
    let of_two = chain(2, Role::Admin).issue(&identity(2), request(3, Role::Worker)).unwrap();
    let refused = SignedRevocation::by_admin(&identity(3), &of_two, node(), NOW, "").unwrap_err();
    assert_eq!(refused, StatementError::NotAdmin);
}

#[test]
fn it_outlives_its_issuers_certificate_and_never_predates_it() {
    let mesh = root().mesh_id();
    // `verify` has no clock: a certificate that ended since changes nothing.
    assert!(by_admin(NOW + LIFETIME_S).verify(mesh).is_ok());
    let late = by_admin(NOW + LIFETIME_S + 3600).verify(mesh).unwrap_err();
    assert!(matches!(late, StatementError::Certificate(CertificateError::Expired { .. })), "{late}");
    let early = by_admin(NOW - BACKDATED_S - 3600).verify(mesh).unwrap_err();
    assert!(matches!(early, StatementError::Certificate(CertificateError::NotYetValid { .. })), "{early}");
    assert!(by_admin(NOW - BACKDATED_S - 200).verify(mesh).is_ok(), "clocks differ");
}

#[test]
fn reasons_have_a_bound_and_nobody_revokes_itself() {
    let long = "x".repeat(limits::REASON_BYTES + 1);
    assert_eq!(SignedRevocation::by_root(&root(), node(), NOW, &long).unwrap_err(), StatementError::Reason);
    let admin = chain(2, Role::Admin);
    let itself = SignedRevocation::by_admin(&identity(2), &admin, identity(2).node_id(), NOW, "");
    assert_eq!(itself.unwrap_err(), StatementError::Itself);
    let content = Revocation {
        version: 1,
        mesh: root().mesh_id(),
        node: node(),
        at: NOW,
        reason: long,
        issuer: Issuer::Root,
    };
    let bytes = codec::encode::<_, 1024>(&content).unwrap();
    let statement = Statement::by_root(&root(), Domain::Revocation, bytes).unwrap();
    assert_eq!(
        SignedRevocation::from_bytes(&statement.to_bytes().unwrap()).unwrap_err(),
        StatementError::Reason
    );
}

#[test]
fn a_statement_for_one_purpose_is_none_for_another() {
    let rotation = SignedRotation::by_root(&root(), 1, NOW, MeshSecret::from_bytes([4; 32])).unwrap();
    assert!(SignedRevocation::from_bytes(&rotation.to_bytes().unwrap()).is_err());
    let (revocation, content) =
        SignedRevocation::content(root().mesh_id(), node(), NOW, "", Issuer::Root).unwrap();
    let statement = Statement::by_root(&root(), Domain::Certificate, content).unwrap();
    let refused = SignedRevocation { revocation, statement }.verify(root().mesh_id()).unwrap_err();
    assert_eq!(refused, StatementError::Signature);
}

#[test]
fn the_largest_fits() {
    let reason = "x".repeat(limits::REASON_BYTES);
    let admin = chain(2, Role::Admin);
    let largest = SignedRevocation::by_admin(&identity(2), &admin, node(), NOW, &reason).unwrap();
    assert!(largest.to_bytes().unwrap().len() + 1024 < limits::STATEMENT_BYTES);
}
