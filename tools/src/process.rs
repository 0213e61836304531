//! A manifest and a command make a tool: arguments as JSON on stdin, the result as JSON or text on stdout.
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use octomesh_protocol::{
    card::{SandboxLevel, ToolCard},
    limits::OUTPUT_BYTES,
};
use serde_json::{Value, json};

use crate::{
    builtin::files,
    load::Loader,
    manifest::ProcessManifest,
    sandbox::{
        Launcher, Limits, MESSAGE_PREFIX, NOT_STARTED,
        run::{self, Captured, Finished, Program},
    },
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// Where programs without a slash in their name are looked for, and the `PATH` that they get.
pub const PROGRAM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Bytes of stderr that an error message repeats.
const STDERR_TAIL: usize = 2000;

/// What a process tool runs at here.
pub const LEVEL: SandboxLevel = SandboxLevel::Rlimits;

/// The tool.
#[derive(Debug)]
pub struct ProcessTool {
    card: Arc<ToolCard>,
    manifest: Arc<ProcessManifest>,
    program: PathBuf,
    launcher: Launcher,
}

/// Whether the tool could run now.
///
/// # Errors
/// Why not: the program is missing, or the node confines less than the card asks for.
pub fn ready(manifest: &ProcessManifest) -> Result<PathBuf, String> {
    if let Some(level) = manifest.card.needs.min_sandbox
        && level > LEVEL
    {
        return Err(format!("needs the sandbox level {level}; programs run at {LEVEL} here"));
    }
    let name = manifest.command.first().map_or("", String::as_str);
    if name.contains('/') {
        let path = manifest.folder.join(name);
        return executable(&path).map(|()| path);
    }
    PROGRAM_PATH
        .split(':')
        .map(|dir| Path::new(dir).join(name))
        .find(|path| executable(path).is_ok())
        .ok_or_else(|| format!("program `{name}` is not in {PROGRAM_PATH}"))
}

fn executable(path: &Path) -> Result<(), String> {
    let about = fs::metadata(path).map_err(|e| format!("program {}: {e}", path.display()))?;
    if about.is_file() && about.permissions().mode() & 0o111 != 0 {
        Ok(())
    } else {
        Err(format!("program {} is not an executable file", path.display()))
    }
}

/// Finds the program at the first call.
pub(crate) struct ProcessLoader {
    pub(crate) manifest: Arc<ProcessManifest>,
    pub(crate) launcher: Launcher,
}

#[async_trait]
impl Loader for ProcessLoader {
    async fn load(&self, card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError> {
        let program = ready(&self.manifest).map_err(ToolError::Unavailable)?;
        Ok(Arc::new(ProcessTool {
            card: Arc::clone(card),
            manifest: Arc::clone(&self.manifest),
            program,
            launcher: self.launcher.clone(),
        }))
    }
}

impl ProcessTool {
    fn program(&self, context: &CallContext, arguments: Arguments) -> Program {
        let dir = context.workspace.path().to_owned();
        let mut env = std::collections::BTreeMap::from([
            ("PATH".to_owned(), PROGRAM_PATH.to_owned()),
            ("HOME".to_owned(), dir.display().to_string()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("TMPDIR".to_owned(), "/tmp".to_owned()),
            ("OCTOMESH_CALL".to_owned(), context.key.to_string()),
        ]);
        env.extend(self.manifest.env.clone());
        let mut input = Value::Object(arguments).to_string().into_bytes();
        input.push(b'\n');
        Program {
            program: self.program.clone(),
            args: self.manifest.command.iter().skip(1).cloned().collect(),
            env,
            dir,
            limits: Limits::new(self.manifest.timeout_s, self.card.needs.memory.unwrap_or(0)),
            input,
            timeout: Duration::from_secs(self.manifest.timeout_s),
        }
    }
}

#[async_trait]
impl Tool for ProcessTool {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let program = self.program(context, arguments);
        let finished = run::run(&self.launcher, program, context).await?;
        if finished.status.success() {
            return Ok(ToolOutput { content: content(&finished.stdout), sandbox: LEVEL });
        }
        Err(failure(&finished))
    }

    fn sandbox(&self) -> SandboxLevel {
        LEVEL
    }

    fn stops_itself(&self) -> bool {
        true
    }

    /// The arguments that the card names as data are paths of the workspace, in which the program runs.
    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        let mut bytes = 0u64;
        for name in &self.card.data {
            let Some(Value::String(path)) = arguments.get(name) else { continue };
            match workspace.dir().metadata(path) {
                Ok(about) if about.is_file() => bytes = bytes.saturating_add(about.len()),
                Ok(_) => {}
                Err(e) => return DataProbe::Missing(files::error(path, &e).to_string()),
            }
        }
        DataProbe::Have(bytes)
    }
}

fn failure(finished: &Finished) -> ToolError {
    let said = finished.stderr.last(STDERR_TAIL);
    if finished.status.code() == Some(i32::from(NOT_STARTED))
        && let Some(reason) = said.strip_prefix(MESSAGE_PREFIX)
    {
        return ToolError::Unavailable(format!("the program could not be started: {reason}"));
    }
    let how = run::describe(finished.status);
    let said = if said.is_empty() { finished.stdout.last(STDERR_TAIL) } else { said };
    ToolError::Failed(if said.is_empty() { how } else { format!("{how}: {said}") })
}

/// JSON as it is; anything else as text, with what happened to it said.
fn content(stdout: &Captured) -> Value {
    if !stdout.truncated() {
        let bytes = stdout.kept();
        return match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => value,
            Err(_) => text(&bytes, &[], stdout.total),
        };
    }
    let (head, tail) = stdout.parts();
    text(head, &tail, stdout.total)
}

/// `{"text": …}` of at most 256 KiB as JSON. Control characters take six bytes as JSON, so what is kept may have to shrink.
fn text(head: &[u8], tail: &[u8], total: u64) -> Value {
    let (mut head_len, mut tail_len) = (head.len(), tail.len());
    loop {
        let first = head.get(..head_len).unwrap_or_default();
        let last = tail.get(tail.len() - tail_len..).unwrap_or_default();
        let dropped = total.saturating_sub((first.len() + last.len()) as u64);
        let mut out = String::from_utf8_lossy(first).into_owned();
        if dropped > 0 {
            out.push_str(&format!("\n[… {dropped} bytes left out …]\n"));
        }
        out.push_str(&String::from_utf8_lossy(last));
        let mut fields = Arguments::from_iter([("text".to_owned(), Value::String(out))]);
        if dropped > 0 {
            fields.insert("truncated".into(), json!(true));
            fields.insert("total_bytes".into(), json!(total));
        }
        // A character cut by the truncation is not the program's fault.
        let whole =
            |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|e| e.error_len().is_none(), |_| true);
        if dropped == 0 && std::str::from_utf8(first).is_err()
            || dropped > 0 && !(whole(first) && whole(skip(last)))
        {
            fields.insert("invalid_utf8".into(), json!(true));
        }
        let value = Value::Object(fields);
        if value.to_string().len() <= OUTPUT_BYTES {
            return value;
        }
        head_len = head_len / 4 * 3;
        tail_len = tail_len / 4 * 3;
    }
}

/// Without the rest of a character that was cut at the beginning.
fn skip(bytes: &[u8]) -> &[u8] {
    let cut = bytes.iter().take(3).take_while(|b| **b & 0b1100_0000 == 0b1000_0000).count();
    bytes.get(cut..).unwrap_or_default()
}
