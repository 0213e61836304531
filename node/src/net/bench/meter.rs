//! Wall time and CPU time of a piece of work.
use std::{
    io,
    ops::{Add, Div},
    time::Duration,
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use tokio::time::Instant;

/// What something took. CPU time is that of the whole process, so of both ends and of the kernel on their behalf.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// As a clock on the wall shows it.
    pub(crate) wall: Duration,
    /// Of all cores together.
    pub(crate) cpu: Duration,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { wall: self.wall + other.wall, cpu: self.cpu + other.cpu }
    }
}

impl Div<u32> for Cost {
    type Output = Self;

    fn div(self, by: u32) -> Self {
        Self { wall: self.wall / by, cpu: self.cpu / by }
    }
}

/// Runs from its start to its reading.
#[derive(Debug)]
pub(super) struct Meter {
    began: Instant,
    cpu: Duration,
}

impl Meter {
    pub(super) fn start() -> io::Result<Self> {
        let cpu = cpu()?;
        Ok(Self { began: Instant::now(), cpu })
    }

    pub(super) fn read(&self) -> io::Result<Cost> {
        let wall = self.began.elapsed();
        Ok(Cost { wall, cpu: cpu()?.saturating_sub(self.cpu) })
    }
}

fn cpu() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(span(usage.user_time()) + span(usage.system_time()))
}

fn span(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time() {
        let meter = Meter::start().unwrap();
        let cost = loop {
            let cost = meter.read().unwrap();
            if cost.cpu > Duration::from_millis(2) {
                break cost;
            }
        };
        assert!(cost.wall >= Duration::from_millis(1), "{cost:?}");
        assert_eq!((cost + cost) / 2, cost);
    }
}
