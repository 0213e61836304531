//! A manifest, whose hash is the right one.
#![no_main]
use octomesh_protocol::{advert::Manifest, id::ToolSetHash, limits};
use sha2::{Digest as _, Sha256};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let hash = Sha256::new().chain_update(b"octomesh-manifest-v1").chain_update(data).finalize();
    if let Ok(manifest) = Manifest::from_bytes(data, ToolSetHash::from_bytes(hash.into())) {
        let entries = manifest.entries();
        assert!(entries.len() <= limits::TOOLS_PER_NODE && entries.is_sorted_by(|a, b| a.name < b.name));
        let again = manifest.to_bytes().unwrap();
        assert_eq!(Manifest::from_bytes(&again, manifest.hash().unwrap()).unwrap(), manifest);
    }
});
