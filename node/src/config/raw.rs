//! Reading the sources: flags, environment, `.env`, `octomesh.toml`. What comes out is, for each known key, the value that wins
//! and where it stands; whether it is a good value is asked in `validate`.
use std::{collections::BTreeMap, path::Path};

use octomesh_tools::regular;
use toml::de::{DeTable, DeValue};

use super::{
    Sources,
    origin::{ConfigErrors, Origin},
};

/// Name of the file in the home directory.
pub(super) const FILE: &str = "octomesh.toml";
/// A configuration over this size is not one; nothing larger is read into memory.
const FILE_BYTES: u64 = 1024 * 1024;

/// Every key, dotted.
pub(super) const KEYS: [&str; 27] = [
    "advertise",
    "api",
    "api_token",
    "blobs.limit",
    "certificate_lifetime",
    "engine",
    "gpus",
    "hardware.nvml",
    "hardware.probe",
    "hardware.sysfs",
    "lazy_tools",
    "listen",
    "log",
    "mdns",
    "models.servers",
    "peers",
    "region",
    "relay",
    "sandbox.min_level",
    "sandbox.uid_base",
    "slots",
    "tags",
    "wake.auto",
    "wake.offer",
    "yield.battery",
    "yield.gpu_busy",
    "yield.quiet_hours",
];

/// Variables that are no keys but ours.
const OTHER_VARIABLES: [&str; 2] = ["OCTOMESH_HOME", "OCTOMESH_BIN"];

/// A value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    /// From a flag or a variable: its type is whatever the key wants.
    Text(String),
    /// TOML string.
    Str(String),
    /// TOML integer.
    Int(i64),
    /// TOML boolean.
    Bool(bool),
    /// TOML array, each item with its line.
    List(Vec<(Given, usize)>),
    /// TOML table inside an array, each value with its line.
    Table(BTreeMap<String, (Given, usize)>),
    /// Any other TOML type, by name; no key takes it.
    Other(&'static str),
}

/// The winners.
pub(super) type Found = BTreeMap<&'static str, (Given, Origin)>;

/// The variable of a key: `sandbox.uid_base` is `OCTOMESH_SANDBOX__UID_BASE`.
pub(super) fn variable(key: &str) -> String {
    format!("OCTOMESH_{}", key.to_uppercase().replace('.', "__"))
}

/// Reads all sources; unknown keys and unreadable files go to `errors`, unknown variables to `warnings`.
pub(super) fn read(sources: &Sources<'_>, errors: &mut ConfigErrors, warnings: &mut Vec<String>) -> Found {
    let mut found = Found::new();
    // From the weakest to the strongest: a later insert wins.
    read_file(&sources.home.join(FILE), &mut found, errors);
    read_dot_env(&sources.home.join(".env"), &mut found, errors);
    read_environment(&sources.environment, &mut found, warnings);
    for (key, value) in &sources.flags {
        // `--peer` is given once per peer.
        let name = if key == "peers" { "--peer".to_owned() } else { format!("--{}", key.replace('_', "-")) };
        let origin = Origin::Flag { name };
        match KEYS.iter().find(|known| **known == key) {
            Some(known) => drop(found.insert(known, (Given::Text(value.clone()), origin))),
            None => errors.push(&origin, key, unknown(key)),
        }
    }
    found
}

fn unknown(key: &str) -> String {
    let nearest = KEYS
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, key), *known))
        .min()
        // A third of the letters may differ: `sots` is `slots`, `colour` is nothing.
        .filter(|(distance, known)| distance * 3 <= known.len().max(3));
    match nearest {
        Some((_, known)) => format!("unknown key `{key}` (did you mean `{known}`?)"),
        None => format!("unknown key `{key}`"),
    }
}

/// The text of a file, if it is there and readable.
fn text_of(path: &Path, name: &str, errors: &mut ConfigErrors) -> Option<String> {
    let origin = Origin::File { file: name.to_owned(), line: 1 };
    match regular::read_text(path, FILE_BYTES) {
        Ok(text) => Some(text),
        // A home below a file is the home's problem, and its checks name the whole path.
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            None
        }
        Err(e) => {
            errors.push(&origin, "", format!("can't be read: {e}"));
            None
        }
    }
}

fn read_file(path: &Path, found: &mut Found, errors: &mut ConfigErrors) {
    let Some(text) = text_of(path, FILE, errors) else { return };
    let lines = Lines::new(&text);
    let (table, wrong) = DeTable::parse_recoverable(&text);
    for error in wrong {
        let line = error.span().map_or(1, |span| lines.of(span.start));
        let at = Origin::File { file: FILE.to_owned(), line };
        errors.push(&at, "", format!("not TOML: {}", error.message()));
    }
    read_table(table.get_ref(), "", &lines, found, errors);
}

fn read_table(
    table: &DeTable<'_>,
    prefix: &str,
    lines: &Lines,
    found: &mut Found,
    errors: &mut ConfigErrors,
) {
    // In the order of the file, so that errors are too.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let name = format!("{prefix}{}", key.get_ref());
        let origin = Origin::File { file: FILE.to_owned(), line: lines.of(key.span().start) };
        let section = format!("{name}.");
        if let Some(known) = KEYS.iter().find(|known| **known == name) {
            found.insert(known, (given(value.get_ref(), lines), origin));
        } else if let (DeValue::Table(inner), true) =
            (value.get_ref(), KEYS.iter().any(|known| known.starts_with(&section)))
        {
            read_table(inner, &section, lines, found, errors);
        } else {
            errors.push(&origin, &name, unknown(&name));
        }
    }
}

fn given(value: &DeValue<'_>, lines: &Lines) -> Given {
    match value {
        DeValue::String(text) => Given::Str(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
            .map_or(Given::Other("integer of over 64 bits"), Given::Int),
        DeValue::Boolean(yes) => Given::Bool(*yes),
        DeValue::Array(items) => Given::List(
            items.iter().map(|item| (given(item.get_ref(), lines), lines.of(item.span().start))).collect(),
        ),
        DeValue::Table(table) => Given::Table(
            table
                .iter()
                .map(|(key, item)| {
                    let line = lines.of(key.span().start);
                    (key.get_ref().to_string(), (given(item.get_ref(), lines), line))
                })
                .collect(),
        ),
        DeValue::Float(_) => Given::Other("float"),
        DeValue::Datetime(_) => Given::Other("date"),
    }
}

fn read_dot_env(path: &Path, found: &mut Found, errors: &mut ConfigErrors) {
    let Some(text) = text_of(path, ".env", errors) else { return };
    let mut alias = None;
    for (index, line) in text.lines().enumerate() {
        let origin = Origin::DotEnv { line: index + 1 };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.strip_prefix("export ").unwrap_or(line).split_once('=') else {
            errors.push(&origin, "", "not of the form NAME=value");
            continue;
        };
        let (name, value) = (name.trim(), unquote(value.trim()));
        if value.is_empty() {
            continue;
        }
        if name == "OPTIMCLAW_LAZY_TOOLS" {
            alias = Some((Given::Text(value), origin));
        } else if let Some(key) = key_of(name) {
            found.insert(key, (Given::Text(value), origin));
        } else if name.starts_with("OCTOMESH_") && !OTHER_VARIABLES.contains(&name) {
            errors.push(&origin, name, unknown_variable(name));
        }
        // Everything else (provider keys) belongs to others.
    }
    take_alias(alias, found, |origin| matches!(origin, Origin::DotEnv { .. }));
}

fn unquote(text: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)) {
            return inner.to_owned();
        }
    }
    // A comment behind a value needs a space before it: `#` is fine inside a word.
    text.split_once(" #").map_or(text, |(value, _)| value).trim_end().to_owned()
}

fn read_environment(environment: &[(String, String)], found: &mut Found, warnings: &mut Vec<String>) {
    let mut alias = None;
    for (name, value) in environment {
        let origin = Origin::Environment { name: name.clone() };
        // `OCTOMESH_SLOTS= octomesh up` means "as if it were not set".
        if value.trim().is_empty() {
            continue;
        }
        if name == "OPTIMCLAW_LAZY_TOOLS" {
            alias = Some((Given::Text(value.clone()), origin));
        } else if let Some(key) = key_of(name) {
            found.insert(key, (Given::Text(value.clone()), origin));
        } else if name.starts_with("OCTOMESH_") && !OTHER_VARIABLES.contains(&name.as_str()) {
            warnings.push(format!("{name}: {}", unknown_variable(name)));
        }
    }
    take_alias(alias, found, |origin| matches!(origin, Origin::Environment { .. }));
}

fn key_of(variable_name: &str) -> Option<&'static str> {
    KEYS.into_iter().find(|key| variable(key) == variable_name)
}

fn unknown_variable(name: &str) -> String {
    let key = name.trim_start_matches("OCTOMESH_").to_lowercase().replace("__", ".");
    unknown(&key)
}

/// The alias counts where the real name was not given in the same source.
fn take_alias(alias: Option<(Given, Origin)>, found: &mut Found, same_source: fn(&Origin) -> bool) {
    if let Some(value) = alias {
        let beaten = found.get("lazy_tools").is_some_and(|(_, origin)| same_source(origin));
        if !beaten {
            found.insert("lazy_tools", value);
        }
    }
}

/// Byte offset to line number.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn of(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}
