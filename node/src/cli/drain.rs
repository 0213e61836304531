//! `octomesh drain` and `octomesh undrain`.
use clap::Args;

use super::{CliError, Context, Exit};
use crate::api::types::{DrainReply, StatusReply};

/// Starts or ends maintenance.
#[derive(Debug, Args)]
pub(super) struct DrainCommand {
    /// The node that is asked: name, id or unique prefix; no other can be drained from here [default: that node]
    node: Option<String>,
}

impl DrainCommand {
    pub(super) async fn run(&self, context: &Context, on: bool) -> Result<Exit, CliError> {
        let client = context.client()?;
        let node = match &self.node {
            Some(node) => node.clone(),
            None => client.get::<StatusReply>(&["api", "mesh", "status"]).await?.node_id,
        };
        let verb = if on { "drain" } else { "undrain" };
        let reply: DrainReply = client.post(&["api", "mesh", "nodes", &node, verb], &(), false).await?;
        context.screen.show(&reply, |r| {
            if r.drained {
                format!("{node} takes no new steps; {} still to finish.", r.remaining_steps)
            } else {
                format!("{node} takes steps again.")
            }
        })?;
        Ok(Exit::Ok)
    }
}
