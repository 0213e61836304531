//! The tools of this node: name -> card, state, loader. Look-ups never load anything.
//!
//! One lock guards the table, is held for a few map operations and never across an await; readers use the published
//! [`Snapshot`], which is replaced whole.
use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use octomesh_protocol::{
    card::{Source, ToolCard},
    id::{CardHash, InvalidId, ToolName},
    limits,
};
use tokio::sync::watch;

pub use crate::snapshot::{CORE_TOOLS, Entry, EntryState, Snapshot, Tier};

use crate::{
    builtin::{Catalogue, Listed},
    load::{LoadCell, LoadError, Loaded, Loader, Ready},
    manifest::ManifestError,
    schema::Schema,
    tool::{Tool, ToolError},
};

/// Why a tool can't be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum RegistryError {
    /// Another tool has this name.
    #[error("name_taken: there is already a tool `{0}`")]
    NameTaken(ToolName),
    /// The node has as many tools as a manifest can hold.
    #[error("this node has {} tools already", limits::TOOLS_PER_NODE)]
    Full,
    /// The card has no canonical form: it is over 64 KiB.
    #[error("card of `{name}`: {reason}")]
    Card {
        /// The tool.
        name: ToolName,
        /// Why.
        reason: String,
    },
    /// The text of a built-in card is bad. A bug of ours.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A name is none.
    #[error(transparent)]
    Name(#[from] InvalidId),
}

impl RegistryError {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// A tool of the hot folder as found by one scan.
pub(crate) struct FolderTool {
    /// The manifest.
    pub(crate) path: PathBuf,
    /// Hash of all that was read: the same digest means that nothing changed.
    pub(crate) digest: [u8; 32],
    pub(crate) name: ToolName,
    /// Card and loader, or why it is quarantined.
    pub(crate) content: Result<(ToolCard, Box<dyn Loader>), String>,
    /// Why it does not work although its manifest is good.
    pub(crate) unavailable: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
enum Origin {
    Program,
    Folder { path: PathBuf, digest: [u8; 32] },
}

struct Slot {
    card: Arc<ToolCard>,
    hash: CardHash,
    bytes: Arc<[u8]>,
    state: EntryState,
    origin: Origin,
    cell: Arc<LoadCell>,
}

#[derive(Default)]
struct Table {
    slots: BTreeMap<ToolName, Slot>,
    problems: Vec<(PathBuf, String)>,
}

struct Inner {
    table: Mutex<Table>,
    published: watch::Sender<Arc<Snapshot>>,
}

/// The handle; clones are the same registry.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("tools", &self.snapshot().entries.len()).finish()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        let table = Table::default();
        let (published, _) = watch::channel(Arc::new(table.snapshot()));
        Self(Arc::new(Inner { table: Mutex::new(table), published }))
    }

    /// Adds a tool of the program. A card whose schema or examples are bad is quarantined, which is no error here: the
    /// snapshot says why.
    ///
    /// # Errors
    /// [`RegistryError::NameTaken`], [`RegistryError::Full`], [`RegistryError::Card`].
    pub fn register(&self, tool: Arc<dyn Tool>) -> Result<(), RegistryError> {
        let card = Arc::clone(tool.card());
        let name = card.name.clone();
        let slot = Slot::new(card, Origin::Program, Ok(Box::new(Ready(tool))))?;
        let mut table = self.table();
        if table.slots.contains_key(&name) {
            return Err(RegistryError::NameTaken(name));
        }
        if table.slots.len() >= limits::TOOLS_PER_NODE {
            return Err(RegistryError::Full);
        }
        table.slots.insert(name, slot);
        self.publish(&table);
        Ok(())
    }

    /// Makes the tools of the hot folder exactly these. What did not change keeps its state and stays loaded. Nothing is
    /// published when nothing changed.
    pub(crate) fn set_folder(&self, found: Vec<FolderTool>, mut problems: Vec<(PathBuf, String)>) {
        let mut table = self.table();
        let mut old: BTreeMap<ToolName, Slot> = BTreeMap::new();
        let names: Vec<ToolName> =
            table.slots.iter().filter(|(_, s)| s.is_folder()).map(|(n, _)| n.clone()).collect();
        for name in names {
            if let Some(slot) = table.slots.remove(&name) {
                old.insert(name, slot);
            }
        }
        let mut changed = false;
        for tool in found {
            let FolderTool { path, digest, name, content, unavailable } = tool;
            if table.slots.contains_key(&name) {
                problems.push((path, RegistryError::NameTaken(name).to_string()));
                continue;
            }
            if table.slots.len() >= limits::TOOLS_PER_NODE {
                problems.push((path, RegistryError::Full.to_string()));
                continue;
            }
            let origin = Origin::Folder { path: path.clone(), digest };
            if let Some(same) = old.remove(&name) {
                if same.origin == origin {
                    table.slots.insert(name, same);
                    continue;
                }
                changed = true;
            }
            match Slot::from_folder(&name, origin, content) {
                Ok(mut slot) => {
                    changed = true;
                    if let (EntryState::Available, Some(reason)) = (&slot.state, unavailable) {
                        slot.state = EntryState::Unavailable { reason };
                    }
                    table.slots.insert(name, slot);
                }
                Err(error) => problems.push((path, error.to_string())),
            }
        }
        problems.sort();
        changed |= !old.is_empty() || problems != table.problems;
        table.problems = problems;
        if changed {
            self.publish(&table);
        }
    }

    /// All tools at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.published.borrow())
    }

    /// The newest snapshot, and a wake-up for each new one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.0.published.subscribe()
    }

    /// The tool, loaded.
    ///
    /// # Errors
    /// [`LoadError`].
    pub async fn tool(&self, name: &ToolName) -> Result<Arc<dyn Tool>, LoadError> {
        Ok(Arc::clone(&self.loaded(name, false).await?.tool))
    }

    /// The tool with its compiled schema. `even_unavailable`: a check that a tool works again has to call it.
    pub(crate) async fn loaded(
        &self,
        name: &ToolName,
        even_unavailable: bool,
    ) -> Result<Arc<Loaded>, LoadError> {
        let (card, cell) = {
            let table = self.table();
            let slot = table.slots.get(name).ok_or_else(|| LoadError::NoTool(name.clone()))?;
            match &slot.state {
                EntryState::Unavailable { reason } if !even_unavailable => {
                    return Err(LoadError::Unavailable { name: name.clone(), reason: reason.clone() });
                }
                EntryState::Quarantined { reason } => {
                    return Err(LoadError::Quarantined { name: name.clone(), reason: reason.clone() });
                }
                EntryState::Available | EntryState::Unavailable { .. } => {}
            }
            (Arc::clone(&slot.card), Arc::clone(&slot.cell))
        };
        let first = !cell.is_loaded();
        let loaded =
            cell.get(&card).await.map_err(|reason| LoadError::Unavailable { name: name.clone(), reason })?;
        if first {
            self.publish(&self.table());
        }
        Ok(loaded)
    }

    /// Takes a tool out of what is offered, with the reason that people see. A quarantined tool stays quarantined. False when
    /// there is no such tool.
    pub fn set_unavailable(&self, name: &ToolName, reason: impl Into<String>) -> bool {
        self.set_state(name, EntryState::Unavailable { reason: reason.into() })
    }

    /// Offers a tool again. False when there is no such tool or it is quarantined.
    pub fn set_available(&self, name: &ToolName) -> bool {
        self.set_state(name, EntryState::Available)
    }

    /// This node's own tools as what `tool_info` searches; holds no reference that keeps the registry alive.
    #[must_use]
    pub fn catalogue(&self) -> Arc<dyn Catalogue> {
        Arc::new(OwnTools(Arc::downgrade(&self.0)))
    }

    fn set_state(&self, name: &ToolName, state: EntryState) -> bool {
        let mut table = self.table();
        let Some(slot) = table.slots.get_mut(name) else { return false };
        if matches!(slot.state, EntryState::Quarantined { .. }) {
            return false;
        }
        if slot.state != state {
            slot.state = state;
            self.publish(&table);
        }
        true
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics while it holds the lock; if it did, the table is still a table.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, table: &Table) {
        self.0.published.send_replace(Arc::new(table.snapshot()));
    }
}

struct OwnTools(Weak<Inner>);

impl Catalogue for OwnTools {
    fn cards(&self) -> Vec<Listed> {
        let Some(inner) = self.0.upgrade() else { return Vec::new() };
        let snapshot = Arc::clone(&inner.published.borrow());
        let listed = |e: &Arc<Entry>| Listed { card: Arc::clone(&e.card), hash: e.hash, nodes: Vec::new() };
        snapshot.available().map(listed).collect()
    }
}

/// The loader of a quarantined tool, which is never asked.
struct Broken;

#[async_trait::async_trait]
impl Loader for Broken {
    async fn load(&self, _card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError> {
        Err(ToolError::Unavailable("quarantined".into()))
    }
}

impl Slot {
    fn new(
        card: Arc<ToolCard>,
        origin: Origin,
        loader: Result<Box<dyn Loader>, String>,
    ) -> Result<Self, RegistryError> {
        let bad = |reason| RegistryError::Card { name: card.name.clone(), reason };
        let bytes: Arc<[u8]> = card.to_bytes().map_err(|e| bad(e.to_string()))?.into();
        let hash = card.hash().map_err(|e| bad(e.to_string()))?;
        let (state, loader) = match loader.and_then(|l| faults(&card).map_or(Ok(l), Err)) {
            Ok(loader) => (EntryState::Available, loader),
            Err(reason) => (EntryState::Quarantined { reason }, Box::new(Broken) as Box<dyn Loader>),
        };
        Ok(Self { card, hash, bytes, state, origin, cell: Arc::new(LoadCell::new(loader)) })
    }

    fn from_folder(
        name: &ToolName,
        origin: Origin,
        content: Result<(ToolCard, Box<dyn Loader>), String>,
    ) -> Result<Self, RegistryError> {
        let too_large =
            |reason: String| Self::new(Arc::new(stand_in(name, &reason)), origin.clone(), Err(reason));
        match content {
            Err(reason) => too_large(reason),
            Ok((card, loader)) => match card.to_bytes() {
                Err(error) => too_large(format!("card: {error}")),
                Ok(_) => Self::new(Arc::new(card), origin, Ok(loader)),
            },
        }
    }

    fn is_folder(&self) -> bool {
        matches!(self.origin, Origin::Folder { .. })
    }
}

/// What a manifest without a card is shown as.
fn stand_in(name: &ToolName, reason: &str) -> ToolCard {
    ToolCard {
        name: name.clone(),
        version: "0".into(),
        description: reason.chars().take(limits::TEXT_BYTES / 4).collect(),
        keywords: Vec::new(),
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: Vec::new(),
        effect: octomesh_protocol::card::Effect::Once,
        needs: octomesh_protocol::card::Needs::default(),
        typical_ms: 0,
        data: Vec::new(),
        demo_calls: Vec::new(),
        limitations: Vec::new(),
        best_practice: Vec::new(),
        requires_llm: false,
        source: Source::Process,
    }
}

/// What is wrong with a card that has a canonical form.
fn faults(card: &ToolCard) -> Option<String> {
    let schema = match Schema::compile(&card.input_schema) {
        Ok(schema) => schema,
        Err(error) => return Some(error.to_string()),
    };
    for (kind, example) in
        card.examples.iter().map(|e| ("example", e)).chain(card.demo_calls.iter().map(|e| ("demo call", e)))
    {
        let serde_json::Value::Object(arguments) = &example.arguments else {
            return Some(format!("{kind}: its arguments are not an object"));
        };
        if let Err(fault) = schema.check(arguments) {
            return Some(format!("{kind}: {fault}"));
        }
    }
    let known = card.input_schema.get("properties");
    card.data
        .iter()
        .find(|name| known.and_then(|k| k.get(name.as_str())).is_none())
        .map(|name| format!("data: there is no argument `{name}`"))
}

impl Table {
    fn snapshot(&self) -> Snapshot {
        let entries = self.slots.iter().map(|(name, slot)| (name.clone(), Arc::new(slot.entry()))).collect();
        let available = self.slots.values().filter(|s| s.state.is_available());
        let cards = available.map(|s| (s.hash, Arc::clone(&s.bytes))).collect();
        Snapshot::new(entries, self.problems.clone(), cards)
    }
}

impl Slot {
    fn entry(&self) -> Entry {
        let core = self.card.source == Source::Builtin && CORE_TOOLS.contains(&self.card.name.as_str());
        Entry {
            card: Arc::clone(&self.card),
            hash: self.hash,
            state: self.state.clone(),
            tier: if core { Tier::Core } else { Tier::Deferred },
            loaded: self.cell.is_loaded(),
        }
    }
}
