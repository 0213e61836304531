//! The mesh of `octomesh bench dispatch`: two nodes of this program in one process, each on threads of its own, with homes that go with
//! them. They meet over TCP on the loopback interface and know nothing of other meshes.
use std::{net::SocketAddr, path::Path, sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::card::{Effect, Needs, Source, ToolCard};
use octomesh_protocol::id::{InvalidId, ToolName};
use octomesh_tools::{
    sandbox::Launcher,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, types::InviteRequest},
    app::{
        backend::NodeBackend,
        clock::{Clock as _, EntropyError, SystemClock},
        entry::{self, EntryError, InitArgs, JoinArgs},
        home::{Home, HomeError},
        node::{Node, NodeParts, StartError},
    },
    config::{self, Sources},
    net::TransportKind,
};

/// The node whose API is asked, and the one that runs the steps.
pub(crate) const NEAR: &str = "near";
pub(crate) const FAR: &str = "far";
/// A tool with the effect `once` that does nothing. No other node has it.
pub(crate) const ONCE: &str = "bench_once";
/// Steps that the far node runs at once.
const SLOTS: &str = "32";
/// Until the two know each other's tools.
const MEETING: Duration = Duration::from_secs(30);

/// Why there is no mesh to measure.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum MeshError {
    /// No folder, no thread, no port.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A node's home.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Making or joining the mesh.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The configuration of the bench is wrong: a bug of ours.
    #[error("configuration of the bench: {0}")]
    Config(String),
    /// No ticket.
    #[error("no ticket for the second node: {0}")]
    Ticket(String),
    /// The tool of the bench.
    #[error("tool of the bench: {0}")]
    Tool(String),
    /// No randomness.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// A name is none.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// The second node's thread ended.
    #[error("the second node ended before it was up")]
    BrokeOff,
    /// They did not find each other.
    #[error("the two nodes did not meet within {} s", MEETING.as_secs())]
    Apart,
}

/// Two nodes that know each other.
pub(crate) struct Mesh {
    near: Arc<Node>,
    far: Option<Far>,
    api: SocketAddr,
    token: String,
    _homes: TempDir,
}

/// A node on threads of its own.
struct Far {
    stop: CancellationToken,
    thread: thread::JoinHandle<()>,
}

impl Mesh {
    pub(crate) async fn start() -> Result<Self, MeshError> {
        let homes = tempfile::Builder::new().prefix("octomesh-bench-").tempdir()?;
        let (near_home, far_home) = (homes.path().join(NEAR), homes.path().join(FAR));
        entry::init(InitArgs::new(&near_home, Some(NEAR)))?;
        let near = Node::start(parts(&near_home)?).await?;
        let mut token = [0; 32];
        SystemClock.fill(&mut token)?;
        let token = data_encoding::HEXLOWER.encode(&token);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let api = listener.local_addr()?;
        let backend = Arc::new(NodeBackend(Arc::clone(&near)));
        let ticket = invite(&backend).await?;
        let serving = api::serve(
            listener,
            backend,
            api::Token::new(&token),
            Arc::new(near.metrics.clone()),
            near.supervisor.stop_token().clone(),
        );
        near.supervisor.spawn("api", async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the API of the bench ended");
            }
        });
        let mut mesh = Self { near, far: None, api, token, _homes: homes };
        mesh.far = Some(far(&far_home, ticket).await?);
        mesh.meet().await?;
        Ok(mesh)
    }

    /// Where the near node's API is, and its token.
    pub(crate) fn api(&self) -> (SocketAddr, String) {
        (self.api, self.token.clone())
    }

    async fn meet(&self) -> Result<(), MeshError> {
        let tools = [ToolName::parse("echo")?, ToolName::parse(ONCE)?];
        let mut view = self.near.view.clone();
        let met = view.wait_for(|view| {
            let far = view.members.values().find(|m| m.name.as_str() == FAR);
            far.is_some_and(|m| {
                let ready = m.advert.as_ref().is_some_and(|a| a.load.ready);
                m.connected && m.rtt.is_some() && ready && tools.iter().all(|tool| m.tool(tool).is_some())
            })
        });
        match timeout(MEETING, met).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(MeshError::Apart),
        }
    }

    /// Ends both nodes and removes their homes.
    pub(crate) async fn stop(mut self) {
        if let Some(far) = self.far.take() {
            far.stop.cancel();
            // The thread ends with its node, which takes some seconds at most; meanwhile this one sees to the sessions.
            let until = Instant::now() + Duration::from_secs(20);
            while !far.thread.is_finished() && Instant::now() < until {
                sleep(Duration::from_millis(20)).await;
            }
        }
        self.near.stop().await;
    }
}

async fn invite(backend: &NodeBackend) -> Result<String, MeshError> {
    use crate::api::Backend as _;
    let request: InviteRequest =
        serde_json::from_value(json!({})).map_err(|e| MeshError::Ticket(e.to_string()))?;
    let reply = backend.invite(request).await.map_err(|e| MeshError::Ticket(e.to_string()))?;
    Ok(reply.ticket)
}

/// What the node of `home` is started with: a port of its own choice, and no neighbours but its peer.
fn parts(home: &Path) -> Result<NodeParts, MeshError> {
    let flags = [("listen", "127.0.0.1:0"), ("mdns", "false"), ("slots", SLOTS)];
    let flags = flags.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let sources = Sources { home, environment: Vec::new(), flags, parallelism: 1 };
    let loaded = config::load(&sources).map_err(|e| MeshError::Config(e.to_string()))?;
    let home = Home::new(home);
    let identity = home.identity()?.ok_or(MeshError::BrokeOff)?;
    Ok(NodeParts {
        home,
        identity,
        config: loaded.config,
        clock: Arc::new(SystemClock),
        transport: TransportKind::Tcp,
        listen: None,
        plaintext: false,
        warnings: loaded.warnings,
        launcher: Launcher::current()?,
    })
}

/// Joins with the ticket and starts the node on a runtime of its own, so that the two share no thread.
async fn far(home: &Path, ticket: String) -> Result<Far, MeshError> {
    let args = JoinArgs { home: home.to_owned(), ticket, name: Some(FAR.to_owned()) };
    entry::join(args).await?;
    let parts = parts(home)?;
    let stop = CancellationToken::new();
    let (ready, up) = oneshot::channel();
    let stopped = stop.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("bench far".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let started = start_far(parts).await;
            let node = started.as_ref().ok().map(Arc::clone);
            // silent-ok: whoever started it has gone away, and stops it
            let _ = ready.send(started.map(drop));
            if let Some(node) = node {
                stopped.cancelled().await;
                node.stop().await;
            }
        });
    })?;
    up.await.map_err(|_| MeshError::BrokeOff)??;
    Ok(Far { stop, thread })
}

async fn start_far(parts: NodeParts) -> Result<Arc<Node>, MeshError> {
    let node = Node::start(parts).await?;
    let tool = Once::new()?;
    node.registry.register(Arc::new(tool)).map_err(|e| MeshError::Tool(e.to_string()))?;
    Ok(node)
}

/// Does nothing, and must not do it twice.
struct Once(Arc<ToolCard>);

impl Once {
    fn new() -> Result<Self, MeshError> {
        Ok(Self(Arc::new(ToolCard {
            name: ToolName::parse(ONCE)?,
            version: "1".to_owned(),
            description: "Does nothing.".to_owned(),
            keywords: Vec::new(),
            input_schema: json!({"type": "object", "properties": {"text": {"type": "string"}}}),
            output_schema: None,
            examples: Vec::new(),
            effect: Effect::Once,
            needs: Needs::default(),
            typical_ms: 1,
            data: Vec::new(),
            demo_calls: Vec::new(),
            limitations: Vec::new(),
            best_practice: Vec::new(),
            requires_llm: false,
            source: Source::Builtin,
        })))
    }
}

#[async_trait]
impl Tool for Once {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, _: &CallContext, _: Arguments) -> Result<ToolOutput, ToolError> {
        Ok(Value::Null.into())
    }
}
