//! Tests of whole runs; the fixtures are also those of the rules engine's tests.
mod answers;
pub(super) mod fixtures;
mod orders;
mod record;
mod runs;
