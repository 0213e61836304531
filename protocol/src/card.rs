//! Tool cards: what a tool is, as data. The canonical form of a card is hashed; the hash is how cards are fetched, pinned and
//! told apart (same name and hash on two nodes = replicas of one tool, same name and other hash = variants).
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    codec::{self, CodecError},
    id::{CardHash, ToolName},
    limits::CARD_BYTES,
};

/// What running a call twice does to the world. It decides what may happen after a lost connection.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Effect {
    /// Reads or computes; may run any number of times, anywhere.
    Pure,
    /// Running it again with the same key has the same result.
    Idempotent,
    /// Started at most once; when that can't be known the step is `uncertain`. The default, because it is the safe one.
    #[default]
    Once,
}

impl Effect {
    /// Whether a step may be run again when nobody knows if it ran.
    #[must_use]
    pub const fn may_repeat(self) -> bool {
        matches!(self, Self::Pure | Self::Idempotent)
    }
}

/// How well a call is confined, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum SandboxLevel {
    /// Nothing beyond the operating system's user.
    #[default]
    #[serde(rename = "none")]
    None,
    /// Resource limits, no new privileges, cleared environment, own process group.
    #[serde(rename = "rlimits")]
    Rlimits,
    /// Landlock and seccomp in the node's own namespaces.
    #[serde(rename = "landlock+seccomp")]
    LandlockSeccomp,
    /// Own user, mount, pid and network namespaces, Landlock and seccomp.
    #[serde(rename = "userns+landlock+seccomp")]
    UsernsLandlockSeccomp,
    /// The same through bubblewrap.
    #[serde(rename = "bwrap+landlock+seccomp")]
    BwrapLandlockSeccomp,
}

impl SandboxLevel {
    /// Every level, weakest first.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Rlimits,
        Self::LandlockSeccomp,
        Self::UsernsLandlockSeccomp,
        Self::BwrapLandlockSeccomp,
    ];

    /// The level of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// The name that people, metrics and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rlimits => "rlimits",
            Self::LandlockSeccomp => "landlock+seccomp",
            Self::UsernsLandlockSeccomp => "userns+landlock+seccomp",
            Self::BwrapLandlockSeccomp => "bwrap+landlock+seccomp",
        }
    }

    /// The value of the metric `octomesh_sandbox_level`: 0 (none) to 4 (bwrap).
    #[must_use]
    pub const fn as_metric(self) -> i64 {
        self as i64
    }
}

impl fmt::Display for SandboxLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a tool comes from.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Source {
    /// Part of the program.
    Builtin,
    /// A program of the owner with a manifest.
    Process,
    /// A tool of an MCP server.
    Mcp,
    /// A WASM module.
    Wasm,
    /// An LLM engine.
    Engine,
}

/// What a node must have to run the tool. Absent means no requirement.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Free memory of one GPU, in bytes.
    pub gpu_vram: Option<u64>,
    /// Free main memory, in bytes.
    pub memory: Option<u64>,
    /// A model that must be loaded or loadable.
    pub model: Option<String>,
    /// The least confinement that the tool accepts to run under.
    pub min_sandbox: Option<SandboxLevel>,
    /// Whether the tool talks to the network.
    pub network: bool,
    /// Tags that the node must carry.
    pub tags: Vec<String>,
}

/// An example of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// What the call is for, in a few words.
    #[serde(default)]
    pub description: String,
    /// The arguments, a JSON object.
    pub arguments: Value,
}

/// What a tool is. Everything that a planner, a router or a model needs to know without loading the tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCard {
    /// Its name in the mesh.
    pub name: ToolName,
    /// Its own version, semver by convention.
    pub version: String,
    /// One paragraph; the first sentence is what lists show.
    pub description: String,
    /// Words that people use for it and that the description does not say.
    pub keywords: Vec<String>,
    /// JSON Schema (2020-12) of the arguments; its type is `object`.
    pub input_schema: Value,
    /// JSON Schema of the output, when it is structured.
    pub output_schema: Option<Value>,
    /// Examples, shown by `tool_info`.
    pub examples: Vec<Example>,
    /// What running it twice does.
    pub effect: Effect,
    /// What a node must have.
    pub needs: Needs,
    /// Expected duration of a typical call on an ordinary machine, in milliseconds.
    pub typical_ms: u32,
    /// Names of arguments that point to data of one node (`path`): the call goes where the data is.
    pub data: Vec<String>,
    /// Calls that are really run to see whether the tool works.
    pub demo_calls: Vec<Example>,
    /// What it can't do.
    pub limitations: Vec<String>,
    /// How to use it well.
    pub best_practice: Vec<String>,
    /// Whether it needs an LLM engine.
    pub requires_llm: bool,
    /// Where it comes from.
    pub source: Source,
}

/// The form that is hashed and sent. JSON parts are text in canonical form: keys sorted, no white space.
#[derive(Serialize, Deserialize)]
struct WireCard {
    name: ToolName,
    version: String,
    description: String,
    keywords: Vec<String>,
    input_schema: String,
    output_schema: Option<String>,
    examples: Vec<(String, String)>,
    effect: Effect,
    needs: Needs,
    typical_ms: u32,
    data: Vec<String>,
    demo_calls: Vec<(String, String)>,
    limitations: Vec<String>,
    best_practice: Vec<String>,
    requires_llm: bool,
    source: Source,
}

/// Why bytes are not a card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum CardError {
    /// Not the canonical form of a card, or over 64 KiB.
    #[error("card: {0}")]
    Codec(#[from] CodecError),
    /// A schema or an example is not JSON.
    #[error("card: a schema or an example is not JSON")]
    Json,
    /// The bytes are a card, but not the one asked for.
    #[error("card {got} came for {wanted}")]
    Hash {
        /// The hash asked for.
        wanted: CardHash,
        /// The hash of what came.
        got: CardHash,
    },
}

fn canonical(value: &Value) -> String {
    // serde_json's map is sorted by key (feature `preserve_order` is off; a test holds it), and `to_string` writes no space.
    value.to_string()
}

fn examples_out(list: &[Example]) -> Vec<(String, String)> {
    list.iter().map(|e| (e.description.clone(), canonical(&e.arguments))).collect()
}

fn json(text: &str) -> Result<Value, CardError> {
    serde_json::from_str(text).map_err(|_| CardError::Json)
}

fn examples_in(list: Vec<(String, String)>) -> Result<Vec<Example>, CardError> {
    list.into_iter()
        .map(|(description, arguments)| Ok(Example { description, arguments: json(&arguments)? }))
        .collect()
}

/// Hash of a card's canonical bytes, with a domain of its own.
fn hash(bytes: &[u8]) -> CardHash {
    CardHash::from_bytes(
        Sha256::new().chain_update(b"octomesh-card-v1").chain_update(bytes).finalize().into(),
    )
}

impl ToolCard {
    /// The canonical form: what is hashed and what is sent.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] when the card is over 64 KiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, CARD_BYTES>(&WireCard {
            name: self.name.clone(),
            version: self.version.clone(),
            description: self.description.clone(),
            keywords: self.keywords.clone(),
            input_schema: canonical(&self.input_schema),
            output_schema: self.output_schema.as_ref().map(canonical),
            examples: examples_out(&self.examples),
            effect: self.effect,
            needs: self.needs.clone(),
            typical_ms: self.typical_ms,
            data: self.data.clone(),
            demo_calls: examples_out(&self.demo_calls),
            limitations: self.limitations.clone(),
            best_practice: self.best_practice.clone(),
            requires_llm: self.requires_llm,
            source: self.source,
        })
    }

    /// The hash of the canonical form.
    ///
    /// # Errors
    /// As [`ToolCard::to_bytes`].
    pub fn hash(&self) -> Result<CardHash, CodecError> {
        Ok(hash(&self.to_bytes()?))
    }

    /// Decodes a card that was asked for by hash, from whoever sent it: the hash is the proof.
    ///
    /// # Errors
    /// [`CardError`]; `Hash` when the bytes are another card.
    pub fn from_bytes(bytes: &[u8], wanted: CardHash) -> Result<Self, CardError> {
        let got = hash(bytes);
        if got != wanted {
            return Err(CardError::Hash { wanted, got });
        }
        let w: WireCard = codec::decode::<_, CARD_BYTES>(bytes)?;
        Ok(Self {
            name: w.name,
            version: w.version,
            description: w.description,
            keywords: w.keywords,
            input_schema: json(&w.input_schema)?,
            output_schema: w.output_schema.as_deref().map(json).transpose()?,
            examples: examples_in(w.examples)?,
            effect: w.effect,
            needs: w.needs,
            typical_ms: w.typical_ms,
            data: w.data,
            demo_calls: examples_in(w.demo_calls)?,
            limitations: w.limitations,
            best_practice: w.best_practice,
            requires_llm: w.requires_llm,
            source: w.source,
        })
    }

    /// The first sentence of the description.
    #[must_use]
    pub fn summary(&self) -> &str {
        match self.description.split_once(". ") {
            Some((first, _)) => first,
            None => self.description.trim_end_matches('.'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> ToolCard {
        ToolCard {
            name: ToolName::parse("echo").unwrap(),
            version: "1.0.0".into(),
            description: "Returns the text. Nothing else.".into(),
            keywords: vec!["repeat".into()],
            input_schema: serde_json::json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}),
            output_schema: None,
            examples: vec![Example {
                description: "say hi".into(),
                arguments: serde_json::json!({"text": "hi"}),
            }],
            effect: Effect::Pure,
            needs: Needs { gpu_vram: Some(8 << 30), ..Needs::default() },
            typical_ms: 1,
            data: vec![],
            demo_calls: vec![],
            limitations: vec![],
            best_practice: vec![],
            requires_llm: false,
            source: Source::Builtin,
        }
    }

    #[test]
    fn round_trip_by_hash() {
        let card = card();
        let bytes = card.to_bytes().unwrap();
        assert_eq!(ToolCard::from_bytes(&bytes, card.hash().unwrap()).unwrap(), card);
        let other = CardHash::from_bytes([0; 32]);
        assert!(matches!(ToolCard::from_bytes(&bytes, other), Err(CardError::Hash { .. })));
        assert_eq!(card.summary(), "Returns the text");
    }

    #[test]
    fn the_hash_does_not_depend_on_the_order_of_keys() {
        let mut other = card();
        other.input_schema = serde_json::from_str(
            r#"{"required":["text"],"properties":{"text":{"type":"string"}},"type":"object"}"#,
        )
        .unwrap();
        assert_eq!(other.hash().unwrap(), card().hash().unwrap());
        assert_eq!(canonical(&serde_json::json!({"b": 1, "a": 2})), r#"{"a":2,"b":1}"#);
    }

    #[test]
    fn golden_hash() {
        assert_eq!(
            card().hash().unwrap().to_string(),
            "a3bbf36f3e52286fcc939df2ee31d79a0020ac1ba68e3a019b88d55aa6dff980"
        );
    }

    #[test]
    fn sandbox_levels_are_ordered() {
        assert!(SandboxLevel::BwrapLandlockSeccomp > SandboxLevel::Rlimits);
        assert_eq!(SandboxLevel::BwrapLandlockSeccomp.as_metric(), 4);
        assert_eq!(
            serde_json::to_value(SandboxLevel::UsernsLandlockSeccomp).unwrap(),
            SandboxLevel::UsernsLandlockSeccomp.as_str()
        );
    }
}
