//! Nodes inside a test's process. Not semver, and not in any program: only with the feature `testing`.
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use octomesh_tools::sandbox::Launcher;
use serde_json::Value;

use crate::{
    api::{
        Backend,
        types::{CallRequest, InviteRequest},
    },
    app::{
        backend::NodeBackend,
        clock::SystemClock,
        entry::{self, InitArgs, JoinArgs},
        home::Home,
        node::{Node, NodeParts},
    },
    config::{self, Sources},
    net::TransportKind,
};

pub mod simulated;

/// A running node.
pub struct TestNode {
    node: Arc<Node>,
    backend: NodeBackend,
}

impl std::fmt::Debug for TestNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TestNode({})", self.node.name())
    }
}

/// An executor that stands still, until this is dropped.
#[derive(Debug)]
pub struct Wedge {
    _until_dropped: tokio::sync::oneshot::Sender<()>,
}

/// Any error, as text: a test prints it and fails.
pub type TestResult<T> = Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Makes a mesh whose first node lives in `home`.
///
/// # Errors
/// What `octomesh init` would say.
pub fn init(home: &Path, name: &str) -> TestResult<()> {
    entry::init(InitArgs::new(home, Some(name))).map(drop).map_err(text)
}

/// Redeems a ticket into `home`.
///
/// # Errors
/// What `octomesh join` would say.
pub async fn join(home: &Path, name: &str, ticket: &str) -> TestResult<()> {
    let args = JoinArgs { home: home.to_owned(), ticket: ticket.to_owned(), name: Some(name.to_owned()) };
    entry::join(args).await.map(drop).map_err(text)
}

impl TestNode {
    /// Starts the node of `home` on `listen`, a loopback address with a port. `plaintext`: the test transport without
    /// encryption, which speaks only to its like.
    ///
    /// # Errors
    /// What `octomesh up` would say.
    pub async fn start(home: &Path, listen: SocketAddr, plaintext: bool) -> TestResult<Self> {
        let flags = vec![("listen".to_owned(), listen.to_string())];
        Self::launch(home, flags, TransportKind::Tcp, None, plaintext).await
    }

    /// Starts it on the transport inside the process, at address `memory:NUMBER`.
    ///
    /// # Errors
    /// As [`TestNode::start`].
    pub async fn start_in_memory(home: &Path, number: u64) -> TestResult<Self> {
        let listen = Some(vec![format!("memory:{number}")]);
        Self::launch(home, Vec::new(), TransportKind::Memory, listen, false).await
    }

    async fn launch(
        home: &Path,
        flags: Vec<(String, String)>,
        transport: TransportKind,
        listen: Option<Vec<String>>,
        plaintext: bool,
    ) -> TestResult<Self> {
        let sources = Sources { home, environment: Vec::new(), flags, parallelism: 4 };
        let loaded = config::load(&sources).map_err(text)?;
        let home = Home::new(home);
        let identity = home.identity().map_err(text)?.ok_or("no identity")?;
        let node = Node::start(NodeParts {
            home,
            identity,
            config: loaded.config,
            clock: Arc::new(SystemClock),
            transport,
            listen,
            plaintext,
            warnings: loaded.warnings,
            // The test program is no launcher: this node starts no programs.
            launcher: Launcher { program: "/bin/false".into(), args: Vec::new() },
        })
        .await
        .map_err(text)?;
        Ok(Self { backend: NodeBackend(Arc::clone(&node)), node })
    }

    /// A ticket for one worker.
    ///
    /// # Errors
    /// What `octomesh invite` would say.
    pub async fn invite(&self) -> TestResult<String> {
        let request: InviteRequest = serde_json::from_str("{}").map_err(text)?;
        self.backend.invite(request).await.map(|reply| reply.ticket).map_err(text)
    }

    /// Waits until `count` members are alive with their tools.
    ///
    /// # Errors
    /// When `patience` is over.
    pub async fn wait_for_members(&self, count: usize, patience: Duration) -> TestResult<()> {
        let mut view = self.node.view.clone();
        let ready = view.wait_for(|v| v.alive().filter(|m| m.tools_complete).count() >= count);
        match tokio::time::timeout(patience, ready).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(text(e)),
            Err(_) => Err(format!("not {count} members within {patience:?}")),
        }
    }

    /// `octomesh call`.
    ///
    /// # Errors
    /// What it would say.
    pub async fn call(&self, tool: &str, arguments: Value, node: Option<&str>) -> TestResult<Value> {
        let Value::Object(arguments) = arguments else { return Err("arguments are an object".to_owned()) };
        let request = CallRequest {
            tool: tool.to_owned(),
            arguments,
            node: node.map(str::to_owned),
            timeout_s: Some(20),
        };
        let reply = self.backend.call(request).await.map_err(text)?;
        serde_json::to_value(reply).map_err(text)
    }

    /// `octomesh nodes --json`.
    ///
    /// # Errors
    /// What it would say.
    pub async fn nodes(&self) -> TestResult<Value> {
        let reply = self.backend.nodes().await.map_err(text)?;
        serde_json::to_value(reply).map_err(text)
    }

    /// Makes its executor's task stand still until the guard is dropped; its heartbeat lives.
    pub async fn wedge(&self) -> Wedge {
        Wedge { _until_dropped: self.node.executor.hold().await }
    }

    /// `GET /readyz`: `Err` with the reason.
    ///
    /// # Errors
    /// Why it is not ready.
    pub async fn ready(&self) -> TestResult<()> {
        self.backend.ready().await
    }

    /// `octomesh status --json`.
    ///
    /// # Errors
    /// What it would say.
    pub async fn status(&self) -> TestResult<Value> {
        let reply = self.backend.status().await.map_err(text)?;
        serde_json::to_value(reply).map_err(text)
    }

    /// `octomesh place`.
    ///
    /// # Errors
    /// What it would say.
    pub async fn place(&self, tool: &str, arguments: Value) -> TestResult<Value> {
        let Value::Object(arguments) = arguments else { return Err("arguments are an object".to_owned()) };
        let request = CallRequest { tool: tool.to_owned(), arguments, node: None, timeout_s: Some(20) };
        self.backend.place(request).await.map_err(text)
    }

    /// Stops it in order; gives whether every task ended in time.
    pub async fn stop(self) -> bool {
        self.node.stop().await
    }
}
