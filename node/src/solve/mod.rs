//! The solve loop: a question becomes blocks and steps, every step runs somewhere in the mesh, and the answer names its sources.
//!
//! ```text
//!  question ── plan ── manage ──┬─ act ── run (StepPort) ── check ─┬── format ── answer
//!                               │           ^                      │
//!                               │           └── needs_revision ────┤   3 attempts, then `unresolved`
//!                               └──────────── next step or block ──┘
//! ```
//!
//! * [`state`] decides: a pure machine that turns events into effects. It has no clock, no files and no network.
//! * [`task`] performs the effects through the traits of [`ports`] and [`roles`]. One task per run owns everything of the run.
//! * [`memory`] is the record of the run, written atomically after every step.
//! * [`rules`] is the embedded engine: it plans without a model, and asks instead of guessing.

pub mod block;
pub mod check;
pub mod citations;
pub mod doubt;
pub mod event;
pub mod format;
pub mod limits;
pub mod memory;
pub mod outcome;
pub mod plan;
pub mod ports;
pub mod references;
pub mod roles;
pub mod rules;
pub mod state;
pub mod task;

#[cfg(test)]
mod tests;
