//! Packets of the SWIM state machine. Their codec is the node's, because it speaks the types of foca; these are the very files.
#![no_main]

#[allow(dead_code)]
#[path = "../../../../node/src/membership/swim/codec.rs"]
mod codec;
#[allow(dead_code)]
#[path = "../../../../node/src/membership/swim/identity.rs"]
mod identity;

use codec::Packet;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(packet) = Packet::read(data) {
        // There is one way to write it.
        assert_eq!(packet.write().unwrap(), data);
    }
});
