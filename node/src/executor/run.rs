//! One running step: journal, tool, journal, and the events in between.
use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt as _;
use octomesh_protocol::{
    blob::BlobRef,
    card::{Effect, SandboxLevel},
    id::{LeaseId, NodeId, StepKey, ToolName},
    limits,
    step::{Event, EventKind, Outcome, StepStatus},
};
use octomesh_tools::tool::EventSink;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    CallReport, RunContext, ToolRunner,
    lease::{StopReason, error_output},
};
use crate::{
    app::failpoint::{self, Failpoint},
    journal::{JournalHandle, KEEP_STEPS_MS, Persistence, Started},
};

/// Events between the tool and the forwarder.
const EVENTS: usize = 64;
/// A stopped tool has this long to end by itself; then its future is dropped, which kills what it started.
const GRACE: Duration = Duration::from_secs(2);

/// Where the events of a step go now. A coordinator that comes back replaces it.
pub(super) type Listener = watch::Receiver<Option<mpsc::Sender<Event>>>;

/// A step that begins.
pub(super) struct Run {
    pub(super) lease: LeaseId,
    pub(super) epoch: u64,
    pub(super) effect: Effect,
    pub(super) tool: ToolName,
    pub(super) context: RunContext,
    pub(super) arguments: Vec<u8>,
    /// Instead of them, what is too large for a frame.
    pub(super) input: Option<BlobRef>,
    pub(super) listener: Listener,
    /// Set before `context.cancel` is cancelled.
    pub(super) stop: Arc<OnceLock<StopReason>>,
}

/// Runs the step to its outcome. The outcome is on the disk, where its effect demands it, before this returns.
pub(super) async fn run(runner: Arc<dyn ToolRunner>, journal: JournalHandle, run: Run) -> (LeaseId, Outcome) {
    let (lease, key, owner) = (run.lease, run.context.key.clone(), run.context.caller.node);
    let (epoch, effect, proof) = (run.epoch, run.effect, run.context.proof);
    match journal.executor_started(&key, epoch, effect, owner).await {
        Ok(Started::Fresh) => {}
        Ok(Started::Done(outcome)) => return (lease, outcome),
        Ok(Started::Interrupted | Started::Running) => {
            let text = "it was running when this node stopped; nobody can know whether it ran to its end";
            return (lease, without_result(StepStatus::Uncertain, "uncertain", text, 0));
        }
        Err(error) if Persistence::of(effect, &key) == Persistence::Durable => {
            tracing::error!(%key, %error, "a step that must not run twice was not started");
            return (lease, without_result(StepStatus::Refused, "journal", &error.to_string(), 0));
        }
        Err(error) => tracing::warn!(%key, %error, "the start of a step was not written"),
    }
    let passed = |point| {
        // A self-call is nobody's step.
        if !proof {
            failpoint::reached(point, Some(&key.step));
        }
    };
    passed(Failpoint::ExecutorStarted);
    let outcome = call(&*runner, run).await;
    passed(Failpoint::ExecutorRan);
    if let Err(error) = journal.executor_done(&key, effect, owner, &outcome).await {
        // The result is known and in memory; only a restart before its coordinator has it would make it uncertain.
        tracing::error!(%key, %error, "the result of a step was not written");
    }
    passed(Failpoint::ExecutorDone);
    (lease, outcome)
}

async fn call(runner: &dyn ToolRunner, run: Run) -> Outcome {
    let Run { tool, mut context, mut arguments, input, listener, stop, effect, .. } = run;
    let (owner, lasts) = (context.caller.node, kept_for(effect, &context.key));
    let (sink, mut lines) = mpsc::channel(EVENTS);
    context.events = EventSink::new(sink);
    let cancel = context.cancel.clone();
    let begun = Instant::now();
    let elapsed = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let stopped = || stop.get().copied().unwrap_or(StopReason::Cancelled);
    if cancel.is_cancelled() {
        return stopped().outcome(0, SandboxLevel::None);
    }
    if let Some(blob) = input {
        match runner.input(owner, blob).await {
            Ok(bytes) => arguments = bytes,
            Err(why) => return without_result(StepStatus::Refused, "input", &why, elapsed()),
        }
    }
    let mut forward = Forward { listener, seq: 0 };
    // What a tool leaves behind when it panics is dropped with its future; nothing of ours is shared with it.
    let tool_call = AssertUnwindSafe(runner.run(&tool, context, arguments)).catch_unwind();
    tokio::pin!(tool_call);
    let grace = tokio::time::sleep(GRACE);
    tokio::pin!(grace);
    let mut stopping = false;
    let report = loop {
        tokio::select! {
            biased;
            report = &mut tool_call => break report.ok(),
            Some((kind, text)) = lines.recv() => forward.send(kind, text),
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                grace.as_mut().reset(Instant::now() + GRACE);
            }
            () = &mut grace, if stopping => return stopped().outcome(elapsed(), SandboxLevel::None),
        }
    };
    while let Ok((kind, text)) = lines.try_recv() {
        forward.send(kind, text);
    }
    match report {
        Some(report) => finish(runner, report, stop.get().copied(), (owner, lasts, elapsed())).await,
        None => {
            without_result(StepStatus::Error, "panicked", "the tool crashed; this is a bug in it", elapsed())
        }
    }
}

/// How long a result that is a blob waits for its coordinator: as long as the step's row, or for what has none, longer than its
/// coordinator looks for it.
fn kept_for(effect: Effect, key: &StepKey) -> Duration {
    match Persistence::of(effect, key) {
        Persistence::None => Duration::from_secs(600),
        Persistence::Lazy | Persistence::Durable => Duration::from_millis(KEEP_STEPS_MS.cast_unsigned()),
    }
}

async fn finish(
    runner: &dyn ToolRunner,
    report: CallReport,
    stop: Option<StopReason>,
    (owner, lasts, elapsed_ms): (NodeId, Duration, u64),
) -> Outcome {
    match (stop, report.status) {
        // The tool stopped because it was told to: the reason is ours, not its.
        (Some(reason), StepStatus::Cancelled | StepStatus::Timeout) => {
            reason.outcome(elapsed_ms, report.sandbox)
        }
        _ if report.output.len() > limits::RESULT_BYTES => {
            let text =
                format!("the output is {} bytes, {} are allowed", report.output.len(), limits::RESULT_BYTES);
            without_result(StepStatus::Error, "too_large", &text, elapsed_ms)
        }
        _ if report.output.len() > limits::OUTPUT_BYTES => {
            match runner.keep(owner, report.output, lasts).await {
                Ok(blob) => Outcome::with_blob(report.status, blob, elapsed_ms, report.sandbox),
                Err(why) => {
                    let text = format!("it ran to its end, but its result can't be kept: {why}");
                    without_result(StepStatus::Error, "result_lost", &text, elapsed_ms)
                }
            }
        }
        _ => Outcome::new(report.status, report.output, elapsed_ms, report.sandbox),
    }
}

/// Of a step whose task panicked.
pub(super) fn lost_track() -> Outcome {
    let text = "this node lost track of the step; this is a bug";
    without_result(StepStatus::Uncertain, "uncertain", text, 0)
}

pub(super) fn without_result(status: StepStatus, code: &str, message: &str, elapsed_ms: u64) -> Outcome {
    Outcome::new(status, error_output(code, message), elapsed_ms, SandboxLevel::None)
}

/// Numbers events and passes them on; an event that nobody has room for leaves a gap in the numbers.
struct Forward {
    listener: Listener,
    seq: u32,
}

impl Forward {
    fn send(&mut self, kind: EventKind, mut text: String) {
        self.seq = self.seq.saturating_add(1);
        let mut end = text.len().min(limits::EVENT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        if let Some(sender) = &*self.listener.borrow() {
            // silent-ok: a slow or absent reader loses events, never the step; the gap in `seq` shows it
            let _ = sender.try_send(Event { seq: self.seq, kind, text });
        }
    }
}
