//! The tools crate from outside: calls, files, process tools, the hot folder.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests: a failed expectation ends the test; clippy only knows this of functions marked #[test]"
)]

mod calls;
mod catalogue;
mod files;
mod process;
mod support;
mod watch;
