//! The demo's node processes. Their stdin is a pipe that we hold: when we are gone, however, they stop.
use std::{fs, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::homes::DemoNode;
use crate::cli::CliError;

/// A node starts in well under a second; a busy small machine gets more.
const START: Duration = Duration::from_secs(20);
/// A node that stops finishes its steps first.
const STOP: Duration = Duration::from_secs(20);

struct Running {
    child: Child,
    /// Kept open: a node that can't write its events would not fail, but why try.
    _lines: Lines<BufReader<ChildStdout>>,
}

/// Children, killed when dropped.
#[derive(Default)]
pub(super) struct Processes(Vec<Running>);

impl Processes {
    /// Starts a node and waits until it says that it is up.
    pub(super) async fn start(&mut self, node: &DemoNode) -> Result<(), CliError> {
        let failed = |why: String| {
            let log = fs::read_to_string(node.home.join("log")).unwrap_or_default();
            let log = log.lines().rev().take(5).collect::<Vec<_>>().join("\n  ");
            CliError::failed(format!("{} did not start: {why}\n  {log}", node.name))
        };
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let log = fs::File::create(node.home.join("log")).map_err(|e| failed(e.to_string()))?;
        let mut command = Command::new(program);
        // A variable that is meant for the person's own node must not reach these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OCTOMESH_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .arg("--home")
            .arg(&node.home)
            .args(["--json", "up", "--stop-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            // Ctrl-C in the terminal is for us; we stop them in order.
            .process_group(0)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("no stdout".to_owned()))?;
        let mut lines = BufReader::new(stdout).lines();
        let started = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if line.contains("\"event\":\"started\"") {
                    return true;
                }
            }
            false
        };
        match timeout(START, started).await {
            Ok(true) => {}
            Ok(false) => return Err(failed("it ended".to_owned())),
            Err(_) => return Err(failed(format!("it said nothing within {} s", START.as_secs()))),
        }
        self.0.push(Running { child, _lines: lines });
        Ok(())
    }

    /// Stops all in order of their age, youngest first, and kills what does not stop.
    pub(super) async fn stop(&mut self) {
        for running in &mut self.0 {
            drop(running.child.stdin.take());
        }
        for mut running in self.0.drain(..).rev() {
            if timeout(STOP, running.child.wait()).await.is_err() {
                // silent-ok: it ended in this very moment
                let _ = running.child.kill().await;
            }
        }
    }
}
