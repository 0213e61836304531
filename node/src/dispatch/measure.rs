//! What dispatch counts.
use std::time::Duration;

use crate::metrics::RouterMetrics;

impl RouterMetrics {
    pub(super) fn placed(&self, result: &str) {
        self.decisions.with_label_values(&[result]).inc();
    }

    pub(super) fn reserved(&self, result: &str) {
        self.reservations.with_label_values(&[result]).inc();
    }

    pub(super) fn decided(&self, took: Duration, filtered: impl Iterator<Item = &'static str>) {
        self.decision_seconds.observe(took.as_secs_f64());
        for reason in filtered {
            self.filtered.with_label_values(&[reason]).inc();
        }
    }

    /// Predicted over real.
    #[expect(clippy::cast_precision_loss, reason = "a duration, not an identity")]
    pub(super) fn estimated(&self, predicted_ms: f64, took_ms: u64) {
        self.estimate_ratio.observe(predicted_ms / (took_ms as f64).max(0.1));
    }
}
