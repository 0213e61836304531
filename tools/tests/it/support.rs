//! A node's surroundings for one test: a workspace, a tools folder, a registry, contexts.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use octomesh_protocol::{
    card::SandboxLevel,
    id::{NodeId, NodeName, RunId, StepId, StepKey, ToolName},
    step::{EventKind, StepStatus},
    trust::{Grants, Role},
};
use octomesh_tools::{
    builtin,
    call::{self, CallReport},
    registry::Registry,
    sandbox::{Launcher, Sandbox, SandboxConfig},
    tool::{CallContext, Caller, EventSink, Workspace},
    watch,
};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) struct Node {
    home: tempfile::TempDir,
    pub(crate) registry: Registry,
    pub(crate) workspace: Arc<Workspace>,
}

pub(crate) fn name(text: &str) -> ToolName {
    ToolName::parse(text).unwrap()
}

pub(crate) fn launcher() -> Launcher {
    // Given when the tests run as a user that can't reach the build folder.
    let program = std::env::var_os("OCTOMESH_TEST_LAUNCHER")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_octomesh-launch").into());
    Launcher { program: PathBuf::from(program), args: vec![] }
}

/// A sandbox that is not better than `highest`.
pub(crate) async fn sandbox_at(highest: SandboxLevel, change: impl FnOnce(&mut SandboxConfig)) -> Sandbox {
    let scratch = tempfile::tempdir().unwrap();
    let mut config = SandboxConfig::new(launcher(), scratch.path().join("probe"));
    config.highest = highest;
    change(&mut config);
    Sandbox::probe(config).await
}

impl Node {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for folder in ["workspace", "tools"] {
            std::fs::create_dir(home.path().join(folder)).unwrap();
        }
        let registry = Registry::new();
        builtin::register_all(&registry, registry.catalogue()).unwrap();
        let workspace = Arc::new(Workspace::open(&home.path().join("workspace")).unwrap());
        Self { home, registry, workspace }
    }

    /// A path outside of the workspace.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        self.workspace.path().join(path)
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.inside(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.outside("tools")
    }

    /// A tool `name` whose program is this shell script.
    pub(crate) fn script(&self, name: &str, script: &str, more: &str) {
        let folder = self.tools().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        write_executable(&folder.join("run.sh"), &format!("#!/bin/sh\n{script}\n"));
        let manifest = format!(
            "name = \"{name}\"\ndescription = \"Runs a script.\"\ncommand = [\"./run.sh\"]\neffect = \"pure\"\n{more}\n[input_schema]\ntype = \"object\"\n"
        );
        std::fs::write(folder.join("tool.toml"), manifest).unwrap();
    }

    pub(crate) async fn scan(&self) {
        self.scan_with(&sandbox_at(SandboxLevel::Rlimits, |_| {}).await).await;
    }

    pub(crate) async fn scan_with(&self, sandbox: &Sandbox) {
        watch::scan_once(&self.registry, &self.tools(), sandbox).await;
    }

    pub(crate) fn context(&self) -> CallContext {
        CallContext {
            key: StepKey { run: RunId::call([1; 8]), step: StepId::parse("s001").unwrap() },
            caller: Caller {
                node: NodeId::from_bytes([7; 32]),
                name: NodeName::parse("pi").unwrap(),
                role: Role::Worker,
                grants: Grants::default(),
                local: true,
            },
            cancel: CancellationToken::new(),
            deadline: Instant::now() + Duration::from_secs(120),
            workspace: Arc::clone(&self.workspace),
            events: EventSink::none(),
            wall: Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000)),
            gpu: std::collections::BTreeMap::new(),
        }
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> CallReport {
        self.call_with(tool, arguments, &self.context()).await
    }

    pub(crate) async fn call_with(&self, tool: &str, arguments: Value, context: &CallContext) -> CallReport {
        call::call(&self.registry, &name(tool), context, arguments.to_string().as_bytes()).await
    }

    /// The result of a call that has to work.
    pub(crate) async fn ok(&self, tool: &str, arguments: Value) -> Value {
        let report = self.call(tool, arguments).await;
        let output: Value = serde_json::from_slice(&report.output).unwrap();
        assert_eq!(report.status, StepStatus::Ok, "{output}");
        output
    }

    /// Code and message of a call that has to fail.
    pub(crate) async fn err(&self, tool: &str, arguments: Value) -> (String, String) {
        let report = self.call(tool, arguments).await;
        assert_ne!(report.status, StepStatus::Ok, "{}", String::from_utf8_lossy(&report.output));
        error(&report)
    }
}

pub(crate) fn error(report: &CallReport) -> (String, String) {
    let output: Value = serde_json::from_slice(&report.output).unwrap();
    let text = |key: &str| output["error"][key].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

pub(crate) fn events() -> (EventSink, mpsc::Receiver<(EventKind, String)>) {
    let (sender, receiver) = mpsc::channel(4096);
    (EventSink::new(sender), receiver)
}

pub(crate) fn write_executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Waits for something that another process does; fails after ten seconds.
pub(crate) async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within ten seconds: {what}");
}
