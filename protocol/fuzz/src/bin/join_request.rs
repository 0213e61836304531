//! Payload of a joiner's message 3: raw, changed, and changed and signed anew by whoever it names.
#![no_main]
use std::sync::LazyLock;

use octomesh_fuzz::{H, NOW, WORKER, edited, name};
use octomesh_protocol::{
    join::JoinRequest,
    trust::{Domain, keys::SIGNATURE_BYTES},
};
use sha2::{Digest as _, Sha256};

static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| JoinRequest::build(&WORKER, &name("pi"), NOW, H).unwrap());

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = JoinRequest::verify(data, H);
    let changed = edited(&GOOD, data);
    assert_eq!(JoinRequest::verify(&changed, H).is_ok(), changed == *GOOD);
    let unsigned = edited(&GOOD[..GOOD.len() - SIGNATURE_BYTES], data);
    let message = [b"I", &H.as_bytes()[..], &Sha256::digest(&unsigned)].concat();
    let signed = [&unsigned[..], WORKER.sign(Domain::Join, &message).unwrap().as_bytes()].concat();
    if let Ok(request) = JoinRequest::verify(&signed, H) {
        assert_eq!(request.keys, *WORKER.public());
    }
});
