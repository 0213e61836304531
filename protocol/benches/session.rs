//! What sessions and certificates cost, without a network: `cargo bench -p octomesh-protocol`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark fails by panicking"
)]
use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use octomesh_protocol::{
    id::{MeshId, NodeName},
    session::{
        self, AEAD_PROVIDER,
        handshake::{
            AwaitHello, HandshakeError, Initiator, InitiatorRandom, Params, ResponderRandom, Split,
            StaticKey, TranscriptHash,
        },
        record::{HEADER_BYTES, LENGTH_BYTES, Opener, RecordLimits, Sealer},
        rekey::{Opened, Session},
        secret::{PreSharedKey, SessionKey},
    },
    trust::{
        CLOCK_TOLERANCE_S, CertificateChain, CertificateRequest, Domain, Grants, MeshRoot, NodeIdentity,
        Role, Side, VerifiedLinks, certificate::LIFETIME_S, identity_payload,
    },
};
use zeroize::Zeroizing;

const NOW: u64 = 1_800_000_000;

fn params(psk: u8, key: u8) -> Params {
    let prologue = session::prologue(MeshId::from_bytes([0xaa; 32]));
    Params::new(PreSharedKey::from_bytes([psk; 32]), prologue, StaticKey::from_secret([key; 32]))
}

fn initiator_random() -> InitiatorRandom {
    InitiatorRandom::from_bytes(&Zeroizing::new([3; InitiatorRandom::BYTES]))
}

fn responder_random() -> ResponderRandom {
    ResponderRandom::from_bytes(&Zeroizing::new([4; ResponderRandom::BYTES]))
}

fn shake_hands(a: &Params, b: &Params) -> (Split, Split) {
    let nothing = |_| Ok::<_, HandshakeError>(Vec::new());
    let (a, first) = Initiator::start(a, initiator_random()).unwrap();
    let b = AwaitHello::new(b).read(&first).unwrap();
    let (second, b) = b.write(responder_random(), nothing).unwrap();
    let (a, _) = a.read(&second).unwrap();
    let (third, a) = a.write(nothing).unwrap();
    (a, b.read(&third).unwrap().1)
}

fn handshake(c: &mut Criterion) {
    let (a, b) = (params(7, 1), params(7, 2));
    c.bench_function("handshake, both sides, no identities", |bench| bench.iter(|| shake_hands(&a, &b)));
    let (_, first) = Initiator::start(&params(8, 1), initiator_random()).unwrap();
    assert!(AwaitHello::new(&b).read(&first).is_err());
    let mut group = c.benchmark_group("refusal");
    group.throughput(Throughput::Elements(1));
    group.bench_function("first message with another psk", |bench| {
        bench.iter(|| AwaitHello::new(&b).read(black_box(&first)).is_err());
    });
    group.finish();
}

fn records(c: &mut Criterion) {
    let limits = RecordLimits { records: u64::MAX, bytes: u64::MAX };
    let key = SessionKey::from_bytes([5; 32]);
    let mut group = c.benchmark_group(format!("records by {AEAD_PROVIDER}"));
    for (name, bytes) in [("64 B", 64), ("16 KiB", 16 << 10), ("64 KiB", session::record::MAX_BODY_BYTES)] {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut sealer = Sealer::new(&key, limits);
        let mut record = vec![0; HEADER_BYTES + bytes];
        group.bench_function(format!("seal {name}"), |bench| {
            bench.iter(|| {
                record.truncate(HEADER_BYTES + bytes);
                sealer.seal(&mut record).unwrap();
            });
        });
        // Sealing is part of it, since a record opens only once; the difference to the above is the opening.
        let (mut sealer, mut opener) = (Sealer::new(&key, limits), Opener::new(&key, limits));
        group.bench_function(format!("seal and open {name}"), |bench| {
            bench.iter(|| {
                record.truncate(HEADER_BYTES + bytes);
                sealer.seal(&mut record).unwrap();
                black_box(opener.open(record.split_at_mut(LENGTH_BYTES).1).unwrap());
            });
        });
    }
    group.finish();
}

/// A record with its length cut off.
fn opened<'a>(session: &mut Session, record: &'a mut [u8]) -> Opened<'a> {
    session.open(record.split_at_mut(LENGTH_BYTES).1).unwrap()
}

fn rekey(c: &mut Criterion) {
    let (a, b) = shake_hands(&params(7, 1), &params(7, 2));
    let limits = RecordLimits::default();
    let (mut a, mut b) = (Session::new(&a, true, limits), Session::new(&b, false, limits));
    c.bench_function("rekey, both sides", |bench| {
        bench.iter(|| {
            let mut init = a.start(&initiator_random()).unwrap();
            assert_eq!(opened(&mut b, &mut init), Opened::Asked);
            let mut answer = b.answer(&responder_random()).unwrap();
            let Opened::Send(mut done) = opened(&mut a, &mut answer) else { unreachable!() };
            assert_eq!(opened(&mut b, &mut done), Opened::Done);
        });
    });
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

fn certificates(c: &mut Criterion) {
    let root = MeshRoot::from_seed([1; 64]);
    let (admin, node) = (NodeIdentity::from_seed([2; 64]), NodeIdentity::from_seed([3; 64]));
    let admins = root.issue(request(&admin, "admin", Role::Admin)).unwrap();
    let chain: CertificateChain = admins.issue(&admin, request(&node, "node", Role::Worker)).unwrap();
    let mesh = root.mesh_id();
    let links = VerifiedLinks::new();
    chain.verify_with(mesh, NOW, CLOCK_TOLERANCE_S, &links).unwrap();
    c.bench_function("chain of two certificates, first time", |bench| {
        bench.iter(|| chain.verify(mesh, NOW, CLOCK_TOLERANCE_S).unwrap());
    });
    c.bench_function("chain of two certificates, known", |bench| {
        bench.iter(|| chain.verify_with(mesh, NOW, CLOCK_TOLERANCE_S, &links).unwrap());
    });
    // The time depends on the message: a signature is drawn until one fits.
    let mut number = 0_u64;
    c.bench_function("sign, both algorithms", |bench| {
        bench.iter_batched(
            || {
                number += 1;
                number.to_le_bytes()
            },
            |message| node.sign(Domain::Identity, &message).unwrap(),
            BatchSize::SmallInput,
        );
    });
    // Around the signature: the chain and its encoding.
    c.bench_function("identity payload, made", |bench| {
        bench.iter_batched(
            || {
                number += 1;
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&number.to_le_bytes());
                TranscriptHash::from_bytes(hash)
            },
            |hash| identity_payload::build(&node, &chain, Side::Initiator, hash, NOW).unwrap(),
            BatchSize::SmallInput,
        );
    });
    let hash = TranscriptHash::from_bytes([9; 32]);
    let payload = identity_payload::build(&node, &chain, Side::Initiator, hash, NOW).unwrap();
    c.bench_function("identity payload, checked, chain known", |bench| {
        bench.iter(|| {
            let side = Side::Initiator;
            identity_payload::verify(&payload, side, hash, mesh, NOW, CLOCK_TOLERANCE_S, &links).unwrap()
        });
    });
    c.bench_function("chain of two certificates, to bytes and back", |bench| {
        bench.iter(|| CertificateChain::from_bytes(&chain.to_bytes().unwrap()).unwrap());
    });
    let signature = node.sign(Domain::Identity, b"message").unwrap();
    c.bench_function("verify, both algorithms", |bench| {
        bench.iter(|| assert!(signature.verifies(node.public(), Domain::Identity, black_box(b"message"))));
    });
}

criterion_group!(benches, handshake, records, rekey, certificates);
criterion_main!(benches);
