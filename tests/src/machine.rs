//! One machine of a mesh: a home directory, and perhaps a node that runs in it.
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    process::{Done, Running},
    program,
    wait::{PATIENCE, wait_within},
};

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// Its node's name.
    pub name: String,
    /// Its home directory.
    pub home: PathBuf,
    /// `ADDR:PORT` of the mesh.
    pub listen: String,
    /// `ADDR:PORT` of the API.
    pub api: String,
    folder: PathBuf,
    prefix: Vec<String>,
    node: Option<Running>,
}

/// A port of 127.0.0.1 that is free and that the kernel gives to nobody who does not ask for it by number.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Below the kernel's ephemeral ports; two test processes begin at different places.
    let (first, count) = (11_000, 20_000);
    let start = std::process::id().wrapping_mul(613);
    loop {
        let at = (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % count;
        let port = u16::try_from(first + at).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Machine {
    /// A machine with a home in `folder` and ports on loopback; nothing is started.
    pub fn new(folder: &Path, name: &str) -> Self {
        Self::at(folder, name, "127.0.0.1", free_port(), &[])
    }

    /// A machine whose mesh address is `address`, and whose commands run behind `prefix`.
    pub fn at(folder: &Path, name: &str, address: &str, port: u16, prefix: &[String]) -> Self {
        let machine = Self {
            name: name.to_owned(),
            home: folder.join(name),
            listen: format!("{address}:{port}"),
            api: format!("127.0.0.1:{}", free_port()),
            folder: folder.to_owned(),
            prefix: prefix.to_vec(),
            node: None,
        };
        fs::create_dir_all(&machine.home).unwrap();
        machine.configure("");
        machine
    }

    /// The same machine for one who only sends commands and requests: the node stays with this value.
    pub fn again(&self) -> Self {
        Self {
            name: self.name.clone(),
            home: self.home.clone(),
            listen: self.listen.clone(),
            api: self.api.clone(),
            folder: self.folder.clone(),
            prefix: self.prefix.clone(),
            node: None,
        }
    }

    /// Writes `octomesh.toml`: its addresses and `more`.
    pub fn configure(&self, more: &str) {
        let text = format!("listen = [\"{}\"]\napi = \"{}\"\n{more}\n", self.listen, self.api);
        fs::write(self.home.join("octomesh.toml"), text).unwrap();
    }

    /// Its workspace.
    pub fn workspace(&self) -> PathBuf {
        self.home.join("workspace")
    }

    /// Writes a file of its workspace.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.workspace().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Drops a process tool: a shell script, and the manifest's lines besides name, description and command. It appears whole.
    pub fn tool(&self, name: &str, manifest: &str, script: &str) {
        let (staging, tools) = (self.folder.join(format!("staging-{}", number())), self.home.join("tools"));
        fs::create_dir_all(&staging).unwrap();
        fs::create_dir_all(&tools).unwrap();
        fs::write(staging.join("run.sh"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(staging.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            "name = \"{name}\"\ndescription = \"Test tool {name}\"\ncommand = [\"./run.sh\"]\n{manifest}\n"
        );
        fs::write(staging.join("tool.toml"), text).unwrap();
        fs::rename(staging, tools.join(name)).unwrap();
    }

    /// The program with this home.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program::command(&self.prefix);
        command.arg("--home").arg(&self.home).args(args);
        // A node, and only a node, looks for a point at which it is to die: see `Machine::die_at`.
        if args.contains(&"up") {
            command.env("FAILPOINT_FILE", self.failpoint());
        }
        command
    }

    fn failpoint(&self) -> PathBuf {
        self.folder.join(format!("{}.failpoint", self.name))
    }

    /// The node will end as by `kill -9` when it comes by a point (`start_sent s002`, `run_row -`), once.
    pub fn die_at(&self, point: &str) {
        fs::write(self.failpoint(), point).unwrap();
    }

    /// It no longer ends at the point of [`Machine::die_at`]. False when it came by already, and has ended or is about to.
    pub fn spare(&self) -> bool {
        fs::remove_file(self.failpoint()).is_ok()
    }

    /// Waits until it died of [`Machine::die_at`].
    ///
    /// # Panics
    /// When it does not, or ends in another way.
    pub fn dies(&mut self) {
        let done = self.node.take().expect("no node runs").wait(PATIENCE);
        assert!(!self.failpoint().exists(), "{} ended before its point: {}", self.name, done.err);
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        self.run_with(args, None)
    }

    /// Runs a command to its end, with `input` on its stdin.
    pub fn run_with(&self, args: &[&str], input: Option<&[u8]>) -> Done {
        Done::of(self.command(args), &self.folder, &self.label(args), input)
    }

    /// Runs a command with `--json` that must succeed.
    pub fn json(&self, args: &[&str]) -> Value {
        self.run(&[&["--json"], args].concat()).with_code(0).json()
    }

    /// Starts a command and does not wait for it.
    pub fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdin(Stdio::null());
        Running::start(command, &self.folder, &self.label(args))
    }

    fn label(&self, args: &[&str]) -> String {
        let word = args.iter().find(|a| !a.starts_with('-')).copied().unwrap_or("command");
        format!("{}-{}-{word}", self.name, number())
    }

    /// Makes a mesh.
    pub fn init(&self) {
        self.json(&["init", "--name", &self.name]);
    }

    /// A ticket for one more machine.
    pub fn invite(&self) -> String {
        self.json(&["invite"])["ticket"].as_str().unwrap().to_owned()
    }

    /// Joins with a ticket.
    pub fn join(&self, ticket: &str) {
        self.json(&["join", ticket, "--name", &self.name]);
    }

    /// Starts the node and waits until it says that it is up.
    pub fn up(&mut self) {
        self.up_with(&[]);
    }

    /// [`Machine::up`] with flags.
    ///
    /// # Panics
    /// When the node ends instead.
    pub fn up_with(&mut self, flags: &[&str]) {
        let mut node = self.start(&[&["--json", "up"], flags].concat());
        wait_within(PATIENCE, &format!("{} is up", self.name), || {
            if let Some(status) = node.ended() {
                panic!("{} did not start: {status}\n{}\n{}", self.name, node.out(), node.err());
            }
            if node.out().contains("\"event\":\"started\"") { Ok(()) } else { Err(node.err()) }
        });
        self.node = Some(node);
    }

    /// Its running node.
    ///
    /// # Panics
    /// When none runs.
    pub fn node(&mut self) -> &mut Running {
        self.node.as_mut().expect("no node runs")
    }

    /// `kill -9`, as a power cut would.
    pub fn kill(&mut self) {
        let mut node = self.node.take().expect("no node runs");
        node.signal(Signal::KILL);
        node.wait(PATIENCE);
    }

    /// SIGTERM, and its end.
    pub fn stop(&mut self) -> Done {
        let mut node = self.node.take().expect("no node runs");
        node.signal(Signal::TERM);
        node.wait(PATIENCE)
    }

    /// The token of its API.
    pub fn token(&self) -> String {
        fs::read_to_string(self.home.join("api.token")).unwrap().trim().to_owned()
    }

    /// Names of the members that it sees alive with their tools, sorted.
    pub fn sees(&self) -> Vec<String> {
        let nodes = self.json(&["nodes"]);
        let mut names: Vec<String> = nodes["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|n| n["state"] == "alive" && n["tools"].as_u64().unwrap() > 0)
            .map(|n| n["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    /// Waits until it sees all of `names`, itself included, and the cards of their tools.
    pub fn wait_for(&self, patience: Duration, names: &[&str]) {
        let mut names: Vec<&str> = names.to_vec();
        names.sort_unstable();
        wait_within(patience, &format!("{} sees {names:?}", self.name), || {
            let seen = self.sees();
            if seen != names {
                return Err(format!("sees {seen:?}"));
            }
            let tools = self.json(&["tools", "--all"]);
            let of = |name: &str| {
                tools["tools"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|t| t["nodes"].as_array().unwrap().iter().any(|n| n == name))
            };
            names.iter().all(|n| of(n)).then_some(()).ok_or_else(|| format!("cards are missing: {tools}"))
        });
    }

    /// Waits until it knows `tool` on `node`.
    pub fn wait_for_tool(&self, tool: &str, node: &str) {
        wait_within(PATIENCE, &format!("{} knows {tool} on {node}", self.name), || {
            let tools = self.json(&["tools", "--all"]);
            let known = tools["tools"].as_array().unwrap().iter().any(|t| {
                t["name"] == tool
                    && matches!(t["state"].as_str(), Some("available" | "loaded"))
                    && t["nodes"].as_array().unwrap().iter().any(|n| n == node)
            });
            if known { Ok(()) } else { Err(tools.to_string()) }
        });
    }
}
