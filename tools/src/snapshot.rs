//! What a registry looks like at one moment: entries, the manifest that peers see, and the bytes of its cards.
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use octomesh_protocol::{
    advert::{Manifest, ManifestEntry},
    card::ToolCard,
    id::{CardHash, ToolName, ToolSetHash},
};

/// Tools whose schemas are always in a prompt. All others are names until `tool_info` asks for them.
pub const CORE_TOOLS: [&str; 12] = [
    "echo",
    "time",
    "json",
    "http",
    "web_fetch",
    "file_read",
    "file_write",
    "shell",
    "memory_search",
    "memory_write",
    "message",
    "tool_info",
];

/// How a tool is shown to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum Tier {
    /// With its schema.
    Core,
    /// By name; `tool_info` has the rest.
    Deferred,
}

/// Whether a tool can be called.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum EntryState {
    /// Yes.
    Available,
    /// It is here and does not work; neither offered, gossiped nor routed to.
    Unavailable {
        /// Why, for people.
        reason: String,
    },
    /// Its card or manifest is bad.
    Quarantined {
        /// Why, for people.
        reason: String,
    },
}

impl EntryState {
    /// Whether it can be called.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }

    /// Why not.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Available => None,
            Self::Unavailable { reason } | Self::Quarantined { reason } => Some(reason),
        }
    }
}

/// One tool in a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it is. For a quarantined manifest that has no card: its name, with the reason as description.
    pub card: Arc<ToolCard>,
    /// The card's hash.
    pub hash: CardHash,
    /// Whether it can be called.
    pub state: EntryState,
    /// How it is shown.
    pub tier: Tier,
    /// Whether its first call was made.
    pub loaded: bool,
}

/// All tools at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// By name, available or not.
    pub entries: BTreeMap<ToolName, Arc<Entry>>,
    /// Manifests that have no entry, with the reason: a name that is taken or is none.
    pub problems: Vec<(PathBuf, String)>,
    manifest: Manifest,
    tool_set: ToolSetHash,
    cards: BTreeMap<CardHash, Arc<[u8]>>,
}

impl Snapshot {
    /// `cards`: canonical bytes of the available tools' cards.
    pub(crate) fn new(
        entries: BTreeMap<ToolName, Arc<Entry>>,
        problems: Vec<(PathBuf, String)>,
        cards: BTreeMap<CardHash, Arc<[u8]>>,
    ) -> Self {
        let manifest = Manifest::new(
            entries
                .values()
                .filter(|e| e.state.is_available())
                .map(|e| ManifestEntry {
                    name: e.card.name.clone(),
                    version: e.card.version.clone(),
                    card: e.hash,
                })
                .collect(),
        );
        // At most 1,024 entries with names and versions of at most 64 bytes: always under the manifest's limit. A card that is
        // made in code could have a longer version; then nobody is offered anything, and the log says why.
        let (manifest, tool_set) = match manifest.hash() {
            Ok(hash) => (manifest, hash),
            Err(error) => {
                tracing::error!(%error, "the manifest has no canonical form; no tool is offered");
                (Manifest::default(), ToolSetHash::from_bytes([0; 32]))
            }
        };
        Self { entries, problems, manifest, tool_set, cards }
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &ToolName) -> Option<&Arc<Entry>> {
        self.entries.get(name)
    }

    /// The available tools, as peers see them.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The manifest's hash.
    #[must_use]
    pub const fn tool_set(&self) -> ToolSetHash {
        self.tool_set
    }

    /// Canonical bytes of an available tool's card.
    #[must_use]
    pub fn card_bytes(&self, hash: &CardHash) -> Option<Arc<[u8]>> {
        self.cards.get(hash).cloned()
    }

    /// The available tools, sorted by name.
    pub fn available(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values().filter(|e| e.state.is_available())
    }
}
