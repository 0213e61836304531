//! Expected completion time in milliseconds, term by term.
use octomesh_protocol::{
    advert::LoadState,
    card::{Source, ToolCard},
    id::NodeId,
};
use serde::Serialize;
use tokio::time::Instant;

use super::{History, reservation::Unseen};
use crate::membership::view::Member;

/// A round trip that nobody measured. Worse than any home network, so that unknown is not mistaken for fast.
const UNKNOWN_RTT_MS: f64 = 50.0;
/// Time until a dead node is noticed and its step can be placed again, in milliseconds.
const DETECTION_MS: f64 = 2000.0;

/// The terms of a cost, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Terms {
    /// One round trip.
    pub rtt: f64,
    /// Work that stands before this step.
    pub wait: f64,
    /// Bytes that are not there yet.
    pub transfer: f64,
    /// The call itself.
    pub exec: f64,
    /// Start-up of a tool that is not loaded.
    pub cold: f64,
    /// Failure rate times what a failure costs.
    pub risk: f64,
}

impl Terms {
    /// The cost.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.rtt + self.wait + self.transfer + self.exec + self.cold + self.risk
    }

    /// The least time until the outcome. Estimates are often off by a factor of two, so half of the estimated work counts.
    #[must_use]
    pub fn at_least(&self) -> f64 {
        self.rtt + self.transfer + (self.wait + self.exec) / 2.0
    }
}

/// What is known of a candidate when its cost is worked out.
pub(super) struct CostOf<'a> {
    pub(super) member: &'a Member,
    pub(super) local: bool,
    pub(super) card: &'a ToolCard,
    pub(super) load: LoadState,
    pub(super) unseen: Unseen,
    pub(super) speed_percent: u16,
    pub(super) argument_bytes: u64,
    pub(super) work_bytes: u64,
}

impl CostOf<'_> {
    pub(super) fn terms(&self, history: &History, now: Instant) -> Terms {
        let node: NodeId = self.member.node;
        let mut terms = Terms {
            rtt: if self.local { 0.0 } else { rtt_ms(self.member) },
            wait: self.load.wait_ms(self.unseen.steps, self.unseen.work_ms),
            transfer: if self.local { 0.0 } else { float(self.argument_bytes) / history.bandwidth(node) },
            exec: history.exec_ms(node, &self.card.name, self.work_bytes, self.prior_ms()) * self.load.pace(),
            cold: if history.is_warm(node, &self.card.name, now) {
                0.0
            } else {
                start_up_ms(self.card.source)
            },
            risk: 0.0,
        };
        let rerun = terms.rtt + terms.transfer + terms.exec;
        terms.risk = history.failure_rate(node, now) * (DETECTION_MS + rerun);
        terms
    }

    /// What the card says, at the speed of that machine. 0 is a machine that does not know its speed.
    pub(super) fn prior_ms(&self) -> f64 {
        let speed = if self.speed_percent == 0 { 100.0 } else { f64::from(self.speed_percent) };
        f64::from(self.card.typical_ms) * 100.0 / speed
    }
}

/// A measured zero does not exist: it is a clock that was not read.
fn rtt_ms(member: &Member) -> f64 {
    member.rtt.filter(|rtt| !rtt.is_zero()).map_or(UNKNOWN_RTT_MS, |rtt| rtt.as_secs_f64() * 1000.0)
}

/// Start-up of a tool by its kind, in milliseconds. Built-in tools have none; a process tool starts with every call, so that
/// it is part of the call's own time.
const fn start_up_ms(source: Source) -> f64 {
    match source {
        Source::Builtin | Source::Process => 0.0,
        Source::Wasm => 50.0,
        Source::Mcp => 500.0,
        Source::Engine => 2000.0,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes and durations; a millionth of a percent does not matter"
)]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_sum() {
        let t = Terms { rtt: 1.0, wait: 2.0, transfer: 3.0, exec: 4.0, cold: 5.0, risk: 6.0 };
        assert_eq!(t.sum(), 21.0);
        assert_eq!(t.at_least(), 7.0);
    }
}
