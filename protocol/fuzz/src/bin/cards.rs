//! Requests and replies of `/octomesh/cards/1`.
#![no_main]
use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    codec, limits,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(request) = codec::decode::<CardsRequest, { limits::CARDS_REQUEST_BYTES }>(data) {
        let again = codec::encode::<_, { limits::CARDS_REQUEST_BYTES }>(&request).unwrap();
        assert_eq!(codec::decode::<CardsRequest, { limits::CARDS_REQUEST_BYTES }>(&again).unwrap(), request);
    }
    if let Ok(reply) = codec::decode::<CardsReply, { limits::CARDS_REPLY_BYTES }>(data) {
        let again = codec::encode::<_, { limits::CARDS_REPLY_BYTES }>(&reply).unwrap();
        assert_eq!(codec::decode::<CardsReply, { limits::CARDS_REPLY_BYTES }>(&again).unwrap(), reply);
    }
});
