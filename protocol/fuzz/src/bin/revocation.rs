//! A revocation: raw, and a good one with changes. Nothing that says something else than the good one verifies.
#![no_main]
use std::sync::LazyLock;

use octomesh_fuzz::{NOW, ROOT, edited, node};
use octomesh_protocol::trust::SignedRevocation;

static GOOD: LazyLock<SignedRevocation> =
    LazyLock::new(|| SignedRevocation::by_root(&ROOT, node(9), NOW, "stolen").unwrap());

fn check(bytes: &[u8]) {
    if let Ok(signed) = SignedRevocation::from_bytes(bytes) {
        let again = SignedRevocation::from_bytes(&signed.to_bytes().unwrap()).unwrap();
        assert_eq!(again, signed);
        assert_eq!(signed.verify(ROOT.mesh_id()).is_ok(), signed == *GOOD);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    check(&edited(&GOOD.to_bytes().unwrap(), data));
});
