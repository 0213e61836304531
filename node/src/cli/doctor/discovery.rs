//! Whether nodes find each other on this machine's networks.
use super::Check;
use crate::api::types::{DiscoveryInterface, DiscoveryReport, StatusReply, UnreachedAddress};

/// Whoever is there has answered by then.
const HEARD_WITHIN_S: u64 = 5;

pub(super) fn checks(status: &StatusReply) -> Vec<Check> {
    let mut checks = vec![mdns(&status.discovery)];
    checks.extend(peers(&status.unreached));
    checks
}

fn mdns(report: &DiscoveryReport) -> Check {
    const NAME: &str = "discovery";
    if !report.mdns {
        return Check::ok(
            NAME,
            "mdns is switched off; others are found by `peers`, tickets and earlier runs",
        );
    }
    if report.interfaces.is_empty() {
        return Check::ok(NAME, "mdns is not used: this node listens on no network that takes multicast");
    }
    let told: Vec<String> = report.interfaces.iter().map(sentence).collect();
    if report.interfaces.iter().any(is_deaf) {
        return Check::warn(
            NAME,
            told.join("; "),
            "let UDP port 5353 and multicast pass between the machines (firewall; IGMP snooping of the switch; client \
             isolation of the access point), or go on without: `peers` and what was learnt do not need it",
        );
    }
    match report.interfaces.iter().find_map(|i| i.problem.as_ref()) {
        Some(_) => Check::warn(NAME, told.join("; "), "see the log; `mdns = false` switches it off"),
        None => Check::ok(NAME, told.join("; ")),
    }
}

/// Others are on the network, and none was heard.
fn is_deaf(interface: &DiscoveryInterface) -> bool {
    interface.heard == 0 && interface.listening_s >= HEARD_WITHIN_S && !interface.members.is_empty()
}

fn sentence(interface: &DiscoveryInterface) -> String {
    let DiscoveryInterface { interface: name, listening_s, heard, other_meshes, members, problem } =
        interface;
    if let Some(problem) = problem {
        return format!("{name}: {problem}");
    }
    let others = if *other_meshes > 0 { format!(", {other_meshes} of other meshes") } else { String::new() };
    if *heard > 0 {
        return format!("{name}: {heard} node(s) of this mesh heard{others}");
    }
    let there = if members.is_empty() {
        String::new()
    } else {
        format!(", although {} is there", members.join(", "))
    };
    format!("{name}: no node of this mesh was heard in {listening_s} s{there}{others}")
}

fn peers(unreached: &[UnreachedAddress]) -> Option<Check> {
    let failed = unreached.iter().filter_map(|u| Some((u, u.reason.as_ref()?)));
    let list: Vec<String> = failed
        .map(|(u, reason)| {
            let source = if u.source == "config" { "`peers`" } else { "heard by mdns" };
            format!("{} ({source}): {reason}", u.addr)
        })
        .collect();
    if list.is_empty() {
        return None;
    }
    Some(Check::warn(
        "peers",
        list.join("; "),
        "is the address right, does the node run there, is its port open, and is it of this mesh?",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::CheckStatus;

    fn report(heard: u32, listening_s: u64, members: &[&str]) -> DiscoveryReport {
        DiscoveryReport {
            mdns: true,
            interfaces: vec![DiscoveryInterface {
                interface: "eth0".into(),
                listening_s,
                heard,
                members: members.iter().map(|m| (*m).to_owned()).collect(),
                ..DiscoveryInterface::default()
            }],
        }
    }

    #[test]
    fn a_network_without_multicast_is_named() {
        let check = mdns(&report(0, 60, &["pi"]));
        assert_eq!(check.status, CheckStatus::Warn);
        assert_eq!(check.detail, "eth0: no node of this mesh was heard in 60 s, although pi is there");
        assert_eq!(mdns(&report(0, 1, &["pi"])).status, CheckStatus::Ok, "too early to say");
        assert_eq!(mdns(&report(0, 60, &[])).status, CheckStatus::Ok, "perhaps there is nobody");
        assert_eq!(mdns(&report(1, 60, &["pi"])).detail, "eth0: 1 node(s) of this mesh heard");
        assert!(mdns(&DiscoveryReport::default()).detail.contains("switched off"));
    }
}
