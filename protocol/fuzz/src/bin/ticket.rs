//! A ticket's text; and, past the checksum, its content.
#![no_main]
use octomesh_protocol::trust::Ticket;
use sha2::{Digest as _, Sha256};

const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// `octo1` and base32 of `content` with its checksum.
fn text(content: &[u8]) -> String {
    let bytes = [content, &Sha256::digest(content)[..4]].concat();
    let (mut text, mut held, mut bits) = ("octo1".to_owned(), 0u32, 0);
    for byte in bytes {
        held = held << 8 | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(DIGITS[(held >> bits) as usize & 31]));
        }
        held &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(DIGITS[(held << (5 - bits)) as usize & 31]));
    }
    text
}

fn check(text: &str) {
    if let Ok(ticket) = Ticket::parse(text) {
        assert!(ticket.addresses.len() <= 8);
        let again = ticket.to_text().unwrap();
        assert_eq!(Ticket::parse(&again).unwrap(), ticket);
        let _ = ticket.check_time(u64::MAX);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        check(text);
    }
    check(&text(data));
});
