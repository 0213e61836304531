//! Whether the machine runs on its battery, as the kernel shows it.
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tokio::sync::watch;

use super::sysfs::{names, text};

const EVERY: Duration = Duration::from_secs(5);

/// `None` without a battery of the machine itself: those of mice are somebody else's.
pub(super) fn on_battery(sysfs: &Path) -> Option<bool> {
    let folder = sysfs.join("class/power_supply");
    let (mut battery, mut discharging, mut plugged) = (false, false, false);
    for name in names(&folder) {
        let supply = folder.join(name);
        let says = |file: &str| text(&supply.join(file)).unwrap_or_default();
        match says("type").as_str() {
            "Battery" if says("scope") != "Device" && says("present") != "0" => {
                battery = true;
                discharging |= says("status") == "Discharging";
            }
            "Mains" | "USB" | "Wireless" => plugged |= says("online") == "1",
            _ => {}
        }
    }
    battery.then_some(discharging && !plugged)
}

/// Looks again and again on a thread of its own: an embedded controller may take its time.
pub(super) fn watch(sysfs: PathBuf) -> watch::Receiver<Option<bool>> {
    let (out, reader) = watch::channel(None);
    let started = thread::Builder::new().name("power".into()).spawn(move || {
        while !out.is_closed() {
            out.send_replace(on_battery(&sysfs));
            thread::sleep(EVERY);
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for looking at the battery; it is not known");
    }
    reader
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_laptop_a_mouse_and_a_tower() {
        let sys = tempfile::tempdir().unwrap();
        let set = |supply: &str, files: &[(&str, &str)]| {
            let folder = sys.path().join("class/power_supply").join(supply);
            fs::create_dir_all(&folder).unwrap();
            for (file, content) in files {
                fs::write(folder.join(file), format!("{content}\n")).unwrap();
            }
        };
        assert_eq!(on_battery(sys.path()), None, "a tower");
        set("hidpp_battery_0", &[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")]);
        assert_eq!(on_battery(sys.path()), None, "its mouse");
        set("BAT0", &[("type", "Battery"), ("status", "Discharging"), ("present", "1")]);
        set("AC", &[("type", "Mains"), ("online", "0")]);
        assert_eq!(on_battery(sys.path()), Some(true));
        set("AC", &[("online", "1")]);
        assert_eq!(on_battery(sys.path()), Some(false), "a weak charger");
        set("AC", &[("online", "0")]);
        set("BAT0", &[("status", "Full")]);
        assert_eq!(on_battery(sys.path()), Some(false));
    }
}
