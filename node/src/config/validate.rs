//! From what was written to what the node uses: types, ranges, and values that contradict each other.
use std::{net::SocketAddr, ops::RangeInclusive};

use octomesh_protocol::{card::SandboxLevel, limits, trust::certificate::LIFETIME_S};
use octomesh_tools::{sandbox::UID_BASE, size::Size};

use super::{
    ConfinementConfig, DeclaredGpu, HardwareConfig, LazyTools, NodeConfig, Sources, WakeConfig, YieldConfig,
    origin::{ConfigErrors, Origin},
    owner,
    raw::{Found, Given},
};

/// More steps at once than any machine of a home lab runs; keeps the queue's arithmetic small.
const SLOTS: RangeInclusive<i64> = 1..=1024;
/// Not root, not a service of the system, and not -1, which the kernel takes as "no user".
const SANDBOX_UID: RangeInclusive<i64> = 1000..=(u32::MAX as i64 - 1);
/// Listen addresses, known peers: what a person writes by hand.
const LIST_ITEMS: usize = 64;
/// Short enough to type from a phone, long enough to never be guessed over HTTP.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=256;

/// Below this a node could not renew its certificate in time; above, a key that leaked would be good for a decade.
const LIFETIMES_S: RangeInclusive<u64> = 10..=3650 * 86_400;

/// Room of the blob store when nobody says otherwise: more than a hundred of the largest results.
const BLOB_LIMIT: u64 = 2 << 30;
/// Below this not even one large result and its arguments fit.
const LEAST_BLOB_LIMIT: u64 = 32 << 20;

fn parse_blob_limit(text: &str) -> Result<u64, String> {
    let size: Size = text.parse().map_err(|e: octomesh_tools::size::InvalidSize| e.to_string())?;
    if size.0 < LEAST_BLOB_LIMIT {
        return Err(format!("{size} is below {}, too little for one large result", Size(LEAST_BLOB_LIMIT)));
    }
    Ok(size.0)
}

/// Engines of this version.
const ENGINES: [&str; 1] = ["rules"];

pub(super) fn validate(found: &Found, sources: &Sources<'_>, errors: &mut ConfigErrors) -> NodeConfig {
    let mut values = Values { found, errors };
    let listen = values.addresses("listen", parse_socket);
    let config = NodeConfig {
        listen_is_explicit: listen.is_some(),
        listen: listen.unwrap_or_else(|| vec![SocketAddr::from(([0, 0, 0, 0], 9400))]),
        api: values.text("api", parse_api).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9480))),
        api_token: values.text("api_token", check_token),
        peers: values.addresses("peers", check_peer).unwrap_or_default(),
        slots: values
            .integer("slots", SLOTS)
            .and_then(|slots| u16::try_from(slots).ok())
            .unwrap_or_else(|| sources.parallelism.clamp(1, 1024)),
        region: values.text("region", check_name).unwrap_or_default(),
        tags: values.tags(),
        engine: values.text("engine", check_engine).unwrap_or_else(|| ENGINES.concat()),
        lazy_tools: values.lazy_tools(),
        mdns: values.boolean("mdns").unwrap_or(true),
        relay: values.boolean("relay").unwrap_or(true),
        advertise: values.addresses("advertise", parse_advertised).unwrap_or_default(),
        log: values.text("log", check_log).unwrap_or_else(|| "info".to_owned()),
        gpus: values.gpus(),
        hardware: HardwareConfig {
            probe: values.boolean("hardware.probe").unwrap_or(true),
            nvml: values.text("hardware.nvml", owner::parse_path),
            sysfs: values.text("hardware.sysfs", owner::parse_path).unwrap_or_else(|| "/sys".into()),
        },
        yields: YieldConfig {
            battery: values.boolean("yield.battery").unwrap_or(false),
            gpu_busy: values.integer("yield.gpu_busy", 1..=100).and_then(|n| u8::try_from(n).ok()),
            quiet_hours: values.list("yield.quiet_hours", 8, owner::parse_hours).unwrap_or_default(),
        },
        model_servers: values.list("models.servers", 8, parse_loopback).unwrap_or_default(),
        wake: WakeConfig {
            auto: values.boolean("wake.auto").unwrap_or(false),
            offer: values.boolean("wake.offer").unwrap_or(true),
        },
        sandbox: ConfinementConfig {
            uid_base: values
                .integer("sandbox.uid_base", SANDBOX_UID)
                .and_then(|uid| u32::try_from(uid).ok())
                .unwrap_or(UID_BASE),
            min_level: values.text("sandbox.min_level", parse_level).unwrap_or_default(),
        },
        blob_limit_bytes: values.text("blobs.limit", parse_blob_limit).unwrap_or(BLOB_LIMIT),
        certificate_lifetime_s: values.text("certificate_lifetime", parse_lifetime).unwrap_or(LIFETIME_S),
    };
    values.check_exposure(&config, sources);
    config
}

struct Values<'a> {
    found: &'a Found,
    errors: &'a mut ConfigErrors,
}

impl Values<'_> {
    fn wrong(&mut self, origin: &Origin, key: &str, message: impl std::fmt::Display) {
        self.errors.push(origin, key, format!("{key}: {message}"));
    }

    /// A single text value.
    fn text<T>(&mut self, key: &'static str, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let (given, origin) = self.found.get(key)?;
        let parsed = match given {
            Given::Text(text) | Given::Str(text) => parse(text.trim()),
            other => Err(format!("wants text in quotes, not {}", kind(other))),
        };
        parsed.map_err(|message| self.wrong(origin, key, message)).ok()
    }

    fn integer(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let (given, origin) = self.found.get(key)?;
        let number = match given {
            Given::Int(number) => Ok(*number),
            Given::Text(text) => {
                text.trim().parse().map_err(|_| format!("{:?} is not a number", short(text)))
            }
            other => Err(format!("wants a number, not {}", kind(other))),
        };
        let checked = number.and_then(|number| {
            if range.contains(&number) {
                Ok(number)
            } else {
                Err(format!("{number} is not between {} and {}", range.start(), range.end()))
            }
        });
        checked.map_err(|message| self.wrong(origin, key, message)).ok()
    }

    fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let (given, origin) = self.found.get(key)?;
        let parsed = match given {
            Given::Bool(yes) => Ok(*yes),
            Given::Int(0) => Ok(false),
            Given::Int(1) => Ok(true),
            Given::Text(text) | Given::Str(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                other => Err(format!("{:?} is not true, false, 1 or 0", short(other))),
            },
            Given::Int(_) | Given::List(_) | Given::Table(_) | Given::Other(_) => {
                Err(format!("wants true or false, not {}", kind(given)))
            }
        };
        parsed.map_err(|message| self.wrong(origin, key, message)).ok()
    }

    /// A list of texts: an array, one string, or words between commas. Each bad item is an error with its own line.
    fn list<T>(
        &mut self,
        key: &'static str,
        limit: usize,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (given, origin) = self.found.get(key)?;
        let items: Vec<(Result<String, String>, Origin)> = match given {
            Given::Text(text) => text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| (Ok(item.to_owned()), origin.clone()))
                .collect(),
            Given::Str(text) => vec![(Ok(text.trim().to_owned()), origin.clone())],
            Given::List(items) => items
                .iter()
                .map(|(item, line)| match item {
                    Given::Str(text) => (Ok(text.trim().to_owned()), origin.at_line(*line)),
                    other => {
                        (Err(format!("wants text in quotes, not {}", kind(other))), origin.at_line(*line))
                    }
                })
                .collect(),
            other => vec![(Err(format!("wants a list of texts, not {}", kind(other))), origin.clone())],
        };
        if items.len() > limit {
            self.wrong(origin, key, format!("{} entries; at most {limit}", items.len()));
            return None;
        }
        let mut parsed = Vec::new();
        for (item, at) in items {
            match item.and_then(|text| parse(&text)) {
                Ok(value) => parsed.push(value),
                Err(message) => self.wrong(&at, key, message),
            }
        }
        Some(parsed)
    }

    fn addresses<T>(&mut self, key: &'static str, parse: fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
        // An empty list is as if nothing had been said: a node that listens nowhere is a mistake.
        self.list(key, LIST_ITEMS, parse).filter(|list| !list.is_empty())
    }

    fn tags(&mut self) -> Vec<String> {
        let mut tags = self.list("tags", limits::ADVERT_TAGS, check_name).unwrap_or_default();
        tags.sort();
        tags.dedup();
        tags
    }

    fn lazy_tools(&mut self) -> LazyTools {
        let Some((given, origin)) = self.found.get("lazy_tools") else { return LazyTools::default() };
        let text = match given {
            Given::Bool(yes) => yes.to_string(),
            Given::Int(number) => number.to_string(),
            Given::Text(text) | Given::Str(text) => text.trim().to_ascii_lowercase(),
            other => kind(other).to_owned(),
        };
        match text.as_str() {
            "1" | "true" => LazyTools::On,
            "0" | "false" => LazyTools::Off,
            "auto" | "" => LazyTools::Auto,
            other => {
                self.wrong(origin, "lazy_tools", format!("{:?} is not 1, 0 or auto", short(other)));
                LazyTools::default()
            }
        }
    }

    fn gpus(&mut self) -> Vec<DeclaredGpu> {
        let Some((given, origin)) = self.found.get("gpus") else { return Vec::new() };
        let mut gpus = Vec::new();
        match given {
            // The variable's form: `RTX 4090=24GiB, other=8GiB`.
            Given::Text(text) => {
                for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                    let gpu = item
                        .rsplit_once('=')
                        .ok_or_else(|| format!("{:?} is not of the form NAME=SIZE", short(item)))
                        .and_then(|(name, size)| declared(name.trim(), size.trim()));
                    match gpu {
                        Ok(gpu) => gpus.push(gpu),
                        Err(message) => self.wrong(origin, "gpus", message),
                    }
                }
            }
            Given::List(items) => {
                for (item, line) in items {
                    if let Some(gpu) = self.gpu_table(item, &origin.at_line(*line)) {
                        gpus.push(gpu);
                    }
                }
            }
            other => {
                self.wrong(origin, "gpus", format!("wants [[gpus]] with name and vram, not {}", kind(other)))
            }
        }
        if gpus.len() > limits::ADVERT_GPUS {
            self.wrong(origin, "gpus", format!("{} entries; at most {}", gpus.len(), limits::ADVERT_GPUS));
        }
        gpus
    }

    fn gpu_table(&mut self, item: &Given, origin: &Origin) -> Option<DeclaredGpu> {
        let Given::Table(table) = item else {
            self.wrong(origin, "gpus", format!("wants name and vram, not {}", kind(item)));
            return None;
        };
        for (key, (_, line)) in table {
            if key != "name" && key != "vram" {
                let message = format!("unknown key `gpus.{key}`; there are `name` and `vram`");
                self.errors.push(&origin.at_line(*line), &format!("gpus.{key}"), message);
            }
        }
        let name = match table.get("name") {
            Some((Given::Str(name), _)) => Some(name.clone()),
            Some((other, line)) => {
                self.wrong(&origin.at_line(*line), "gpus.name", format!("wants text, not {}", kind(other)));
                None
            }
            None => {
                self.wrong(origin, "gpus.name", "is missing");
                None
            }
        };
        let vram = match table.get("vram") {
            Some((Given::Str(size), line)) => Some((size.clone(), *line)),
            Some((Given::Int(bytes), line)) => Some((bytes.to_string(), *line)),
            Some((other, line)) => {
                self.wrong(
                    &origin.at_line(*line),
                    "gpus.vram",
                    format!("wants \"24GiB\", not {}", kind(other)),
                );
                None
            }
            None => {
                self.wrong(origin, "gpus.vram", "is missing (for example \"24GiB\")");
                None
            }
        };
        let ((size, line), name) = (vram?, name?);
        declared(name.trim(), size.trim()).map_err(|m| self.wrong(&origin.at_line(line), "gpus", m)).ok()
    }

    /// An API that other machines reach needs a token that its owner knows of.
    fn check_exposure(&mut self, config: &NodeConfig, sources: &Sources<'_>) {
        if config.api.ip().is_loopback() || config.api_token.is_some() || sources.has_token_file() {
            return;
        }
        let origin = self.found.get("api").map_or(Origin::Default, |(_, origin)| origin.clone());
        let message = format!(
            "{} is reachable from other machines; set `api_token` (or OCTOMESH_API_TOKEN) first",
            config.api
        );
        self.wrong(&origin, "api", message);
    }
}

fn kind(given: &Given) -> &'static str {
    match given {
        Given::Text(_) | Given::Str(_) => "text",
        Given::Int(_) => "a number",
        Given::Bool(_) => "true or false",
        Given::List(_) => "a list",
        Given::Table(_) => "a table",
        Given::Other(name) => name,
    }
}

/// What a message repeats of a value: a wrong value can be of any length.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

fn parse_socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{:?} is not ADDR:PORT, for example 0.0.0.0:9400", short(text)))
}

fn parse_api(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let bare =
        bare.strip_prefix("localhost:").map_or_else(|| bare.to_owned(), |port| format!("127.0.0.1:{port}"));
    bare.parse().map_err(|_| format!("{:?} is not ADDR:PORT, for example 127.0.0.1:9480", short(text)))
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address = parse_socket(text)?;
    if !address.ip().is_loopback() || address.port() == 0 {
        return Err(format!("{address} is not on this machine; 127.0.0.1:11434 would be"));
    }
    Ok(address)
}

fn parse_advertised(text: &str) -> Result<SocketAddr, String> {
    let address = parse_socket(text)?;
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(format!("{address} is no address that others can dial"));
    }
    Ok(address)
}

fn check_peer(text: &str) -> Result<String, String> {
    let fail = || format!("{:?} is not HOST:PORT", short(text));
    let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let port: u16 = port.parse().map_err(|_| fail())?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.contains([':', '/', ' ', '[', ']']);
    if host.is_empty() || port == 0 || host.len() > limits::ADDRESS_BYTES || !(plain || bracketed) {
        return Err(fail());
    }
    Ok(text.to_owned())
}

fn check_token(text: &str) -> Result<String, String> {
    if !TOKEN_BYTES.contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!(
            "wants {} to {} visible characters without spaces",
            TOKEN_BYTES.start(),
            TOKEN_BYTES.end()
        ));
    }
    Ok(text.to_owned())
}

fn check_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > limits::ADVERT_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!("{:?} is not 1 to {} bytes of text", short(text), limits::ADVERT_NAME_BYTES));
    }
    Ok(text.to_owned())
}

fn check_engine(text: &str) -> Result<String, String> {
    if ENGINES.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("there is no engine {:?}; there is: {}", short(text), ENGINES.join(", ")))
}

fn parse_level(text: &str) -> Result<SandboxLevel, String> {
    SandboxLevel::parse(text).ok_or_else(|| {
        let all = SandboxLevel::ALL.map(SandboxLevel::as_str).join(", ");
        format!("{:?} is not one of {all}", short(text))
    })
}

fn check_log(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("{:?} is not a log filter such as info or octomesh=debug: {e}", short(text))),
    }
}

fn declared(name: &str, size: &str) -> Result<DeclaredGpu, String> {
    Ok(DeclaredGpu { name: check_name(name)?, vram_bytes: parse_size(size)? })
}

fn parse_lifetime(text: &str) -> Result<u64, String> {
    let seconds = parse_time(text).ok_or_else(|| format!("{:?} is not a time such as 365d", short(text)))?;
    if LIFETIMES_S.contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text} is not between 10s and 3650d"))
    }
}

/// `90s`, `15m`, `2h`, `1d` as seconds; a number alone is seconds.
pub(crate) fn parse_time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// `24GiB`, `500 MB`, `1048576`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let fail = || format!("{:?} is not a size such as 24GiB", short(text));
    text.parse::<Size>().ok().map(|size| size.0).filter(|bytes| *bytes > 0).ok_or_else(fail)
}
