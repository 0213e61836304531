//! `file_search`: lines of the workspace's text files that contain a text.
use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::files::{self, Wanted};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// Files looked into by one search.
const FILES: usize = 10_000;
/// Folders and files looked at by one search.
const ENTRIES: usize = 100_000;
/// Folders inside of folders.
const DEPTH: usize = 32;
/// Larger files are skipped, and counted as skipped.
const FILE_BYTES: u64 = 8 * 1024 * 1024;
/// A zero byte in the first bytes means that it is no text.
const BINARY_BYTES: usize = 8 * 1024;
/// Characters of a matching line that are shown.
const LINE_CHARS: usize = 300;
/// Matches shown when the call does not say.
const RESULTS: u64 = 50;

/// The tool.
#[derive(Debug)]
pub struct FileSearch(Arc<ToolCard>);

impl FileSearch {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/file_search.toml"), "file_search.toml").map(Self)
    }
}

#[async_trait]
impl Tool for FileSearch {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let (workspace, local) = (Arc::clone(&context.workspace), context.caller.local);
        files::work(context, move |stop| search(&workspace, &arguments, local, stop)).await.map(Into::into)
    }

    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        files::probe(workspace, arguments, Wanted::FileOrFolder)
    }
}

struct Search<'a> {
    workspace: &'a Workspace,
    stop: &'a CancellationToken,
    local: bool,
    query: String,
    fold: bool,
    max: u64,
    matches: Vec<Value>,
    count: u64,
    searched: usize,
    skipped: usize,
    entries: usize,
    truncated: bool,
}

fn search(
    workspace: &Workspace,
    arguments: &Arguments,
    local: bool,
    stop: &CancellationToken,
) -> Result<Value, ToolError> {
    let fold = super::flag(arguments, "case_insensitive", true);
    let query = super::text(arguments, "query")?;
    let path = super::optional_text(arguments, "path").unwrap_or(".");
    let mut search = Search {
        workspace,
        stop,
        local,
        query: if fold { query.to_lowercase() } else { query.to_owned() },
        fold,
        max: super::optional_number(arguments, "max_results").unwrap_or(RESULTS),
        matches: Vec::new(),
        count: 0,
        searched: 0,
        skipped: 0,
        entries: 0,
        truncated: false,
    };
    let about = workspace.dir().metadata(path).map_err(|e| files::error(path, &e))?;
    if about.is_dir() {
        search.tree(Path::new(path))?;
    } else {
        // A file that was asked for by name is not skipped silently.
        files::plain(path, &about, local)?;
        if about.len() > FILE_BYTES {
            return Err(ToolError::TooLarge(format!(
                "`{path}` has {} bytes; the limit is {FILE_BYTES}",
                about.len()
            )));
        }
        search.file(Path::new(path))?;
    }
    Ok(json!({
        "query": query,
        "matches": search.matches,
        "count": search.count,
        "files_searched": search.searched,
        "files_skipped": search.skipped,
        "truncated": search.truncated || search.count > search.matches.len() as u64,
    }))
}

impl Search<'_> {
    /// Folders in the order of their names; links are not followed, so there are no circles.
    fn tree(&mut self, root: &Path) -> Result<(), ToolError> {
        let mut next: Vec<(PathBuf, usize)> = vec![(root.to_owned(), 0)];
        while let Some((path, depth)) = next.pop() {
            if self.stop.is_cancelled() {
                return Err(ToolError::Cancelled);
            }
            let Ok(entries) = self.workspace.dir().read_dir(&path) else {
                self.skipped += 1;
                continue;
            };
            let mut names: Vec<(PathBuf, bool)> = Vec::new();
            for entry in entries.flatten() {
                self.entries += 1;
                if self.entries > ENTRIES {
                    self.truncated = true;
                    break;
                }
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => names.push((path.join(entry.file_name()), true)),
                    Ok(kind) if kind.is_file() => names.push((path.join(entry.file_name()), false)),
                    _ => self.skipped += 1,
                }
            }
            names.sort();
            for (name, _) in names.iter().filter(|(_, folder)| !folder) {
                if self.searched >= FILES {
                    self.truncated = true;
                    return Ok(());
                }
                self.file(name)?;
            }
            if depth < DEPTH {
                next.extend(
                    names.into_iter().rev().filter(|(_, folder)| *folder).map(|(n, _)| (n, depth + 1)),
                );
            } else {
                self.truncated |= names.iter().any(|(_, folder)| *folder);
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), ToolError> {
        if self.stop.is_cancelled() {
            return Err(ToolError::Cancelled);
        }
        let Some(bytes) = self.read(path) else {
            self.skipped += 1;
            return Ok(());
        };
        self.searched += 1;
        let shown = path.strip_prefix(".").unwrap_or(path).to_string_lossy();
        for (number, line) in bytes.split(|b| *b == b'\n').enumerate() {
            let line = String::from_utf8_lossy(line);
            let found = if self.fold {
                line.to_lowercase().contains(&self.query)
            } else {
                line.contains(&self.query)
            };
            if found {
                self.count += 1;
                if (self.matches.len() as u64) < self.max {
                    let text: String = line.trim_end().chars().take(LINE_CHARS).collect();
                    self.matches.push(json!({ "path": shown, "line": number + 1, "text": text }));
                }
            }
        }
        Ok(())
    }

    /// `None`: no plain text file, too large, or gone.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let (file, about) = files::open(self.workspace, path.to_str()?, self.local).ok()?;
        if about.len() > FILE_BYTES {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES).read_to_end(&mut bytes).ok()?;
        let binary = bytes.iter().take(BINARY_BYTES).any(|b| *b == 0);
        (!binary).then_some(bytes)
    }
}
