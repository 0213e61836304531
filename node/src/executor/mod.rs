//! The executor's side of a step: who may run what here, when, and what came of it.
//!
//! ```text
//!  ExecutorHandle ──commands──> ExecutorTask owns { LeaseState: slots, queue, leases, epochs, results } and the running steps
//!                                    │ effects                         ▲ finished
//!                                    └──> run: journal ─ tool ─ journal ┘
//! ```
//!
//! `lease::LeaseState` decides, and is pure: inputs and the time go in, effects come out. The task performs the effects.
//! `proof::Prover` sends a small step the same way now and then: a node whose executor does not bring it to its end is not ready.
//! A step ends by itself, by a cancel, by its deadline or by a lost lease; a caller that went away does not end it.
mod config;
mod handle;
mod lease;
mod model;
mod pace;
mod ports;
mod proof;
mod queue;
mod results;
mod run;
mod serve;
mod task;
#[cfg(test)]
mod tests;
mod vram;

#[cfg(test)]
pub(crate) use self::serve::serve_stream;
pub use self::{
    config::{ExecutorConfig, Resources},
    handle::{ExecutorGone, ExecutorHandle},
    ports::{Absent, CallReport, RunContext, ToolRunner},
    proof::{Health, Prover, Unproven},
    task::{ExecutorParts, ExecutorTask, executor},
};
pub(crate) use self::{
    model::Model,
    serve::{ServeParts, serve},
};
