//! All randomness of the process, from one seed.
//!
//! Keys, nonces and ids of nodes come from their own seeded clocks. What is left asks the system: the keys of std's hash maps, `rand`
//! (SWIM, gossip), tokio's unbiased `select!`. Each of them ends at the symbol `getrandom` of libc, and the one that is linked in first
//! counts: this one.
#[cfg(not(getrandom_backend = "linux_getrandom"))]
compile_error!(
    "build this in its own folder, without RUSTFLAGS: `cd tests/sim`, where .cargo/config.toml is read"
);

use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// Begins anew at `seed`. Before anything asks for randomness.
pub(crate) fn seed(seed: u64) {
    STATE.store(seed, Ordering::SeqCst);
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(crate) fn next(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, z ^ (z >> 31))
}

fn draw() -> u64 {
    // The process has one thread that draws; the loop is for the type.
    let mut drawn = 0;
    let advance = |state| {
        let (state, value) = next(state);
        drawn = value;
        Some(state)
    };
    let _ = STATE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, advance);
    drawn
}

/// Takes the place of libc's.
///
/// # Safety
/// As getrandom(2): `buffer` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    let mut at = 0;
    while at < length {
        for byte in draw().to_le_bytes().into_iter().take(length - at) {
            // SAFETY: `at` is less than `length`, and the caller promises that many bytes.
            unsafe { buffer.add(at).write(byte) };
            at += 1;
        }
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// What a story chooses with: apart from the randomness of the nodes, so that a change in them does not change the story.
#[derive(Debug)]
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x0c70_0e58_51a1_1a7e)
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let (state, value) = next(self.0);
        self.0 = state;
        value % end
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap_or(0);
            list.swap(at, other);
        }
    }
}
