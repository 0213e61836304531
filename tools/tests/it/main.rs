//! The tools crate from outside: calls, files, process tools, the hot folder.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests: a failed expectation ends the test; clippy only knows this of functions marked #[test]"
)]

mod bait;
mod calls;
mod catalogue;
mod escapes;
mod files;
mod limits;
#[cfg(feature = "sandbox-mutations")]
mod mutations;
mod process;
mod sandbox;
mod support;
mod watch;
