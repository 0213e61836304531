//! Checks that ask the running node.
use octomesh_protocol::card::SandboxLevel;

use super::Check;
use crate::{
    api::types::{NodesReply, StatusReply},
    cli::{CliError, Context, Exit},
};

/// What the node said.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) address: String,
    pub(super) is_alive: bool,
    pub(super) status: Result<StatusReply, CliError>,
    pub(super) nodes: Result<NodesReply, CliError>,
}

pub(super) async fn look(context: &Context) -> Seen {
    let client = match context.client() {
        Ok(client) => client,
        Err(error) => {
            return Seen {
                address: String::new(),
                is_alive: false,
                status: Err(error.clone()),
                nodes: Err(error),
            };
        }
    };
    Seen {
        address: client.address().to_owned(),
        is_alive: client.is_alive().await,
        status: client.get(&["api", "mesh", "status"]).await,
        nodes: client.get(&["api", "mesh", "nodes"]).await,
    }
}

pub(super) fn checks(seen: &Seen) -> Vec<Check> {
    let status = match &seen.status {
        Ok(status) => status,
        Err(error) if error.exit == Exit::NotRunning => {
            let detail = format!("no node answers at {}", seen.address);
            return vec![Check::warn("api", detail, "start it with `octomesh up`")];
        }
        Err(error) => {
            let fix = error
                .body
                .hint
                .clone()
                .unwrap_or_else(|| "is --home the home of the node that runs?".to_owned());
            return vec![Check::fail("api", error.body.message.clone(), fix)];
        }
    };
    let mut checks =
        vec![Check::ok("api", format!("{} answers at {}", status.name, seen.address)), sandbox(status)];
    checks.extend(status.warnings.iter().map(|w| Check::warn("node", w.clone(), "see `octomesh status`")));
    checks.push(match &seen.nodes {
        Ok(nodes) => members(nodes),
        Err(error) => Check::fail("members", error.body.message.clone(), "see `octomesh nodes`"),
    });
    checks
}

fn sandbox(status: &StatusReply) -> Check {
    let level = status.sandbox;
    let detail = format!("process tools run at level {level}");
    if level >= SandboxLevel::LandlockSeccomp {
        return Check::ok("sandbox", detail);
    }
    Check::warn(
        "sandbox",
        detail,
        "only put tools into tools/ that you trust like any program you start yourself",
    )
}

fn members(reply: &NodesReply) -> Check {
    let others = reply.nodes.iter().filter(|node| !node.is_self && node.state != "left");
    let (well, ill): (Vec<_>, Vec<_>) =
        others.partition(|node| node.state == "alive" && node.problem.is_none());
    if ill.is_empty() {
        return Check::ok("members", format!("{} other member(s), all reachable", well.len()));
    }
    let list: Vec<_> = ill
        .iter()
        .map(|node| format!("{}: {}", node.name, node.problem.as_deref().unwrap_or(node.state.as_str())))
        .collect();
    Check::warn(
        "members",
        list.join("; "),
        "see whether the node runs there, and whether its port (9400) is open in both firewalls",
    )
}
