//! A manifest and a command make a tool: arguments as JSON on stdin, the result as JSON or text on stdout.
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use octomesh_protocol::{
    card::{SandboxLevel, ToolCard},
    limits::RESULT_BYTES,
};
use serde_json::{Value, json};

use crate::{
    builtin::files,
    load::Loader,
    manifest::ProcessManifest,
    sandbox::{
        Limits, Sandbox,
        run::{Captured, Finished, Limit, Program},
    },
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// Where programs without a slash in their name are looked for, and the `PATH` that they get.
pub const PROGRAM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Bytes of stderr that an error message repeats.
const STDERR_TAIL: usize = 2000;
/// Bytes of a result besides its text.
const FIELDS_BYTES: usize = 200;
/// Devices of GPUs; shown to tools whose card asks for GPU memory.
const GPU_DEVICES: &str = "/dev";

/// The tool.
#[derive(Debug)]
pub struct ProcessTool {
    card: Arc<ToolCard>,
    manifest: Arc<ProcessManifest>,
    program: PathBuf,
    sandbox: Sandbox,
}

/// Whether the tool could run now.
///
/// # Errors
/// Why not: the program is missing, or the node confines less than the card asks for.
pub fn ready(manifest: &ProcessManifest, here: SandboxLevel) -> Result<PathBuf, String> {
    if let Some(level) = manifest.card.needs.min_sandbox
        && level > here
    {
        return Err(format!("needs the sandbox level {level}; programs run at {here} here"));
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
    pub(crate) sandbox: Sandbox,
}

#[async_trait]
impl Loader for ProcessLoader {
    async fn load(&self, card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError> {
        let program = ready(&self.manifest, self.sandbox.level()).map_err(ToolError::Unavailable)?;
        Ok(Arc::new(ProcessTool {
            card: Arc::clone(card),
            manifest: Arc::clone(&self.manifest),
            program,
            sandbox: self.sandbox.clone(),
        }))
    }
}

impl ProcessTool {
    fn program(&self, context: &CallContext, arguments: Arguments) -> Program {
        let mut env = environment(context);
        env.extend(self.manifest.env.clone());
        // After the manifest's: two steps on one card are the owner's loss, whatever the manifest says.
        env.extend(context.gpu.clone());
        let mut input = Value::Object(arguments).to_string().into_bytes();
        input.push(b'\n');
        Program {
            program: self.program.clone(),
            args: self.manifest.command.iter().skip(1).cloned().collect(),
            env,
            dir: context.workspace.path().to_owned(),
            tool: Some(self.manifest.folder.clone()),
            network: self.card.needs.network,
            devices: if self.card.needs.gpu_vram.is_some() { gpu_devices() } else { Vec::new() },
            limits: self.limits(),
            input,
            timeout: Duration::from_secs(self.manifest.timeout_s),
            has_quota: false,
        }
    }
}

impl ProcessTool {
    fn limits(&self) -> Limits {
        let mut limits = Limits::new(self.manifest.timeout_s, self.card.needs.memory.unwrap_or(0));
        // The owner's own program: more than anybody's code.
        limits.processes = limits.processes.map(|n| n * 4);
        limits
    }
}

/// Variables of every program. `HOME` and `TMPDIR` depend on where it runs and are added there.
pub(crate) fn environment(context: &CallContext) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("PATH".to_owned(), PROGRAM_PATH.to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("OCTOMESH_CALL".to_owned(), context.key.to_string()),
    ])
}

fn gpu_devices() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(GPU_DEVICES) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| {
            let name = e.file_name();
            let name = name.to_string_lossy();
            name.starts_with("nvidia") || name == "dri" || name == "kfd"
        })
        .map(|e| e.path())
        .collect()
}

#[async_trait]
impl Tool for ProcessTool {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        // The level may have fallen since the tool was loaded.
        if let (Some(least), here) = (self.card.needs.min_sandbox, self.sandbox.level())
            && here < least
        {
            return Err(ToolError::Unavailable(format!(
                "needs the sandbox level {least}; programs run at {here} here"
            )));
        }
        let program = self.program(context, arguments);
        let finished = self.sandbox.run(program, &context.into()).await?;
        if finished.succeeded() {
            return Ok(ToolOutput { content: content(&finished.stdout), sandbox: finished.level });
        }
        Err(failure(&finished))
    }

    fn sandbox(&self) -> SandboxLevel {
        self.sandbox.level()
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
    if finished.limit == Some(Limit::Timeout) {
        return ToolError::Timeout;
    }
    if let Some(reason) = finished.not_started() {
        return ToolError::Unavailable(format!("the program could not be started: {reason}"));
    }
    let how = finished.describe();
    let said = finished.stderr.last(STDERR_TAIL);
    let said = if said.is_empty() { finished.stdout.last(STDERR_TAIL) } else { said };
    let text = if said.is_empty() { how } else { format!("{how}: {said}") };
    if finished.limit == Some(Limit::Quota) { ToolError::Quota(text) } else { ToolError::Failed(text) }
}

/// JSON as it is; anything else as text, with what happened to it said.
fn content(stdout: &Captured) -> Value {
    if !stdout.truncated()
        && let Ok(value) = serde_json::from_slice::<Value>(&stdout.kept())
    {
        return value;
    }
    let shown = shown(stdout, RESULT_BYTES - FIELDS_BYTES);
    let mut fields = Arguments::from_iter([("text".to_owned(), Value::String(shown.text))]);
    if shown.dropped {
        fields.insert("truncated".into(), json!(true));
        fields.insert("total_bytes".into(), json!(stdout.total));
    }
    if shown.invalid_utf8 {
        fields.insert("invalid_utf8".into(), json!(true));
    }
    Value::Object(fields)
}

/// What of a stream goes into a result.
pub(crate) struct Shown {
    pub(crate) text: String,
    /// Something between head and tail is left out.
    pub(crate) dropped: bool,
    pub(crate) invalid_utf8: bool,
}

/// Head and tail of a stream, at most `most` bytes as JSON. Control characters take six bytes as JSON, so what is kept may
/// have to shrink.
pub(crate) fn shown(stream: &Captured, most: usize) -> Shown {
    let kept = stream.kept();
    let whole_text = String::from_utf8_lossy(&kept);
    if !stream.truncated() && json_bytes(&whole_text) <= most {
        let invalid_utf8 = std::str::from_utf8(&kept).is_err();
        return Shown { text: whole_text.into_owned(), dropped: false, invalid_utf8 };
    }
    let (head, tail) = kept.split_at(kept.len() / 4 * 3);
    let (mut head_len, mut tail_len) = (head.len(), tail.len());
    loop {
        let first = head.get(..head_len).unwrap_or_default();
        let last = tail.get(tail.len() - tail_len..).unwrap_or_default();
        let gap = stream.total.saturating_sub((first.len() + last.len()) as u64);
        let mut text = String::from_utf8_lossy(first).into_owned();
        text.push_str(&format!("\n[… {gap} bytes left out …]\n"));
        text.push_str(&String::from_utf8_lossy(last));
        // A character cut by the truncation is not the program's fault.
        let whole =
            |bytes: &[u8]| std::str::from_utf8(bytes).map_or_else(|e| e.error_len().is_none(), |_| true);
        let invalid_utf8 = !(whole(first) && whole(skip(last)));
        if gap > 0 && json_bytes(&text) <= most {
            return Shown { text, dropped: true, invalid_utf8 };
        }
        head_len = head_len / 4 * 3;
        tail_len = tail_len / 4 * 3;
    }
}

fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

/// Without the rest of a character that was cut at the beginning.
fn skip(bytes: &[u8]) -> &[u8] {
    let cut = bytes.iter().take(3).take_while(|b| **b & 0b1100_0000 == 0b1000_0000).count();
    bytes.get(cut..).unwrap_or_default()
}
