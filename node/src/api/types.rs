//! The JSON of the HTTP API and of `--json`. Field names are an interface: other programs rely on them. docs/operations.md lists the
//! requests.
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

use crate::solve::doubt::OnUncertain;

mod life;

pub use life::{
    ForgetReply, InviteEntry, InviteReply, InviteRequest, InvitesReply, LeaveReply, LeaveRequest,
    RenameReply, RenameRequest, RootReply, UnlockRequest, WakeReply, WithdrawReply,
};

/// A GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Name, as the driver or the owner gives it.
    pub name: String,
    /// All of its memory, in bytes.
    pub vram_total: u64,
    /// What one more step could have of it, in bytes; null when the last reading is too old to be true.
    pub vram_free: Option<u64>,
    /// Age of the reading, in milliseconds; null when there is none.
    pub age_ms: Option<u64>,
    /// Whether the owner wrote it into the configuration instead of a driver reporting it.
    pub declared: bool,
    /// What tells it from others, such as its UUID; of this node's own only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Held by steps, in bytes; of this node's own only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// How busy it was at the last reading; of this node's own only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u8>,
}

/// A model that a server of this machine has loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedModel {
    /// As the server calls it.
    pub name: String,
    /// `ADDR:PORT` of the server.
    pub server: String,
    /// All of it, in bytes; null where the server does not tell, as for all below.
    pub bytes: Option<u64>,
    /// What of it is on GPUs, in bytes.
    pub vram: Option<u64>,
    /// Tokens that it was loaded for.
    pub context: Option<u64>,
    /// Questions under way.
    pub slots_busy: Option<u64>,
    /// Questions that it can have at once.
    pub slots: Option<u64>,
}

/// Why cards of a vendor are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAbsence {
    /// `nvidia`, `amd` or `intel`.
    pub vendor: String,
    /// The code.
    pub reason: String,
    /// A sentence.
    pub detail: String,
    /// The machine has such a card.
    pub present: bool,
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
    /// Key types that its sessions prove identities with.
    pub identity: String,
    /// Key types of their key exchange.
    pub kem: String,
    /// Cipher of their records.
    pub aead: String,
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
    /// Down.
    pub dead: u32,
    /// Gone with a good-bye.
    #[serde(default)]
    pub left: u32,
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
    /// `alive`, or `draining`, or `not_ready`, or `revoked`.
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
    /// How others are found on the networks of this machine.
    #[serde(default)]
    pub discovery: DiscoveryReport,
    /// Addresses that were configured or heard of and lead to no member.
    #[serde(default)]
    pub unreached: Vec<UnreachedAddress>,
    /// Why it takes no steps: its executor did not prove itself by a self-call.
    #[serde(default)]
    pub not_ready: Option<String>,
    /// Members whose session goes over another one, since neither side can dial the other.
    #[serde(default)]
    pub relayed: Vec<RelayedMember>,
    /// Models that servers of this machine have loaded.
    #[serde(default)]
    pub models: Vec<LoadedModel>,
    /// Why GPUs are missing.
    #[serde(default)]
    pub gpus_absent: Vec<GpuAbsence>,
    /// Why it takes no steps of other nodes for now: `battery`, `gpu_busy` or `quiet_hours`.
    #[serde(default)]
    pub yields: Option<String>,
}

/// A member that is reached over another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedMember {
    /// Its name.
    pub name: String,
    /// The name of the one that relays.
    pub relay: String,
}

/// Multicast DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveryReport {
    /// Whether it is switched on.
    pub mdns: bool,
    /// Interfaces that it speaks on; none when this node can't be reached over one that takes multicast.
    pub interfaces: Vec<DiscoveryInterface>,
}

/// One interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveryInterface {
    /// Its name.
    pub interface: String,
    /// How long it has been listened on.
    pub listening_s: u64,
    /// Nodes of this mesh that were heard in the last minutes.
    pub heard: u32,
    /// Nodes of other meshes.
    pub other_meshes: u32,
    /// Names of members with a session over this network, heard or not.
    pub members: Vec<String>,
    /// Why it can't be used.
    pub problem: Option<String>,
}

/// An address that leads to no member (yet).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachedAddress {
    /// `IP:PORT` or `HOST:PORT`; several of one node are separated by blanks.
    pub addr: String,
    /// `config` or `mdns`.
    pub source: String,
    /// What came of the last dial; absent before the first one ended.
    pub reason: Option<String>,
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
    /// Name of the member over which its session goes; absent when it is reached directly.
    #[serde(default)]
    pub relay: Option<String>,
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
    /// The same, by the name that it has in OptimClaw's API.
    #[serde(default)]
    pub latency_ms: Option<f64>,
    /// Names of the tools that it offers and whose cards are here.
    #[serde(default)]
    pub capabilities: Vec<String>,
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
    /// Its executor proved itself by its last self-calls; false for one that is gone.
    #[serde(default)]
    pub ready: bool,
    /// Of one without a session, the step that failed: `not_heard`, `not_dialled`, `dialled` (in vain) or `lost`.
    #[serde(default)]
    pub step: Option<String>,
    /// Who told of it: `address_book` (ticket, earlier runs), `mdns`, `member`, `session` (it came by itself).
    #[serde(default)]
    pub heard_from: Vec<String>,
    /// Why it has no GPU, as vendor and code; absent when it has one or nobody looked.
    #[serde(default)]
    pub no_gpu: Option<String>,
    /// Why it takes no steps of other nodes for now: `battery`, `gpu_busy` or `quiet_hours`.
    #[serde(default)]
    pub yields: Option<String>,
    /// Hardware addresses by which it can be woken.
    #[serde(default)]
    pub macs: Vec<String>,
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
    /// The other end; empty over a relay.
    pub addr: String,
    /// Name of the member that relays the session; absent when it goes directly.
    #[serde(default)]
    pub relay: Option<String>,
    /// Key types that both sides proved who they are with.
    pub identity: String,
    /// Key types of the key exchange.
    pub kem: String,
    /// Cipher of the records.
    pub aead: String,
    /// Its name in the certificate that was checked.
    pub certificate_name: String,
    /// Its role there.
    pub role: Role,
    /// When that certificate ends, in seconds since the Unix epoch.
    pub certificate_expires_at: u64,
}

/// `GET /api/mesh/refusals`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsReply {
    /// Newest first; at most 64 since the node's start.
    pub refusals: Vec<RefusalEntry>,
}

/// Connections that did not become sessions because one side did not want the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalEntry {
    /// `in` or `out`: who dialled.
    pub direction: String,
    /// `this` or `other`: which node refused.
    pub refused_by: String,
    /// `ADDR:PORT` that was dialled; who dialled this node is known by address, IPv6 by its /64.
    pub addr: String,
    /// Name of the node that was dialled, when it is known.
    pub name: Option<String>,
    /// For programs: `classical_only`, `hung_up`, `wrong_mesh_secret`, `other_mesh`, `expired`, `clock`, `revoked`,
    /// `identity_in_use` and others.
    pub reason: String,
    /// For people.
    pub message: String,
    /// How often.
    pub count: u64,
    /// The last time, in seconds since the Unix epoch.
    pub last_at: u64,
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
    /// The same, by the name that it has in OptimClaw's API.
    #[serde(default)]
    pub remaining_tasks: u32,
}

/// `POST /api/mesh/nodes/{id}/revoke`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RevokeRequest {
    /// Why, at most 200 bytes; every member keeps it.
    pub reason: String,
    /// Replace the mesh secret, too.
    pub rotate_secret: bool,
}

/// The answer: it holds here, and is on its way to all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeReply {
    /// The node.
    pub node_id: String,
    /// When, unix seconds. Of a node that was revoked before: when that was.
    pub revoked_at: u64,
    /// How often the mesh secret was replaced.
    pub secret_generation: u64,
    /// Members that it had certified and that have another certificate now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reissued: Vec<String>,
    /// Members that it had certified and that were not reached: they have to join anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub void_certificates: Vec<String>,
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
    /// `name`, or `name@node` when other nodes have another tool under that name; `call` and `tools show` take either.
    #[serde(default)]
    pub listed_as: String,
    /// What models call it, at most 64 of `a-z A-Z 0-9 _ -`; absent while it is not offered.
    #[serde(default)]
    pub model_name: Option<String>,
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
    /// The whole result, when `output` is only its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<BlobEntry>,
}

/// A blob of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobEntry {
    /// Its SHA-256; `GET /api/blobs/{sha256}` gives it.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

/// `GET /api/runs/{id}/artifacts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactsReply {
    /// The run.
    pub run_id: String,
    /// In the order of its steps.
    pub artifacts: Vec<Artifact>,
}

/// Something that a step has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The step.
    pub step_id: String,
    /// Its tool.
    pub tool: String,
    /// A name for a file.
    pub name: String,
    /// `result`: a blob of this node. `file`: in the workspace of `node`, as it is there now.
    pub kind: String,
    /// Where the file is, or where the result came from.
    pub node: Option<String>,
    /// The file's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its size when the step made it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its hash when the step made it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// `PUT /api/files/{node}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileReply {
    /// The node, by its name.
    pub node: String,
    /// The path in its workspace.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its hash.
    pub sha256: String,
    /// The first byte that had to be sent: those before were there from an earlier try.
    pub resumed_at: u64,
}

/// `POST /api/bench/dispatch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRequest {
    /// Another node: name, id or unique prefix.
    pub node: String,
    /// The tool, which takes `{text}`; `echo` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Calls one after the other, and as many at once; 1 to 100,000.
    pub calls: u32,
}

/// What calls from this node to another cost without HTTP. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReply {
    /// The other node.
    pub node: String,
    /// The tool.
    pub tool: String,
    /// Calls measured one after the other.
    pub calls: u32,
    /// Bytes of JSON arguments.
    pub argument_bytes: u32,
    /// A call, from the order to its outcome.
    pub p50_us: f64,
    /// Of a hundred calls the slowest but one.
    pub p99_us: f64,
    /// A frame there and back on a stream that stays, in turn with the calls.
    pub baseline_p50_us: f64,
    /// The same of a hundred.
    pub baseline_p99_us: f64,
    /// Calls in flight for `steps_per_s`.
    pub in_flight: u32,
    /// Calls per second then.
    pub steps_per_s: f64,
    /// 4 KiB written to a file in the home of this node, and on the disk.
    pub fsync_p50_us: f64,
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

/// `POST /api/runs/{id}/resume`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// What to do with a step of which nobody knows whether it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<OnUncertain>,
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

/// One event of `GET /api/mesh/events`: what happens from then on. Its `type` is `member` (a change of state), `advert`, `joined`,
/// `refused`, or `lagged` with the number of events that were `lost` because the reader was too slow.
pub type MeshEvent = RunEvent;
