//! What the owner says of the machine's hardware: how it is read, when it is the owner's alone, and how it wakes.
use std::path::PathBuf;

/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// A path in a configuration is not longer.
const PATH_BYTES: usize = 4096;

/// How hardware is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardwareConfig {
    /// Whether drivers are asked for GPUs.
    pub probe: bool,
    /// The NVIDIA driver's library; the system's loader looks for it when absent.
    pub nvml: Option<PathBuf>,
    /// Where the kernel shows hardware; another place than `/sys` in a container.
    pub sysfs: PathBuf,
}

/// A part of every day, in local time; it may go over midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    /// The first minute of it.
    pub from: u16,
    /// The first minute after it.
    pub to: u16,
}

impl Hours {
    /// Whether a minute of the day is in it.
    #[must_use]
    pub fn contains(self, minute: u16) -> bool {
        if self.from <= self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

impl std::fmt::Display for Hours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

/// When the machine is its owner's alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct YieldConfig {
    /// While it runs on its battery.
    pub battery: bool,
    /// While one of its GPUs is at least this busy, in percent, and not with a step.
    pub gpu_busy: Option<u8>,
    /// In these hours.
    pub quiet_hours: Vec<Hours>,
}

/// Machines that sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeConfig {
    /// Whether this node wakes others by itself, when none that is awake has the tool.
    pub auto: bool,
    /// Whether others are told how to wake this machine.
    pub offer: bool,
}

pub(super) fn parse_hours(text: &str) -> Result<Hours, String> {
    let fail = || format!("{:?} is not of the form 22:00-07:00", text.chars().take(60).collect::<String>());
    let (from, to) = text.split_once('-').ok_or_else(fail)?;
    let minute = |text: &str| -> Option<u16> {
        let (hour, minute) = text.trim().split_once(':')?;
        let digits = |t: &str| (1..=2).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit());
        let (hour, minute) = (
            digits(hour).then(|| hour.parse::<u16>().ok())??,
            digits(minute).then(|| minute.parse::<u16>().ok())??,
        );
        (minute < 60 && hour * 60 + minute <= DAY).then_some(hour * 60 + minute)
    };
    let (from, to) = (minute(from).ok_or_else(fail)?, minute(to).ok_or_else(fail)?);
    if from == to { Err(format!("{} is no time at all", text.trim())) } else { Ok(Hours { from, to }) }
}

pub(super) fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() && text.len() <= PATH_BYTES && !text.contains('\0') {
        Ok(path)
    } else {
        Err(format!("{:?} is no absolute path", text.chars().take(60).collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_go_over_midnight() {
        let night = parse_hours("22:00-07:30").unwrap();
        assert_eq!(night.to_string(), "22:00-07:30");
        let at = |h: u16, m: u16| night.contains(h * 60 + m);
        assert_eq!([at(21, 59), at(22, 0), at(0, 0), at(7, 29), at(7, 30)], [false, true, true, true, false]);
        let noon = parse_hours("12:00 - 13:00").unwrap();
        assert_eq!([noon.contains(719), noon.contains(720), noon.contains(780)], [false, true, false]);
        assert!(parse_hours("18:00-24:00").unwrap().contains(1439));
        for bad in
            ["", "22:00", "22-07", "25:00-07:00", "22:60-07:00", "8:00-8:00", "-1:00-2:00", "24:01-3:00"]
        {
            assert!(parse_hours(bad).is_err(), "{bad}");
        }
    }
}
