//! Composition of the node: this room constructs and connects, nothing else.
pub(crate) mod backend;
pub(crate) mod clock;
pub mod entry;
pub(crate) mod events;
mod gauges;
pub(crate) mod home;
pub(crate) mod issuer;
pub(crate) mod node;
mod node_view;
pub(crate) mod runs;
mod step_port;
pub(crate) mod supervise;
mod tools_port;
