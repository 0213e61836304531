//! The program `octomesh` as a library.
//!
//! Rooms, lowest first; a room names only rooms below its own:
//!
//! ```text
//!  cli      commands; everything but init, join and up goes through the API
//!  bench    measurements of this program beside others, for `octomesh bench`
//!  app      composition: builds the tasks of a node and connects them; the API's view of the node
//!  api      HTTP
//!  solve    question -> blocks -> steps -> answer
//!  dispatch a step on its way: place, reserve, start, follow, recover
//!  router   where a step runs, in milliseconds      executor  slots, leases, running steps of this node
//!  membership  who is in the mesh, what they can do
//!  net      the only room that names libp2p         journal   SQLite, one writer
//!  discovery  interfaces, multicast DNS
//!  trust    own certificate, mesh secret, revocations
//!  config, metrics, load, app::{clock, supervise, events}
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod app;
mod bench;
mod blob;
pub mod cli;
pub mod config;
mod discovery;
mod dispatch;
pub mod executor;
pub mod journal;
mod load;
pub mod membership;
pub mod metrics;
mod net;
pub mod router;
pub mod solve;
#[cfg(feature = "testing")]
pub mod testing;
mod trust;
