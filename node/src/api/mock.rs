//! A backend for tests: it answers from fixed values and remembers what it was asked.
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::StreamExt as _;
use octomesh_protocol::{
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::ToolName,
    step::StepStatus,
    trust::{Grants, Role},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    ApiError, Backend, Token,
    files::{Content, FileAsk, NewFile},
    serve,
    types::*,
};
use crate::metrics::NodeMetrics;

pub(crate) const TOKEN: &str = "0123456789abcdef";

#[derive(Debug, Default)]
pub(crate) struct Mock {
    /// Calls as they came.
    pub(crate) calls: Mutex<Vec<CallRequest>>,
    /// Told when a call to `slow` was dropped before it ended.
    pub(crate) dropped: Arc<Notify>,
    /// Told when a call to `slow` began.
    pub(crate) began: Notify,
    /// Whether the run `endless` was cancelled.
    pub(crate) stopped: AtomicBool,
    /// Who watches `endless`.
    pub(crate) watchers: Mutex<Vec<mpsc::Sender<RunEvent>>>,
}

struct TellsOnDrop(Arc<Notify>);

impl Drop for TellsOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

pub(crate) fn run(status: &str) -> Value {
    let why = json!({ "sentence": "attic is the cheapest", "chosen": "attic" });
    let step = json!({
        "step_id": "s001", "block_id": "b001", "tool": "echo", "node": "attic", "status": "ok", "elapsed_ms": 4, "why": why
    });
    json!({
        "run_id": "run-0000000000000001",
        "status": status,
        "answer": "hi [code-1]",
        "citations": [{ "id": "[code-1]", "content": "hi", "source": "echo on attic" }],
        "blocks": [{ "block_id": "b001", "goal": "say it", "depends_on": [], "steps": [step] }],
        "unresolved": [],
        "usage": { "tool_calls": 1 },
        "elapsed_ms": 5
    })
}

pub(crate) fn refused() -> Value {
    let guess = |command: &str| json!({ "tool": "calc", "command": command, "missing": [] });
    json!({ "error": {
        "code": "needs_confirmation",
        "message": "not sure enough",
        "hint": "give one of the commands",
        "guesses": [guess("calc expression=1"), guess("calc expression=2"), guess("calc expression=3")],
    }})
}

pub(crate) fn events() -> Vec<RunEvent> {
    let bodies = [
        json!({ "type": "planned", "engine": "rules", "blocks": [{ "block_id": "b001", "goal": "say it", "depends_on": [] }] }),
        json!({
            "type": "step_placed", "step_id": "s001", "tool": "echo", "node": "attic",
            "sentence": "attic is the cheapest"
        }),
        json!({
            "type": "step_finished", "step_id": "s001", "tool": "echo", "node": "attic", "status": "ok", "elapsed_ms": 4,
            "sentence": "attic is the cheapest"
        }),
        json!({ "type": "answer", "answer": "hi", "elapsed_ms": 5 }),
    ];
    bodies
        .iter()
        .zip(1..)
        .map(|(body, seq)| RunEvent { seq, body: body.as_object().unwrap().clone() })
        .collect()
}

fn entry(name: &str) -> ToolEntry {
    ToolEntry {
        name: name.into(),
        listed_as: name.into(),
        model_name: Some(name.into()),
        version: "1".into(),
        card_hash: "00".into(),
        source: Source::Builtin,
        tier: "core".into(),
        state: "available".into(),
        reason: None,
        effect: Effect::Pure,
        needs: Needs::default(),
        nodes: vec!["attic".into()],
    }
}

fn unknown_run(id: &str) -> ApiError {
    ApiError::not_found("unknown_run", format!("there is no run {id}"))
}

#[async_trait]
impl Backend for Mock {
    async fn ready(&self) -> Result<(), String> {
        Err("the executor has not answered yet".into())
    }

    async fn status(&self) -> Result<StatusReply, ApiError> {
        Ok(StatusReply {
            cluster_enabled: true,
            node_id: "12D3KooWmock".into(),
            state: "alive".into(),
            region: String::new(),
            capabilities: vec!["echo".into()],
            uptime_secs: 3,
            transport: Transport::default(),
            membership: MembershipCounts { alive: 1, total_seen: 1, ..MembershipCounts::default() },
            routing: RoutingCounts::default(),
            name: "pi".into(),
            version: "0.1.0".into(),
            sandbox: SandboxLevel::Rlimits,
            slots: 2,
            running: 0,
            queued: 0,
            engines: vec!["rules".into()],
            lazy_tools: "auto".into(),
            gpus: vec![],
            warnings: vec![],
            discovery: DiscoveryReport::default(),
            unreached: vec![],
            not_ready: None,
            relayed: vec![],
            models: vec![],
            gpus_absent: vec![],
            yields: None,
        })
    }

    async fn nodes(&self) -> Result<NodesReply, ApiError> {
        Ok(NodesReply::default())
    }

    async fn mesh_events(&self) -> Result<mpsc::Receiver<MeshEvent>, ApiError> {
        let (sender, receiver) = mpsc::channel(8);
        for event in events() {
            sender.try_send(event).unwrap();
        }
        self.watchers.lock().unwrap().push(sender);
        Ok(receiver)
    }

    async fn sessions(&self) -> Result<SessionsReply, ApiError> {
        Ok(SessionsReply::default())
    }

    async fn refusals(&self) -> Result<RefusalsReply, ApiError> {
        Ok(RefusalsReply::default())
    }

    async fn drain(&self, node: &str, on: bool) -> Result<DrainReply, ApiError> {
        Ok(DrainReply { node_id: node.into(), drained: on, remaining_steps: 3, remaining_tasks: 3 })
    }

    async fn revoke(&self, node: &str, request: RevokeRequest) -> Result<RevokeReply, ApiError> {
        Ok(RevokeReply {
            node_id: node.into(),
            revoked_at: 1_700_000_000,
            secret_generation: u64::from(request.rotate_secret),
            reissued: vec![],
            void_certificates: vec![],
        })
    }

    async fn tools(&self, query: ToolsQuery) -> Result<ToolsReply, ApiError> {
        let name = query.search.unwrap_or_else(|| if query.all { "all".into() } else { "own".into() });
        Ok(ToolsReply { tools: vec![entry(&name)] })
    }

    async fn tool(&self, name: &str) -> Result<ToolDetail, ApiError> {
        let Ok(name) = ToolName::parse(name) else {
            return Err(ApiError::not_found("unknown_tool", format!("no node has {name:?}")));
        };
        let properties = json!({
            "text": { "type": "string" }, "n": { "type": "integer" }, "any": {}, "list": { "type": ["array", "null"] }
        });
        let card = ToolCard {
            name: name.clone(),
            version: "1".into(),
            description: "Says it back. Nothing else.".into(),
            keywords: vec![],
            input_schema: json!({ "type": "object", "properties": properties }),
            output_schema: None,
            examples: vec![],
            effect: Effect::Pure,
            needs: Needs::default(),
            typical_ms: 1,
            data: vec![],
            demo_calls: vec![],
            limitations: vec![],
            best_practice: vec![],
            requires_llm: false,
            source: Source::Builtin,
        };
        Ok(ToolDetail { entry: entry(name.as_str()), card: Box::new(card) })
    }

    async fn call(&self, request: CallRequest) -> Result<CallReply, ApiError> {
        self.calls.lock().unwrap().push(request.clone());
        let status = match request.tool.as_str() {
            "full" => return Err(ApiError::no_capacity("attic: busy").hint("try again later")),
            "slow" => {
                let _guard = TellsOnDrop(Arc::clone(&self.dropped));
                self.began.notify_one();
                std::future::pending::<StepStatus>().await
            }
            "fails" => StepStatus::Error,
            "maybe" => StepStatus::Uncertain,
            _ => StepStatus::Ok,
        };
        Ok(CallReply {
            tool: request.tool,
            node: Some("attic".into()),
            status,
            output: Value::Object(request.arguments),
            elapsed_ms: 2,
            sandbox: SandboxLevel::None,
            blob: None,
            decision_id: Some("call-0000000000000001/s001".into()),
            attempts: 1,
        })
    }

    async fn place(&self, request: CallRequest) -> Result<Value, ApiError> {
        Ok(json!({ "chosen": request.node, "candidates": [], "filtered": [] }))
    }

    async fn trial(&self, _: TrialRequest) -> Result<TrialReply, ApiError> {
        Err(ApiError::not_found("unknown_node", "there is no other"))
    }

    async fn decision(&self, id: &str) -> Result<Value, ApiError> {
        Ok(json!({ "id": id }))
    }

    async fn start_run(&self, request: RunRequest) -> Result<RunStarted, ApiError> {
        // The question is the id, so that a test chooses how its run ends.
        Ok(RunStarted { run_id: request.question })
    }

    async fn runs(&self) -> Result<RunsReply, ApiError> {
        Ok(RunsReply::default())
    }

    async fn run(&self, id: &str) -> Result<Value, ApiError> {
        match id {
            "completed" | "failed" | "uncertain" | "cancelled" => Ok(run(id)),
            "refused" => Ok(refused()),
            "endless" => {
                Ok(run(if self.stopped.load(Ordering::SeqCst) { "cancelled" } else { "in_progress" }))
            }
            _ => Err(unknown_run(id)),
        }
    }

    async fn run_events(&self, id: &str) -> Result<mpsc::Receiver<RunEvent>, ApiError> {
        self.run(id).await?;
        let (sender, receiver) = mpsc::channel(8);
        for event in events() {
            sender.try_send(event).unwrap();
        }
        if id == "endless" {
            self.watchers.lock().unwrap().push(sender);
        }
        Ok(receiver)
    }

    async fn cancel_run(&self, id: &str) -> Result<Value, ApiError> {
        self.stopped.store(true, Ordering::SeqCst);
        self.watchers.lock().unwrap().clear();
        self.run(id).await
    }

    async fn resume_run(&self, id: &str, _request: ResumeRequest) -> Result<RunStarted, ApiError> {
        self.run(id).await?;
        Ok(RunStarted { run_id: id.into() })
    }

    async fn artifacts(&self, id: &str) -> Result<ArtifactsReply, ApiError> {
        Ok(ArtifactsReply { run_id: id.to_owned(), artifacts: Vec::new() })
    }

    async fn read_file(&self, ask: FileAsk) -> Result<Content, ApiError> {
        let all = ask.path.into_bytes();
        let rest = all.get(usize::try_from(ask.offset).unwrap()..).unwrap().to_vec();
        let stream = Box::pin(futures::stream::iter([Ok(rest.into())]));
        Ok(Content { bytes: all.len() as u64, sha256: "ab".repeat(32), offset: ask.offset, stream })
    }

    async fn write_file(&self, mut file: NewFile) -> Result<FileReply, ApiError> {
        let mut bytes = 0;
        while let Some(chunk) = file.stream.next().await {
            bytes += chunk.unwrap().len() as u64;
        }
        let (node, path, sha256) = (file.node, file.path, file.sha256);
        Ok(FileReply { node, path, bytes, sha256, resumed_at: 0 })
    }

    async fn read_blob(&self, hash: &str, _: u64) -> Result<Content, ApiError> {
        Err(ApiError::not_found("not_found", format!("no blob {hash}")))
    }

    async fn invite(&self, request: InviteRequest) -> Result<InviteReply, ApiError> {
        Ok(InviteReply {
            ticket: "octo1x".into(),
            id: "t1".into(),
            expires_at: request.ttl_s,
            uses: request.uses,
            role: request.role,
            grants: request.grants,
        })
    }

    async fn invites(&self) -> Result<InvitesReply, ApiError> {
        Ok(InvitesReply {
            invites: vec![InviteEntry {
                id: "t1".into(),
                expires_at: 1,
                uses: 1,
                role: Role::Worker,
                grants: Grants::default(),
            }],
        })
    }

    async fn withdraw_invite(&self, id: &str) -> Result<WithdrawReply, ApiError> {
        Ok(WithdrawReply { id: id.into(), withdrawn: true })
    }

    async fn rename(&self, request: RenameRequest) -> Result<RenameReply, ApiError> {
        Ok(RenameReply { node_id: "n1".into(), name: request.name })
    }

    async fn leave(&self, _: LeaveRequest) -> Result<LeaveReply, ApiError> {
        Ok(LeaveReply { node_id: "n1".into(), name: "pi".into(), told: vec!["attic".into()] })
    }

    async fn forget(&self, node: &str) -> Result<ForgetReply, ApiError> {
        Ok(ForgetReply { node_id: "n2".into(), name: node.into() })
    }

    async fn wake(&self, node: &str) -> Result<WakeReply, ApiError> {
        let macs = vec!["02:00:00:00:00:01".into()];
        Ok(WakeReply { node_id: "n2".into(), name: node.into(), macs, networks: 2 })
    }

    async fn root(&self) -> Result<RootReply, ApiError> {
        Ok(RootReply { place: "locked".into() })
    }

    async fn unlock_root(&self, request: UnlockRequest) -> Result<RootReply, ApiError> {
        let opens = request.passphrase == "open sesame";
        Ok(RootReply { place: if opens { "unlocked" } else { "locked" }.into() })
    }

    async fn lock_root(&self) -> Result<RootReply, ApiError> {
        self.root().await
    }
}

/// A served mock.
pub(crate) struct Served {
    pub(crate) mock: Arc<Mock>,
    pub(crate) address: SocketAddr,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinSet<std::io::Result<()>>,
}

impl Served {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mock, cancel) = (Arc::new(Mock::default()), CancellationToken::new());
        let metrics = Arc::new(NodeMetrics::new("0.1.0").unwrap());
        let mut task = JoinSet::new();
        task.spawn(serve(listener, Arc::clone(&mock) as _, Token::new(TOKEN), metrics, cancel.clone()));
        Self { mock, address, cancel, task }
    }

    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
