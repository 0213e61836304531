//! The stages between the launcher and the program, each our own binary with a hidden argument.
//!
//! ```text
//!  enter ── as root: private mounts, spare user (root.rs)
//!    ├─ becomes bubblewrap (bwrap.rs) ─────────────────────────> confine
//!    ├─ outer: namespaces, file tree ─> inner: process 1 ──────> confine     (namespaces.rs)
//!    └─ without namespaces ────────────────────────────────────> confine
//!  confine: limits, no new privileges, Landlock, seccomp; becomes the program
//! ```
//!
//! Every stage has one thread: namespaces, users and Landlock hold for the thread that asks.
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

use nix::{
    sys::{prctl, signal::SigSet},
    unistd::{chdir, getppid, setsid},
};
use octomesh_protocol::card::SandboxLevel;

use super::{attempts, bwrap, landlock, namespaces, plan::Plan, root, seccomp, supervise::complain};

/// stderr.
const LAST_DESCRIPTOR: i32 = 2;

/// The main of our binary inside a sandbox: called before anything else, before threads and tokio. `args` are those after
/// [`super::SANDBOX_INIT_ARGUMENT`].
#[must_use]
pub fn sandbox_init_main(args: &[OsString]) -> ExitCode {
    let (stage, rest) = match args {
        [stage, rest @ ..] => (stage.to_str().unwrap_or_default(), rest),
        [] => ("", args),
    };
    let result = match (stage, rest) {
        ("enter", [parent, plan, args @ ..]) => parse(plan).and_then(|plan| enter(parent, plan, args)),
        ("inner", [plan, base, args @ ..]) => {
            parse(plan).and_then(|plan| namespaces::inner(&plan, Path::new(base), args))
        }
        ("confine", [plan, args @ ..]) => parse(plan).and_then(|plan| confine(&plan, args)),
        ("attempts", [bait]) => attempts::main(bait),
        ("start", _) => attempts::start(),
        _ => Err("is started by a launcher, not by people".into()),
    };
    result.unwrap_or_else(|text| complain(&text))
}

fn parse(plan: &OsStr) -> Result<Plan, String> {
    let text = plan.to_str().ok_or("the plan is not UTF-8")?;
    serde_json::from_str(text).map_err(|e| format!("the plan: {e}"))
}

/// The kernel ends this process when its parent ends.
pub(super) fn die_with_parent() -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| format!("parent death signal: {e}"))
}

fn enter(parent: &OsStr, mut plan: Plan, args: &[OsString]) -> Result<ExitCode, String> {
    prepare(parent)?;
    if let Some(spare) = plan.spare {
        root::leave(&mut plan, spare)?;
        // Changing the user has taken it away.
        die_with_parent()?;
    }
    // No program that is started from here on can gain rights, bubblewrap included.
    prctl::set_no_new_privs().map_err(|e| format!("no new privileges: {e}"))?;
    match plan.level {
        SandboxLevel::BwrapLandlockSeccomp => Err(bwrap::become_it(&plan, args)),
        SandboxLevel::UsernsLandlockSeccomp => namespaces::outer(&plan, args),
        _ => confine(&plan, args),
    }
}

/// What every level does first: own session, ends with the launcher, goes first when memory is short.
pub(super) fn prepare(parent: &OsStr) -> Result<(), String> {
    let parent: i32 = parent.to_str().and_then(|p| p.parse().ok()).ok_or("exec: no parent")?;
    setsid().map_err(|e| format!("session: {e}"))?;
    die_with_parent()?;
    if getppid().as_raw() != parent {
        return Err("the launcher is gone".into());
    }
    // silent-ok: both are courtesy to the node; where the system forbids them the program still runs
    let _ = fs::write("/proc/self/oom_score_adj", "500");
    let _ = rustix::process::nice(10);
    SigSet::empty().thread_set_mask().map_err(|e| format!("signals: {e}"))
}

/// The last stage: everything is in place, only this process has to be bound.
fn confine(plan: &Plan, args: &[OsString]) -> Result<ExitCode, String> {
    // silent-ok: it may lead a session already
    let _ = setsid();
    // Without namespaces the folder was entered before its path became unreachable.
    let home = if chdir(&plan.workspace).is_ok() { plan.workspace.as_path() } else { Path::new(".") };
    let tmp = if plan.has_namespaces() { Path::new("/tmp") } else { home };
    if plan.defends("descriptors") {
        close_descriptors()?;
    }
    if plan.defends("limits") {
        plan.limits.apply()?;
    }
    if !plan.has_namespaces() && plan.defends("rights") {
        namespaces::give_up_rights()?;
    }
    prctl::set_no_new_privs().map_err(|e| format!("no new privileges: {e}"))?;
    if plan.defends("landlock") {
        landlock::apply(plan)?;
    }
    let mut program = Command::new(&plan.program);
    program.args(args).env("HOME", home).env("TMPDIR", tmp);
    seccomp::apply(plan)?;
    let error = program.exec();
    Err(format!("{}: {error}", plan.program.display()))
}

/// Nothing but stdin, stdout and stderr is handed on, whatever this process has inherited.
fn close_descriptors() -> Result<(), String> {
    let open = fs::read_dir("/proc/self/fd").map_err(|e| format!("descriptors: {e}"))?;
    let numbers: Vec<i32> = open.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|n| *n > LAST_DESCRIPTOR) {
        // silent-ok: the one that listed the folder is closed already
        let _ = nix::unistd::close(number);
    }
    Ok(())
}
