//! `octomesh join`.
use clap::Args;

use super::{CliError, Context, Exit};
use crate::app::entry::{self, JoinArgs};

/// Redeems a ticket.
#[derive(Debug, Args)]
pub(super) struct JoinCommand {
    /// The ticket: octo1…
    ticket: String,
    /// The node's name [default: the machine's]
    #[arg(long)]
    name: Option<String>,
}

impl JoinCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let args = JoinArgs {
            home: context.home.clone(),
            ticket: self.ticket.trim().to_owned(),
            name: self.name.clone(),
        };
        let reply = entry::join(args).await?;
        context.screen.show(&reply, |r| {
            let warning = r.warning.iter().map(|w| format!("\n\nWarning: {w}.")).collect::<String>();
            format!(
                "Joined mesh {} as {} {} ({}){warning}\n\nNext: `octomesh up`.",
                r.mesh_id, r.role, r.name, r.node_id
            )
        })?;
        Ok(Exit::Ok)
    }
}
