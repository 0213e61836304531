//! `octomesh place`.
use clap::Args;
use serde_json::Value;

use super::{CliError, Context, Exit, arguments::ToolArguments, decision};
use crate::api::types::CallRequest;

/// A dry run of the router.
#[derive(Debug, Args)]
pub(super) struct PlaceCommand {
    #[command(flatten)]
    what: ToolArguments,
    /// Only on this node: name, id or unique prefix
    #[arg(long)]
    node: Option<String>,
}

impl PlaceCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        let request = CallRequest {
            tool: self.what.tool.clone(),
            arguments: self.what.resolve(&client).await?,
            node: self.node.clone(),
            timeout_s: None,
        };
        let reply: Value = client.post(&["api", "place"], &request, false).await?;
        context.screen.show(&reply, decision::text)?;
        Ok(if reply.get("chosen").is_some_and(Value::is_string) { Exit::Ok } else { Exit::NoCapacity })
    }
}
