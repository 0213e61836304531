//! `octomesh nodes`.
use clap::{Args, Subcommand};

use super::{
    CliError, Context, Exit,
    render::{Table, or_dash, size, via},
};
use crate::api::types::{ForgetReply, Gpu, NodeEntry, NodesReply};

/// Lists members, or forgets one.
#[derive(Debug, Args)]
pub(super) struct NodesCommand {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Take a member out of this node's sight that is down or has left
    Forget {
        /// The node: name, id or unique prefix
        node: String,
    },
}

impl NodesCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        if let Some(Action::Forget { node }) = &self.action {
            let path = ["api", "mesh", "nodes", node, "forget"];
            let reply: ForgetReply = client.post(&path, &(), false).await?;
            context.screen.show(&reply, |r| {
                format!("{} is forgotten on this node until it comes back by itself.", r.name)
            })?;
            return Ok(Exit::Ok);
        }
        let reply: NodesReply = client.get(&["api", "mesh", "nodes"]).await?;
        context.screen.show(&reply, text)?;
        Ok(Exit::Ok)
    }
}

fn text(reply: &NodesReply) -> String {
    let mut table = Table::new(&[
        "name", "state", "address", "running", "queued", "rtt ms", "tools", "sandbox", "gpus", "suite",
    ]);
    for node in &reply.nodes {
        table.row([
            if node.is_self { format!("{} (this)", node.name) } else { node.name.clone() },
            state(node),
            or_dash(node.relay.as_deref().map(via).or_else(|| node.addr.clone())),
            format!("{}/{}", node.running, node.slots),
            node.queued.to_string(),
            or_dash(node.rtt_ms.map(|ms| format!("{ms:.1}"))),
            node.tools.to_string(),
            or_dash(node.sandbox),
            gpus(node),
            or_dash(node.suite.clone()),
        ]);
    }
    let problems = reply.nodes.iter().filter_map(|n| Some(format!("{}: {}\n", n.name, n.problem.as_ref()?)));
    std::iter::once(table.to_string()).chain(problems).collect()
}

fn state(node: &NodeEntry) -> String {
    // A node that is gone, or was not heard yet, has no slots or is not `alive`.
    let unready = node.state == "alive" && node.slots > 0 && !node.ready;
    match (unready, node.draining, &node.yields) {
        (true, _, _) => format!("{}, not ready", node.state),
        (false, true, _) => format!("{}, draining", node.state),
        (false, false, Some(why)) if node.state == "alive" => format!("{}, kept ({why})", node.state),
        (false, false, _) => node.state.clone(),
    }
}

fn gpus(node: &NodeEntry) -> String {
    let list: Vec<_> = node
        .gpus
        .iter()
        .map(|gpu| {
            let free = match gpu.vram_free {
                Some(free) => format!("{} of {} free", size(free), size(gpu.vram_total)),
                None => format!("{}, free unknown", size(gpu.vram_total)),
            };
            format!("{} {free}, {}", gpu.name, read(gpu))
        })
        .collect();
    match (list.is_empty(), &node.no_gpu) {
        (true, None) => "-".to_owned(),
        (true, Some(why)) => format!("none ({why})"),
        (false, _) => list.join(", "),
    }
}

/// How old what is said of a GPU is.
pub(super) fn read(gpu: &Gpu) -> String {
    match gpu.age_ms {
        _ if gpu.declared => "declared".to_owned(),
        Some(ms) => format!("read {} s ago", ms / 1000),
        None => "not read lately".to_owned(),
    }
}
