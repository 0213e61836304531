//! Payloads of messages 2 and 3: raw, changed, and changed and signed anew by the one it speaks of. Only who holds the certified keys gets
//! through, and only with the chain unchanged.
#![no_main]
use std::sync::LazyLock;

use octomesh_fuzz::{CHAIN, H, NOW, ROOT, WORKER, edited};
use octomesh_protocol::trust::{Domain, Side, VerifiedLinks, identity_payload, keys::SIGNATURE_BYTES};
use sha2::{Digest as _, Sha256};

static GOOD: LazyLock<Vec<u8>> =
    LazyLock::new(|| identity_payload::build(&WORKER, &CHAIN, Side::Responder, H, NOW).unwrap());
static LINKS: LazyLock<VerifiedLinks> = LazyLock::new(VerifiedLinks::new);

fn verifies(payload: &[u8], side: Side) -> bool {
    identity_payload::verify(payload, side, H, ROOT.mesh_id(), NOW, 300, &LINKS).is_ok()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(!verifies(data, Side::Responder) || data == *GOOD);
    assert!(!verifies(&GOOD, Side::Initiator));
    let changed = edited(&GOOD, data);
    assert_eq!(verifies(&changed, Side::Responder), changed == *GOOD);
    let unsigned = edited(&GOOD[..GOOD.len() - SIGNATURE_BYTES], data);
    let message = [b"R", &H.as_bytes()[..], &Sha256::digest(&unsigned)].concat();
    let signature = WORKER.sign(Domain::Identity, &message).unwrap();
    let signed = [&unsigned[..], signature.as_bytes()].concat();
    if verifies(&signed, Side::Responder) {
        let chain = CHAIN.to_bytes().unwrap();
        // The time of the sender is its own affair; everything after it is not.
        assert!(unsigned.ends_with(&chain) && unsigned[0] == 1);
    }
});
