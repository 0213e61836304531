//! `octomesh wake`.
use clap::Args;

use super::{CliError, Context, Exit};
use crate::api::types::WakeReply;

/// Wakes a machine that sleeps.
#[derive(Debug, Args)]
pub(super) struct WakeCommand {
    /// The node: name, id or unique prefix
    node: String,
}

impl WakeCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let path = ["api", "mesh", "nodes", &self.node, "wake"];
        let reply: WakeReply = context.client()?.post(&path, &(), false).await?;
        context.screen.show(&reply, |r| {
            let macs = r.macs.join(" and ");
            format!(
                "{} ({macs}) is called on {} network(s); `octomesh nodes` shows when it is there.",
                r.name, r.networks
            )
        })?;
        Ok(Exit::Ok)
    }
}
