//! Message 2 of the handshake. Nothing but the real one is taken.
#![no_main]
use octomesh_fuzz::{MESSAGES, edited, initiator};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let raw = data.len() % 2 == 0;
    let message = if raw { data.to_vec() } else { edited(&MESSAGES[1], data) };
    assert_eq!(initiator().0.read(&message).is_ok(), message == MESSAGES[1]);
});
