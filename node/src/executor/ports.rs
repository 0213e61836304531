//! What the executor needs of the tools.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::{
    blob::BlobRef,
    card::{SandboxLevel, ToolCard},
    id::{CardHash, NodeId, StepKey, ToolName},
    step::StepStatus,
};
use octomesh_tools::tool::{Caller, DataProbe, EventSink};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why there is no usable tool of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// There is none.
    NoTool,
    /// There is one, but it does not work, for this reason.
    Unavailable(String),
}

/// What a running call may use.
#[derive(Debug, Clone)]
pub struct RunContext {
    /// The step, also the idempotency key.
    pub key: StepKey,
    /// Who asks.
    pub caller: Caller,
    /// The call stops what it started when this is cancelled.
    pub cancel: CancellationToken,
    /// The call must be over by then.
    pub deadline: Instant,
    /// Progress, output chunks, log lines.
    pub events: EventSink,
    /// The node asks itself whether it still works: no statistic counts the call.
    pub proof: bool,
    /// Variables that tell a program which GPU was reserved for the call; empty without one.
    pub gpu: BTreeMap<String, String>,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReport {
    /// How it ended.
    pub status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`, as JSON bytes.
    pub output: Vec<u8>,
    /// Level it ran at.
    pub sandbox: SandboxLevel,
}

/// The tools of this node.
#[async_trait]
pub trait ToolRunner: Send + Sync + 'static {
    /// The card of a tool that works, with its hash. Loads nothing.
    ///
    /// # Errors
    /// [`Absent`].
    fn card(&self, tool: &ToolName) -> Result<(CardHash, Arc<ToolCard>), Absent>;

    /// Level that programs run at here now. A new self-test may change it.
    fn sandbox(&self) -> SandboxLevel;

    /// Runs a call: loads the tool, checks the arguments, calls it. Whatever it started is gone when the future is dropped.
    async fn run(&self, tool: &ToolName, context: RunContext, arguments: Vec<u8>) -> CallReport;

    /// Keeps a result that is too large for a frame, for its coordinator, as long as `lasts`. It is on the disk when this returns.
    ///
    /// # Errors
    /// Why it can't be kept, for people.
    async fn keep(&self, owner: NodeId, output: Vec<u8>, lasts: Duration) -> Result<BlobRef, String>;

    /// Arguments that `owner` has brought here because they are too large for a frame.
    ///
    /// # Errors
    /// That they are not here, for people.
    async fn input(&self, owner: NodeId, blob: BlobRef) -> Result<Vec<u8>, String>;

    /// Whether the data that the arguments point to is here.
    async fn probe(&self, tool: &ToolName, caller: &Caller, arguments: &[u8]) -> DataProbe;
}
