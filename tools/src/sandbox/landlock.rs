//! The kernel's file rules for one process and all that it starts: only what is listed can be opened.
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};

use super::plan::{ETC, ETC_NETWORK, Plan, SYSTEM};

/// What we know of; an older kernel enforces as much of it as it can, and the self-test shows whether that is enough.
const ABI_KNOWN: ABI = ABI::V6;
/// Devices that every program may use.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/fd"];

/// Applies the rules to this process.
pub(super) fn apply(plan: &Plan) -> Result<(), String> {
    let say = |e: &dyn std::fmt::Display| format!("landlock: {e}");
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_KNOWN))
        .map_err(|e| say(&e))?;
    if !plan.network {
        rules = rules.handle_access(AccessNet::from_all(ABI_KNOWN)).map_err(|e| say(&e))?;
    }
    let status = rules
        .scope(Scope::from_all(ABI_KNOWN))
        .map_err(|e| say(&e))?
        .create()
        .map_err(|e| say(&e))?
        .add_rules(path_beneath_rules(readable(plan), AccessFs::from_read(ABI_KNOWN)))
        .map_err(|e| say(&e))?
        .add_rules(path_beneath_rules(devices(plan), usable()))
        .map_err(|e| say(&e))?
        .add_rules(path_beneath_rules(writable(plan), AccessFs::from_all(ABI_KNOWN)))
        .map_err(|e| say(&e))?
        .restrict_self()
        .map_err(|e| say(&e))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("landlock: this kernel does not have it".into()),
        _ => Ok(()),
    }
}

fn readable(plan: &Plan) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    if plan.has_namespaces() {
        // This `/etc` and `/proc` are our own.
        paths.extend(["/etc", "/proc", "/run"].map(PathBuf::from));
    } else {
        paths.extend(ETC.iter().chain(ETC_NETWORK.iter().filter(|_| plan.network)).map(PathBuf::from));
        paths.push("/etc/passwd".into());
        paths.push("/etc/group".into());
    }
    paths.extend(plan.tool.clone());
    paths.extend(plan.lone_program().map(Path::to_owned));
    paths
}

fn devices(plan: &Plan) -> Vec<PathBuf> {
    let own = plan.has_namespaces().then(|| ["/dev/ptmx", "/dev/pts"].map(PathBuf::from));
    DEVICES.iter().map(PathBuf::from).chain(own.into_iter().flatten()).chain(plan.devices.clone()).collect()
}

/// Reading and writing without making anything.
fn usable() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
}

fn writable(plan: &Plan) -> Vec<PathBuf> {
    // The working directory: its path may lead through folders that this user can't enter.
    let mut paths = vec![PathBuf::from(".")];
    if plan.has_namespaces() {
        paths.extend(["/tmp", "/dev/shm"].map(PathBuf::from));
    }
    paths
}
