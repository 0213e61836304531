use super::{
    super::{
        certificate::{BACKDATED_S, LIFETIME_S, Wire},
        role::Grants,
    },
    *,
};
use crate::id::NodeName;

const NOW: u64 = 1_800_000_000;
const TOLERANCE: u64 = 300;

fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 32])
}

fn request(node: &NodeIdentity, name: &str, role: Role) -> CertificateRequest {
    CertificateRequest {
        node: node.node_id(),
        name: NodeName::parse(name).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 32])
}

fn admin_chain() -> CertificateChain {
    root().issue(request(&identity(2), "attic", Role::Admin)).unwrap()
}

/// A leaf with any content, signed by any key.
fn forged(certificate: Certificate, signer: &NodeIdentity) -> SignedCertificate {
    SignedCertificate::sign(certificate, |bytes| signer.sign(Domain::Certificate, bytes)).unwrap()
}

#[test]
fn root_and_admin_chains_hold() {
    let mesh = root().mesh_id();
    let verified = admin_chain().verify(mesh, NOW, TOLERANCE).unwrap();
    assert_eq!(verified.certificate.role, Role::Admin);
    assert_eq!(verified.certificate.not_before, NOW - BACKDATED_S);

    let chain = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let chain = CertificateChain::from_bytes(&chain.to_bytes().unwrap()).unwrap();
    let verified = chain.verify(mesh, NOW, TOLERANCE).unwrap();
    assert_eq!(verified.certificate.node, identity(3).node_id());
    assert_eq!(verified.certificate.issuer, Issuer::Admin(identity(2).node_id()));
    assert_eq!(verified.root, root().public());
}

#[test]
fn another_mesh_is_refused() {
    let other = MeshRoot::from_seed([9; 32]);
    let error = admin_chain().verify(other.mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::OtherMesh { wanted: other.mesh_id(), got: root().mesh_id() });

    // The right root key in front of another root's certificate: its mesh is signed.
    let foreign = other.issue(request(&identity(3), "tower", Role::Worker)).unwrap();
    let mixed = CertificateChain::new(root().public(), foreign.certificates);
    let error = mixed.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::MixedMesh(NodeName::parse("tower").unwrap()));
}

#[test]
fn a_swapped_key_is_refused() {
    let mut chain = admin_chain();
    let mut certificate = chain.leaf().unwrap().clone();
    certificate.node = identity(8).node_id();
    let signature = chain.certificates[0].signature;
    let mut swapped = forged(certificate, &identity(8));
    swapped.signature = signature;
    chain.certificates[0] = swapped;
    let error = chain.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::Signature(NodeName::parse("attic").unwrap()));
}

#[test]
fn an_issuer_that_is_no_admin_is_refused() {
    let worker = root().issue(request(&identity(4), "tower", Role::Worker)).unwrap();
    let name = |text| NodeName::parse(text).unwrap();
    let expected = CertificateError::IssuerRole { name: name("pi"), issuer: name("tower") };
    let refused = worker.issue(&identity(4), request(&identity(5), "pi", Role::Worker)).unwrap_err();
    assert_eq!(refused, expected);

    let leaf = request(&identity(5), "pi", Role::Worker)
        .certificate(root().mesh_id(), Issuer::Admin(identity(4).node_id()));
    let chain = CertificateChain::new(
        root().public(),
        vec![forged(leaf, &identity(4)), worker.certificates[0].clone()],
    );
    assert_eq!(chain.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(), expected);
}

#[test]
fn only_the_root_makes_admins() {
    let made = admin_chain().issue(&identity(2), request(&identity(5), "pi", Role::Admin)).unwrap_err();
    assert_eq!(made, CertificateError::AdminByAdmin(NodeName::parse("pi").unwrap()));
    let leaf = request(&identity(5), "pi", Role::Admin)
        .certificate(root().mesh_id(), Issuer::Admin(identity(2).node_id()));
    let chain = CertificateChain::new(
        root().public(),
        vec![forged(leaf, &identity(2)), admin_chain().certificates[0].clone()],
    );
    assert_eq!(
        chain.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(),
        CertificateError::AdminByAdmin(NodeName::parse("pi").unwrap())
    );
}

#[test]
fn chains_of_none_and_of_three_are_refused() {
    let leaf = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let mut three = leaf.certificates;
    three.push(admin_chain().certificates[0].clone());
    for (certificates, length) in [(three, 3), (Vec::new(), 0)] {
        let chain = CertificateChain::new(root().public(), certificates);
        let error = chain.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
        assert_eq!(error, CertificateError::ChainLength(length));
    }
}

#[test]
fn a_link_that_is_missing_or_wrong_is_refused() {
    let chain = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let tower = || NodeName::parse("tower").unwrap();
    let alone = CertificateChain::new(root().public(), vec![chain.certificates[0].clone()]);
    assert_eq!(
        alone.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(),
        CertificateError::IssuerMismatch(tower())
    );
    let other = root().issue(request(&identity(6), "other", Role::Admin)).unwrap();
    let wrong = CertificateChain::new(
        root().public(),
        vec![chain.certificates[0].clone(), other.certificates[0].clone()],
    );
    assert_eq!(
        wrong.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(),
        CertificateError::IssuerMismatch(tower())
    );
    // An admin whose own certificate claims an admin as issuer, with the signature of the root's certificate.
    let mut middle = admin_chain().certificates[0].certificate.clone();
    middle.issuer = Issuer::Admin(identity(7).node_id());
    let middle = forged(middle, &identity(7));
    let long = CertificateChain::new(root().public(), vec![chain.certificates[0].clone(), middle]);
    assert_eq!(
        long.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(),
        CertificateError::IssuerMismatch(NodeName::parse("attic").unwrap())
    );
}

#[test]
fn time_is_checked_with_tolerance_and_told() {
    let chain = admin_chain();
    let mesh = root().mesh_id();
    let end = NOW + LIFETIME_S;
    assert!(chain.verify(mesh, end + TOLERANCE, TOLERANCE).is_ok());
    let late = chain.verify(mesh, end + 3 * 3600, TOLERANCE).unwrap_err();
    assert_eq!(late.to_string(), "certificate of attic: clocks differ by 3 h or the certificate ended then");
    let begin = NOW - BACKDATED_S;
    assert!(chain.verify(mesh, begin - TOLERANCE, TOLERANCE).is_ok());
    let early = chain.verify(mesh, begin - TOLERANCE - 1, TOLERANCE).unwrap_err();
    assert!(matches!(early, CertificateError::NotYetValid { in_s: 301, .. }), "{early}");
    assert!(chain.verify(mesh, 0, TOLERANCE).is_err());
    assert!(chain.verify(mesh, u64::MAX, TOLERANCE).is_err());
}

#[test]
fn an_expired_admin_takes_its_members_along() {
    let mut short = request(&identity(2), "attic", Role::Admin);
    short.lifetime_s = 1000;
    let admin = root().issue(short).unwrap();
    let chain = admin.issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let error = chain.verify(root().mesh_id(), NOW + 2000, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::Expired { name: NodeName::parse("attic").unwrap(), ago_s: 1000 });
}

#[test]
fn every_changed_byte_of_a_chain_is_caught() {
    let chain = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let bytes = chain.to_bytes().unwrap();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        let refused = CertificateChain::from_bytes(&bad)
            .map_or(true, |bad| bad.verify(root().mesh_id(), NOW, TOLERANCE).is_err());
        assert!(refused, "byte {at}");
    }
}

#[test]
fn another_version_is_named() {
    let mut certificate = admin_chain().leaf().unwrap().clone();
    certificate.version = 2;
    let wire = Wire::from(forged(certificate, &identity(1)));
    assert_eq!(SignedCertificate::try_from(wire).unwrap_err(), CertificateError::Version(2));
}

#[test]
fn an_admin_can_not_issue_with_anothers_key() {
    let error = admin_chain().issue(&identity(9), request(&identity(3), "tower", Role::Worker)).unwrap_err();
    assert!(matches!(error, CertificateError::IssuerRole { .. }));
}
