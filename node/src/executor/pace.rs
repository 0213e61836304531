//! How long steps take here against what was expected of them. A machine that its owner uses, that is hot, or whose estimates are all
//! wrong runs everything slower; those who send steps should hear of it at once, not each after some slow steps of its own.
use std::time::Duration;

use tokio::time::Instant;

/// Weight of the newest step. One step says little: sizes differ by more than machines do.
const NEWEST: f64 = 0.2;
/// What was seen counts half after this time without a step: whatever slowed the machine down may be over.
const HALF_LIFE: Duration = Duration::from_secs(5);
/// Bounds of the factor: beyond them something is broken rather than slow.
const BOUNDS: (f64, f64) = (0.25, 8.0);

/// A moving average of real over expected durations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Natural logarithm of the factor.
    log: f64,
    at: Option<Instant>,
}

impl Pace {
    /// A step that was expected to take `est_ms` took `elapsed_ms`.
    pub(super) fn observe(&mut self, est_ms: u32, elapsed_ms: u64, now: Instant) {
        #[expect(clippy::cast_precision_loss, reason = "a duration, not an identity")]
        let elapsed = (elapsed_ms as f64).max(1.0);
        let seen = (elapsed / f64::from(est_ms.max(1))).clamp(BOUNDS.0, BOUNDS.1).ln();
        let known = self.factor(now).ln();
        (self.log, self.at) = (known + NEWEST * (seen - known), Some(now));
    }

    /// Real over expected duration in percent; 100 when nothing is known.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between the bounds")]
    pub(super) fn percent(&self, now: Instant) -> u16 {
        (self.factor(now) * 100.0).round() as u16
    }

    fn factor(&self, now: Instant) -> f64 {
        let Some(at) = self.at else { return 1.0 };
        let age = now.saturating_duration_since(at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        (self.log * 0.5f64.powf(age)).exp().clamp(BOUNDS.0, BOUNDS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_a_slow_machine_and_forgets() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.factor(now), 1.0);
        for _ in 0..30 {
            pace.observe(100, 400, now);
        }
        let slow = pace.factor(now);
        assert!((3.8..4.0).contains(&slow), "{slow}");
        let later = pace.factor(now + HALF_LIFE);
        assert!((later - slow.sqrt()).abs() < 1e-9, "half of it, as a factor");
        assert!(pace.factor(now + 20 * HALF_LIFE) < 1.001);
        pace.observe(0, u64::MAX, now);
        pace.observe(u32::MAX, 0, now);
        assert!(pace.factor(now).is_finite());
    }
}
