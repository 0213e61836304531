//! Measurements for `octomesh bench`: each runs its variants in turn, round by round, so that a machine that gets slower or faster
//! meanwhile does so for all of them.

#[cfg(feature = "bench-sessions")]
pub(crate) mod sessions;
#[cfg(feature = "bench-sessions")]
mod statistics;
