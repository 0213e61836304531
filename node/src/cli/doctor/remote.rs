//! Checks that ask the running node.
use octomesh_protocol::card::SandboxLevel;

use super::Check;
use crate::{
    api::types::{Gpu, GpuAbsence, NodesReply, RefusalsReply, StatusReply},
    cli::{CliError, Context, Exit, render::via},
};

/// What the node said.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) address: String,
    pub(super) is_alive: bool,
    pub(super) status: Result<StatusReply, CliError>,
    pub(super) nodes: Result<NodesReply, CliError>,
    pub(super) refusals: Result<RefusalsReply, CliError>,
}

pub(super) async fn look(context: &Context) -> Seen {
    let client = match context.client() {
        Ok(client) => client,
        Err(error) => {
            return Seen {
                address: String::new(),
                is_alive: false,
                status: Err(error.clone()),
                nodes: Err(error.clone()),
                refusals: Err(error),
            };
        }
    };
    Seen {
        address: client.address().to_owned(),
        is_alive: client.is_alive().await,
        status: client.get(&["api", "mesh", "status"]).await,
        nodes: client.get(&["api", "mesh", "nodes"]).await,
        refusals: client.get(&["api", "mesh", "refusals"]).await,
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
    let mut checks = vec![
        Check::ok("api", format!("{} answers at {}", status.name, seen.address)),
        executor(status.not_ready.as_deref()),
        sandbox(status),
        gpus(status),
    ];
    checks.extend(status.warnings.iter().map(|w| Check::warn("node", w.clone(), "see `octomesh status`")));
    checks.extend(super::discovery::checks(status));
    checks.push(match &seen.nodes {
        Ok(nodes) => members(nodes),
        Err(error) => Check::fail("members", error.body.message.clone(), "see `octomesh nodes`"),
    });
    checks
}

fn executor(not_ready: Option<&str>) -> Check {
    match not_ready {
        None => Check::ok("executor", "the last self-call came to its end"),
        Some(why) => Check::fail(
            "executor",
            format!("not ready, other nodes send no steps here: {why}"),
            "look at the node's log and at the free space of its home; if nothing helps, stop it and start it again",
        ),
    }
}

/// Cards that are read, and those that are in the machine and are not.
fn gpus(status: &StatusReply) -> Check {
    let list = |gpu: &Gpu| format!("{} ({})", gpu.name, crate::cli::nodes::read(gpu));
    let found: Vec<String> = status.gpus.iter().map(list).collect();
    let broken: Vec<&GpuAbsence> = status.gpus_absent.iter().filter(|a| a.present).collect();
    if !broken.is_empty() {
        let why = broken.iter().map(|a| a.detail.as_str());
        let detail = why.chain(found.iter().map(String::as_str)).collect::<Vec<_>>().join("; ");
        let fix = "look at the driver (`nvidia-smi`, `dmesg`); a card that can't be read may be declared as [[gpus]] in octomesh.toml";
        return Check::warn("gpu", detail, fix);
    }
    if found.is_empty() {
        let why: Vec<&str> = status.gpus_absent.iter().map(|a| a.detail.as_str()).collect();
        let why = if why.is_empty() { "probing is switched off".to_owned() } else { why.join("; ") };
        return Check::ok("gpu", format!("none; {why}"));
    }
    Check::ok("gpu", found.join("; "))
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

/// What the node knows of its own end.
pub(super) fn revoked(status: &StatusReply) -> Option<Check> {
    (status.state == "revoked").then(|| {
        Check::fail(
            "identity",
            format!("{} was revoked: the other members refuse it for good", status.name),
            "`octomesh leave`, then `octomesh join` in the same home with a new ticket: it comes back as a new node",
        )
    })
}

fn members(reply: &NodesReply) -> Check {
    let others = reply.nodes.iter().filter(|node| !node.is_self && node.state != "left");
    let (well, ill): (Vec<_>, Vec<_>) =
        others.partition(|node| node.state == "alive" && node.problem.is_none());
    if ill.is_empty() {
        let relayed = well.iter().filter_map(|n| Some(format!("; {} is {}", n.name, via(n.relay.as_ref()?))));
        let all = format!("{} other member(s), all reachable", well.len());
        return Check::ok("members", std::iter::once(all).chain(relayed).collect::<String>());
    }
    let list: Vec<_> = ill
        .iter()
        .map(|node| format!("{}: {}", node.name, node.problem.as_deref().unwrap_or(node.state.as_str())))
        .collect();
    Check::warn(
        "members",
        list.join("; "),
        members_advice(ill.iter().map(|node| node.problem.as_deref().unwrap_or_default())),
    )
}

/// The next steps, one for each kind of problem that there is.
fn members_advice<'a>(problems: impl Iterator<Item = &'a str>) -> String {
    let mut steps: Vec<&str> = problems
        .map(|problem| match problem {
            p if p.contains("identity_in_use") => {
                "a home was copied and runs twice: stop one of the two, and let that machine join with a home and a ticket of \
                 its own"
            }
            p if p.starts_with("not_ready") => "run `octomesh doctor` on the machine that is not ready",
            p if p.contains("revoked") => {
                "who was revoked has to join anew: `octomesh leave`, then `octomesh join` there"
            }
            _ => "see whether the node runs there, and whether its port (9400, or its `listen`) is open in both firewalls",
        })
        .collect();
    steps.sort_unstable();
    steps.dedup();
    steps.join("; ")
}

#[cfg(test)]
mod tests {
    use super::{executor, members_advice};
    use crate::cli::doctor::CheckStatus;

    #[test]
    fn a_node_that_is_not_ready_fails_with_its_reason() {
        assert_eq!(executor(None).status, CheckStatus::Ok);
        let check = executor(Some("the executor has stopped"));
        assert_eq!(check.status, CheckStatus::Fail);
        assert!(check.detail.contains("the executor has stopped") && check.fix.is_some(), "{check:?}");
        let advice = members_advice(["not_ready: its executor …"].into_iter());
        assert!(advice.contains("octomesh doctor") && !advice.contains("9400"), "{advice}");
    }

    #[test]
    fn each_kind_of_problem_has_its_own_step_once() {
        let problems =
            ["dialled, but: Connection refused", "no answer", "identity_in_use: pi has it", "revoked"];
        let advice = members_advice(problems.into_iter());
        assert_eq!(advice.matches("firewalls").count(), 1, "{advice}");
        assert!(advice.contains("runs twice") && advice.contains("octomesh leave"), "{advice}");
        assert!(!members_advice(["revoked"].into_iter()).contains("9400"));
    }
}
