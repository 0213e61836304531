//! What the tools that run a caller's code share: who may, how many at once, what a result looks like.
use std::{path::PathBuf, sync::Arc, time::Duration};

use octomesh_protocol::{card::ToolCard, limits::RESULT_BYTES};
use serde_json::{Value, json};

use super::seats::Seats;
use crate::{
    policy,
    process::{environment, shown},
    sandbox::{
        Limits, Sandbox,
        run::{Captured, Finished, Limit, Program},
    },
    tool::{Arguments, CallContext, ToolError, ToolOutput},
};

/// Seconds of processor time that each process gets at least.
const CPU_S: u64 = 60;
/// Bytes that each of stdout and stderr may take in a result, as JSON; the rest is for the other fields.
const STREAM_BYTES: usize = RESULT_BYTES / 2 - 16 * 1024;

/// Where code runs.
#[derive(Debug, Clone)]
pub(super) struct Bench {
    pub(super) sandbox: Sandbox,
    seats: Arc<Seats>,
}

/// What to run.
pub(super) struct Job {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, &'static str)>,
    pub(super) input: Vec<u8>,
    pub(super) timeout_s: u64,
}

impl Bench {
    pub(super) fn new(sandbox: &Sandbox) -> Self {
        Self { sandbox: sandbox.clone(), seats: Arc::default() }
    }

    /// Runs it, if the caller may.
    pub(super) async fn run(
        &self,
        card: &ToolCard,
        context: &CallContext,
        job: Job,
    ) -> Result<Finished, ToolError> {
        let level = self.sandbox.level();
        policy::decide(&context.caller, card, level).map_err(|denied| ToolError::Forbidden(denied.reason))?;
        self.sandbox.meets_minimum().map_err(ToolError::Unavailable)?;
        let _seat = self.seats.take(context).await?;
        let mut limits = Limits::new(job.timeout_s, 0);
        limits.cpu_s = CPU_S.max(job.timeout_s);
        let mut env = environment(context);
        env.extend(job.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let program = Program {
            program: job.program,
            args: job.args,
            env,
            dir: context.workspace.path().to_owned(),
            tool: None,
            network: false,
            devices: Vec::new(),
            limits,
            input: job.input,
            timeout: Duration::from_secs(job.timeout_s),
            has_quota: !context.caller.local,
        };
        let finished = self.sandbox.run(program, &context.into()).await?;
        match finished.not_started() {
            Some(reason) => Err(ToolError::Unavailable(format!("it could not be started: {reason}"))),
            None => Ok(finished),
        }
    }

    /// The result: exit code, both streams, the limit that ended it, the level.
    pub(super) fn output(&self, finished: &Finished, more: Arguments) -> ToolOutput {
        let mut fields = more;
        let mut cut = false;
        for (name, stream) in [("stdout", &finished.stdout), ("stderr", &finished.stderr)] {
            cut |= put(&mut fields, name, stream);
        }
        // A program that a limit has ended has no exit code of its own; one that has ended by a signal has.
        let own_end = finished.limit.is_none_or(|limit| limit.is_seen_in_code());
        let code = finished.status.code().filter(|_| own_end);
        fields.insert("exit_code".into(), json!(code));
        if cut {
            self.sandbox.count(Limit::Output);
        }
        if let Some(limit) = finished.limit.or_else(|| cut.then_some(Limit::Output)) {
            fields.insert("limit".into(), json!(limit.to_string()));
        }
        fields.insert("sandbox".into(), json!(finished.level.as_str()));
        ToolOutput { content: Value::Object(fields), sandbox: finished.level }
    }
}

/// Whether something was left out.
fn put(fields: &mut Arguments, name: &str, stream: &Captured) -> bool {
    let shown = shown(stream, STREAM_BYTES);
    fields.insert(name.into(), json!(shown.text));
    if shown.invalid_utf8 {
        fields.insert(format!("{name}_invalid_utf8"), json!(true));
    }
    if shown.dropped {
        fields.insert(format!("{name}_bytes"), json!(stream.total));
    }
    shown.dropped
}
