//! `octomesh runs`.
use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    CliError, Context, Exit,
    render::{Table, seconds},
    solve,
};
use crate::{api::types::RunsReply, app::entry};

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
