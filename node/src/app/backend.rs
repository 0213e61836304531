//! The node as the API sees it: every answer is made from a snapshot, a handle or the journal.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::{
    id::{CardHash, NodeId, RunId, StepId, StepKey, ToolName},
    step::Event,
};
use octomesh_tools::search::SearchIndex;
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{
    artifacts,
    issuer::{Invite, IssuerError},
    node::Node,
    node_view,
    root::{self, Passphrase},
    runs::RunsError,
    session_view,
};
use crate::{
    api::{
        ApiError,
        backend::Backend,
        files::{Content, FileAsk, NewFile},
        types::{
            ArtifactsReply, BlobEntry, CallReply, CallRequest, DrainReply, FileReply, ForgetReply,
            InviteEntry, InviteReply, InviteRequest, InvitesReply, LeaveReply, LeaveRequest, MeshEvent,
            NodesReply, RefusalsReply, RenameReply, RenameRequest, ResumeRequest, RevokeReply, RevokeRequest,
            RootReply, RunEvent, RunRequest, RunStarted, RunSummary, RunsReply, SessionsReply, StatusReply,
            ToolDetail, ToolsQuery, ToolsReply, TrialReply, TrialRequest, UnlockRequest, WakeReply,
            WithdrawReply,
        },
    },
    dispatch::{CallAsk, CallDone},
    journal::JournalError,
    membership::{
        MeshView,
        view::{CatalogueView, ResolveError},
    },
};

/// A call without `timeout_s`.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest that may be asked for.
const LONGEST_CALL: Duration = Duration::from_secs(3600);
/// Runs in a list.
const LISTED_RUNS: u32 = 100;
/// Events of a call on their way nowhere: a single call has no watcher.
const EVENTS: usize = 16;
/// The executor answers a ping from its loop; longer means that it is wedged.
const PING: Duration = Duration::from_secs(1);

/// A node with less is not ready: a step that may run only once could not be noted. `octomesh doctor` fails there, too.
const DISK_OUT_BYTES: u64 = 64 << 20;

/// Whether so many free bytes are enough.
fn room(free: u64, home: &std::path::Path) -> Result<(), String> {
    if free >= DISK_OUT_BYTES {
        return Ok(());
    }
    let least = DISK_OUT_BYTES >> 20;
    Err(format!("disk_full: less than {least} MiB are free for {}; free some space", home.display()))
}

/// The node behind the API.
pub(crate) struct NodeBackend(pub(crate) Arc<Node>);

impl From<ResolveError> for ApiError {
    fn from(error: ResolveError) -> Self {
        let code = <&'static str>::from(&error);
        let status = if matches!(error, ResolveError::AmbiguousNode { .. }) { 409 } else { 404 };
        Self::new(status, code, error.to_string()).hint("`octomesh nodes` lists the nodes of this mesh")
    }
}

impl From<JournalError> for ApiError {
    fn from(error: JournalError) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<IssuerError> for ApiError {
    fn from(error: IssuerError) -> Self {
        let status = match error {
            IssuerError::NotAdmin | IssuerError::NoRoot(_) | IssuerError::Revoked(_) => 403,
            IssuerError::TooMany => 429,
            IssuerError::Range | IssuerError::NoAddress | IssuerError::Grants => 400,
            IssuerError::Unknown(_) => 404,
            IssuerError::Home(_)
            | IssuerError::Entropy(_)
            | IssuerError::Certificate(_)
            | IssuerError::Stopped => 500,
        };
        let hint = match error {
            IssuerError::NotAdmin => Some("run it on an admin's node"),
            IssuerError::Unknown(_) => Some("`octomesh invite --list` shows them"),
            _ => None,
        };
        let shown = Self::new(status, <&'static str>::from(&error), error.to_string());
        match hint {
            Some(hint) => shown.hint(hint),
            None => shown,
        }
    }
}

impl From<RunsError> for ApiError {
    fn from(error: RunsError) -> Self {
        let status = match error {
            RunsError::Busy => 503,
            RunsError::NoEngine(_) | RunsError::EmptyQuestion => 400,
            RunsError::Stopping => 503,
            RunsError::Folder(_) | RunsError::Journal(_) => 500,
            RunsError::UnknownRun(_) => 404,
            RunsError::Live | RunsError::Over { .. } | RunsError::NeedsDecision { .. } => 409,
        };
        let hint = match &error {
            RunsError::UnknownRun(_) => Some("`octomesh runs` lists the runs of this node".to_owned()),
            RunsError::Over { run, .. } => Some(format!("`octomesh runs show {run}` has what it found")),
            RunsError::NeedsDecision { run, .. } => Some(format!(
                "look whether the effect is there; then `octomesh runs resume {run} --retry` runs the step again, \
                 `--skip` leaves it out"
            )),
            _ => None,
        };
        let code = match &error {
            RunsError::NeedsDecision { .. } => "needs_confirmation",
            RunsError::Over { .. } => "run_over",
            other => <&'static str>::from(other),
        };
        let shown = Self::new(status, code, error.to_string());
        match hint {
            Some(hint) => shown.hint(hint),
            None => shown,
        }
    }
}

impl NodeBackend {
    /// Whether what must be on the disk before a step runs gets there.
    async fn can_write(&self) -> Result<(), String> {
        let home = self.0.home.path().to_owned();
        let look = tokio::task::spawn_blocking(move || {
            let free = rustix::fs::statvfs(&home).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
            room(free.unwrap_or(u64::MAX), &home)
        });
        look.await.map_err(|e| e.to_string())??;
        match tokio::time::timeout(PING, self.0.journal.probe()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the journal can't be written: {error}")),
            Err(_) => Err("the journal does not answer".to_owned()),
        }
    }

    pub(super) fn view(&self) -> Arc<MeshView> {
        Arc::clone(&self.0.view.borrow())
    }

    pub(super) fn resolve(&self, text: &str) -> Result<NodeId, ApiError> {
        Ok(self.view().resolve(text)?.node)
    }

    /// The call as dispatch wants it. An unknown tool is refused here, where its neighbours can be named.
    pub(super) fn ask(&self, request: CallRequest) -> Result<CallAsk, ApiError> {
        let view = self.view();
        let (tool, card) = self.named_tool(&request.tool, &view)?;
        let pinned = request.node.as_deref().map(|n| self.resolve(n)).transpose()?;
        let timeout = request.timeout_s.map_or(CALL_TIMEOUT, |s| Duration::from_secs(u64::from(s)));
        let size = serde_json::to_vec(&request.arguments).map_or(0, |b| b.len());
        if size > octomesh_protocol::limits::INPUT_BYTES {
            let message = format!("arguments of {size} bytes are over the limit of 8 MiB");
            return Err(ApiError::new(413, "too_large", message)
                .hint("put a large input into a file of the workspace"));
        }
        let step = StepId::parse("s001").map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(CallAsk {
            key: StepKey { run: RunId::call(self.0.clock.id_bytes()), step },
            tool,
            card,
            arguments: request.arguments,
            pinned,
            timeout: timeout.clamp(Duration::from_secs(1), LONGEST_CALL),
            placed: None,
            resumed: false,
        })
    }

    /// The tool that a text means: its own name any variant of it, `name@node` and what models call it one of them.
    fn named_tool(&self, text: &str, view: &MeshView) -> Result<(ToolName, Option<CardHash>), ApiError> {
        if let Some((name, node)) = text.split_once('@') {
            let member = view.resolve(node)?;
            let held = ToolName::parse(name).ok().and_then(|name| member.tool(&name).cloned());
            return match held {
                Some(tool) => Ok((tool.card.name.clone(), Some(tool.hash))),
                None => {
                    let message = format!("{} has no tool {name:.80?}", member.name);
                    let error = ApiError::not_found("unknown_tool", message);
                    Err(error.hint("`octomesh tools --all` lists the tools of the mesh"))
                }
            };
        }
        let tool = ToolName::parse(text).map_err(|_| node_view::unknown_tool(text, view))?;
        if view.members.values().any(|m| m.tool(&tool).is_some()) || self.is_own(&tool) {
            return Ok((tool, None));
        }
        let names = CatalogueView::new(view).model_names();
        let meant = names.tool(text).and_then(|(tool, card)| Some((ToolName::parse(tool).ok()?, Some(card))));
        meant.ok_or_else(|| node_view::unknown_tool(text, view))
    }

    /// A tool that is here but does not work is known, too: the router says why it can't be used.
    fn is_own(&self, name: &ToolName) -> bool {
        self.0.registry.snapshot().get(name).is_some()
    }

    fn run_id(text: &str) -> Result<RunId, ApiError> {
        RunId::parse(text).map_err(|_| ApiError::not_found("unknown_run", format!("no run {:.80}", text)))
    }

    async fn stored_run(&self, id: &str) -> Result<Value, ApiError> {
        let unknown = || {
            ApiError::not_found("unknown_run", format!("no run {id:.80}"))
                .hint("`octomesh runs` lists the runs of this node")
        };
        let (row, result) = self.0.journal.show_run(id).await?.ok_or_else(unknown)?;
        Ok(result.unwrap_or_else(|| {
            serde_json::json!({
                "run_id": row.run_id, "question": row.question, "status": row.status, "answer": null,
                "citations": [], "blocks": [], "unresolved": [], "usage": {}, "elapsed_ms": 0,
            })
        }))
    }
}

#[async_trait]
impl Backend for NodeBackend {
    async fn ready(&self) -> Result<(), String> {
        if let Some(reason) = self.0.executor.health().reason() {
            return Err(reason);
        }
        match tokio::time::timeout(PING, self.0.executor.ping()).await {
            Ok(Ok(())) => {}
            Ok(Err(gone)) => return Err(gone.to_string()),
            Err(_) => return Err("the executor does not answer".to_owned()),
        }
        self.can_write().await
    }

    async fn status(&self) -> Result<StatusReply, ApiError> {
        Ok(node_view::status(&self.0, &self.view(), self.ready().await.err()))
    }

    async fn nodes(&self) -> Result<NodesReply, ApiError> {
        Ok(node_view::nodes(&self.view()))
    }

    async fn mesh_events(&self) -> Result<mpsc::Receiver<MeshEvent>, ApiError> {
        Ok(super::mesh_events::watch(self.0.events.subscribe(), &self.0.supervisor))
    }

    async fn sessions(&self) -> Result<SessionsReply, ApiError> {
        let sessions = self.0.net.sessions().await.map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(session_view::sessions(&self.view(), &sessions))
    }

    async fn refusals(&self) -> Result<RefusalsReply, ApiError> {
        Ok(session_view::refusals(&self.view(), &self.0.net.refusals(), self.0.clock.unix()))
    }

    async fn drain(&self, node: &str, on: bool) -> Result<DrainReply, ApiError> {
        let node = self.resolve(node)?;
        if node != self.0.caller.node {
            return Err(ApiError::new(501, "remote_drain", "a node is drained at its own API only, for now")
                .hint("run `octomesh drain` on that node"));
        }
        let remaining = self.0.executor.drain(on).await.map_err(|e| ApiError::internal(e.to_string()))?;
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        Ok(DrainReply {
            node_id: node.to_string(),
            drained: on,
            remaining_steps: remaining,
            remaining_tasks: remaining,
        })
    }

    async fn revoke(&self, node: &str, request: RevokeRequest) -> Result<RevokeReply, ApiError> {
        self.throw_out(node, request).await
    }

    async fn tools(&self, query: ToolsQuery) -> Result<ToolsReply, ApiError> {
        let view = self.view();
        let all = query.all || query.search.is_some();
        let mut tools = node_view::tools(&self.0, &view, all);
        if let Some(words) = &query.search {
            let max = query.max.map_or(10, |m| m as usize).clamp(1, 100);
            let index = SearchIndex::new(tools.iter().map(|(card, _)| Arc::clone(card)));
            let order: BTreeMap<ToolName, usize> = index
                .search(words, max)
                .into_iter()
                .enumerate()
                .map(|(place, hit)| (hit.card.name.clone(), place))
                .collect();
            tools.retain(|(card, _)| order.contains_key(&card.name));
            tools.sort_by_key(|(card, _)| order.get(&card.name).copied());
        }
        Ok(ToolsReply { tools: tools.into_iter().map(|(_, entry)| entry).collect() })
    }

    async fn tool(&self, name: &str) -> Result<ToolDetail, ApiError> {
        let view = self.view();
        let (tool, hash) = self.named_tool(name, &view)?;
        let hash = hash.map(|hash| hash.to_string());
        node_view::tools(&self.0, &view, true)
            .into_iter()
            .find(|(card, entry)| card.name == tool && hash.as_ref().is_none_or(|h| *h == entry.card_hash))
            .map(|(card, entry)| ToolDetail { entry, card: Box::new((*card).clone()) })
            .ok_or_else(|| node_view::unknown_tool(name, &view))
    }

    async fn call(&self, request: CallRequest) -> Result<CallReply, ApiError> {
        let ask = self.ask(request)?;
        // A client that goes away drops this future; the call must end with it wherever it runs, so it is driven by a task of
        // its own, which the dropped guard cancels.
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        let (events, _) = mpsc::channel::<Event>(EVENTS);
        let (reply, answer) = tokio::sync::oneshot::channel::<CallDone>();
        let dispatcher = self.0.dispatcher.clone();
        let tool = ask.tool.to_string();
        self.0.supervisor.spawn("call", async move {
            // silent-ok: the client is gone
            let _ = reply.send(dispatcher.call(ask, &cancel, &events).await);
        });
        let done = answer.await.map_err(|_| ApiError::internal("the call's task ended early"))?;
        guard.disarm();
        if done.output.pointer("/error/code").is_some_and(|code| code == crate::dispatch::REVOKED) {
            let message = done.output.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
            let error = ApiError::new(403, crate::dispatch::REVOKED, message);
            return Err(match self.0.trust.now().exclusion() {
                Some(exclusion) => error.hint(exclusion.hint()),
                None => error,
            });
        }
        if done.no_capacity {
            return Err(ApiError::no_capacity(done.decision.sentence())
                .hint(format!("octomesh why {}", done.decision.id)));
        }
        Ok(CallReply {
            tool,
            node: done.node.map(|n| n.to_string()),
            status: done.status,
            output: done.output,
            elapsed_ms: done.elapsed_ms,
            sandbox: done.sandbox,
            decision_id: Some(done.decision.id.to_string()),
            attempts: done.attempts,
            blob: done.blob.map(|b| BlobEntry { sha256: b.hash.to_string(), bytes: b.bytes }),
        })
    }

    async fn place(&self, request: CallRequest) -> Result<Value, ApiError> {
        let ask = self.ask(request)?;
        Ok(self.0.dispatcher.place(ask).await.to_place_json())
    }

    async fn decision(&self, id: &str) -> Result<Value, ApiError> {
        self.0.journal.get_decision(id).await?.ok_or_else(|| {
            ApiError::not_found("unknown_decision", format!("no decision {id:.80}"))
                .hint("give the decision_id of a call, or run_id/step_id of a run on this node")
        })
    }

    async fn trial(&self, request: TrialRequest) -> Result<TrialReply, ApiError> {
        self.measure_dispatch(request).await
    }

    async fn start_run(&self, request: RunRequest) -> Result<RunStarted, ApiError> {
        Ok(RunStarted { run_id: self.0.runs.start(request).await?.to_string() })
    }

    async fn runs(&self) -> Result<RunsReply, ApiError> {
        let rows = self.0.journal.list_runs(LISTED_RUNS).await?;
        let runs = rows.into_iter().map(|row| RunSummary {
            run_id: row.run_id,
            question: row.question,
            status: row.status.to_string(),
            started_at: u64::try_from(row.started_at / 1000).unwrap_or_default(),
            steps_done: row.steps_done,
            steps_total: row.steps_total,
        });
        Ok(RunsReply { runs: runs.collect() })
    }

    async fn run(&self, id: &str) -> Result<Value, ApiError> {
        match RunId::parse(id).ok().and_then(|run| self.0.runs.current(&run)) {
            Some(document) => Ok(document),
            None => self.stored_run(id).await,
        }
    }

    async fn run_events(&self, id: &str) -> Result<mpsc::Receiver<RunEvent>, ApiError> {
        self.0.runs.watch(&Self::run_id(id)?).ok_or_else(|| {
            ApiError::not_found("unknown_run", format!("no run {id} is going on here"))
                .hint("`octomesh runs show` has runs that are over")
        })
    }

    async fn cancel_run(&self, id: &str) -> Result<Value, ApiError> {
        match self.0.runs.cancel(&Self::run_id(id)?).await {
            Some(document) => Ok(document),
            None => self.stored_run(id).await,
        }
    }

    async fn resume_run(&self, id: &str, request: ResumeRequest) -> Result<RunStarted, ApiError> {
        let resumed = self.0.runs.resume(id, request.decision).await?;
        Ok(RunStarted { run_id: resumed.run().to_string() })
    }

    async fn artifacts(&self, id: &str) -> Result<ArtifactsReply, ApiError> {
        Ok(artifacts::of(id, &self.run(id).await?))
    }

    async fn read_file(&self, ask: FileAsk) -> Result<Content, ApiError> {
        self.file(ask).await
    }

    async fn write_file(&self, file: NewFile) -> Result<FileReply, ApiError> {
        self.new_file(file).await
    }

    async fn read_blob(&self, hash: &str, offset: u64) -> Result<Content, ApiError> {
        self.blob(hash, offset).await
    }

    async fn invite(&self, request: InviteRequest) -> Result<InviteReply, ApiError> {
        let InviteRequest { role, ttl_s, uses, grants } = request;
        let invite = Invite { role, grants: grants.clone(), ttl_s, uses };
        let (ticket, uses) = self.0.issuer.invite(invite).await?;
        let text = ticket.to_text().map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(InviteReply {
            ticket: text.to_string(),
            id: ticket.id().to_string(),
            expires_at: ticket.expires,
            uses,
            role: ticket.role,
            grants,
        })
    }

    async fn invites(&self) -> Result<InvitesReply, ApiError> {
        let rows = self.0.issuer.list().await?;
        let invites = rows.into_iter().map(|row| InviteEntry {
            id: row.id,
            expires_at: row.expires,
            uses: row.uses.saturating_sub(row.used),
            role: row.role,
            grants: row.grants,
        });
        Ok(InvitesReply { invites: invites.collect() })
    }

    async fn withdraw_invite(&self, id: &str) -> Result<WithdrawReply, ApiError> {
        self.0.issuer.withdraw(id.to_owned()).await?;
        Ok(WithdrawReply { id: id.to_owned(), withdrawn: true })
    }

    async fn rename(&self, request: RenameRequest) -> Result<RenameReply, ApiError> {
        self.take_name(&request.name).await
    }

    async fn leave(&self, request: LeaveRequest) -> Result<LeaveReply, ApiError> {
        if !request.last_admin {
            super::life::not_the_last_admin(&self.view(), &self.0.trust.now())?;
        }
        self.say_goodbye().await
    }

    async fn forget(&self, node: &str) -> Result<ForgetReply, ApiError> {
        self.put_out_of_sight(node).await
    }

    async fn wake(&self, node: &str) -> Result<WakeReply, ApiError> {
        self.wake_up(node)
    }

    async fn root(&self) -> Result<RootReply, ApiError> {
        Ok(RootReply { place: self.0.life.root.place().to_string() })
    }

    async fn unlock_root(&self, mut request: UnlockRequest) -> Result<RootReply, ApiError> {
        let passphrase = Passphrase::new(Zeroizing::new(std::mem::take(&mut request.passphrase)));
        // One at a time: each takes 64 MiB for a second.
        let _alone = self.0.unlocking.acquire().await.map_err(|e| ApiError::internal(e.to_string()))?;
        let home = self.0.home.clone();
        let opened = tokio::task::spawn_blocking(move || root::open_in_home(&home, &passphrase)).await;
        let opened = opened.map_err(|e| ApiError::internal(e.to_string()))?.map_err(|error| ApiError {
            status: 403,
            code: error.code.to_owned(),
            message: error.message,
            hint: error.hint,
        })?;
        let until = Instant::now() + Duration::from_secs(request.for_s);
        self.0.life.root.unlock(opened, until);
        let (root, stop) = (self.0.life.root.clone(), self.0.supervisor.stop_token().clone());
        self.0.supervisor.spawn("root key", async move {
            tokio::select! {
                () = stop.cancelled() => root.lock(),
                () = tokio::time::sleep_until(until) => root.close_after_its_time(),
            }
        });
        self.root().await
    }

    async fn lock_root(&self) -> Result<RootReply, ApiError> {
        self.0.life.root.lock();
        self.root().await
    }
}

#[cfg(test)]
mod tests {
    use super::{DISK_OUT_BYTES, room};

    #[test]
    fn a_full_disk_is_a_reason_with_a_code() {
        let home = std::path::Path::new("home");
        assert_eq!(room(DISK_OUT_BYTES, home), Ok(()));
        let why = room(DISK_OUT_BYTES - 1, home).unwrap_err();
        assert!(why.starts_with("disk_full: ") && why.contains("home"), "{why}");
    }
}
