//! What the network counts, in the terms of its driver.
use std::time::Duration;

use crate::metrics::NetMetrics;
use octomesh_protocol::session::SUITE;

impl NetMetrics {
    pub(super) fn gossip(&self, direction: &str, bytes: usize) {
        self.gossip_messages.with_label_values(&[direction, "advert"]).inc();
        self.gossip_bytes.with_label_values(&[direction, "advert"]).inc_by(bytes as u64);
    }

    /// A membership message.
    pub(super) fn swim(&self, direction: &str, bytes: usize) {
        self.gossip_messages.with_label_values(&[direction, "swim"]).inc();
        self.gossip_bytes.with_label_values(&[direction, "swim"]).inc_by(bytes as u64);
    }

    /// All sessions, and those of them that go over a relay.
    pub(super) fn open_sessions(&self, open: usize, relayed: usize) {
        self.sessions.with_label_values(&[SUITE]).set(i64::try_from(open).unwrap_or(i64::MAX));
        self.relayed_sessions.set(i64::try_from(relayed).unwrap_or(i64::MAX));
    }

    /// Kind and result are from fixed sets.
    pub(super) fn relay(&self, kind: &'static str, result: &'static str) {
        self.relay_requests.with_label_values(&[kind, result]).inc();
    }

    pub(super) fn handshake_ok(&self, direction: &str, took: Duration) {
        self.handshakes.with_label_values(&[direction, "ok"]).inc();
        self.handshake_seconds.observe(took.as_secs_f64());
    }

    /// `result` is one of the causes: a fixed set.
    pub(super) fn handshake_failed(&self, direction: &str, result: &'static str) {
        self.handshakes.with_label_values(&[direction, result]).inc();
    }
}
