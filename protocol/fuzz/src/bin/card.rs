//! A tool card, whose hash is the right one.
#![no_main]
use octomesh_protocol::{card::ToolCard, id::CardHash};
use sha2::{Digest as _, Sha256};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let hash = Sha256::new().chain_update(b"octomesh-card-v1").chain_update(data).finalize();
    if let Ok(card) = ToolCard::from_bytes(data, CardHash::from_bytes(hash.into()))
        && let Ok(bytes) = card.to_bytes()
    {
        assert!(ToolCard::from_bytes(&bytes, card.hash().unwrap()).is_ok());
    }
});
