//! How often limits have ended programs here.
use std::sync::atomic::{AtomicU64, Ordering};

use strum::{EnumCount, IntoEnumIterator};

use super::run::Limit;

/// A count for each limit, since the node was started.
#[derive(Debug, Default)]
pub(super) struct Kills([AtomicU64; Limit::COUNT]);

impl Kills {
    pub(super) fn count(&self, limit: Limit) {
        if let Some(count) = self.0.get(limit as usize) {
            // Only read for people: no other memory depends on it.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Limit::iter().map(<&'static str>::from).zip(counts).collect()
    }
}
