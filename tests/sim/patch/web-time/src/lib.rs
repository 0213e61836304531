//! Stands in for `web-time`, through which libp2p and yamux read clocks: both clocks are tokio's, which can be stopped.
use std::{cell::OnceCell, convert::Infallible};
pub use std::time::Duration;

pub use tokio::time::Instant;

/// What the wall clock shows when it is first asked for: 15 January 2027.
const BEGIN: Duration = Duration::from_secs(1_800_000_000);

thread_local! {
    static FIRST: OnceCell<Instant> = const { OnceCell::new() };
}

/// A wall clock that goes as tokio's does; as time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SystemTime(Duration);

impl SystemTime {
    /// 1970.
    pub const UNIX_EPOCH: Self = Self(Duration::ZERO);

    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let first = FIRST.with(|first| *first.get_or_init(Instant::now));
        Self(BEGIN + first.elapsed())
    }

    /// The time since `earlier`; none when that is later.
    ///
    /// # Errors
    /// Never.
    pub fn duration_since(&self, earlier: Self) -> Result<Duration, Infallible> {
        Ok(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for SystemTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}
