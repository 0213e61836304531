//! The JSON of the HTTP API and of `--json`. Field names are an interface: INTERFACES lists them, other programs rely on them.
//!
//! `node`, `from`, `to`, `ran_on` and `chosen` are names of nodes; `node_id` is the id. A point in time is in seconds since
//! the Unix epoch; a duration names its unit.
use octomesh_protocol::{
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    step::StepStatus,
    trust::Role,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Name, as the driver or the owner gives it.
    pub name: String,
    /// All of its memory, in bytes.
    pub vram_total: u64,
    /// Free memory, in bytes.
    pub vram_free: u64,
    /// Age of the reading, in milliseconds.
    pub age_ms: u64,
    /// Whether the owner wrote it into the configuration instead of a driver reporting it.
    pub declared: bool,
}

/// How this node talks to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// Addresses it listens on, joined by commas.
    pub bind_addr: String,
    /// The first address that others are told, when there is one.
    pub advertise_addr: Option<String>,
    /// The suite of its sessions.
    pub encryption: String,
    /// Version of the step protocol.
    pub protocol_version: u32,
}

/// Members by state, this node included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipCounts {
    /// Answering.
    pub alive: u32,
    /// Late.
    pub suspect: u32,
    /// Down or left.
    pub dead: u32,
    /// Everyone ever seen since the start.
    pub total_seen: u32,
}

/// What the router did since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoutingCounts {
    /// (running + queued) / slots of this node.
    pub local_load: f64,
    /// Steps placed on other nodes.
    pub tasks_routed_out: u64,
    /// Steps run here for other nodes.
    pub tasks_routed_in: u64,
    /// Steps placed again after their node failed.
    pub tasks_failed_over: u64,
}

/// `GET /api/mesh/status`: this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusReply {
    /// Whether it is a member of a mesh.
    pub cluster_enabled: bool,
    /// Its id.
    pub node_id: String,
    /// `alive`, or `draining`, or `not_ready`.
    pub state: String,
    /// Where it is, in the owner's words.
    pub region: String,
    /// Names of its tools.
    pub capabilities: Vec<String>,
    /// Since its start.
    pub uptime_secs: u64,
    /// How it talks to others.
    pub transport: Transport,
    /// Members by state.
    pub membership: MembershipCounts,
    /// What the router did.
    pub routing: RoutingCounts,
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Level that process tools run at.
    pub sandbox: SandboxLevel,
    /// Steps that can run at once.
    pub slots: u32,
    /// Steps running.
    pub running: u32,
    /// Steps waiting.
    pub queued: u32,
    /// Engines that can plan.
    pub engines: Vec<String>,
    /// `on`, `off` or `auto`.
    pub lazy_tools: String,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// What its owner should look at.
    pub warnings: Vec<String>,
}

/// `GET /api/mesh/nodes`: every member.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodesReply {
    /// This node first, then by name.
    pub nodes: Vec<NodeEntry>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its id.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// `alive`, `suspect`, `down` or `left`.
    pub state: String,
    /// Where it is reached, when known.
    pub addr: Option<String>,
    /// Where it is, in its owner's words.
    pub region: String,
    /// Labels for placement.
    pub tags: Vec<String>,
    /// (running + queued) / slots.
    pub load_ratio: f64,
    /// Steps that can run at once.
    pub slots: u32,
    /// Steps running.
    pub running: u32,
    /// Steps waiting.
    pub queued: u32,
    /// Round trip; absent when never measured.
    pub rtt_ms: Option<f64>,
    /// Last sign of life, in seconds since the Unix epoch; absent when there never was one.
    pub last_seen: Option<u64>,
    /// Raised at each of its starts.
    pub incarnation: u64,
    /// Whether it is the node that answers.
    pub is_self: bool,
    /// It takes no new steps.
    pub draining: bool,
    /// Level that process tools run at there; absent before its first advert.
    pub sandbox: Option<SandboxLevel>,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Models loaded.
    pub models: Vec<String>,
    /// How many tools it offers.
    pub tools: u32,
    /// Suite of the session with it; absent for this node and without a session.
    pub suite: Option<String>,
    /// Version of its program.
    pub version: String,
    /// Why it can't be reached or used, in a sentence.
    pub problem: Option<String>,
}

/// `GET /api/mesh/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsReply {
    /// Open sessions, by name.
    pub sessions: Vec<SessionEntry>,
}

/// One open session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionEntry {
    /// The other node.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// The suite.
    pub suite: String,
    /// Whether the key exchange is post-quantum.
    pub pq: bool,
    /// `in` or `out`: who dialled.
    pub direction: String,
    /// Age of the session.
    pub established_s: u64,
    /// Key changes since then.
    pub rekeys: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// The other end.
    pub addr: String,
}

/// `POST /api/mesh/nodes/{id}/drain` and `/undrain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReply {
    /// The node.
    pub node_id: String,
    /// Whether it now takes no new steps.
    pub drained: bool,
    /// Steps running or waiting there.
    pub remaining_steps: u32,
}

/// Which tools to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsQuery {
    /// Of the whole mesh instead of this node.
    pub all: bool,
    /// Only those that fit these words, best first.
    pub search: Option<String>,
    /// At most this many.
    pub max: Option<u32>,
}

/// `GET /api/tools`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolsReply {
    /// By name, or best first for a search.
    pub tools: Vec<ToolEntry>,
}

/// One tool, without its schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolEntry {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Hash of its card.
    pub card_hash: String,
    /// Where it comes from.
    pub source: Source,
    /// `core` (its schema is always in the prompt) or `deferred`.
    pub tier: String,
    /// `available`, `loaded` or `quarantined`.
    pub state: String,
    /// Why it is quarantined.
    pub reason: Option<String>,
    /// What running it twice does.
    pub effect: Effect,
    /// What a node must have.
    pub needs: Needs,
    /// Names of the nodes that have it.
    pub nodes: Vec<String>,
}

/// `GET /api/tools/{name}`: the entry and the whole card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDetail {
    /// As in the list.
    #[serde(flatten)]
    pub entry: ToolEntry,
    /// The card.
    pub card: Box<ToolCard>,
}

/// `POST /api/call` and `POST /api/place`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRequest {
    /// The tool.
    pub tool: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// Only this node (name, id or unique prefix).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Time until the call must be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// What became of a call. A tool that failed is an answer too: see `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallReply {
    /// The tool.
    pub tool: String,
    /// Name of the node it ran on; absent when it never started.
    pub node: Option<String>,
    /// How it ended.
    pub status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`.
    pub output: Value,
    /// Time from the request to the answer.
    pub elapsed_ms: u64,
    /// Level it ran at.
    pub sandbox: SandboxLevel,
    /// For `why`.
    pub decision_id: Option<String>,
    /// How often it was placed.
    pub attempts: u32,
}

/// `POST /api/runs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The question.
    pub question: String,
    /// Text of a plan file, YAML or JSON; the engine then plans nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The engine; the node's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Most steps of one block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Time until the run is cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_s: Option<u32>,
}

/// The answer to `POST /api/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The new run.
    pub run_id: String,
}

/// `GET /api/runs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsReply {
    /// Newest first.
    pub runs: Vec<RunSummary>,
}

/// One run in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The run.
    pub run_id: String,
    /// Its question.
    pub question: String,
    /// `not_started`, `in_progress`, `completed`, `failed`, `cancelled` or `uncertain`.
    pub status: String,
    /// When it began, in seconds since the Unix epoch.
    pub started_at: u64,
    /// Steps that are over.
    pub steps_done: u32,
    /// Steps known so far.
    pub steps_total: u32,
}

/// `{code, message, hint}`: the inside of every error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// What to do, when it is known.
    pub hint: Option<String>,
}

/// One event of a run, as `GET /api/runs/{id}/events` streams it: first all that happened, then what happens.
///
/// Its body is made by the solve loop and has a `type`; run documents (`GET /api/runs/{id}`) are the solve loop's too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// 1, 2, 3 …; a gap means that the reader was too slow.
    pub seq: u64,
    /// What happened.
    #[serde(flatten)]
    pub body: Map<String, Value>,
}

impl RunEvent {
    /// What kind of event it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.body.get("type").and_then(Value::as_str).unwrap_or("event")
    }
}

/// `POST /api/invites`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// What the newcomer will be.
    #[serde(default = "worker")]
    pub role: Role,
    /// How long the ticket is good for.
    #[serde(default = "quarter_of_an_hour")]
    pub ttl_s: u64,
    /// How many nodes may use it.
    #[serde(default = "once")]
    pub uses: u32,
}

const fn worker() -> Role {
    Role::Worker
}

const fn quarter_of_an_hour() -> u64 {
    900
}

const fn once() -> u32 {
    1
}

/// A new ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteReply {
    /// The ticket, `octo1…`: whoever has it can join.
    pub ticket: String,
    /// Its id, for `--withdraw`.
    pub id: String,
    /// In seconds since the Unix epoch.
    pub expires_at: u64,
    /// How many nodes may use it.
    pub uses: u32,
    /// What they will be.
    pub role: Role,
}

/// `GET /api/invites`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitesReply {
    /// Tickets that can still be used.
    pub invites: Vec<InviteEntry>,
}

/// A ticket in a list: never the ticket itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteEntry {
    /// Its id.
    pub id: String,
    /// In seconds since the Unix epoch.
    pub expires_at: u64,
    /// Uses left.
    pub uses: u32,
    /// What they will be.
    pub role: Role,
}

/// `DELETE /api/invites/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawReply {
    /// The ticket.
    pub id: String,
    /// Whether it can no longer be used.
    pub withdrawn: bool,
}
