//! `file_read`: lines of a text file of the workspace.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::{card::ToolCard, limits::RESULT_BYTES};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::files::{self, Wanted};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// A file over this size is only read with a `limit`: nobody means to read a large file as a whole.
const WITHOUT_LIMIT: u64 = 1024 * 1024;
/// Bytes of content in one result; a text with its JSON escapes fits into one.
const CONTENT_BYTES: usize = 6 * 1024 * 1024;

/// The tool.
#[derive(Debug)]
pub struct FileRead(Arc<ToolCard>);

impl FileRead {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/file_read.toml"), "file_read.toml").map(Self)
    }
}

#[async_trait]
impl Tool for FileRead {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let (workspace, local) = (Arc::clone(&context.workspace), context.caller.local);
        files::work(context, move |stop| read(&workspace, &arguments, local, stop)).await.map(Into::into)
    }

    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        files::probe(workspace, arguments, Wanted::File)
    }
}

fn read(
    workspace: &Workspace,
    arguments: &Arguments,
    local: bool,
    stop: &CancellationToken,
) -> Result<Value, ToolError> {
    let path = super::text(arguments, "path")?;
    let offset = super::optional_number(arguments, "offset").unwrap_or(0);
    let limit = super::optional_number(arguments, "limit");
    let (file, about) = files::open(workspace, path, local)?;
    if limit.is_none() && about.len() > WITHOUT_LIMIT {
        return Err(ToolError::TooLarge(format!(
            "`{path}` has {} bytes; over {WITHOUT_LIMIT} bytes say how many lines to read with `limit` and `offset`",
            about.len()
        )));
    }
    let mut lines = Lines {
        first: offset,
        end: limit.map_or(u64::MAX, |n| offset.saturating_add(n)),
        ..Lines::default()
    };
    let mut hash = Sha256::new();
    let total = files::read_pieces(path, file, stop, |piece| {
        hash.update(piece);
        lines.push(piece);
    })?;
    let mut content = std::mem::take(&mut lines.content);
    let sha256 = files::hex(&hash.finalize());
    loop {
        let value = lines.result(path, &content, total, &sha256);
        if value.to_string().len() <= RESULT_BYTES {
            return Ok(value);
        }
        // Control characters take six bytes as JSON.
        content.truncate(content.len() / 2);
        lines.cut = true;
    }
}

/// Picks lines out of a stream of pieces.
#[derive(Default)]
struct Lines {
    first: u64,
    end: u64,
    /// Line breaks seen.
    breaks: u64,
    /// Bytes came after the last line break.
    open: bool,
    content: Vec<u8>,
    cut: bool,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|b| *b == b'\n') {
            if (self.first..self.end).contains(&self.breaks) {
                let room = CONTENT_BYTES.saturating_sub(self.content.len());
                self.cut |= part.len() > room;
                self.content.extend_from_slice(part.get(..part.len().min(room)).unwrap_or_default());
            }
            self.open = !part.ends_with(b"\n");
            self.breaks += u64::from(!self.open);
        }
    }

    fn result(&self, path: &str, content: &[u8], total: u64, sha256: &str) -> Value {
        let lines = self.breaks + u64::from(self.open);
        // A result that was cut inside of a line goes on with that line.
        let whole = content.iter().filter(|b| **b == b'\n').count() as u64;
        let returned = whole + u64::from(content.last().is_some_and(|b| *b != b'\n'));
        let next = self.first.saturating_add(if self.cut { whole } else { returned });
        // A character cut at the end is not the file's fault.
        let valid = match std::str::from_utf8(content) {
            Ok(_) => true,
            Err(e) => self.cut && e.error_len().is_none(),
        };
        let text = match std::str::from_utf8(content) {
            Err(e) if valid => String::from_utf8_lossy(content.get(..e.valid_up_to()).unwrap_or_default()),
            _ => String::from_utf8_lossy(content),
        };
        let mut value = json!({
            "path": path,
            "content": text,
            "offset": self.first,
            "returned_lines": returned,
            "lines": lines,
            "total_bytes": total,
            "sha256": sha256,
            "truncated": self.cut,
        });
        if let Value::Object(fields) = &mut value {
            if next < lines {
                fields.insert("next_offset".into(), json!(next));
            }
            if !valid {
                fields.insert("invalid_utf8".into(), json!(true));
            }
        }
        value
    }
}
