//! An advert as gossip brings it.
#![no_main]
use octomesh_fuzz::node;
use octomesh_protocol::{advert::Advert, limits};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(advert) = Advert::from_bytes(data, node(1)) {
        assert_eq!(advert.node, node(1));
        assert!(advert.gpus.len() <= limits::ADVERT_GPUS && advert.models.len() <= limits::ADVERT_MODELS);
        let again = advert.to_bytes().unwrap();
        assert_eq!(Advert::from_bytes(&again, node(1)).unwrap(), advert);
        assert!(Advert::from_bytes(data, node(2)).is_err());
        let mut cut = advert.clone();
        cut.truncate();
        assert_eq!(cut, advert);
    }
});
