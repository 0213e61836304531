//! Who must not get a session: each attack as a whole handshake, by somebody who has the mesh secret, once in either role. What a node
//! does about floods, clocks and revocation is tested in `node`; `tests/mutations/README.md` has the whole list.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use octomesh_protocol::{
    advert::{Manifest, ManifestError},
    card::{CardError, ToolCard},
    codec::{self, CodecError},
    id::{CardHash, MeshId, NodeName, ToolSetHash},
    join, limits,
    session::{
        self,
        handshake::{AwaitHello, HandshakeError, Initiator, Params, StaticKey, TranscriptHash},
        record::{CloseReason, Opener, RecordError, RecordLimits, Sealer},
        secret::{PreSharedKey, SessionKey},
    },
    trust::{
        Certificate, CertificateChain, CertificateError, CertificateRequest, Domain, Grants, IdentityError,
        Issuer, MeshRoot, NodeIdentity, Role, Side, Signature, SignedCertificate, VerifiedLinks,
        VerifiedPeer,
        certificate::{CERTIFICATE_VERSION, LIFETIME_S},
        identity_payload,
        keys::SIGNATURE_BYTES,
    },
};
use sha2::{Digest as _, Sha256};

mod support;
use support::{initiator_random, responder_random};

const NOW: u64 = 1_800_000_000;
const TOLERANCE: u64 = 300;

fn root() -> MeshRoot {
    MeshRoot::from_seed([1; 64])
}

fn mesh() -> MeshId {
    root().mesh_id()
}

fn identity(seed: u8) -> NodeIdentity {
    NodeIdentity::from_seed([seed; 64])
}

fn request(identity: &NodeIdentity, name: &str, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity.public().clone(),
        name: NodeName::parse(name).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    }
}

fn issued(identity: &NodeIdentity, name: &str, role: Role) -> CertificateChain {
    root().issue(request(identity, name, role)).unwrap()
}

/// A certificate that says anything, signed by anybody.
fn forged(subject: &NodeIdentity, role: Role, issuer: Issuer, signer: &NodeIdentity) -> SignedCertificate {
    let certificate = Certificate {
        version: CERTIFICATE_VERSION,
        mesh: mesh(),
        issuer,
        node: subject.node_id(),
        ml_dsa: subject.public().ml_dsa().clone(),
        name: NodeName::parse("mallory").unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        not_before: NOW - 1000,
        not_after: NOW + 1000,
    };
    let bytes = codec::encode::<_, { limits::CERTIFICATE_BYTES }>(&certificate).unwrap();
    let signature = signer.sign(Domain::Certificate, &bytes).unwrap();
    let wire = codec::encode::<_, 8192>(&(bytes, signature)).unwrap();
    codec::decode::<_, 8192>(&wire).unwrap()
}

fn chain(certificates: Vec<SignedCertificate>) -> CertificateChain {
    CertificateChain::new(root().public().clone(), certificates)
}

fn params(static_key: u8) -> Params {
    Params::new(
        PreSharedKey::from_bytes([7; 32]),
        session::prologue(mesh()),
        StaticKey::from_secret([static_key; 32]),
    )
}

/// What the member makes of the payload, at `now`.
fn verified(
    side: Side,
    payload: &[u8],
    transcript: TranscriptHash,
    now: u64,
) -> Result<VerifiedPeer, IdentityError> {
    identity_payload::verify(payload, side, transcript, mesh(), now, TOLERANCE, &VerifiedLinks::new())
}

fn member_payload(side: Side, h: TranscriptHash) -> Result<Vec<u8>, HandshakeError> {
    let member = identity(3);
    Ok(identity_payload::build(&member, &issued(&member, "tower", Role::Worker), side, h, NOW).unwrap())
}

/// A handshake between a member and somebody who says `payload` on the side `side`; what the member finds at `now`.
fn meet(
    side: Side,
    now: u64,
    payload: impl FnOnce(TranscriptHash) -> Vec<u8>,
) -> Result<VerifiedPeer, IdentityError> {
    meet_with(8, side, now, payload)
}

/// The same with another ephemeral key of the stranger.
fn meet_with(
    ephemeral: u8,
    side: Side,
    now: u64,
    payload: impl FnOnce(TranscriptHash) -> Vec<u8>,
) -> Result<VerifiedPeer, IdentityError> {
    let stranger = |h: TranscriptHash| Ok::<_, HandshakeError>(payload(h));
    let (member, other) = (params(1), params(2));
    if side == Side::Responder {
        let (state, first) = Initiator::start(&member, initiator_random(3)).unwrap();
        let hello = AwaitHello::new(&other).read(&first).unwrap();
        let (second, _) = hello.write(responder_random(ephemeral), stranger).unwrap();
        let (_, received) = state.read(&second).unwrap();
        return verified(side, &received.payload, received.transcript, now);
    }
    let (state, first) = Initiator::start(&other, initiator_random(ephemeral)).unwrap();
    let hello = AwaitHello::new(&member).read(&first).unwrap();
    let (second, answered) =
        hello.write(responder_random(4), |h| member_payload(Side::Responder, h)).unwrap();
    let (third, _) = state.read(&second).unwrap().0.write(stranger).unwrap();
    let (received, _) = answered.read(&third).unwrap();
    verified(side, &received.payload, received.transcript, now)
}

const SIDES: [Side; 2] = [Side::Initiator, Side::Responder];

/// What a member finds of a peer with these keys and this chain; the same in either role.
fn refused(who: &NodeIdentity, chain: &CertificateChain, now: u64) -> CertificateError {
    let [first, second] = SIDES.map(|side| {
        let met = meet(side, now, |h| identity_payload::build(who, chain, side, h, now).unwrap());
        match met.unwrap_err() {
            IdentityError::Certificate(error) => error,
            other => panic!("{other}"),
        }
    });
    assert_eq!(first, second);
    first
}

#[test]
fn a_member_is_let_in() {
    let (admin, worker) = (identity(2), identity(5));
    let chain = issued(&admin, "attic", Role::Admin);
    let chain = chain.issue(&admin, request(&worker, "pi", Role::Worker)).unwrap();
    for side in SIDES {
        let peer =
            meet(side, NOW, |h| identity_payload::build(&worker, &chain, side, h, NOW).unwrap()).unwrap();
        assert_eq!(peer.node, worker.node_id());
    }
}

#[test]
fn a_peer_without_certificate() {
    let mallory = identity(9);
    assert_eq!(refused(&mallory, &chain(vec![]), NOW), CertificateError::ChainLength(0));
    // One that it made for itself.
    let own = forged(&mallory, Role::Worker, Issuer::Root, &mallory);
    assert!(matches!(refused(&mallory, &chain(vec![own]), NOW), CertificateError::Signature(_)));
    for side in SIDES {
        assert!(matches!(meet(side, NOW, |_| vec![]), Err(IdentityError::Codec(_))));
    }
}

#[test]
fn a_certificate_of_another_mesh() {
    let mallory = identity(9);
    let elsewhere = MeshRoot::from_seed([8; 64]);
    let foreign = elsewhere.issue(request(&mallory, "mallory", Role::Admin)).unwrap();
    assert!(matches!(refused(&mallory, &foreign, NOW), CertificateError::OtherMesh { .. }));
    // The foreign certificate under the mesh's own root keys.
    let bytes = foreign.to_bytes().unwrap();
    let own_root = chain(vec![]).to_bytes().unwrap();
    let keys = own_root.len() - 1;
    let moved = CertificateChain::from_bytes(&[&own_root[..keys], &bytes[keys..]].concat()).unwrap();
    assert!(matches!(refused(&mallory, &moved, NOW), CertificateError::MixedMesh(_)));
}

#[test]
fn an_expired_certificate() {
    let late = NOW + LIFETIME_S + TOLERANCE + 1;
    let member = identity(5);
    let ended = issued(&member, "pi", Role::Worker);
    assert!(matches!(refused(&member, &ended, late), CertificateError::Expired { .. }));
}

#[test]
fn a_swapped_key() {
    let (member, mallory) = (identity(5), identity(9));
    let stolen = issued(&member, "pi", Role::Worker);
    for side in SIDES {
        let met = meet(side, NOW, |h| identity_payload::build(&mallory, &stolen, side, h, NOW).unwrap());
        assert_eq!(met.unwrap_err(), IdentityError::Signature);
    }
}

#[test]
fn a_peer_with_only_one_good_signature() {
    let (member, mallory) = (identity(5), identity(9));
    let stolen = issued(&member, "pi", Role::Worker);
    for side in SIDES {
        for ed25519_is_good in [true, false] {
            let met = meet(side, NOW, |h| {
                let good = identity_payload::build(&member, &stolen, side, h, NOW).unwrap();
                let bad = identity_payload::build(&mallory, &stolen, side, h, NOW).unwrap();
                let (first, second) = if ed25519_is_good { (&good, &bad) } else { (&bad, &good) };
                let cut = good.len() - SIGNATURE_BYTES + 64;
                [&first[..cut], &second[cut..]].concat()
            });
            assert_eq!(met.unwrap_err(), IdentityError::Signature);
        }
    }
    // The same for a certificate whose issuer lost one of its two keys.
    let (issuer, thief) = (NodeIdentity::from_seed([1; 64]), identity(9));
    for ed25519_is_good in [true, false] {
        let parts = [&issuer, &thief].map(|signer| {
            let signed = forged(&thief, Role::Worker, Issuer::Root, signer);
            codec::encode::<_, 8192>(&signed).unwrap()
        });
        let [good, bad] = &parts;
        let cut = good.len() - SIGNATURE_BYTES + 64;
        let (first, second) = if ed25519_is_good { (good, bad) } else { (bad, good) };
        let mixed = codec::decode::<_, 8192>(&[&first[..cut], &second[cut..]].concat()).unwrap();
        assert!(matches!(refused(&thief, &chain(vec![mixed]), NOW), CertificateError::Signature(_)));
    }
}

#[test]
fn a_chain_of_three() {
    let (admin, second, mallory) = (identity(2), identity(6), identity(9));
    let root = NodeIdentity::from_seed([1; 64]);
    let long = chain(vec![
        forged(&mallory, Role::Worker, Issuer::Admin(second.node_id()), &second),
        forged(&second, Role::Admin, Issuer::Admin(admin.node_id()), &admin),
        forged(&admin, Role::Admin, Issuer::Root, &root),
    ]);
    assert_eq!(long.verify(mesh(), NOW, TOLERANCE).unwrap_err(), CertificateError::ChainLength(3));
    // It does not fit an identity payload, nor a handshake message.
    let h = TranscriptHash::from_bytes([5; 32]);
    let built = identity_payload::build(&mallory, &long, Side::Initiator, h, NOW);
    assert!(matches!(built.unwrap_err(), IdentityError::Codec(CodecError::TooLarge { .. })));
    let unsigned = codec::encode::<_, 32_768>(&(1u8, NOW, &long)).unwrap();
    let large = [&unsigned[..], &[0; SIGNATURE_BYTES]].concat();
    let refused = verified(Side::Initiator, &large, h, NOW).unwrap_err();
    assert!(matches!(refused, IdentityError::Codec(CodecError::TooLarge { .. })), "{refused}");
    let (state, first) = Initiator::start(&params(1), initiator_random(3)).unwrap();
    let hello = AwaitHello::new(&params(2)).read(&first).unwrap();
    let written = hello.write(responder_random(4), |_| Ok::<_, HandshakeError>(large));
    assert_eq!(written.unwrap_err(), HandshakeError::Length);
    assert_eq!(
        state.read(&vec![0; limits::HANDSHAKE_MESSAGE_BYTES + 1]).unwrap_err(),
        HandshakeError::Length
    );
}

#[test]
fn an_issuer_that_is_no_admin() {
    let (worker, mallory) = (identity(5), identity(9));
    let root = NodeIdentity::from_seed([1; 64]);
    for role in [Role::Worker, Role::Client] {
        let made = chain(vec![
            forged(&mallory, Role::Worker, Issuer::Admin(worker.node_id()), &worker),
            forged(&worker, role, Issuer::Root, &root),
        ]);
        assert!(matches!(refused(&mallory, &made, NOW), CertificateError::IssuerRole { .. }));
    }
    // An admin that makes another admin.
    let admin = identity(2);
    let made = chain(vec![
        forged(&mallory, Role::Admin, Issuer::Admin(admin.node_id()), &admin),
        forged(&admin, Role::Admin, Issuer::Root, &root),
    ]);
    assert!(matches!(refused(&mallory, &made, NOW), CertificateError::AdminByAdmin(_)));
    // One who signs in the name of an admin that is another.
    let made = chain(vec![
        forged(&mallory, Role::Worker, Issuer::Admin(worker.node_id()), &worker),
        forged(&admin, Role::Admin, Issuer::Root, &root),
    ]);
    assert!(matches!(refused(&mallory, &made, NOW), CertificateError::IssuerMismatch(_)));
}

/// An admin whose certificate nobody of the mesh signed, and a member that it made.
#[test]
fn an_admin_that_made_itself() {
    let (admin, mallory) = (identity(6), identity(9));
    let made = chain(vec![
        forged(&mallory, Role::Worker, Issuer::Admin(admin.node_id()), &admin),
        forged(&admin, Role::Admin, Issuer::Root, &admin),
    ]);
    assert!(matches!(refused(&mallory, &made, NOW), CertificateError::Signature(_)));
}

/// The same certificate in other bytes, well signed: a number that takes more bytes than it needs. One certificate has one form, so that
/// its hash names it.
#[test]
fn a_certificate_in_a_second_form() {
    let member = identity(5);
    let root = NodeIdentity::from_seed([1; 64]);
    let wire = codec::encode::<_, 8192>(&forged(&member, Role::Worker, Issuer::Root, &root)).unwrap();
    let (bytes, _): (Vec<u8>, Signature) = codec::decode::<_, 8192>(&wire).unwrap();
    let again = |bytes: Vec<u8>| {
        let signature = root.sign(Domain::Certificate, &bytes).unwrap();
        let wire = codec::encode::<_, 8192>(&(bytes, signature)).unwrap();
        codec::decode::<SignedCertificate, 8192>(&wire)
    };
    assert!(again(bytes.clone()).is_ok());
    // The serial, 1, before two times of five bytes each.
    let at = bytes.len() - 11;
    assert_eq!(bytes[at], 1);
    let longer = [&bytes[..at], &[251, 1, 0], &bytes[at + 1..]].concat();
    assert_eq!(again(longer).unwrap_err(), CodecError::Malformed);
}

/// What a member says of its own clock is signed like the rest.
#[test]
fn a_changed_clock() {
    let member = identity(5);
    let chain = issued(&member, "pi", Role::Worker);
    for side in SIDES {
        let met = meet(side, NOW, |h| {
            let mut payload = identity_payload::build(&member, &chain, side, h, NOW).unwrap();
            // Version, then the time in five bytes.
            payload[4] ^= 1;
            payload
        });
        assert_eq!(met.unwrap_err(), IdentityError::Signature);
    }
}

/// Two meshes that have, by whatever accident, the same secret: refused at the first message.
#[test]
fn another_mesh_with_the_same_secret() {
    let prologues =
        [session::prologue(mesh()), session::prologue(MeshId::from_bytes([9; 32])), join::prologue(mesh())];
    let with = |prologue: &[u8]| {
        Params::new(PreSharedKey::from_bytes([7; 32]), prologue.to_vec(), StaticKey::from_secret([1; 32]))
    };
    for (n, ours) in prologues.iter().enumerate() {
        for (m, theirs) in prologues.iter().enumerate() {
            let (_, first) = Initiator::start(&with(theirs), initiator_random(3)).unwrap();
            let read = AwaitHello::new(&with(ours)).read(&first);
            assert_eq!(read.err(), (n != m).then_some(HandshakeError::Authentication));
        }
    }
}

/// An end that an outsider makes up is none.
#[test]
fn a_forged_close() {
    let key = SessionKey::from_bytes([5; 32]);
    let limits = RecordLimits::default();
    let close = Sealer::new(&key, limits).close(CloseReason::Done).unwrap();
    let opened = |mut sealed: Vec<u8>| Opener::new(&key, limits).open(&mut sealed).map(drop);
    assert_eq!(opened(close[2..].to_vec()), Ok(()));
    // Its plaintext, with a tag of nothing; the close of another session; the same close with another reason.
    assert_eq!(opened([&[4, 0][..], &[0; 16]].concat()), Err(RecordError::Authentication));
    let other = Sealer::new(&SessionKey::from_bytes([6; 32]), limits).close(CloseReason::Done).unwrap();
    assert_eq!(opened(other[2..].to_vec()), Err(RecordError::Authentication));
    let mut changed = close[2..].to_vec();
    changed[1] ^= 1;
    assert_eq!(opened(changed), Err(RecordError::Authentication));
}

/// Cards and manifests come from anybody who has them: their hash is the proof.
#[test]
fn a_card_or_manifest_other_than_asked_for() {
    let manifest = Manifest::new(vec![]);
    let bytes = manifest.to_bytes().unwrap();
    assert!(Manifest::from_bytes(&bytes, manifest.hash().unwrap()).is_ok());
    let other = Manifest::from_bytes(&bytes, ToolSetHash::from_bytes([1; 32]));
    assert!(matches!(other.unwrap_err(), ManifestError::Hash { .. }));
    let card = ToolCard::from_bytes(b"whatever", CardHash::from_bytes([1; 32]));
    assert!(matches!(card.unwrap_err(), CardError::Hash { .. }));
}

/// A member's payload, recorded in one handshake, in another one: replayed, and sent back to whoever made it.
#[test]
fn an_identity_of_another_session() {
    for side in SIDES {
        let mut recorded = Vec::new();
        meet(side, NOW, |h| {
            recorded = member_payload(side, h).unwrap();
            recorded.clone()
        })
        .unwrap();
        let other = if side == Side::Responder { Side::Initiator } else { Side::Responder };
        for to in [side, other] {
            let met = meet_with(77, to, NOW, |_| recorded.clone());
            assert_eq!(met.unwrap_err(), IdentityError::Signature, "{to:?}");
        }
    }
}

/// Somebody with the mesh secret between two members, who passes on what each says about itself: the transcripts of the two halves
/// differ, so neither identity holds on the other half.
#[test]
fn a_man_in_the_middle_with_the_mesh_secret() {
    // The half towards the listener: the listener's identity is what is to be passed on.
    let mut of_listener = Vec::new();
    let (half, first) = Initiator::start(&params(9), initiator_random(90)).unwrap();
    let hello = AwaitHello::new(&params(2)).read(&first).unwrap();
    let (second, listener) = hello
        .write(responder_random(4), |h| {
            of_listener = member_payload(Side::Responder, h)?;
            Ok::<_, HandshakeError>(of_listener.clone())
        })
        .unwrap();
    let (half, received) = half.read(&second).unwrap();
    assert_eq!(received.payload, of_listener);
    // The half towards the dialler, which refuses and says nothing of itself.
    let met = meet(Side::Responder, NOW, |_| of_listener.clone());
    assert_eq!(met.unwrap_err(), IdentityError::Signature);
    // Had the dialler said it, the listener would refuse it as well.
    let dialler = member_payload(Side::Initiator, TranscriptHash::from_bytes([5; 32])).unwrap();
    let (third, _) = half.write(|_| Ok::<_, HandshakeError>(dialler)).unwrap();
    let (received, _) = listener.read(&third).unwrap();
    let refused = verified(Side::Initiator, &received.payload, received.transcript, NOW).unwrap_err();
    assert_eq!(refused, IdentityError::Signature);
}

/// A signature that a member made for another purpose is none for a session.
#[test]
fn a_signature_for_another_purpose() {
    let member = identity(5);
    let chain = issued(&member, "pi", Role::Worker);
    for side in SIDES {
        let met = meet(side, NOW, |h| {
            let mut payload = identity_payload::build(&member, &chain, side, h, NOW).unwrap();
            let unsigned = payload.len() - SIGNATURE_BYTES;
            payload.truncate(unsigned);
            let label = if side == Side::Initiator { b"I" } else { b"R" };
            let message = [&label[..], h.as_bytes(), &Sha256::digest(&payload)].concat();
            payload.extend_from_slice(member.sign(Domain::Join, &message).unwrap().as_bytes());
            payload
        });
        assert_eq!(met.unwrap_err(), IdentityError::Signature);
    }
}
