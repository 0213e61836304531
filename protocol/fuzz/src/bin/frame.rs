//! Length prefix, version and kind of a frame.
#![no_main]
use octomesh_protocol::{
    frame::{self, FrameError},
    limits,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((prefix, rest)) = data.split_first_chunk() {
        let claimed = u32::from_be_bytes(*prefix) as usize;
        match frame::payload_length(*prefix, limits::STEP_FRAME_BYTES) {
            Ok(size) => assert!(size == claimed && (2..=limits::STEP_FRAME_BYTES).contains(&size)),
            Err(FrameError::TooLarge { size, .. }) => assert!(size > limits::STEP_FRAME_BYTES),
            Err(error) => assert_eq!(error, FrameError::TooShort),
        }
        if let Ok((kind, body)) = frame::split(rest) {
            let again = frame::join(kind, body, usize::MAX).unwrap();
            assert_eq!(&again[frame::LENGTH_BYTES..], rest);
        }
    }
});
