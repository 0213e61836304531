use super::{
    super::{
        certificate::{BACKDATED_S, LIFETIME_S, Wire},
        keys::Signature,
        role::Grants,
    },
    *,
};
use crate::id::NodeName;

const NOW: u64 = 1_800_000_000;
const TOLERANCE: u64 = 300;

fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 64])
}

fn request(node: &NodeIdentity, name: &str, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: node.public().clone(),
        name: NodeName::parse(name).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
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
    assert_eq!(&verified.root, root().public());
}

#[test]
fn another_mesh_is_refused() {
    let other = MeshRoot::from_seed([9; 64]);
    let error = admin_chain().verify(other.mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::OtherMesh { wanted: other.mesh_id(), got: root().mesh_id() });

    // The right root key in front of another root's certificate: its mesh is signed.
    let foreign = other.issue(request(&identity(3), "tower", Role::Worker)).unwrap();
    let mixed = CertificateChain::new(root().public().clone(), foreign.certificates);
    let error = mixed.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert_eq!(error, CertificateError::MixedMesh(NodeName::parse("tower").unwrap()));
}

#[test]
fn a_swapped_key_is_refused() {
    let mut chain = admin_chain();
    let mut certificate = chain.leaf().unwrap().clone();
    certificate.node = identity(8).node_id();
    certificate.ml_dsa = identity(8).public().ml_dsa().clone();
    let signature = chain.certificates[0].signature.clone();
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
        root().public().clone(),
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
        root().public().clone(),
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
        let chain = CertificateChain::new(root().public().clone(), certificates);
        let error = chain.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
        assert_eq!(error, CertificateError::ChainLength(length));
    }
}

#[test]
fn a_link_that_is_missing_or_wrong_is_refused() {
    let chain = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let tower = || NodeName::parse("tower").unwrap();
    let alone = CertificateChain::new(root().public().clone(), vec![chain.certificates[0].clone()]);
    assert_eq!(
        alone.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err(),
        CertificateError::IssuerMismatch(tower())
    );
    let other = root().issue(request(&identity(6), "other", Role::Admin)).unwrap();
    let wrong = CertificateChain::new(
        root().public().clone(),
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
    let long = CertificateChain::new(root().public().clone(), vec![chain.certificates[0].clone(), middle]);
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
    // A stride that meets every field; the length of a whole chain makes each check cost half a millisecond.
    for at in (0..bytes.len()).step_by(41) {
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

/// Half of a good signature beside half of somebody else's good signature over the same bytes.
fn half_signed(certificate: Certificate, ed25519: &NodeIdentity, ml_dsa: &NodeIdentity) -> SignedCertificate {
    let mut signed = forged(certificate.clone(), ed25519);
    let other = forged(certificate, ml_dsa);
    let mut bytes = *signed.signature.as_bytes();
    bytes[64..].copy_from_slice(&other.signature.as_bytes()[64..]);
    signed.signature = Signature::from_bytes(bytes);
    signed
}

#[test]
fn only_one_good_signature_is_refused() {
    let chain = admin_chain().issue(&identity(2), request(&identity(3), "tower", Role::Worker)).unwrap();
    let leaf = || chain.certificates[0].certificate.clone();
    let verify = |leaf| {
        let parts = vec![leaf, chain.certificates[1].clone()];
        CertificateChain::new(root().public().clone(), parts).verify(root().mesh_id(), NOW, TOLERANCE)
    };
    assert!(verify(half_signed(leaf(), &identity(2), &identity(2))).is_ok());
    let expected = CertificateError::Signature(NodeName::parse("tower").unwrap());
    assert_eq!(verify(half_signed(leaf(), &identity(2), &identity(8))).unwrap_err(), expected);
    assert_eq!(verify(half_signed(leaf(), &identity(8), &identity(2))).unwrap_err(), expected);
}

#[test]
fn the_mesh_id_is_of_both_root_keys() {
    let mut seed = [1; 64];
    seed[63] ^= 1;
    let other = MeshRoot::from_seed(seed);
    assert_eq!(other.public().ed25519(), root().public().ed25519());
    assert_ne!(other.mesh_id(), root().mesh_id());
    // A chain of it is another mesh's, although Ed25519 alone would not tell.
    let foreign = other.issue(request(&identity(3), "tower", Role::Worker)).unwrap();
    let error = foreign.verify(root().mesh_id(), NOW, TOLERANCE).unwrap_err();
    assert!(matches!(error, CertificateError::OtherMesh { .. }));
}

/// A link is remembered with its issuer and its signatures, and nothing else about it is.
#[test]
fn a_remembered_link_vouches_for_itself_only() {
    let links = VerifiedLinks::new();
    let mesh = root().mesh_id();
    let chain = admin_chain();
    chain.verify_with(mesh, NOW, TOLERANCE, &links).unwrap();
    chain.verify_with(mesh, NOW, TOLERANCE, &links).unwrap();
    let late = chain.verify_with(mesh, NOW + 2 * LIFETIME_S, TOLERANCE, &links).unwrap_err();
    assert!(matches!(late, CertificateError::Expired { .. }));

    let mut bad = chain.clone();
    let mut signature = *bad.certificates[0].signature.as_bytes();
    signature[3000] ^= 1;
    bad.certificates[0].signature = Signature::from_bytes(signature);
    let error = bad.verify_with(mesh, NOW, TOLERANCE, &links).unwrap_err();
    assert_eq!(error, CertificateError::Signature(NodeName::parse("attic").unwrap()));

    // The same certificate and signature under another root.
    let other = MeshRoot::from_seed([9; 64]);
    let moved = CertificateChain::new(other.public().clone(), chain.certificates);
    assert!(moved.verify_with(other.mesh_id(), NOW, TOLERANCE, &links).is_err());
}

#[test]
fn grants_that_do_not_fit_are_refused_at_the_issue() {
    let name = |n: usize| crate::id::ToolName::parse(&format!("{:a<63}{}", "t", n % 10)).unwrap();
    let mut large = request(&identity(3), "tower", Role::Worker);
    large.grants.tools = Some((0..12).map(name).collect());
    assert!(root().issue(large.clone()).is_ok());
    large.grants.tools = Some((0..20).map(name).collect());
    assert!(matches!(root().issue(large).unwrap_err(), CertificateError::Codec(_)));
}

/// The largest identity payload that can be is one that a handshake carries.
#[test]
fn the_largest_chain_fits_a_handshake_message() {
    use crate::{
        session::handshake::{MESSAGE_2_OVERHEAD, TranscriptHash},
        trust::{Side, identity_payload},
    };
    let name = |n: usize| crate::id::ToolName::parse(&format!("{:a<63}{}", "t", n % 10)).unwrap();
    let longest = "n".repeat(limits::NODE_NAME_BYTES);
    let with_tools = |identity: &NodeIdentity, role, tools: usize| {
        let mut large = request(identity, &longest, role);
        large.grants.tools = Some((0..tools).map(name).collect());
        large
    };
    let admin = root().issue(with_tools(&identity(2), Role::Admin, 12)).unwrap();
    let chain = admin.issue(&identity(2), with_tools(&identity(3), Role::Worker, 12)).unwrap();
    let h = TranscriptHash::from_bytes([1; 32]);
    let payload = identity_payload::build(&identity(3), &chain, Side::Responder, h, NOW).unwrap();
    assert!(payload.len() <= limits::IDENTITY_PAYLOAD_BYTES);
    const { assert!(limits::IDENTITY_PAYLOAD_BYTES + MESSAGE_2_OVERHEAD <= limits::HANDSHAKE_MESSAGE_BYTES) };
    let links = VerifiedLinks::new();
    let mesh = root().mesh_id();
    identity_payload::verify(&payload, Side::Responder, h, mesh, NOW, TOLERANCE, &links).unwrap();
}
