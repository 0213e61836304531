//! `run_python_code`: Python in the sandbox.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use async_trait::async_trait;
use octomesh_protocol::card::{SandboxLevel, ToolCard};
use serde_json::json;

use super::code::{Bench, Job};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput, Workspace},
};

/// Seconds when the call does not say.
const TIMEOUT_S: u64 = 10;
/// Where Python is looked for: where the sandbox shows programs.
const PLACES: [&str; 2] = ["/usr/bin/python3", "/usr/local/bin/python3"];
/// Reads the code from stdin, runs it, saves open figures.
const RUNNER: &str = include_str!("run_python_code.py");
/// Files that a result names.
const NAMED: usize = 100;
/// Files that are looked at to find those that changed; in a fuller workspace the first ones of each folder.
const LOOKED_AT: usize = 20_000;
/// Folders within folders.
const DEPTH: usize = 16;

/// The tool.
#[derive(Debug)]
pub struct RunPythonCode {
    card: Arc<ToolCard>,
    bench: Bench,
}

impl RunPythonCode {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub(super) fn new(bench: Bench) -> Result<Self, RegistryError> {
        let card = super::card(include_str!("cards/run_python_code.toml"), "run_python_code.toml")?;
        Ok(Self { card, bench })
    }
}

fn python() -> Result<PathBuf, ToolError> {
    PLACES
        .iter()
        .map(PathBuf::from)
        .find(|p| p.is_file())
        .ok_or_else(|| ToolError::Unavailable(format!("Python 3 is not installed ({})", PLACES.join(", "))))
}

#[async_trait]
impl Tool for RunPythonCode {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let job = Job {
            program: python()?,
            args: vec!["-I".into(), "-B".into(), "-c".into(), RUNNER.into()],
            env: vec![
                ("MPLBACKEND", "Agg"),
                ("MPLCONFIGDIR", "/tmp"),
                ("PYTHONIOENCODING", "utf-8"),
                ("PYTHONUNBUFFERED", "1"),
            ],
            input: super::text(&arguments, "code")?.as_bytes().to_vec(),
            timeout_s: super::optional_number(&arguments, "timeout_s").unwrap_or(TIMEOUT_S),
        };
        let before = files(&context.workspace).await?;
        let finished = self.bench.run(&self.card, context, job).await?;
        let after = files(&context.workspace).await?;
        let changed: Vec<String> = after
            .iter()
            .filter(|(path, state)| before.get(*path) != Some(state))
            .take(NAMED)
            .map(|(path, _)| path.display().to_string())
            .collect();
        Ok(self.bench.output(&finished, Arguments::from_iter([("files".to_owned(), json!(changed))])))
    }

    fn sandbox(&self) -> SandboxLevel {
        self.bench.sandbox.level()
    }

    fn stops_itself(&self) -> bool {
        true
    }
}

type Files = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Length and time of change of the workspace's files.
async fn files(workspace: &Arc<Workspace>) -> Result<Files, ToolError> {
    let workspace = Arc::clone(workspace);
    super::blocking(move || {
        let mut found = Files::new();
        look(workspace.dir(), Path::new(""), 0, &mut found);
        Ok(found)
    })
    .await
}

fn look(dir: &cap_std::fs::Dir, path: &Path, depth: usize, found: &mut Files) {
    let Ok(entries) = dir.entries() else { return };
    for entry in entries.flatten() {
        if found.len() >= LOOKED_AT {
            return;
        }
        let Ok(about) = entry.metadata() else { continue };
        let path = path.join(entry.file_name());
        if about.is_file() {
            let changed = about.modified().ok().map(cap_std::time::SystemTime::into_std);
            found.insert(path, (about.len(), changed));
        } else if about.is_dir()
            && depth < DEPTH
            && let Ok(below) = entry.open_dir()
        {
            look(&below, &path, depth + 1, found);
        }
    }
}
