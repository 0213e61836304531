//! Wall clock and randomness: the only place that asks the system for either. Everything else is given a [`Clock`], so that a
//! test decides what time it is. Monotonic time is tokio's, which a test can pause.
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The system's random source failed; nothing that needs a secret can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system's random source failed")]
pub(crate) struct EntropyError;

/// Wall time and randomness.
pub(crate) trait Clock: fmt::Debug + Send + Sync {
    /// Now. May jump: for certificates, tickets and logs, never for measuring.
    fn wall(&self) -> SystemTime;

    /// Time since the machine started, its sleep included; `None` where there is no such clock. Time by tokio's clock stands still
    /// while the machine sleeps.
    fn since_boot(&self) -> Option<Duration> {
        None
    }

    /// Fills `buffer` with random bytes fit for keys.
    ///
    /// # Errors
    /// [`EntropyError`]; the buffer must not be used then.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError>;

    /// Eight bytes for an id. Ids must differ, they need not be secret: when the random source fails, time stands in for it.
    fn id_bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        if self.fill(&mut bytes).is_err() {
            let nanos = self.wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
            bytes = u64::try_from(nanos & u128::from(u64::MAX)).unwrap_or_default().to_le_bytes();
        }
        bytes
    }

    /// Now, in unix seconds; 0 for a clock before 1970.
    fn unix(&self) -> u64 {
        self.wall().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// The system's clock and random source.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place for wall time")]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Option<Duration> {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
    }

    #[expect(clippy::disallowed_methods, reason = "the one place for randomness")]
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError> {
        getrandom::fill(buffer).map_err(|_| EntropyError)
    }
}

/// A clock that stands still, or goes with tokio's, and draws the same bytes in every run.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub(crate) struct TestClock {
    unix: u64,
    goes_since: Option<tokio::time::Instant>,
    drawn: std::sync::atomic::AtomicU64,
    seed: u64,
}

#[cfg(any(test, feature = "testing"))]
impl TestClock {
    /// Stands at `unix` seconds; clocks with different seeds draw different bytes.
    #[cfg(test)]
    pub(crate) fn new(unix: u64, seed: u64) -> Self {
        Self { unix, goes_since: None, drawn: std::sync::atomic::AtomicU64::new(0), seed }
    }

    /// Shows `unix` seconds at `since`, and goes with tokio's clock from there.
    #[cfg(feature = "testing")]
    pub(crate) fn going(unix: u64, since: tokio::time::Instant, seed: u64) -> Self {
        Self { unix, goes_since: Some(since), drawn: std::sync::atomic::AtomicU64::new(0), seed }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Clock for TestClock {
    fn wall(&self) -> SystemTime {
        let gone = self.goes_since.map_or(Duration::ZERO, |since| since.elapsed());
        UNIX_EPOCH + Duration::from_secs(self.unix) + gone
    }

    fn since_boot(&self) -> Option<Duration> {
        self.goes_since.map(|since| since.elapsed())
    }

    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError> {
        use sha2::{Digest as _, Sha256};
        for chunk in buffer.chunks_mut(32) {
            let drawn = self.drawn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let block = Sha256::new()
                .chain_update(self.seed.to_le_bytes())
                .chain_update(drawn.to_le_bytes())
                .finalize();
            chunk.iter_mut().zip(block).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_bytes_differ() {
        let (mut a, mut b) = ([0; 32], [0; 32]);
        SystemClock.fill(&mut a).unwrap();
        SystemClock.fill(&mut b).unwrap();
        assert_ne!(a, b);
        assert!(SystemClock.unix() > 1_700_000_000);
        #[cfg(target_os = "linux")]
        assert!(SystemClock.since_boot().is_some_and(|since| !since.is_zero()));
    }

    #[test]
    fn a_test_clock_repeats_itself() {
        let draw = |seed| {
            let mut bytes = [0; 40];
            TestClock::new(5, seed).fill(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(TestClock::new(5, 1).unix(), 5);
    }
}
