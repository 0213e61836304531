//! What a tool is in code: a card and an async call.
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use octomesh_protocol::{
    card::{SandboxLevel, ToolCard},
    id::{NodeId, NodeName, StepKey},
    step::EventKind,
    trust::{Grants, Role},
};
use serde_json::{Map, Value};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

/// Arguments of a call, already valid against the card's schema.
pub type Arguments = Map<String, Value>;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The node whose certificate was checked.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// Its role.
    pub role: Role,
    /// Its grants.
    pub grants: Grants,
    /// Whether it is this very node.
    pub local: bool,
}

/// The node's working directory, opened once; file tools reach nothing outside of it.
#[derive(Debug)]
pub struct Workspace {
    dir: cap_std::fs::Dir,
    path: PathBuf,
}

impl Workspace {
    /// Opens the directory, which must exist.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let dir = cap_std::fs::Dir::open_ambient_dir(path, cap_std::ambient_authority())?;
        Ok(Self { dir, path: path.to_owned() })
    }

    /// The capability: every path given to it stays inside.
    #[must_use]
    pub fn dir(&self) -> &cap_std::fs::Dir {
        &self.dir
    }

    /// The path, for process tools that run in it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Where a running tool reports to. Bounded; a slow reader loses events, never blocks the tool.
#[derive(Debug, Clone)]
pub struct EventSink(Option<mpsc::Sender<(EventKind, String)>>);

impl EventSink {
    /// Events go to `sender`.
    #[must_use]
    pub const fn new(sender: mpsc::Sender<(EventKind, String)>) -> Self {
        Self(Some(sender))
    }

    /// Nobody listens.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Reports; drops the event when the reader is behind.
    pub fn send(&self, kind: EventKind, text: impl Into<String>) {
        if let Some(sender) = &self.0 {
            // silent-ok: events are best effort; a gap shows as a gap in their numbers
            let _ = sender.try_send((kind, text.into()));
        }
    }
}

/// Wall-clock time, given by the node: tools have no clock of their own.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Everything a call may use besides its arguments.
#[derive(Clone)]
pub struct CallContext {
    /// The step, also the idempotency key.
    pub key: StepKey,
    /// Who asks.
    pub caller: Caller,
    /// Ends the call when cancelled; a tool stops whatever it started.
    pub cancel: CancellationToken,
    /// The call must be over by then.
    pub deadline: Instant,
    /// The node's working directory.
    pub workspace: Arc<Workspace>,
    /// Progress, output chunks, log lines.
    pub events: EventSink,
    /// Wall-clock time.
    pub wall: WallClock,
    /// Variables that tell a program which GPU was reserved for the call; empty without one.
    pub gpu: BTreeMap<String, String>,
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("key", &self.key)
            .field("caller", &self.caller.name)
            .finish_non_exhaustive()
    }
}

/// What a call returns.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// The result.
    pub content: Value,
    /// Level that the call really ran at.
    pub sandbox: SandboxLevel,
}

impl From<Value> for ToolOutput {
    /// A result computed in the node's process.
    fn from(content: Value) -> Self {
        Self { content, sandbox: SandboxLevel::None }
    }
}

/// Why a call has no result. The variant's name is the error code that people see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ToolError {
    /// The arguments are not what the card's schema asks for.
    #[error("{0}")]
    InvalidArguments(String),
    /// A file, a value or a thing that the arguments name does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The tool may not do that.
    #[error("{0}")]
    Forbidden(String),
    /// An input, output or file is over its limit.
    #[error("{0}")]
    TooLarge(String),
    /// The workspace holds as much as it may.
    #[error("{0}")]
    Quota(String),
    /// `if_match` did not match.
    #[error("{0}")]
    Conflict(String),
    /// The tool ran and failed.
    #[error("{0}")]
    Failed(String),
    /// The tool's program could not be started or is gone.
    #[error("{0}")]
    Unavailable(String),
    /// The deadline passed; everything it started is gone.
    #[error("stopped at its deadline")]
    Timeout,
    /// The caller cancelled; everything it started is gone.
    #[error("cancelled")]
    Cancelled,
}

impl ToolError {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// The answer to "is the data that these arguments point to here?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataProbe {
    /// It is, with this many bytes.
    Have(u64),
    /// It is not, for this reason.
    Missing(String),
}

/// A tool. Implementations are cheap to make: the expensive part starts at the first call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What it is.
    fn card(&self) -> &Arc<ToolCard>;

    /// Runs it. `arguments` are valid against the card's schema.
    ///
    /// The future may be dropped at any point; whatever was started then stops.
    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError>;

    /// Level that calls of this tool run at here; reported also for calls that fail.
    fn sandbox(&self) -> SandboxLevel {
        SandboxLevel::None
    }

    /// Whether the tool watches the deadline and the cancel token itself and returns only when all that it started is gone.
    /// It then gets a short grace before its future is dropped.
    fn stops_itself(&self) -> bool {
        false
    }

    /// Whether the data that `arguments` point to is on this node. Only asked of tools whose card names `data`.
    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        let _ = (workspace, arguments);
        DataProbe::Have(0)
    }
}
