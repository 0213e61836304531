//! `octomesh runs`.
use std::{
    io::{BufRead as _, IsTerminal as _},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    CliError, Context, Exit, artifacts,
    client::Client,
    render::{Table, seconds},
    solve,
};
use crate::{
    api::types::{ResumeRequest, RunStarted, RunsReply},
    app::entry,
    solve::doubt::OnUncertain,
};

/// Longest answer that is read: a word and a little more.
const ANSWER_BYTES: u64 = 64;

/// Journalled runs.
#[derive(Debug, Args)]
pub(super) struct RunsCommand {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All runs, newest first
    List,
    /// One run with its steps
    Show {
        /// The run
        id: String,
    },
    /// Go on with a run that nobody knows the end of, or watch one that goes on
    Resume {
        /// The run
        id: String,
        /// Run the uncertain step again, though it may have run
        #[arg(long, conflicts_with = "skip")]
        retry: bool,
        /// Leave the uncertain step out, though it may not have run
        #[arg(long)]
        skip: bool,
    },
    /// What a run has made: large results, and files
    Artifacts {
        /// The run
        id: String,
        /// Copies all of it into this folder
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Stop a run and its steps on other nodes
    Cancel {
        /// The run
        id: String,
    },
}

impl RunsCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        match &self.what {
            None | Some(What::List) => {
                let reply: RunsReply = client.get(&["api", "runs"]).await?;
                let now = entry::unix_seconds();
                context.screen.show(&reply, |r| list(r, now))?;
            }
            // Showing a run that failed is no failure.
            Some(What::Show { id }) => {
                let run: Value = client.get(&["api", "runs", id]).await?;
                context.screen.show(&run, solve::report)?;
            }
            Some(What::Resume { id, retry, skip }) => {
                let decision = match (retry, skip) {
                    (true, _) => Some(OnUncertain::Retry),
                    (_, true) => Some(OnUncertain::Skip),
                    _ => None,
                };
                return resume(&client, id, decision, context).await;
            }
            Some(What::Artifacts { id, out }) => artifacts::run(&client, id, out.as_ref(), context).await?,
            Some(What::Cancel { id }) => {
                let run: Value = client.post(&["api", "runs", id, "cancel"], &(), false).await?;
                context.screen.show(&run, |run| {
                    let status = run.get("status").and_then(Value::as_str).unwrap_or("over");
                    format!("Run {id} is {status}.")
                })?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Goes on with a run and shows what happens until it is over. Leaving does not stop it: whoever resumes only watches.
async fn resume(
    client: &Client,
    id: &str,
    decision: Option<OnUncertain>,
    context: &Context,
) -> Result<Exit, CliError> {
    let resumed = match ask_to_resume(client, id, decision).await {
        Err(error) if error.exit == Exit::NeedsConfirmation && decision.is_none() => {
            let decision = decide(context, error)?;
            ask_to_resume(client, id, Some(decision)).await
        }
        resumed => resumed,
    };
    let document: Value = match resumed {
        Ok(started) => {
            context.screen.progress(&format!("run {}", started.run_id));
            tokio::select! {
                biased;
                document = solve::follow(client, &started.run_id, context) => document?,
                () = context.interrupt.cancelled() => {
                    return Err(CliError::interrupted()
                        .hint(format!("the run goes on; `octomesh runs cancel {}` stops it", started.run_id)));
                }
            }
        }
        // It is over, perhaps since a moment ago: its end is what there is to see.
        Err(error) if error.body.code == "run_over" => client.get(&["api", "runs", id]).await?,
        Err(error) => return Err(error),
    };
    context.screen.show(&document, solve::report)?;
    Ok(solve::exit_of(&document))
}

async fn ask_to_resume(
    client: &Client,
    id: &str,
    decision: Option<OnUncertain>,
) -> Result<RunStarted, CliError> {
    client.post(&["api", "runs", id, "resume"], &ResumeRequest { decision }, false).await
}

/// Asks the person at the terminal; without one the node's own words stand.
fn decide(context: &Context, error: CliError) -> Result<OnUncertain, CliError> {
    let stdin = std::io::stdin();
    if context.screen.is_json() || !stdin.is_terminal() {
        return Err(error);
    }
    context.screen.warn(&error.body.message);
    context.screen.warn("[r]un the step again, [s]kip it, or anything else to leave the run as it is?");
    let mut answer = String::new();
    let read = std::io::Read::take(stdin.lock(), ANSWER_BYTES).read_line(&mut answer);
    match (read, answer.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "r" | "run" | "retry") => Ok(OnUncertain::Retry),
        (Ok(_), "s" | "skip") => Ok(OnUncertain::Skip),
        _ => Err(error),
    }
}

fn list(reply: &RunsReply, now: u64) -> String {
    let mut table = Table::new(&["run", "status", "steps", "began", "question"]);
    for run in &reply.runs {
        table.row([
            run.run_id.clone(),
            run.status.clone(),
            format!("{}/{}", run.steps_done, run.steps_total),
            format!("{} ago", seconds(now.saturating_sub(run.started_at))),
            run.question.clone(),
        ]);
    }
    if table.is_empty() { "No runs.".to_owned() } else { table.to_string() }
}
