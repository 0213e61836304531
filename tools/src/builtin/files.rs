//! What the file tools share: opening inside the workspace, refusing what is not a plain file, finding out whether it is here.
use std::io::{self, Read};

use cap_std::fs::{File, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use tokio_util::sync::CancellationToken;

use crate::tool::{Arguments, CallContext, DataProbe, ToolError, Workspace};

/// Bytes read at a time; between two pieces a cancel is noticed.
const PIECE: usize = 64 * 1024;
/// Largest file that is looked through from end to end: minutes of reading on a small machine.
const LARGEST: u64 = 4 << 30;

/// What a path should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    File,
    FileOrFolder,
    Folder,
}

/// Runs file work on a thread that may block. The work gets a token that is cancelled when the call is, or when its future is
/// dropped.
pub(super) async fn work<T, F>(context: &CallContext, work: F) -> Result<T, ToolError>
where
    T: Send + 'static,
    F: FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
{
    let stop = context.cancel.child_token();
    let _ends_with_the_future = stop.clone().drop_guard();
    super::blocking(move || work(&stop)).await
}

/// The error of an operation on `path`, for people.
pub(crate) fn error(path: &str, error: &io::Error) -> ToolError {
    let path: String = path.chars().take(200).collect();
    match error.kind() {
        io::ErrorKind::NotFound => ToolError::NotFound(format!("`{path}` does not exist in the workspace")),
        // cap-std's words for a path, a link or `..` that leads outside.
        io::ErrorKind::PermissionDenied => ToolError::Forbidden(format!("`{path}`: {error}")),
        io::ErrorKind::IsADirectory => ToolError::InvalidArguments(format!("`{path}` is a folder")),
        io::ErrorKind::NotADirectory => {
            ToolError::InvalidArguments(format!("`{path}`: a part of it is no folder"))
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
            ToolError::InvalidArguments(format!("`{path}` is not a path"))
        }
        _ => ToolError::Failed(format!("`{path}`: {error}")),
    }
}

/// Opens a plain file for reading. A fifo would wait for a writer, so nothing is opened blocking. A file with a second name
/// may be one from outside of the workspace, so remote callers don't get it.
pub(super) fn open(workspace: &Workspace, path: &str, local: bool) -> Result<(File, Metadata), ToolError> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = workspace.dir().open_with(path, &options).map_err(|e| self::error(path, &e))?;
    let about = file.metadata().map_err(|e| self::error(path, &e))?;
    plain(path, &about, local)?;
    Ok((file, about))
}

/// Refuses what is not a plain file.
pub(super) fn plain(path: &str, about: &Metadata, local: bool) -> Result<(), ToolError> {
    let path: String = path.chars().take(200).collect();
    if about.is_dir() {
        return Err(ToolError::InvalidArguments(format!("`{path}` is a folder")));
    }
    if !about.is_file() {
        return Err(ToolError::Forbidden(format!("`{path}` is not a regular file")));
    }
    if about.nlink() > 1 && !local {
        return Err(ToolError::Forbidden(format!(
            "`{path}` has several names (hard links); only callers on the node itself may use it"
        )));
    }
    if about.len() > LARGEST {
        return Err(ToolError::TooLarge(format!(
            "`{path}` has {} bytes, over the limit of {LARGEST}",
            about.len()
        )));
    }
    Ok(())
}

/// Reads all of a file piece by piece; a file that grows meanwhile ends at the limit.
pub(super) fn read_pieces(
    path: &str,
    file: File,
    stop: &CancellationToken,
    mut each: impl FnMut(&[u8]),
) -> Result<u64, ToolError> {
    let mut buffer = vec![0u8; PIECE];
    let mut total = 0u64;
    let mut file = file.take(LARGEST);
    loop {
        if stop.is_cancelled() {
            return Err(ToolError::Cancelled);
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                total += n as u64;
                each(buffer.get(..n).unwrap_or_default());
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(error(path, &e)),
        }
    }
}

/// Whether the argument `path` is here. Without the argument no data is asked for.
pub(super) fn probe(workspace: &Workspace, arguments: &Arguments, wanted: Wanted) -> DataProbe {
    let Some(path) = super::optional_text(arguments, "path") else { return DataProbe::Have(0) };
    match workspace.dir().metadata(path) {
        Err(e) => DataProbe::Missing(error(path, &e).to_string()),
        Ok(about) if about.is_dir() && wanted != Wanted::File => DataProbe::Have(0),
        Ok(about) if about.is_file() && wanted != Wanted::Folder => DataProbe::Have(about.len()),
        Ok(_) => {
            let path: String = path.chars().take(200).collect();
            let what = match wanted {
                Wanted::File => "a regular file",
                Wanted::FileOrFolder => "a regular file or a folder",
                Wanted::Folder => "a folder",
            };
            DataProbe::Missing(format!("`{path}` is not {what}"))
        }
    }
}

/// One of `path` and `text`, as the tools that take either ask for.
pub(super) enum Input {
    Path(String),
    Text(String),
}

/// Exactly one of the two must be there.
pub(super) fn path_or_text(arguments: &Arguments) -> Result<Input, ToolError> {
    match (super::optional_text(arguments, "path"), super::optional_text(arguments, "text")) {
        (Some(path), None) => Ok(Input::Path(path.to_owned())),
        (None, Some(text)) => Ok(Input::Text(text.to_owned())),
        (Some(_), Some(_)) => Err(ToolError::InvalidArguments("give `path` or `text`, not both".into())),
        (None, None) => {
            Err(ToolError::InvalidArguments("one of the arguments `path` and `text` is missing".into()))
        }
    }
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // silent-ok: writing to a String can't fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}
