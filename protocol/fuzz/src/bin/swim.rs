//! Frames of `/octomesh/swim/1`: packets of the state machine, requests for a page of the member list, and pages.
#![no_main]
use octomesh_protocol::{frame::LENGTH_BYTES, limits, swim::Message};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Message::from_frame(data) {
        if let Message::Page(page) = &message {
            assert!(page.members.len() <= limits::SWIM_PAGE_MEMBERS);
        }
        let frame = message.to_frame().unwrap();
        assert_eq!(Message::from_frame(&frame[LENGTH_BYTES..]).unwrap(), message);
    }
});
