//! When the machine is its owner's alone: pure rules over what was measured.
use std::time::Duration;

use octomesh_protocol::advert::YieldReason;
use tokio::time::Instant;

use super::CardState;
use crate::config::YieldConfig;

/// A GPU that flares up, for a page that is drawn, is not busy.
const BUSY_AFTER: Duration = Duration::from_secs(5);
/// A game's loading screen is not its end.
const BUSY_FOR: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts<'a> {
    /// Whether the machine runs on its battery; `None` without one.
    pub(crate) on_battery: Option<bool>,
    pub(crate) cards: &'a [CardState],
    /// Minute of the day, in local time; `None` when the clock tells nothing.
    pub(crate) minute: Option<u16>,
}

/// The rules with what they remember.
#[derive(Debug)]
pub(crate) struct Yields {
    config: YieldConfig,
    busy_since: Option<Instant>,
    busy_until: Option<Instant>,
}

impl Yields {
    pub(crate) fn new(config: YieldConfig) -> Self {
        Self { config, busy_since: None, busy_until: None }
    }

    /// Whether the machine is its owner's now, and why.
    pub(crate) fn decide(&mut self, facts: Facts<'_>, now: Instant) -> Option<YieldReason> {
        let busy = self.is_busy(facts.cards, now);
        let hours = &self.config.quiet_hours;
        let quiet = facts.minute.is_some_and(|minute| hours.iter().any(|h| h.contains(minute)));
        if self.config.battery && facts.on_battery == Some(true) {
            Some(YieldReason::Battery)
        } else if busy {
            Some(YieldReason::GpuBusy)
        } else {
            quiet.then_some(YieldReason::QuietHours)
        }
    }

    fn is_busy(&mut self, cards: &[CardState], now: Instant) -> bool {
        let Some(least) = self.config.gpu_busy else { return false };
        // While a step has the card, nobody can say whose work it does.
        let by_owner = |state: &CardState| {
            let ours = state.card.users.iter().flatten().any(|user| user.ours);
            state.reserved == 0 && !ours && state.card.busy_percent.is_some_and(|percent| percent >= least)
        };
        if cards.iter().any(by_owner) {
            let since = *self.busy_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= BUSY_AFTER {
                self.busy_until = Some(now + BUSY_FOR);
            }
        } else {
            self.busy_since = None;
        }
        self.busy_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{DeclaredGpu, Hours},
        load::gpu::{self, CardUser, Vendor},
    };

    fn card(busy: u8, reserved: u64) -> CardState {
        let mut card = gpu::declared(&[DeclaredGpu { name: "a".into(), vram_bytes: 24 }])[0].clone();
        (card.vendor, card.busy_percent) = (Vendor::Nvidia, Some(busy));
        CardState { card, reserved, free: Some(24) }
    }

    #[test]
    fn each_rule_counts_only_where_it_was_written() {
        let all = YieldConfig {
            battery: true,
            gpu_busy: Some(50),
            quiet_hours: vec![Hours { from: 1320, to: 420 }],
        };
        let now = Instant::now();
        let facts = Facts { on_battery: Some(true), cards: &[], minute: Some(0) };
        assert_eq!(Yields::new(all.clone()).decide(facts, now), Some(YieldReason::Battery));
        let plugged = Facts { on_battery: Some(false), ..facts };
        assert_eq!(Yields::new(all.clone()).decide(plugged, now), Some(YieldReason::QuietHours));
        let noon = Facts { on_battery: None, minute: Some(720), ..facts };
        assert_eq!(Yields::new(all.clone()).decide(noon, now), None);
        let unknown = Facts { minute: None, on_battery: None, ..facts };
        assert_eq!(Yields::new(all).decide(unknown, now), None);
        assert_eq!(Yields::new(YieldConfig::default()).decide(facts, now), None);
    }

    #[test]
    fn a_busy_gpu_is_the_owner_s_until_it_rests() {
        let mut yields = Yields::new(YieldConfig { gpu_busy: Some(50), ..YieldConfig::default() });
        let start = Instant::now();
        let mut at = |s: u64, cards: &[CardState]| {
            yields.decide(Facts { cards, ..Facts::default() }, start + Duration::from_secs(s)).is_some()
        };
        let (game, idle) = ([card(97, 0)], [card(3, 0)]);
        assert!(!at(0, &game) && !at(4, &game), "it may be a page that is drawn");
        assert!(!at(5, &idle) && !at(6, &game));
        assert!(at(11, &game));
        assert!(at(60, &idle), "a loading screen");
        assert!(!at(72, &idle));
        let step = [card(97, 8)];
        assert!(!at(100, &step) && !at(200, &step), "that is a step's work");
        let mut leaving = card(97, 0);
        leaving.card.users = Some(vec![CardUser { pid: 1, bytes: None, call: None, ours: true }]);
        assert!(!at(300, &[leaving.clone()]) && !at(310, &[leaving]));
    }
}
