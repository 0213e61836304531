//! `octomesh rename`.
use clap::Args;

use super::{CliError, Context, Exit};
use crate::api::types::{RenameReply, RenameRequest};

/// Gives the running node another name.
#[derive(Debug, Args)]
pub(super) struct RenameCommand {
    /// The new name: one DNS label
    name: String,
}

impl RenameCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let request = RenameRequest { name: self.name.clone() };
        let reply: RenameReply = context.client()?.post(&["api", "rename"], &request, false).await?;
        context.screen.show(&reply, |r| format!("This node is {} now ({}).", r.name, r.node_id))?;
        Ok(Exit::Ok)
    }
}
