//! Chains of one to three certificates that are really signed, by whom and saying what the data chooses: verified exactly when the rules,
//! written down here once more, allow it.
#![no_main]
use octomesh_fuzz::{ADMIN, NOW, ROOT, WORKER, byte, name};
use octomesh_protocol::{
    codec,
    id::MeshId,
    limits,
    trust::{
        Certificate, CertificateChain, Domain, Grants, Issuer, NodeIdentity, Role, SignedCertificate,
        certificate::CERTIFICATE_VERSION,
    },
};
use std::sync::LazyLock;

/// The root's keys as an identity, to sign with them; the admin; the worker.
static PEOPLE: LazyLock<[NodeIdentity; 3]> =
    LazyLock::new(|| [1, 2, 3].map(|n| NodeIdentity::from_seed([n; 64])));

struct Made {
    signed: SignedCertificate,
    subject: usize,
    signer: usize,
    issuer: Issuer,
    role: Role,
    own_mesh: bool,
    in_time: bool,
    intact: bool,
}

fn made(data: &mut &[u8]) -> Made {
    let (who, what, when) = (byte(data), byte(data), byte(data));
    let (subject, signer) = (usize::from(who % 3), usize::from(who / 3 % 3));
    let issuer = match what % 4 {
        0 | 1 => Issuer::Root,
        2 => Issuer::Admin(ADMIN.node_id()),
        _ => Issuer::Admin(WORKER.node_id()),
    };
    let role = [Role::Admin, Role::Worker, Role::Client][usize::from(what / 4 % 3)];
    let own_mesh = what < 0xe0;
    let (not_before, not_after, in_time) = match when % 8 {
        0 => (NOW + 301, NOW + 1000, false),
        1 => (NOW - 1000, NOW - 301, false),
        2 => (NOW + 300, NOW + 1000, true),
        3 => (NOW - 1000, NOW - 300, true),
        _ => (NOW - 1000, NOW + 1000, true),
    };
    let certificate = Certificate {
        version: CERTIFICATE_VERSION,
        mesh: if own_mesh { ROOT.mesh_id() } else { MeshId::from_bytes([9; 32]) },
        issuer,
        node: PEOPLE[subject].node_id(),
        ml_dsa: PEOPLE[subject].public().ml_dsa().clone(),
        name: name("tower"),
        role,
        grants: Grants::default(),
        serial: 1,
        not_before,
        not_after,
    };
    let bytes = codec::encode::<_, { limits::CERTIFICATE_BYTES }>(&certificate).unwrap();
    let domain = if when & 0x40 == 0 { Domain::Certificate } else { Domain::Join };
    let mut signature = *PEOPLE[signer].sign(domain, &bytes).unwrap().as_bytes();
    // Half of the signature by somebody else.
    let half = match when >> 4 & 3 {
        1 => Some(0..64),
        2 => Some(64..signature.len()),
        _ => None,
    };
    if let Some(half) = half.clone() {
        let other = *PEOPLE[(signer + 1) % 3].sign(domain, &bytes).unwrap().as_bytes();
        signature[half.clone()].copy_from_slice(&other[half]);
    }
    let wire = codec::encode::<_, 8192>(&(bytes, octomesh_protocol::trust::Signature::from_bytes(signature)))
        .unwrap();
    let signed = codec::decode::<SignedCertificate, 8192>(&wire).unwrap();
    let intact = half.is_none() && domain == Domain::Certificate;
    Made { signed, subject, signer, issuer, role, own_mesh, in_time, intact }
}

fn allowed(chain: &[Made]) -> bool {
    if !chain.iter().all(|made| made.own_mesh && made.in_time && made.intact) {
        return false;
    }
    match chain {
        [leaf] => leaf.issuer == Issuer::Root && leaf.signer == 0,
        [leaf, admin] => {
            admin.issuer == Issuer::Root
                && admin.signer == 0
                && admin.role == Role::Admin
                && leaf.issuer == Issuer::Admin(PEOPLE[admin.subject].node_id())
                && leaf.signer == admin.subject
                && leaf.role != Role::Admin
        }
        _ => false,
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let length = byte(&mut data) % 4;
    let chain: Vec<Made> = (0..length).map(|_| made(&mut data)).collect();
    let parts = chain.iter().map(|made| made.signed.clone()).collect();
    let verified = CertificateChain::new(ROOT.public().clone(), parts).verify(ROOT.mesh_id(), NOW, 300);
    assert_eq!(verified.is_ok(), allowed(&chain), "{verified:?}");
});
