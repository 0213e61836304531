//! Waiting for something that becomes true: asked again and again until a deadline, never a sleep that hopes.
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// How long things may take that have no limit of their own; the machine may be slow and busy.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(40);

/// Asks until there is an answer.
///
/// # Panics
/// With the last objection, when `patience` is over.
pub fn wait_within<T>(patience: Duration, what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + patience;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(objection) if Instant::now() >= until => {
                panic!("{what}: not within {patience:?}: {objection}")
            }
            Err(_) => sleep(POLL),
        }
    }
}

/// [`wait_within`] with the usual patience.
pub fn wait<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    wait_within(PATIENCE, what, ask)
}

/// For conditions: `Ok` or what is seen instead.
///
/// # Errors
/// `seen`, when `condition` does not hold.
pub fn when(condition: bool, seen: impl std::fmt::Debug) -> Result<(), String> {
    if condition { Ok(()) } else { Err(format!("{seen:?}")) }
}
