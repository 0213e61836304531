//! Just enough of PNG to know that a file is a picture: signature, size, checksums, and that there is image data to its end.
use std::path::Path;

/// Width and height of a sound PNG file.
///
/// # Panics
/// When it is not one.
pub fn png_size(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut rest = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n").expect("a PNG signature");
    let (mut size, mut image, mut ended) = (None, 0, false);
    while !rest.is_empty() {
        assert!(!ended, "something stands after the end");
        let length = word(rest) as usize;
        let (kind, body) = (&rest[4..8], &rest[8..8 + length]);
        assert_eq!(word(&rest[8 + length..]), crc(&rest[4..8 + length]), "a checksum is wrong");
        match kind {
            b"IHDR" => size = Some((word(body), word(&body[4..]))),
            b"IDAT" => image += length,
            b"IEND" => ended = true,
            _ => {}
        }
        rest = &rest[12 + length..];
    }
    assert!(ended && image > 0, "the file is cut off");
    size.expect("a header")
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 },
        )
    })
}
