//! The bytes of a chain: raw, and a good one with changes. Nothing but the good one verifies.
#![no_main]
use octomesh_fuzz::{CHAIN, NOW, ROOT, edited};
use octomesh_protocol::trust::CertificateChain;

fn check(bytes: &[u8]) {
    if let Ok(chain) = CertificateChain::from_bytes(bytes) {
        let _ = chain.leaf().map(|leaf| format!("{leaf:?}"));
        let again = CertificateChain::from_bytes(&chain.to_bytes().unwrap()).unwrap();
        assert_eq!(again, chain);
        if chain != *CHAIN {
            assert!(chain.verify(ROOT.mesh_id(), NOW, 300).is_err());
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    check(&edited(&CHAIN.to_bytes().unwrap(), data));
});
