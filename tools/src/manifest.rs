//! `tool.toml`: a card as people write it, and for process tools the command behind it. The cards of built-in tools are
//! written in the same form.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use octomesh_protocol::{
    card::{Effect, Example, Needs, SandboxLevel, Source, ToolCard},
    id::ToolName,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{regular, size::Size};

/// Bytes of one manifest; its card has to fit into 64 KiB anyway.
pub const MANIFEST_FILE_BYTES: u64 = 128 * 1024;
/// Seconds that a call may take when the manifest does not say.
pub const DEFAULT_TIMEOUT_S: u64 = 60;
/// Most seconds that a manifest may ask for.
pub const MAX_TIMEOUT_S: u64 = 600;
/// Characters of a version.
const VERSION_BYTES: usize = 64;
/// Variables and words of a command: more is a mistake.
const LIST_ENTRIES: usize = 64;

/// Why a file is not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ManifestError {
    /// It can't be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's words.
        reason: String,
    },
    /// It is not TOML, a key is unknown, missing or of the wrong type. The message names line and key.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, column and key.
        reason: String,
    },
    /// A key has a value that makes no sense.
    #[error("{file}: key `{key}`: {reason}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// A process tool as described by its manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessManifest {
    /// The card.
    pub card: ToolCard,
    /// Program and arguments, never through a shell.
    pub command: Vec<String>,
    /// Seconds that a call may take.
    pub timeout_s: u64,
    /// Variables added to the otherwise empty environment.
    pub env: BTreeMap<String, String>,
    /// The manifest's folder; a program with a relative path is looked for there.
    pub folder: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    #[serde(default = "first_version")]
    version: String,
    description: String,
    #[serde(default)]
    keywords: Vec<String>,
    input_schema: Option<Value>,
    input_schema_file: Option<String>,
    output_schema: Option<Value>,
    #[serde(default)]
    examples: Vec<Example>,
    #[serde(default)]
    effect: Effect,
    #[serde(default)]
    needs: RawNeeds,
    #[serde(default = "one_second")]
    typical_ms: u32,
    #[serde(default)]
    data: Vec<String>,
    #[serde(default)]
    demo_calls: Vec<Example>,
    #[serde(default)]
    limitations: Vec<String>,
    #[serde(default)]
    best_practice: Vec<String>,
    #[serde(default)]
    requires_llm: bool,
    command: Option<Vec<String>>,
    timeout_s: Option<u64>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawNeeds {
    gpu_vram: Option<Size>,
    memory: Option<Size>,
    model: Option<String>,
    min_sandbox: Option<SandboxLevel>,
    network: bool,
    tags: Vec<String>,
}

fn first_version() -> String {
    "1.0.0".into()
}

const fn one_second() -> u32 {
    1_000
}

impl Raw {
    fn parse(text: &str, file: &str) -> Result<Self, ManifestError> {
        toml::from_str(text)
            .map_err(|e| ManifestError::Syntax { file: file.to_owned(), reason: one_line(&e.to_string()) })
    }

    fn into_card(self, schema: Option<Value>, source: Source, file: &str) -> Result<ToolCard, ManifestError> {
        let value = |key, reason: String| ManifestError::Value { file: file.to_owned(), key, reason };
        let name = ToolName::parse(&self.name).map_err(|e| value("name", e.to_string()))?;
        if self.version.len() > VERSION_BYTES {
            return Err(value("version", format!("longer than {VERSION_BYTES} bytes")));
        }
        if self.description.trim().is_empty() {
            return Err(value("description", "is empty; nobody would find the tool".into()));
        }
        let needs = self.needs;
        Ok(ToolCard {
            name,
            version: self.version,
            description: self.description.trim().to_owned(),
            keywords: self.keywords,
            input_schema: schema.or(self.input_schema).unwrap_or_else(
                || json!({"type": "object", "properties": {}, "additionalProperties": false}),
            ),
            output_schema: self.output_schema,
            examples: self.examples,
            effect: self.effect,
            needs: Needs {
                gpu_vram: needs.gpu_vram.map(|s| s.0),
                memory: needs.memory.map(|s| s.0),
                model: needs.model,
                min_sandbox: needs.min_sandbox,
                network: needs.network,
                tags: needs.tags,
            },
            typical_ms: self.typical_ms,
            data: self.data,
            demo_calls: self.demo_calls,
            limitations: self.limitations,
            best_practice: self.best_practice,
            requires_llm: self.requires_llm,
            source,
        })
    }
}

/// The card of a built-in tool.
///
/// # Errors
/// [`ManifestError`].
pub(crate) fn builtin_card(text: &str, file: &str) -> Result<ToolCard, ManifestError> {
    Raw::parse(text, file)?.into_card(None, Source::Builtin, file)
}

impl ProcessManifest {
    /// Parses the text of the manifest at `path`; the path is used in messages, for the folder, and for `input_schema_file`.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ManifestError> {
        let file = path.display().to_string();
        let value =
            |key, reason: &str| ManifestError::Value { file: file.clone(), key, reason: reason.to_owned() };
        let mut raw = Raw::parse(text, &file)?;
        let command = raw.command.take().unwrap_or_default();
        if command.first().is_none_or(String::is_empty) {
            return Err(value("command", "is missing; write command = [\"program\", \"argument\"]"));
        }
        let env = std::mem::take(&mut raw.env);
        if command.len() > LIST_ENTRIES || env.len() > LIST_ENTRIES {
            return Err(value("command", "more than 64 words or variables"));
        }
        if command.iter().chain(env.values()).any(|s| s.contains('\0')) {
            return Err(value("command", "a word or a variable contains a zero byte"));
        }
        if env.keys().any(|k| k.is_empty() || k.contains(['=', '\0'])) {
            return Err(value("env", "a variable's name is empty or contains `=`"));
        }
        let timeout_s = raw.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
        if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
            return Err(value("timeout_s", "must be from 1 to 600"));
        }
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let schema = match raw.input_schema_file.take() {
            None => None,
            Some(_) if raw.input_schema.is_some() => {
                return Err(value("input_schema_file", "stands beside input_schema; keep one of them"));
            }
            Some(name) => Some(read_schema(&folder.join(name))?),
        };
        let card = raw.into_card(schema, Source::Process, &file)?;
        Ok(Self { card, command, timeout_s, env, folder })
    }
}

fn read_schema(path: &Path) -> Result<Value, ManifestError> {
    let file = path.display().to_string();
    let unreadable = |reason: String| ManifestError::Unreadable { file: file.clone(), reason };
    let text = read_bounded(path).map_err(unreadable)?;
    serde_json::from_str(&text)
        .map_err(|e| ManifestError::Syntax { file: file.clone(), reason: e.to_string() })
}

/// Reads a regular file of at most [`MANIFEST_FILE_BYTES`].
pub(crate) fn read_bounded(path: &Path) -> Result<String, String> {
    regular::read_text(path, MANIFEST_FILE_BYTES).map_err(|e| e.to_string())
}

/// The TOML parser's message without its drawing: `line 3, column 1: unknown field …`.
fn one_line(message: &str) -> String {
    let mut lines = message.lines();
    let first = lines.next().unwrap_or_default();
    let place = first.strip_prefix("TOML parse error at ").unwrap_or(first);
    let rest: Vec<&str> = lines.map(str::trim).filter(|l| !l.is_empty() && !drawing(l)).collect();
    if rest.is_empty() { place.to_owned() } else { format!("{place}: {}", rest.join(" ")) }
}

/// `  |`, `3 | nam = "x"`, `  | ^^^`.
fn drawing(line: &str) -> bool {
    line.split_once('|').is_some_and(|(left, _)| left.trim().bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ProcessManifest, ManifestError> {
        ProcessManifest::parse(text, Path::new("/tools/x/tool.toml"))
    }

    const GOOD: &str = r#"
name = "image_render"
description = "Renders a scene."
command = ["./render", "--fast"]
timeout_s = 30
effect = "pure"
env = { QUALITY = "3" }
[needs]
gpu_vram = "8GiB"
min_sandbox = "rlimits"
tags = ["gpu"]
[input_schema]
type = "object"
required = ["scene"]
[input_schema.properties.scene]
type = "string"
[[examples]]
arguments = { scene = "hut" }
"#;

    #[test]
    fn a_manifest() {
        let m = parse(GOOD).unwrap();
        assert_eq!(m.card.needs.gpu_vram, Some(8 << 30));
        assert_eq!(m.card.needs.min_sandbox, Some(SandboxLevel::Rlimits));
        assert_eq!((m.card.effect, m.card.source), (Effect::Pure, Source::Process));
        assert_eq!(m.card.input_schema["properties"]["scene"]["type"], "string");
        assert_eq!(m.command, ["./render", "--fast"]);
        assert_eq!((m.timeout_s, m.folder), (30, PathBuf::from("/tools/x")));
    }

    #[test]
    fn what_is_not_said_is_safe() {
        let m = parse("name = \"a\"\ndescription = \"b\"\ncommand = [\"true\"]").unwrap();
        assert_eq!(m.card.effect, Effect::Once);
        assert_eq!(m.timeout_s, 60);
        assert_eq!(m.card.input_schema["additionalProperties"], false);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let unknown = parse("name = \"a\"\ndescription = \"b\"\ncomand = [\"x\"]").unwrap_err().to_string();
        assert!(
            unknown.starts_with("/tools/x/tool.toml: line 3, column 1: unknown field `comand`"),
            "{unknown}"
        );
        let missing = parse("name = \"a\"\ncommand = [\"x\"]").unwrap_err().to_string();
        assert!(missing.contains("missing field `description`"), "{missing}");
        let size = parse(&GOOD.replace("8GiB", "8 gibs")).unwrap_err().to_string();
        assert!(size.contains("line 9") && size.contains("8 gibs"), "{size}");
        for (from, to, key) in [
            ("image_render", "1 image", "name"),
            ("[\"./render\", \"--fast\"]", "[]", "command"),
            ("timeout_s = 30", "timeout_s = 601", "timeout_s"),
            ("QUALITY = ", "\"A=B\" = ", "env"),
            ("Renders a scene.", " ", "description"),
        ] {
            let error = parse(&GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(&format!("key `{key}`")), "{error}");
        }
    }
}
