//! Every kind of `/octomesh/step/1`: the second byte is the kind. What is taken can be said again and means the same.
#![no_main]
use octomesh_protocol::{frame, step::Message};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Message::from_frame(data) {
        let again = message.to_frame().unwrap();
        assert_eq!(Message::from_frame(&again[frame::LENGTH_BYTES..]).unwrap(), message);
    }
});
