//! `octomesh call`.
use clap::Args;
use octomesh_protocol::{card::SandboxLevel, step::StepStatus};

use super::{CliError, Context, Exit, arguments::ToolArguments, render};
use crate::api::types::{CallReply, CallRequest};

/// One routed call.
#[derive(Debug, Args)]
pub(super) struct CallCommand {
    #[command(flatten)]
    what: ToolArguments,
    /// Only on this node: name, id or unique prefix
    #[arg(long)]
    node: Option<String>,
    /// Time until the call must be over
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: Option<u32>,
}

impl CallCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        let request = CallRequest {
            tool: self.what.tool.clone(),
            arguments: self.what.resolve(&client).await?,
            node: self.node.clone(),
            timeout_s: self.timeout,
        };
        // Ctrl-C drops this future; the node sees the connection close and cancels the call wherever it runs.
        let reply: CallReply = client.post(&["api", "call"], &request, true).await?;
        if !context.screen.json {
            context.screen.progress(&footer(&reply));
        }
        context.screen.show(&reply, |r| render::value(&r.output))?;
        Ok(exit_of(reply.status))
    }
}

fn footer(reply: &CallReply) -> String {
    let place = reply.node.as_deref().unwrap_or("no node");
    let why = reply.decision_id.as_ref().map_or_else(String::new, |id| format!("; octomesh why {id}"));
    // A built-in tool runs in the node itself.
    let sandbox = match reply.sandbox {
        SandboxLevel::None => String::new(),
        level => format!(", sandbox {level}"),
    };
    format!("{} on {place}: {} in {} ms{sandbox}{why}", reply.tool, reply.status, reply.elapsed_ms)
}

const fn exit_of(status: StepStatus) -> Exit {
    match status {
        StepStatus::Ok => Exit::Ok,
        StepStatus::Error | StepStatus::Timeout => Exit::Failed,
        StepStatus::Uncertain => Exit::Uncertain,
        StepStatus::Cancelled => Exit::Interrupted,
        StepStatus::Refused => Exit::NoCapacity,
    }
}
