//! Every kind of `/octomesh/blob/1`: the second byte is the kind. What is taken can be said again and means the same.
#![no_main]
use octomesh_protocol::{blob::BlobMessage, frame};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(message) = BlobMessage::from_frame(data) {
        let again = message.to_frame().unwrap();
        assert_eq!(BlobMessage::from_frame(&again[frame::LENGTH_BYTES..]).unwrap(), message);
    }
});
