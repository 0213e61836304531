//! The configuration as text, for `octomesh config show`.
use octomesh_tools::size::Size;
use serde::Serialize;

use super::{
    NodeConfig,
    origin::Origin,
    raw::{Found, KEYS, variable},
};

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownValue {
    /// Dotted.
    pub key: &'static str,
    /// As text; never a secret.
    pub value: String,
    /// Where it stands.
    pub origin: Origin,
    /// The variable that would set it.
    pub variable: String,
}

pub(super) fn values(config: &NodeConfig, found: &Found) -> Vec<ShownValue> {
    KEYS.iter()
        .map(|key| ShownValue {
            key,
            value: text(config, key),
            origin: found.get(key).map_or(Origin::Default, |(_, origin)| origin.clone()),
            variable: variable(key),
        })
        .collect()
}

fn joined<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// In the largest unit that says it exactly, as the configuration takes it.
fn time(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    match units.into_iter().find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

fn text(config: &NodeConfig, key: &str) -> String {
    match key {
        "advertise" => joined(&config.advertise),
        "api" => config.api.to_string(),
        "api_token" => if config.api_token.is_some() { "(set)" } else { "(from api.token)" }.to_owned(),
        "blobs.limit" => Size(config.blob_limit_bytes).to_string(),
        "certificate_lifetime" => time(config.certificate_lifetime_s),
        "engine" => config.engine.clone(),
        "gpus" => config
            .gpus
            .iter()
            .map(|gpu| format!("{}={}", gpu.name, Size(gpu.vram_bytes)))
            .collect::<Vec<_>>()
            .join(", "),
        "hardware.nvml" => config
            .hardware
            .nvml
            .as_ref()
            .map_or_else(|| "(found by the loader)".to_owned(), |p| p.display().to_string()),
        "hardware.probe" => config.hardware.probe.to_string(),
        "hardware.sysfs" => config.hardware.sysfs.display().to_string(),
        "lazy_tools" => config.lazy_tools.to_string(),
        "listen" => joined(&config.listen),
        "log" => config.log.clone(),
        "mdns" => config.mdns.to_string(),
        "models.servers" => joined(&config.model_servers),
        "relay" => config.relay.to_string(),
        "peers" => joined(&config.peers),
        "region" => config.region.clone(),
        "sandbox.min_level" => config.sandbox.min_level.to_string(),
        "sandbox.uid_base" => config.sandbox.uid_base.to_string(),
        "slots" => config.slots.to_string(),
        "tags" => joined(&config.tags),
        "wake.auto" => config.wake.auto.to_string(),
        "wake.offer" => config.wake.offer.to_string(),
        "yield.battery" => config.yields.battery.to_string(),
        "yield.gpu_busy" => config.yields.gpu_busy.map_or_else(|| "off".to_owned(), |p| p.to_string()),
        "yield.quiet_hours" => joined(&config.yields.quiet_hours),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::time;
    use crate::config::validate::parse_time;

    #[test]
    fn a_time_is_shown_as_it_may_be_written() {
        for (seconds, text) in [(31_536_000, "365d"), (7200, "2h"), (5400, "90m"), (90, "90s"), (0, "0s")] {
            assert_eq!(time(seconds), text);
            assert_eq!(parse_time(text), Some(seconds));
        }
    }
}
