//! `octomesh solve`.
use std::{fs, io::Read, path::PathBuf, time::Duration};

use clap::Args;
use octomesh_protocol::id::RunId;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{
    CliError, Context, Exit,
    client::Client,
    render::{Table, or_dash},
};
use crate::api::types::{RunEvent, RunRequest, RunStarted};

/// What stopping a run on other nodes may take before the command ends anyway.
const CANCEL: Duration = Duration::from_secs(5);
/// Pause before the events are asked for again.
const AGAIN: Duration = Duration::from_millis(500);
/// Breaks of the event stream in a row, without an event between them, after which the command gives up watching.
const BREAKS: u32 = 5;
/// A plan file; the node takes no larger request.
const PLAN_BYTES: u64 = 512 * 1024;

/// Solves a question.
#[derive(Debug, Args)]
pub(super) struct SolveCommand {
    /// The question; may be left out when there is a plan
    #[arg(required_unless_present = "plan")]
    question: Vec<String>,
    /// A plan file, YAML or JSON: nothing is planned any more
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// What plans [default: the node's]
    #[arg(long)]
    engine: Option<String>,
    /// Also copy the run's files (solve_memory.json, final_answer.md) there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Most steps of one block
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    max_steps: Option<u32>,
    /// Time until the run is cut off
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    max_time: Option<u32>,
}

impl SolveCommand {
    fn request(&self) -> Result<RunRequest, CliError> {
        Ok(RunRequest {
            question: self.question.join(" "),
            plan: self.plan.as_ref().map(read_plan).transpose()?,
            engine: self.engine.clone(),
            max_steps: self.max_steps,
            max_time_s: self.max_time,
        })
    }

    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        let started: RunStarted = client.post(&["api", "runs"], &self.request()?, false).await?;
        let id = started.run_id;
        context.screen.progress(&format!("run {id}"));
        let document = tokio::select! {
            // A run that ended is not cancelled by the Ctrl-C that came at the same moment.
            biased;
            document = follow(&client, &id, context) => document.map_err(|e| went_away(e, &id))?,
            () = context.interrupt.cancelled() => cancel(&client, &id, context).await?,
        };
        if let Some(out) = &self.out {
            copy_files(context, &id, out)?;
        }
        context.screen.show(&document, report)?;
        Ok(exit_of(&document))
    }
}

fn read_plan(path: &PathBuf) -> Result<String, CliError> {
    let wrong = |why: String| CliError::usage(format!("the plan {}: {why}", path.display()));
    let file = fs::File::open(path).map_err(|e| wrong(e.to_string()))?;
    let mut text = String::new();
    file.take(PLAN_BYTES + 1).read_to_string(&mut text).map_err(|e| wrong(e.to_string()))?;
    if text.len() as u64 > PLAN_BYTES {
        return Err(wrong(format!("over {} KiB", PLAN_BYTES / 1024)));
    }
    Ok(text)
}

/// Shows what happens until the run is over, through breaks of the connection.
pub(super) async fn follow(client: &Client, id: &str, context: &Context) -> Result<Value, CliError> {
    let (mut seen, mut breaks) = (0, 0);
    loop {
        let mut events = client.events(id, seen).await?;
        while let Some(event) = events.next().await? {
            if event.seq > seen {
                (seen, breaks) = (event.seq, 0);
                if let Some(line) = progress(&event) {
                    context.screen.progress(&line);
                }
            }
        }
        let document: Value = client.get(&["api", "runs", id]).await?;
        if is_over(&document) {
            return Ok(document);
        }
        breaks += 1;
        if breaks > BREAKS {
            return Err(CliError::failed(format!("the events of run {id} break off again and again"))
                .hint(format!("the run goes on; see `octomesh runs show {id}`")));
        }
        sleep(AGAIN).await;
    }
}

pub(super) async fn cancel(client: &Client, id: &str, context: &Context) -> Result<Value, CliError> {
    context.screen.progress(&format!("stopping run {id}"));
    match timeout(CANCEL, client.post::<Value>(&["api", "runs", id, "cancel"], &(), true)).await {
        Ok(Ok(document)) if is_over(&document) => Ok(document),
        Ok(Ok(_)) | Err(_) => Err(still_running(id, "it has not stopped yet")),
        Ok(Err(error)) => Err(still_running(id, &error.body.message)),
    }
}

fn still_running(id: &str, why: &str) -> CliError {
    let mut error = CliError::interrupted().hint(format!("see `octomesh runs show {id}`"));
    error.body.message = format!("interrupted, but run {id} may go on: {why}");
    error
}

/// The node went away while its run was watched: its name is what the user needs afterwards.
fn went_away(error: CliError, id: &str) -> CliError {
    if error.exit != Exit::NotRunning {
        return error;
    }
    let mut gone =
        CliError::new(Exit::NotRunning, "not_running", format!("the node went away during run {id}"));
    gone.body.hint =
        Some(format!("when it is up again it goes on with the run; `octomesh runs resume {id}` shows it"));
    gone
}

fn status(document: &Value) -> &str {
    document.get("status").and_then(Value::as_str).unwrap_or_default()
}

fn is_over(document: &Value) -> bool {
    !matches!(status(document), "not_started" | "in_progress")
}

pub(super) fn exit_of(document: &Value) -> Exit {
    if let Some(code) = document.pointer("/error/code").and_then(Value::as_str) {
        return match code {
            "needs_confirmation" => Exit::NeedsConfirmation,
            "engine" | "internal" | "failed" => Exit::Failed,
            // A question or plan that says nothing that can be done.
            _ => Exit::Usage,
        };
    }
    match status(document) {
        "completed" => Exit::Ok,
        "needs_confirmation" => Exit::NeedsConfirmation,
        "uncertain" => Exit::Uncertain,
        "cancelled" => Exit::Interrupted,
        _ => Exit::Failed,
    }
}

fn copy_files(context: &Context, id: &str, out: &PathBuf) -> Result<(), CliError> {
    let wrong = |what: &str, e: std::io::Error| CliError::failed(format!("{what}: {e}"));
    // The id comes from the node and becomes part of a path.
    let id = RunId::parse(id).map_err(|e| CliError::failed(e.to_string()))?;
    let from = context.home.join("runs").join(id.as_str());
    if !from.is_dir() {
        context.screen.warn(&format!(
            "the files of run {id} are on the node that solved it, not in {}",
            from.display()
        ));
        return Ok(());
    }
    fs::create_dir_all(out).map_err(|e| wrong(&out.display().to_string(), e))?;
    for name in ["solve_memory.json", "final_answer.md"] {
        let path = from.join(name);
        // A run without an answer has no answer's file.
        if path.exists() {
            fs::copy(&path, out.join(name)).map_err(|e| wrong(name, e))?;
        }
    }
    Ok(())
}

fn text_of<'a>(row: &'a Value, key: &str) -> Option<&'a str> {
    row.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn list<'a>(document: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    document.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// One event as lines; `None` for those that say nothing new to a person.
fn progress(event: &RunEvent) -> Option<String> {
    let body = Value::Object(event.body.clone());
    let word = |key| text_of(&body, key).unwrap_or("?");
    let ms = body.get("elapsed_ms").and_then(Value::as_u64).unwrap_or_default();
    Some(match event.kind() {
        "planned" => {
            let blocks = list(&body, "blocks").map(|block| {
                let after: Vec<_> = list(block, "depends_on").filter_map(Value::as_str).collect();
                let after =
                    if after.is_empty() { String::new() } else { format!(" (after {})", after.join(", ")) };
                format!(
                    "\n  {}: {}{after}",
                    or_dash(text_of(block, "block_id")),
                    or_dash(text_of(block, "goal"))
                )
            });
            format!("plan by {}:{}", word("engine"), blocks.collect::<String>())
        }
        "step_started" => format!("{} {}: {}", word("step_id"), word("tool"), word("plan")),
        "step_finished" => {
            let node = text_of(&body, "node").map_or_else(|| "on no node".to_owned(), |n| format!("on {n}"));
            format!("{} {}: {} {node} in {ms} ms", word("step_id"), word("tool"), word("status"))
        }
        "checked" if word("verdict") == "pass" => return None,
        "checked" => format!("{} check: {} {}", word("step_id"), word("verdict"), word("comment")),
        "step_completed" if body.get("unresolved") == Some(&Value::Bool(true)) => {
            format!("{} stays unresolved", word("step_id"))
        }
        "failed" => format!("run {}: {}", word("status"), word("reason")),
        "step_placed" => {
            format!("{} {} -> {}\n  why: {}", word("step_id"), word("tool"), word("node"), word("sentence"))
        }
        "step_progress" => format!("{}: {}", word("step_id"), word("text")),
        _ => return None,
    })
}

/// A run for people: answer, sources, and where each step ran.
pub(super) fn report(document: &Value) -> String {
    if let Some(error) = document.get("error").filter(|e| e.is_object()) {
        return refused(error);
    }
    let mut parts: Vec<String> = Vec::new();
    match text_of(document, "answer") {
        Some(answer) => parts.push(answer.trim_end().to_owned()),
        None => {
            parts.push(format!("Run {} is {}.", text_of(document, "run_id").unwrap_or("?"), status(document)))
        }
    }
    let said = |text: &str| text_of(document, "answer").is_some_and(|answer| answer.contains(text));
    let reason = text_of(document, "reason").filter(|reason| !said(reason));
    parts.extend(reason.map(|reason| format!("\n{}: {reason}", status(document))));
    let citations: String = list(document, "citations")
        .map(|c| {
            let [id, source] = ["id", "source"].map(|key| text_of(c, key).unwrap_or("?"));
            format!("\n  {id} {source}")
        })
        .collect();
    parts.extend((!citations.is_empty() && !said("Sources:")).then(|| format!("\nSources:{citations}")));
    let mut table = Table::new(&["step", "block", "tool", "node", "status", "ms", "why"]);
    for step in list(document, "blocks").flat_map(|block| list(block, "steps")) {
        let [id, block, tool, node, state] =
            ["step_id", "block_id", "tool", "node", "status"].map(|key| or_dash(text_of(step, key)));
        let ms = or_dash(step.get("elapsed_ms").and_then(Value::as_u64));
        let why = or_dash(step.get("why").and_then(|why| text_of(why, "sentence")));
        table.row([id, block, tool, node, state, ms, why]);
    }
    parts.extend((!table.is_empty()).then(|| format!("\n{}", table.to_string().trim_end())));
    let unresolved: Vec<_> = list(document, "unresolved").filter_map(Value::as_str).collect();
    parts.extend((!unresolved.is_empty()).then(|| format!("\nUnresolved: {}", unresolved.join(", "))));
    parts.extend(
        document
            .get("elapsed_ms")
            .and_then(Value::as_u64)
            .filter(|ms| *ms > 0)
            .map(|ms| format!("\n{ms} ms in all")),
    );
    parts.join("\n")
}

fn refused(error: &Value) -> String {
    let mut parts = vec![text_of(error, "message").unwrap_or("refused").to_owned()];
    for (guess, number) in list(error, "guesses").zip(1..) {
        let missing: Vec<_> = list(guess, "missing").filter_map(Value::as_str).collect();
        let missing =
            if missing.is_empty() { String::new() } else { format!("  (missing: {})", missing.join(", ")) };
        parts.push(format!(
            "  {number}. {}{missing}",
            or_dash(text_of(guess, "command").or(text_of(guess, "tool")))
        ));
    }
    parts.extend(text_of(error, "hint").map(str::to_owned));
    parts.join("\n")
}
