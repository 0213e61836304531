//! Bytes and texts that must not change without a new protocol id.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use octomesh_protocol::{
    id::{MeshId, NodeId, NodeName},
    join::{self, JoinAnswer, JoinGrant, JoinRefusal, JoinRequest},
    limits,
    session::{
        self,
        handshake::TranscriptHash,
        secret::{MeshSecret, OneTimeSecret},
    },
    sync::MemberAddress,
    trust::{
        CertificateRequest, Grants, IdentityError, MeshRoot, NodeIdentity, Role, Side, Ticket, TicketError,
        TicketId, VerifiedLinks, certificate::LIFETIME_S, identity_payload,
    },
};

const NOW: u64 = 1_800_000_000;
const H: TranscriptHash = TranscriptHash::from_bytes([0x11; 32]);

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    hex(&Sha256::digest(bytes))
}

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

fn admin() -> NodeIdentity {
    NodeIdentity::from_seed([2; 64])
}

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

fn request(identity: &NodeIdentity, text: &str, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity.public().clone(),
        name: name(text),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

fn chain() -> octomesh_protocol::trust::CertificateChain {
    root().issue(request(&admin(), "attic", Role::Admin)).unwrap()
}

fn ticket() -> Ticket {
    Ticket {
        mesh: root().mesh_id(),
        issuer: admin().node_id(),
        addresses: vec!["192.168.1.20:7400".into(), "[fd00::1]:7400".into()],
        secret: OneTimeSecret::from_bytes([9; 32]),
        role: Role::Worker,
        expires: NOW + 3600,
    }
}

#[test]
fn names_of_protocols() {
    let mesh = MeshId::from_bytes([0xaa; 32]);
    assert_eq!(session::prologue(mesh), [b"octomesh/pq/1", &[0xaa; 32][..]].concat());
    assert_eq!(join::prologue(mesh), [b"octomesh/join/1", &[0xaa; 32][..]].concat());
    assert_eq!(session::SUITE, "X25519MLKEM768_ChaChaPoly_SHA256");
}

/// Frozen: a chain of two certificates with all its keys and signatures, which ML-DSA-65 makes deterministically.
#[test]
fn certificate_chain() {
    let worker = request(&NodeIdentity::from_seed([3; 64]), "tower", Role::Worker);
    let bytes = chain().issue(&admin(), worker).unwrap().to_bytes().unwrap();
    assert_eq!(
        (bytes.len(), sha256(&bytes)),
        (12_860, "adaf6221c0aee234d1f11c0ab5261089de4adb31f2304ad038bbcb6b88adcc6e".to_owned())
    );
    assert_eq!(
        hex(root().mesh_id().as_bytes()),
        "5403e367937b424aea51e0407af9c97b182c9a9fe022b0b57d664fea8617c8c1"
    );
    // The root's Ed25519 key, which a reader finds first.
    assert_eq!(hex(&bytes[..32]), "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c");
}

#[test]
fn identity_payload_and_join_request() {
    let payload = identity_payload::build(&admin(), &chain(), Side::Responder, H, NOW).unwrap();
    assert_eq!(
        (payload.len(), sha256(&payload)),
        (10_787, "60224a41c24187cda64bd9f0dcd0c49e2fd2b7af86f8b8e95e14ff2284b12863".to_owned())
    );
    let joiner = NodeIdentity::from_seed([5; 64]);
    let request = JoinRequest::build(&joiner, &name("pi"), NOW, H).unwrap();
    assert_eq!(
        (request.len(), sha256(&request)),
        (5369, "1914568ce8aa01560e90b13823d33c9f40d7134452840ce4f68935fae7f6a6f2".to_owned())
    );
}

/// A payload whose two signatures are by different keys: one of them is the right one, and that is not enough.
#[test]
fn only_one_good_signature_is_refused() {
    let mesh = root().mesh_id();
    let links = VerifiedLinks::new();
    let good = identity_payload::build(&admin(), &chain(), Side::Responder, H, NOW).unwrap();
    let thief = NodeIdentity::from_seed([7; 64]);
    let stolen = identity_payload::build(&thief, &chain(), Side::Responder, H, NOW).unwrap();
    let ml_dsa_at = good.len() - 3309;
    for mixed in [
        [&good[..ml_dsa_at], &stolen[ml_dsa_at..]].concat(),
        [&stolen[..ml_dsa_at], &good[ml_dsa_at..]].concat(),
    ] {
        let refused = identity_payload::verify(&mixed, Side::Responder, H, mesh, NOW, 300, &links);
        assert_eq!(refused.unwrap_err(), IdentityError::Signature);
    }

    // The same for who asks to join: the keys of one, and one signature of somebody else's.
    let good = JoinRequest::build(&admin(), &name("pi"), NOW, H).unwrap();
    let other = JoinRequest::build(&thief, &name("pi"), NOW, H).unwrap();
    let (signatures_at, ml_dsa_at) = (good.len() - 3373, good.len() - 3309);
    for forged in [
        [&good[..signatures_at], &other[signatures_at..ml_dsa_at], &good[ml_dsa_at..]].concat(),
        [&good[..ml_dsa_at], &other[ml_dsa_at..]].concat(),
    ] {
        let refused = JoinRequest::verify(&forged, H).unwrap_err();
        assert_eq!(refused, join::JoinRequestError::Signature);
    }
}

#[test]
fn ticket_text() {
    let text = ticket().to_text().unwrap();
    assert_eq!(
        *text,
        "octo1afkahy3hsn5uesxkkhqea6xzzf5rqle2t7qcfmfvpvte72ugc7emdajzo4hkq7ixl5lkgvdgyngh5tglrwfjdnhog6rf35qploh4tm4uaiitcojsfyytmobogexdemb2g42damaolntgimbqhi5dcxj2g42damajbeeqscijbeeqscijbeeqscijbeeqscijbeeqscijbeeqscijbea7yehajfv6sd7m2a"
    );
    assert_eq!(ticket().id().to_string(), "e10124b11f8e9069");
    assert_eq!(Ticket::parse(&text).unwrap(), ticket());
    assert_eq!(Ticket::parse(&format!("  {}\n", text.to_uppercase())).unwrap(), ticket());
    assert_eq!("e10124b11f8e9069".parse::<TicketId>().unwrap(), ticket().id());
}

#[test]
fn what_is_wrong_with_a_ticket_is_told() {
    let text = ticket().to_text().unwrap();
    for at in 0..text.len() {
        let mut typo: Vec<char> = text.chars().collect();
        typo[at] = if typo[at] == 'a' { 'b' } else { 'a' };
        let typo: String = typo.into_iter().collect();
        let expected = if at < 5 { TicketError::Prefix } else { TicketError::Typo };
        assert_eq!(Ticket::parse(&typo).unwrap_err(), expected, "character {at}");
        let lost = [&text[..at], &text[at + 1..]].concat();
        assert!(
            matches!(Ticket::parse(&lost), Err(TicketError::Typo | TicketError::Prefix)),
            "character {at}"
        );
    }
    assert_eq!(Ticket::parse("hello").unwrap_err(), TicketError::Prefix);
    assert_eq!(Ticket::parse("").unwrap_err(), TicketError::Prefix);
    assert_eq!(Ticket::parse(&"octo1a".repeat(10_000)).unwrap_err(), TicketError::TooLong);
    // Two swapped characters.
    let mut swapped: Vec<char> = text.chars().collect();
    let at = (6..swapped.len() - 1).find(|at| swapped[*at] != swapped[at + 1]).unwrap();
    swapped.swap(at, at + 1);
    assert_eq!(Ticket::parse(&swapped.into_iter().collect::<String>()).unwrap_err(), TicketError::Typo);
}

#[test]
fn a_ticket_of_another_version_is_told() {
    use sha2::{Digest as _, Sha256};
    let text = ticket().to_text().unwrap();
    let mut bytes = data_encoding::BASE32_NOPAD.decode(text[5..].to_uppercase().as_bytes()).unwrap();
    bytes.truncate(bytes.len() - 4);
    bytes[0] = 2;
    let sum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&sum[..4]);
    let other = format!("octo1{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase());
    assert_eq!(Ticket::parse(&other).unwrap_err(), TicketError::Version(2));
}

#[test]
fn a_tickets_time_and_content() {
    assert!(ticket().check_time(NOW + 3600).is_ok());
    let error = ticket().check_time(NOW + 2 * 3600).unwrap_err();
    assert_eq!(error, TicketError::Expired { ago_s: 3600 });
    let mut long = ticket();
    long.addresses = vec!["1.2.3.4:5".into(); 9];
    assert_eq!(long.to_text().unwrap_err(), TicketError::Content);
    let mut odd = ticket();
    odd.addresses = vec!["attic".into()];
    assert_eq!(odd.to_text().unwrap_err(), TicketError::Content);
    let debug = format!("{:?}", ticket());
    assert!(debug.contains("[secret]") && !debug.contains("9, 9"), "{debug}");
}

#[test]
fn an_identity_payload_holds_in_one_place_only() {
    let mesh = root().mesh_id();
    let payload = identity_payload::build(&admin(), &chain(), Side::Responder, H, NOW).unwrap();
    let links = VerifiedLinks::new();
    let verify = |payload: &[u8], side, h| identity_payload::verify(payload, side, h, mesh, NOW, 300, &links);
    let peer = verify(&payload, Side::Responder, H).unwrap();
    assert_eq!((peer.node, peer.unix_time), (admin().node_id(), NOW));
    assert_eq!(verify(&payload, Side::Initiator, H).unwrap_err(), IdentityError::Signature);
    let other = TranscriptHash::from_bytes([0x12; 32]);
    assert_eq!(verify(&payload, Side::Responder, other).unwrap_err(), IdentityError::Signature);
    // Another key with the admin's certificates.
    let thief = NodeIdentity::from_seed([7; 64]);
    let stolen = identity_payload::build(&thief, &chain(), Side::Responder, H, NOW).unwrap();
    assert_eq!(verify(&stolen, Side::Responder, H).unwrap_err(), IdentityError::Signature);
    for at in (0..payload.len()).step_by(41) {
        let mut bad = payload.clone();
        bad[at] ^= 4;
        assert!(verify(&bad, Side::Responder, H).is_err(), "byte {at}");
    }
    let mut newer = payload;
    newer[0] = 2;
    assert_eq!(verify(&newer, Side::Responder, H).unwrap_err(), IdentityError::Version(2));
}

#[test]
fn clocks_that_differ_are_told() {
    let end = NOW + LIFETIME_S;
    let payload = identity_payload::build(&admin(), &chain(), Side::Initiator, H, end - 10).unwrap();
    let mesh = root().mesh_id();
    let links = VerifiedLinks::new();
    let verify =
        |now| identity_payload::verify(&payload, Side::Initiator, H, mesh, now, 300, &links).unwrap_err();
    assert_eq!(
        verify(end + 3 * 3600).to_string(),
        "certificate of attic: clocks differ by 3 h or the certificate ended then (the other side's clock is 3 h 10 s behind this one)"
    );
    let ended = identity_payload::build(&admin(), &chain(), Side::Initiator, H, end + 3600).unwrap();
    let error =
        identity_payload::verify(&ended, Side::Initiator, H, mesh, end + 3600, 300, &links).unwrap_err();
    assert!(matches!(error, IdentityError::Certificate(_)), "{error}");
}

#[test]
fn join_request_and_answers() {
    let joiner = NodeIdentity::from_seed([5; 64]);
    let payload = JoinRequest::build(&joiner, &name("pi"), NOW, H).unwrap();
    let request = JoinRequest::verify(&payload, H).unwrap();
    assert_eq!(request, JoinRequest { keys: joiner.public().clone(), name: name("pi"), unix_time: NOW });
    assert!(JoinRequest::verify(&payload, TranscriptHash::from_bytes([0; 32])).is_err());
    for at in (0..payload.len()).step_by(41) {
        let mut bad = payload.clone();
        bad[at] ^= 4;
        assert!(JoinRequest::verify(&bad, H).is_err(), "byte {at}");
    }

    let refused = JoinAnswer::Refused { reason: JoinRefusal::NameTaken, detail: "by tower".into() };
    assert_eq!(hex(&refused.to_bytes().unwrap()), "0103086279 20746f776572".replace(' ', ""));
    assert_eq!(JoinAnswer::from_bytes(&refused.to_bytes().unwrap()).unwrap(), refused);
    let wordy = JoinAnswer::Refused { reason: JoinRefusal::Used, detail: "x".repeat(5000) };
    assert!(JoinAnswer::from_bytes(&wordy.to_bytes().unwrap()).is_err());
}

#[test]
fn a_grant_fits_into_a_record_whatever_the_mesh() {
    let member = |n: u8| MemberAddress {
        node: NodeId::from_bytes([n; 32]),
        name: name("tower"),
        addresses: vec!["x".repeat(128); 8],
    };
    let grant = |members| {
        JoinAnswer::Granted(JoinGrant {
            chain: chain(),
            mesh_secret: MeshSecret::from_bytes([6; 32]),
            members,
            revocations: vec![vec![5; 12_000]; limits::JOIN_REVOCATIONS],
        })
    };
    let small = grant(vec![member(1)]);
    assert_eq!(JoinAnswer::from_bytes(&small.to_bytes().unwrap()).unwrap(), small);
    let bytes = grant((0..=255).map(member).collect()).to_bytes().unwrap();
    assert!(bytes.len() <= session::record::MAX_BODY_BYTES);
    let JoinAnswer::Granted(cut) = JoinAnswer::from_bytes(&bytes).unwrap() else { panic!("refused") };
    assert!((16..256).contains(&cut.members.len()), "{}", cut.members.len());
    assert!(!format!("{cut:?}").contains("6, 6"));
}
