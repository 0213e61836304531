//! Liveness by SWIM: a pure core around the crate `foca`.
//!
//! foca does probing, indirect probing, suspicion, refutation and the spreading of news. Around it, here:
//!
//! * **Vetting.** A packet is read before foca sees it: it must come from whom it says it comes from, and what it tells of others
//!   is checked against what those say themselves.
//! * **The fast path.** When the last connection to a member closes it is suspect at once, dialled, and asked for through others.
//!   A port that refuses, with nobody who hears the member, makes it `down` within a second.
//! * **Confrontation.** Whoever is suspected or said to be down is asked directly when it is connected; an answer refutes.
//! * **Self-doubt.** A gap between two inputs was a pause of our own: running times are moved, and nobody is declared down until
//!   it is clear who still hears us.
//! * **Lives.** A node's identity is its key and a version that only it raises; a relayed record of an older life changes nothing.
//! * **The member list**, fetched in pages by whoever joins.
//!
//! Inputs, effects, no clock, no sockets: the simulation in `sim` runs a thousand of them.

mod closed;
mod codec;
mod config;
mod core;
mod identity;
#[cfg(test)]
mod laws;
mod pages;
mod peer;
mod port;
#[cfg(test)]
mod sim;
mod vet;

pub(crate) use core::Input;
pub(crate) use port::{SwimPort, Told};
