//! Message 1 of the handshake. Nothing but the real one is taken.
#![no_main]
use octomesh_fuzz::{MESSAGES, edited, params};
use octomesh_protocol::session::handshake::AwaitHello;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(AwaitHello::new(&params(2)).read(data).is_err() || data == MESSAGES[0]);
    let changed = edited(&MESSAGES[0], data);
    assert_eq!(AwaitHello::new(&params(2)).read(&changed).is_ok(), changed == MESSAGES[0]);
});
