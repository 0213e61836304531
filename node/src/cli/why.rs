//! `octomesh why`.
use clap::Args;
use serde_json::Value;

use super::{CliError, Context, Exit, decision};

/// Shows a stored decision.
#[derive(Debug, Args)]
pub(super) struct WhyCommand {
    /// The decision, or the step or call that it was made for
    id: String,
}

impl WhyCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        // A step's id has a slash in it: run-…/s001.
        let parts: Vec<&str> = ["api", "decisions"].into_iter().chain(self.id.split('/')).collect();
        let reply: Value = context.client()?.get(&parts).await?;
        context.screen.show(&reply, decision::text)?;
        Ok(Exit::Ok)
    }
}
