//! Connections that did not become sessions: who refused whom, why, and what to do about it.
use super::Check;
use crate::{
    api::types::{RefusalEntry, RefusalsReply},
    cli::render::{printable, seconds},
};

/// Older refusals are history.
const NEWS_S: u64 = 24 * 3600;
/// Checks shown; one scan of the port must not bury the rest.
const SHOWN: usize = 12;

pub(super) fn checks(reply: &RefusalsReply, now: u64) -> Vec<Check> {
    let news: Vec<&RefusalEntry> =
        reply.refusals.iter().filter(|r| now.saturating_sub(r.last_at) < NEWS_S).collect();
    if news.is_empty() {
        return vec![Check::ok("refusals", "nobody was refused, and nobody refused this node")];
    }
    let mut checks: Vec<Check> = news.iter().take(SHOWN).map(|r| check(r, now)).collect();
    if let Some(more @ 1..) = news.len().checked_sub(SHOWN) {
        let detail = format!("{more} more");
        checks.push(Check::warn("refusals", detail, "GET /api/mesh/refusals has all of them"));
    }
    checks
}

fn check(r: &RefusalEntry, now: u64) -> Check {
    let other = match (&r.name, r.addr.as_str()) {
        (Some(name), "") => name.clone(),
        (Some(name), addr) => format!("{name} ({addr})"),
        (None, "") => "somebody".to_owned(),
        (None, addr) => addr.to_owned(),
    };
    let who = if r.refused_by == "other" { "refused by" } else { "refused" };
    let times = if r.count == 1 { "once".to_owned() } else { format!("{} times", r.count) };
    let ago = seconds(now.saturating_sub(r.last_at));
    let detail = format!("{who} {other} {times}, last {ago} ago: {}", r.message);
    Check::warn("refusals", printable(&detail), advice(r))
}

/// The next step.
fn advice(r: &RefusalEntry) -> &'static str {
    let this_is_refused = r.refused_by == "other";
    match r.reason.as_str() {
        "classical_only" if r.direction == "in" => {
            "it is another program, or has no post-quantum sessions; a machine of yours joins with Octomesh: `octomesh invite` here, \
             `octomesh join` there"
        }
        "classical_only" => {
            "the address leads to another program: correct `peers`, or stop what listens there"
        }
        "no_negotiation" => {
            "something that is no node connects to this port: look for a scanner, a health check or a wrong address"
        }
        "wrong_mesh_secret" | "hung_up" | "other_mesh" | "mixed_mesh" => {
            "the two nodes are of different meshes: let one join the other's mesh with `octomesh invite` and `octomesh join`, or \
             remove the address from `peers`"
        }
        "expired" | "not_yet_valid" | "clock" => {
            "set the clocks of both machines, for example with `timedatectl set-ntp true`; if they are right, the certificate has \
             ended: `octomesh invite` at an admin, `octomesh join` on the machine whose certificate it is"
        }
        "revoked" if this_is_refused => {
            "this node, or the admin that issued its certificate, was taken out of the mesh for good: `octomesh leave`, then `octomesh join` with a new ticket; it comes back as a new node"
        }
        "revoked" => "nothing, it is kept out; stop the node there",
        "identity_in_use" => {
            "a home was copied and runs twice: stop one of the two, and let that machine join with a home and a ticket of its own"
        }
        "replay" => {
            "nothing got in; somebody on the way repeats what was recorded, so look at who can read that network"
        }
        "join_unknown_ticket" => {
            "the ticket was used up, withdrawn or has ended: make a new one with `octomesh invite`"
        }
        "version" | "codec" => "the two nodes run versions that do not know each other: update both",
        _ => "see the logs of both nodes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::CheckStatus;

    const NOW: u64 = 1_800_000_000;

    fn refusal(reason: &str, by: &str) -> RefusalEntry {
        RefusalEntry {
            direction: "in".into(),
            refused_by: by.into(),
            addr: "192.0.2.7".into(),
            name: None,
            reason: reason.into(),
            message: format!("because of {reason}"),
            count: 3,
            last_at: NOW - 60,
        }
    }

    #[test]
    fn each_reason_has_a_next_step() {
        let reasons =
            ["classical_only", "wrong_mesh_secret", "revoked", "expired", "clock", "identity_in_use"];
        for by in ["this", "other"] {
            let refusals: Vec<_> = reasons.iter().map(|r| refusal(r, by)).collect();
            let checks = checks(&RefusalsReply { refusals }, NOW);
            assert_eq!(checks.len(), reasons.len());
            for (check, reason) in checks.iter().zip(reasons) {
                assert_eq!(check.status, CheckStatus::Warn);
                assert!(
                    check.detail.contains(reason) && check.detail.contains("192.0.2.7 3 times, last 60 s")
                );
                assert!(!check.fix.as_ref().unwrap().contains("see the logs"), "{reason}");
            }
        }
    }

    #[test]
    fn old_ones_are_history_and_many_do_not_bury_the_rest() {
        let old = RefusalEntry { last_at: NOW - NEWS_S, ..refusal("replay", "this") };
        assert_eq!(checks(&RefusalsReply { refusals: vec![old] }, NOW)[0].status, CheckStatus::Ok);
        let many = vec![refusal("classical_only", "this"); 64];
        let checks = checks(&RefusalsReply { refusals: many }, NOW);
        assert_eq!(checks.len(), SHOWN + 1);
        assert_eq!(checks[SHOWN].detail, "52 more");
    }

    #[test]
    fn strangers_do_not_command_the_terminal() {
        let evil =
            RefusalEntry { message: "it offered \u{1b}[2J".into(), ..refusal("classical_only", "this") };
        let checks = checks(&RefusalsReply { refusals: vec![evil] }, NOW);
        assert!(!checks[0].detail.contains('\u{1b}'), "{}", checks[0].detail);
    }
}
