//! Whole files of a workspace for whoever moves them between machines: the rules of `file_read` and `file_write`, without their text.
use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
};

use cap_std::fs::{Dir, Permissions, PermissionsExt};
use cap_tempfile::TempFile;

use super::{
    file_write::{self, NEW_MODE},
    files,
};
use crate::tool::{ToolError, Workspace};

/// Bytes copied at a time where a rename can't do it.
const PIECE: usize = 64 * 1024;

/// Opens a plain file for reading, and gives its size. `local` is a caller on this very node, who may have files with several names.
/// Blocks.
///
/// # Errors
/// [`ToolError`] as of `file_read`.
pub fn open(workspace: &Workspace, path: &str, local: bool) -> Result<(fs::File, u64), ToolError> {
    let (file, about) = files::open(workspace, path, local)?;
    Ok((file.into_std(), about.len()))
}

/// Whether a file may be put at `path`; nothing is made yet. Blocks.
///
/// # Errors
/// [`ToolError`] as of `file_write`.
pub fn check(workspace: &Workspace, path: &str) -> Result<(), ToolError> {
    let (parent, name) = file_write::split(path)?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { &parent };
    match workspace.dir().open_dir(parent) {
        Ok(dir) => file_write::old(&dir, &name, path, false).map(drop),
        // It is made when the file comes.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(files::error(path, &e)),
    }
}

/// Moves the finished file `from` to `path`, in one step that is on the disk when this returns; gives whether there was none before.
/// `from` is gone then. Blocks.
///
/// # Errors
/// [`ToolError`] as of `file_write`; `from` is still there.
pub fn place(workspace: &Workspace, from: &Path, path: &str) -> Result<bool, ToolError> {
    let fail = |e: &io::Error| files::error(path, e);
    let (dir, name) = file_write::folder(workspace, path)?;
    let old = file_write::old(&dir, &name, path, false)?;
    let mode = old.as_ref().map_or(NEW_MODE, |old| old.mode);
    let (Some(parent), Some(file)) = (from.parent(), from.file_name()) else {
        return Err(ToolError::Failed(format!("{} is not the name of a file", from.display())));
    };
    let source = Dir::open_ambient_dir(parent, cap_std::ambient_authority()).map_err(|e| fail(&e))?;
    let moved = source
        .set_permissions(file, Permissions::from_mode(mode))
        .and_then(|()| source.rename(file, &dir, &name));
    match moved {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            copy(&source, Path::new(file), &dir, &name, mode).map_err(|e| fail(&e))?;
        }
        other => other.map_err(|e| fail(&e))?,
    }
    // The directory's handle is only a path; syncing needs a real one.
    dir.open(".").and_then(|dir| dir.sync_all()).map_err(|e| fail(&e))?;
    Ok(old.is_none())
}

/// For a workspace on another disk.
fn copy(source: &Dir, file: &Path, dir: &Dir, name: &Path, mode: u32) -> io::Result<()> {
    let mut from = source.open(file)?;
    let mut to = TempFile::new(dir)?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            break;
        }
        to.write_all(piece.get(..read).unwrap_or_default())?;
    }
    to.as_file().set_permissions(Permissions::from_mode(mode))?;
    to.as_file().sync_all()?;
    to.replace(name)?;
    source.remove_file(file)
}
