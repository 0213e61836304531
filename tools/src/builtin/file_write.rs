//! `file_write`: makes or replaces a file of the workspace, in one step that is durable when the call returns.
use std::{
    io::{Read, Write},
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use cap_std::fs::{Dir, MetadataExt, Permissions, PermissionsExt};
use cap_tempfile::TempFile;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::files;
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput, Workspace},
};

/// A file that is appended to or compared is read as a whole.
const OLD_BYTES: u64 = 16 * 1024 * 1024;
/// Permissions of a new file.
pub(super) const NEW_MODE: u32 = 0o644;
/// Permissions that an old file keeps: never set-user-id and friends.
const KEPT_MODE: u32 = 0o777;

/// The tool.
#[derive(Debug)]
pub struct FileWrite {
    card: Arc<ToolCard>,
    /// One write at a time, so that nothing happens between the look at the old file and its replacement.
    turn: Arc<Mutex<()>>,
}

impl FileWrite {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        let card = super::card(include_str!("cards/file_write.toml"), "file_write.toml")?;
        Ok(Self { card, turn: Arc::default() })
    }
}

#[async_trait]
impl Tool for FileWrite {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let workspace = Arc::clone(&context.workspace);
        let turn = Arc::clone(&self.turn);
        files::work(context, move |stop| {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            // The last moment at which a cancel means that nothing was written.
            if stop.is_cancelled() { Err(ToolError::Cancelled) } else { write(&workspace, &arguments) }
        })
        .await
        .map(Into::into)
    }
}

fn write(workspace: &Workspace, arguments: &Arguments) -> Result<Value, ToolError> {
    let path = super::text(arguments, "path")?;
    let content = super::text(arguments, "content")?;
    let append = super::flag(arguments, "append", false);
    let if_match = super::optional_text(arguments, "if_match");
    let fail = |e: &std::io::Error| files::error(path, e);
    let (dir, name) = folder(workspace, path)?;
    let old = old(&dir, &name, path, append || if_match.is_some())?;
    check(path, if_match, old.as_ref())?;
    let mut bytes = match (&old, append) {
        (Some(old), true) => old.content.clone(),
        _ => Vec::new(),
    };
    bytes.extend_from_slice(content.as_bytes());
    replace(&dir, &name, &bytes, old.as_ref().map_or(NEW_MODE, |o| o.mode)).map_err(|e| fail(&e))?;
    Ok(json!({
        "path": path,
        "created": old.is_none(),
        "bytes_written": content.len(),
        "total_bytes": bytes.len(),
        "sha256": files::hex(&Sha256::digest(&bytes)),
    }))
}

pub(super) struct Old {
    pub(super) mode: u32,
    content: Vec<u8>,
}

/// The file that is there now. A link is refused instead of replaced, whatever it points to.
pub(super) fn old(dir: &Dir, name: &Path, path: &str, with_content: bool) -> Result<Option<Old>, ToolError> {
    let fail = |e: &std::io::Error| files::error(path, e);
    let about = match dir.symlink_metadata(name) {
        Ok(about) => about,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(&e)),
    };
    // A rename gives this name a new file; the other names of a hard link keep the old one.
    files::plain(path, &about, true)?;
    let mut content = Vec::new();
    if with_content {
        if about.len() > OLD_BYTES {
            return Err(ToolError::TooLarge(format!(
                "`{path}` has {} bytes; append and if_match work up to {OLD_BYTES}",
                about.len()
            )));
        }
        let file = dir.open(name).map_err(|e| fail(&e))?;
        file.take(OLD_BYTES).read_to_end(&mut content).map_err(|e| fail(&e))?;
    }
    Ok(Some(Old { mode: about.mode() & KEPT_MODE, content }))
}

fn check(path: &str, if_match: Option<&str>, old: Option<&Old>) -> Result<(), ToolError> {
    let Some(wanted) = if_match else { return Ok(()) };
    let found = old.map(|o| files::hex(&Sha256::digest(&o.content)));
    match found {
        Some(found) if found.eq_ignore_ascii_case(wanted) => Ok(()),
        Some(found) => {
            Err(ToolError::Conflict(format!("`{path}` was changed: its sha256 is {found}, not {wanted}")))
        }
        None => Err(ToolError::Conflict(format!("`{path}` does not exist (any more)"))),
    }
}

/// Writes beside the old file, makes it durable, and takes its place in one step.
fn replace(dir: &Dir, name: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let mut file = TempFile::new(dir)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.replace(name)?;
    // The directory's handle is only a path; syncing needs a real one.
    dir.open(".")?.sync_all()
}

/// The folder of a file, made when it is not there, and the file's name.
pub(super) fn folder(workspace: &Workspace, path: &str) -> Result<(Dir, PathBuf), ToolError> {
    let (parent, name) = split(path)?;
    let parent = if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent };
    let dir = match workspace.dir().open_dir(&parent) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            workspace.dir().create_dir_all(&parent).and_then(|()| workspace.dir().open_dir(&parent))
        }
        other => other,
    };
    Ok((dir.map_err(|e| files::error(path, &e))?, name))
}

/// Folder and name. `..` is refused here, because folders are made on the way.
pub(super) fn split(path: &str) -> Result<(PathBuf, PathBuf), ToolError> {
    let given = Path::new(path);
    let bad =
        |why: &str| ToolError::Forbidden(format!("`{}` {why}", path.chars().take(200).collect::<String>()));
    if given.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(bad("leads out of the workspace; write a path inside of it, without `..`"));
    }
    match (given.parent(), given.file_name()) {
        (Some(parent), Some(name)) if !path.ends_with('/') => Ok((parent.to_owned(), PathBuf::from(name))),
        _ => Err(bad("is not the name of a file")),
    }
}
