//! Tools: cards, registry, lazy loading, built-in and process tools.
//!
//! The life of a call: discover (a card, by name or search) -> load (lazily, once) -> authorise (the executor) -> validate the
//! arguments against the card's schema -> run with a deadline and a cancel token -> cap the output -> result.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod availability;
pub mod builtin;
pub mod call;
pub mod load;
pub mod manifest;
pub mod names;
pub mod policy;
pub mod process;
pub mod registry;
pub mod regular;
pub mod sandbox;
pub mod schema;
pub mod search;
pub mod size;
mod snapshot;
pub mod tool;
pub mod watch;
