//! Between the pure core and the rest: streams, clocks and counters on one side, the member table on the other.
use std::sync::Arc;

use octomesh_protocol::{id::NodeId, swim::Message};
use prometheus::IntCounterVec;
use tokio::time::Instant;

use super::core::{At, Effect, Input, Swim};
use crate::{app::clock::Clock, membership::view::MemberState, net::SwimLink};

/// What the member table is told.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    /// A member is in another state.
    State { node: NodeId, to: MemberState },
    /// A session with a member is wanted.
    Wanted { node: NodeId },
    /// A packet of the member itself came.
    Heard { node: NodeId },
}

/// SWIM of this node with its streams.
pub(crate) struct SwimPort {
    swim: Swim,
    link: SwimLink,
    clock: Arc<dyn Clock>,
    dropped: IntCounterVec,
}

impl SwimPort {
    /// `incarnation` is greater than that of every earlier start, and on the disk.
    pub(crate) fn new(
        me: NodeId,
        incarnation: u64,
        link: SwimLink,
        clock: Arc<dyn Clock>,
        dropped: IntCounterVec,
    ) -> Self {
        let mut seed = [0; 32];
        for part in seed.chunks_exact_mut(8) {
            part.copy_from_slice(&clock.id_bytes());
        }
        Self { swim: Swim::new(me, incarnation, seed), link, clock, dropped }
    }

    /// What the network or the owner says.
    pub(crate) fn give(&mut self, input: Input) -> Vec<Told> {
        let at = At { now: Instant::now(), boot: self.clock.since_boot(), unix: self.clock.unix() };
        let mut told = Vec::new();
        for effect in self.swim.handle(input, at) {
            match effect {
                Effect::Send { to, message } => {
                    if !self.link.send(to, message) {
                        self.dropped.with_label_values(&["swim"]).inc();
                    }
                }
                Effect::Dial { node } => told.push(Told::Wanted { node }),
                Effect::State { node, to } => told.push(Told::State { node, to }),
                Effect::Refused { from, why } => {
                    // Not louder: a hostile member could fill the log.
                    self.dropped.with_label_values(&["swim"]).inc();
                    tracing::debug!(node = from.short(), why, "a membership message was refused");
                }
                Effect::Paused { gap } => {
                    let seconds = gap.as_secs_f64();
                    tracing::warn!(
                        seconds,
                        "this node stood still; nobody is declared down until others have answered"
                    );
                }
            }
        }
        told
    }

    /// Waits for the next message, or until it is time. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Vec<Told> {
        let wake = self.swim.wake(Instant::now());
        tokio::select! {
            (from, message) = self.link.receive() => {
                let packet = matches!(message, Message::Packet(_));
                let mut told = self.give(Input::Message { from, message });
                if packet {
                    told.push(Told::Heard { node: from });
                }
                told
            }
            () = tokio::time::sleep_until(wake) => self.give(Input::Tick),
        }
    }

    /// Says good-bye to everybody, and waits a moment until that has left.
    pub(crate) async fn leave(&mut self) {
        self.give(Input::Leave);
        self.link.flush().await;
    }
}
