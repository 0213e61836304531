//! A replacement of the mesh secret: raw, and a good one with changes. Nothing that says something else than the good one verifies.
#![no_main]
use std::sync::LazyLock;

use octomesh_fuzz::{NOW, ROOT, edited};
use octomesh_protocol::{session::secret::MeshSecret, trust::SignedRotation};

static GOOD: LazyLock<SignedRotation> =
    LazyLock::new(|| SignedRotation::by_root(&ROOT, 1, NOW, MeshSecret::from_bytes([6; 32])).unwrap());

fn check(bytes: &[u8]) {
    if let Ok(signed) = SignedRotation::from_bytes(bytes) {
        let again = SignedRotation::from_bytes(&signed.to_bytes().unwrap()).unwrap();
        assert_eq!(again, signed);
        assert_eq!(signed.verify(ROOT.mesh_id()).is_ok(), signed == *GOOD);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    check(&edited(&GOOD.to_bytes().unwrap(), data));
});
