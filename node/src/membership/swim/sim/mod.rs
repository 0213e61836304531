//! Core simulation: many [`Swim`]s in virtual time, on a network that loses, delays and cuts. Everything follows from the seed.
//!
//! The network is worse than the real one: messages of a session are lost for good, while TCP would only delay them. Sessions
//! behave as the kernel makes them behave: a killed process closes its own at once and its port refuses; behind a cut nothing
//! answers, and a session ends when pings have failed.
mod scenarios;
mod world;

/// Bytes around a message on the wire: frame, yamux, record and its length. TCP and IP are not counted.
const FRAMING: usize = 6 + 12 + 19;
