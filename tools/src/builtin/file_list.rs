//! `file_list`: what is in a folder of the workspace.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use cap_std::fs::Dir;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::files::{self, Wanted};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// Entries in one result.
const ENTRIES: usize = 500;
/// Entries of one folder that are looked at, so that they can be sorted.
const PER_FOLDER: usize = 10_000;

/// The tool.
#[derive(Debug)]
pub struct FileList(Arc<ToolCard>);

impl FileList {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/file_list.toml"), "file_list.toml").map(Self)
    }
}

#[async_trait]
impl Tool for FileList {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let workspace = Arc::clone(&context.workspace);
        files::work(context, move |stop| list(&workspace, &arguments, stop)).await.map(Into::into)
    }

    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        files::probe(workspace, arguments, Wanted::Folder)
    }
}

fn list(workspace: &Workspace, arguments: &Arguments, stop: &CancellationToken) -> Result<Value, ToolError> {
    let path = super::optional_text(arguments, "path").unwrap_or(".");
    let depth = super::optional_number(arguments, "depth").unwrap_or(1);
    let dir = workspace.dir().open_dir(path).map_err(|e| files::error(path, &e))?;
    let mut listing = Listing { entries: Vec::new(), truncated: false };
    listing.add(&dir, Path::new(""), depth, stop)?;
    Ok(json!({
        "path": path,
        "count": listing.entries.len(),
        "entries": listing.entries,
        "truncated": listing.truncated,
    }))
}

struct Listing {
    entries: Vec<Value>,
    truncated: bool,
}

impl Listing {
    /// Goes at most three folders deep (the schema's limit), so recursion is fine.
    fn add(
        &mut self,
        dir: &Dir,
        within: &Path,
        depth: u64,
        stop: &CancellationToken,
    ) -> Result<(), ToolError> {
        let mut names: Vec<PathBuf> = Vec::new();
        let shown = within.display().to_string();
        for entry in dir.entries().map_err(|e| files::error(&shown, &e))? {
            if stop.is_cancelled() {
                return Err(ToolError::Cancelled);
            }
            if names.len() >= PER_FOLDER {
                self.truncated = true;
                break;
            }
            if let Ok(entry) = entry {
                names.push(entry.file_name().into());
            }
        }
        names.sort();
        for name in names {
            if self.entries.len() >= ENTRIES {
                self.truncated = true;
                return Ok(());
            }
            // Removed a moment ago.
            let Ok(about) = dir.symlink_metadata(&name) else { continue };
            let path = within.join(&name);
            let kind = match about.file_type() {
                t if t.is_dir() => "folder",
                t if t.is_file() => "file",
                t if t.is_symlink() => "link",
                _ => "other",
            };
            self.entries.push(json!({
                "path": path.to_string_lossy(),
                "type": kind,
                "bytes": if about.is_file() { about.len() } else { 0 },
            }));
            if about.is_dir()
                && depth > 1
                && let Ok(below) = dir.open_dir(&name)
            {
                self.add(&below, &path, depth - 1, stop)?;
            }
        }
        Ok(())
    }
}
