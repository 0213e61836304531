//! One call, from JSON bytes to JSON bytes: parse, validate, load, run with a deadline and a cancel token, cap the output.
use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use octomesh_protocol::{card::SandboxLevel, id::ToolName, limits, step::StepStatus};
use serde_json::{Value, json};

use crate::{
    load::{LoadError, Loaded},
    registry::Registry,
    tool::{Arguments, CallContext, DataProbe, ToolError, ToolOutput, Workspace},
};

/// How long a tool that stops itself may take to do so before its future is dropped: longer than the runner needs to end a
/// process tree, shorter than anybody waits for a cancel.
const STOP_GRACE: Duration = Duration::from_secs(8);

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReport {
    /// Ok, error, cancelled, timeout, or refused when nothing was started.
    pub status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`: JSON of at most 16 MiB.
    pub output: Vec<u8>,
    /// Level that the call ran at.
    pub sandbox: SandboxLevel,
}

/// Calls a tool. Never fails: every failure is a report.
pub async fn call(
    registry: &Registry,
    name: &ToolName,
    context: &CallContext,
    arguments: &[u8],
) -> CallReport {
    call_checked(registry, name, context, arguments, false).await
}

/// `even_unavailable`: the check whether a tool works again.
pub(crate) async fn call_checked(
    registry: &Registry,
    name: &ToolName,
    context: &CallContext,
    arguments: &[u8],
    even_unavailable: bool,
) -> CallReport {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return CallReport::failed(&error, SandboxLevel::None),
    };
    let loaded = tokio::select! {
        loaded = registry.loaded(name, even_unavailable) => loaded,
        () = context.cancel.cancelled() => return CallReport::failed(&ToolError::Cancelled, SandboxLevel::None),
        () = tokio::time::sleep_until(context.deadline) => return CallReport::failed(&ToolError::Timeout, SandboxLevel::None),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return CallReport::not_loaded(&error),
    };
    if let Err(message) = loaded.schema.check(&arguments) {
        return CallReport::failed(&ToolError::InvalidArguments(message), SandboxLevel::None);
    }
    match run(&loaded, context, arguments).await {
        Ok(output) => CallReport::done(&output),
        Err(error) => CallReport::failed(&error, loaded.tool.sandbox()),
    }
}

async fn run(loaded: &Loaded, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
    if context.cancel.is_cancelled() {
        return Err(ToolError::Cancelled);
    }
    let running = AssertUnwindSafe(loaded.tool.call(context, arguments)).catch_unwind();
    tokio::pin!(running);
    let stopped = tokio::select! {
        biased;
        result = &mut running => return settle(result),
        () = context.cancel.cancelled() => ToolError::Cancelled,
        () = tokio::time::sleep_until(context.deadline) => ToolError::Timeout,
    };
    if loaded.tool.stops_itself() {
        // Its own result comes too late to count; what matters is that everything it started is gone when we return.
        // silent-ok: after the grace the future is dropped, which ends the rest
        let _ = tokio::time::timeout(STOP_GRACE, running).await;
    }
    Err(stopped)
}

type Caught<T> = Result<T, Box<dyn std::any::Any + Send>>;

fn settle(result: Caught<Result<ToolOutput, ToolError>>) -> Result<ToolOutput, ToolError> {
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(ToolError::Failed(format!("the tool panicked: {text}")))
    })
}

/// Whether the data that the arguments point to is on this node. Loads the tool only when its card names `data`.
pub async fn probe(
    registry: &Registry,
    name: &ToolName,
    workspace: &Workspace,
    arguments: &[u8],
) -> DataProbe {
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return DataProbe::Missing(error.to_string()),
    };
    match registry.snapshot().get(name) {
        Some(entry) if entry.state.is_available() && entry.card.data.is_empty() => return DataProbe::Have(0),
        _ => {}
    }
    let tool = match registry.tool(name).await {
        Ok(tool) => tool,
        Err(error) => return DataProbe::Missing(error.to_string()),
    };
    match AssertUnwindSafe(tool.probe(workspace, &arguments)).catch_unwind().await {
        Ok(answer) => answer,
        Err(_) => DataProbe::Missing("the tool panicked when asked for its data".into()),
    }
}

fn parse(bytes: &[u8]) -> Result<Arguments, ToolError> {
    if bytes.len() > limits::INPUT_BYTES {
        return Err(ToolError::TooLarge(format!(
            "arguments of {} bytes are over the limit of {}; put a large input into a file of the workspace",
            bytes.len(),
            limits::INPUT_BYTES
        )));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|e| {
        let text = e.to_string();
        ToolError::InvalidArguments(match text.contains("recursion limit") {
            true => "arguments are nested more than 127 levels deep".to_owned(),
            false => format!("arguments are not JSON: {text}"),
        })
    })?;
    match value {
        Value::Object(arguments) => Ok(arguments),
        other => {
            Err(ToolError::InvalidArguments(format!("arguments must be a JSON object, not {}", kind(&other))))
        }
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl CallReport {
    fn done(output: &ToolOutput) -> Self {
        let bytes = output.content.to_string().into_bytes();
        if bytes.len() > limits::RESULT_BYTES {
            let message = format!(
                "the result has {} bytes, the limit is {}; ask for less (a limit, an offset, a narrower path or query)",
                bytes.len(),
                limits::RESULT_BYTES
            );
            return Self::failed(&ToolError::TooLarge(message), output.sandbox);
        }
        Self { status: StepStatus::Ok, output: bytes, sandbox: output.sandbox }
    }

    fn failed(error: &ToolError, sandbox: SandboxLevel) -> Self {
        let status = match error {
            ToolError::Timeout => StepStatus::Timeout,
            ToolError::Cancelled => StepStatus::Cancelled,
            _ => StepStatus::Error,
        };
        Self { status, output: error_json(error.code(), &error.to_string()), sandbox }
    }

    fn not_loaded(error: &LoadError) -> Self {
        Self {
            status: StepStatus::Refused,
            output: error_json(error.code(), &error.to_string()),
            sandbox: SandboxLevel::None,
        }
    }

    /// The code of a failure.
    #[must_use]
    pub fn error_code(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.output).ok()?;
        if self.status == StepStatus::Ok {
            return None;
        }
        value.get("error")?.get("code")?.as_str().map(str::to_owned)
    }
}

/// `{"error": {"code", "message"}}`; the message is cut at 4 KiB.
fn error_json(code: &str, message: &str) -> Vec<u8> {
    let mut end = message.len().min(limits::TEXT_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let cut = message.get(..end).unwrap_or_default();
    let message = if end < message.len() { format!("{cut}…") } else { cut.to_owned() };
    json!({"error": {"code": code, "message": message}}).to_string().into_bytes()
}
