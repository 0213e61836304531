//! What the HTTP API needs from the node: one narrow trait, so that handlers reach into nothing else.
use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    error::ApiError,
    files::{Content, FileAsk, NewFile},
    types::{
        ArtifactsReply, CallReply, CallRequest, DrainReply, FileReply, ForgetReply, InviteReply,
        InviteRequest, InvitesReply, LeaveReply, LeaveRequest, MeshEvent, NodesReply, RefusalsReply,
        RenameReply, RenameRequest, ResumeRequest, RevokeReply, RevokeRequest, RootReply, RunEvent,
        RunRequest, RunStarted, RunsReply, SessionsReply, StatusReply, ToolDetail, ToolsQuery, ToolsReply,
        TrialReply, TrialRequest, UnlockRequest, WakeReply, WithdrawReply,
    },
};

/// The node, as the API sees it.
///
/// `node` in arguments is a name, an id or a unique prefix; the backend resolves it and answers 404 `unknown_node` or
/// 409 `ambiguous_node`.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Ready to serve: joined, executor proven by a self-call. The error is the reason in a sentence.
    async fn ready(&self) -> Result<(), String>;
    /// This node.
    async fn status(&self) -> Result<StatusReply, ApiError>;
    /// Every member.
    async fn nodes(&self) -> Result<NodesReply, ApiError>;
    /// What happens in the mesh from now on. A slow reader loses the oldest and is told how many.
    async fn mesh_events(&self) -> Result<mpsc::Receiver<MeshEvent>, ApiError>;
    /// Open sessions.
    async fn sessions(&self) -> Result<SessionsReply, ApiError>;
    /// Whom this node refused lately, and who refused it.
    async fn refusals(&self) -> Result<RefusalsReply, ApiError>;
    /// Starts or ends maintenance of a node.
    async fn drain(&self, node: &str, on: bool) -> Result<DrainReply, ApiError>;
    /// Throws a node out of the mesh for good.
    async fn revoke(&self, node: &str, request: RevokeRequest) -> Result<RevokeReply, ApiError>;
    /// Tools of this node or of the mesh.
    async fn tools(&self, query: ToolsQuery) -> Result<ToolsReply, ApiError>;
    /// One tool with its card; also one that only other nodes have.
    async fn tool(&self, name: &str) -> Result<ToolDetail, ApiError>;
    /// One routed call. Dropping the future cancels the call on whichever node it runs.
    async fn call(&self, request: CallRequest) -> Result<CallReply, ApiError>;
    /// Where the call would go: `{chosen, candidates, filtered}`, made by the router.
    async fn place(&self, request: CallRequest) -> Result<Value, ApiError>;
    /// Measures calls to another node beside bare round trips to it.
    async fn trial(&self, request: TrialRequest) -> Result<TrialReply, ApiError>;
    /// A stored decision, by its own id, a step's or a call's.
    async fn decision(&self, id: &str) -> Result<Value, ApiError>;
    /// Starts a run; it lives on without the client.
    async fn start_run(&self, request: RunRequest) -> Result<RunStarted, ApiError>;
    /// All runs, newest first.
    async fn runs(&self) -> Result<RunsReply, ApiError>;
    /// One run: the document of the solve loop, or `{error}` for a question that was refused.
    async fn run(&self, id: &str) -> Result<Value, ApiError>;
    /// The events of a run: first all past ones, then new ones; the channel closes after the last.
    async fn run_events(&self, id: &str) -> Result<mpsc::Receiver<RunEvent>, ApiError>;
    /// Stops a run and the steps it has on other nodes; answers with its last state. A run that is over stays as it is.
    async fn cancel_run(&self, id: &str) -> Result<Value, ApiError>;
    /// Goes on with a run that ended `uncertain`, as decided; a live one stays as it is. Follow it by its events.
    async fn resume_run(&self, id: &str, request: ResumeRequest) -> Result<RunStarted, ApiError>;
    /// What a run has made: results that are blobs, and files.
    async fn artifacts(&self, id: &str) -> Result<ArtifactsReply, ApiError>;
    /// A file of a workspace.
    async fn read_file(&self, ask: FileAsk) -> Result<Content, ApiError>;
    /// Puts a file into a workspace. It is seen there when all of it is.
    async fn write_file(&self, file: NewFile) -> Result<FileReply, ApiError>;
    /// A blob of this node, from byte `offset` on.
    async fn read_blob(&self, hash: &str, offset: u64) -> Result<Content, ApiError>;
    /// Makes a ticket.
    async fn invite(&self, request: InviteRequest) -> Result<InviteReply, ApiError>;
    /// Tickets that can still be used.
    async fn invites(&self) -> Result<InvitesReply, ApiError>;
    /// Makes a ticket useless.
    async fn withdraw_invite(&self, id: &str) -> Result<WithdrawReply, ApiError>;
    /// Gives this node another name.
    async fn rename(&self, request: RenameRequest) -> Result<RenameReply, ApiError>;
    /// Leaves the mesh for good: tells the members; then the node stops and its identity is erased.
    async fn leave(&self, request: LeaveRequest) -> Result<LeaveReply, ApiError>;
    /// Takes a member out of sight that is down or has left.
    async fn forget(&self, node: &str) -> Result<ForgetReply, ApiError>;
    /// Sends the packets that wake a machine which sleeps.
    async fn wake(&self, node: &str) -> Result<WakeReply, ApiError>;
    /// Where the mesh's root key is.
    async fn root(&self) -> Result<RootReply, ApiError>;
    /// Opens the root key with its passphrase for a while.
    async fn unlock_root(&self, request: UnlockRequest) -> Result<RootReply, ApiError>;
    /// Forgets an opened root key.
    async fn lock_root(&self) -> Result<RootReply, ApiError>;
}
