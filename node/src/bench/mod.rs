//! Measurements for `octomesh bench`. Those that measure this machine run their variants in turn, round by round, so that a machine
//! that gets slower or faster meanwhile does so for all of them.

pub(crate) mod dispatch;
pub(crate) mod router;
#[cfg(feature = "bench-sessions")]
pub(crate) mod sessions;
mod statistics;
