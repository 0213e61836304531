//! A node that runs as root: its programs get a user without any rights before anything else happens.
//!
//! That user can't reach a workspace below a folder of mode 0700, so it is shown at a path that everybody reaches, in a mount
//! namespace that nobody else sees.
use std::path::Path;

use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::{Gid, Uid, chdir, setgroups, setresgid, setresuid},
};

use super::{
    mounts::{self, Access, Source},
    plan::Plan,
};

/// The tree holds mount points only.
const TREE_BYTES: u64 = 1 << 20;

/// Becomes the spare user. The plan's paths are afterwards those that it reaches.
pub(super) fn leave(plan: &mut Plan, spare: u32) -> Result<(), String> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => show(plan)?,
        // A container without that right. The self-test finds out whether it works without.
        Err(e) if plan.has_namespaces() => return Err(format!("mount namespace: {e}")),
        Err(_) if plan.program == plan.init => plan.program = "/proc/self/exe".into(),
        Err(_) => {}
    }
    // The working directory stays usable also when the path to it is not.
    chdir(&plan.workspace).map_err(|e| format!("{}: {e}", plan.workspace.display()))?;
    let (uid, gid) = (Uid::from_raw(spare), Gid::from_raw(spare));
    setgroups(&[]).map_err(|e| format!("groups: {e}"))?;
    setresgid(gid, gid, gid).map_err(|e| format!("group {spare}: {e}"))?;
    setresuid(uid, uid, uid).map_err(|e| format!("user {spare}: {e}"))?;
    // Changing the user made `/proc/self` root's; the user namespace is set up through it.
    prctl::set_dumpable(true).map_err(|e| format!("dumpable: {e}"))
}

fn show(plan: &mut Plan) -> Result<(), String> {
    mounts::make_private()?;
    let workspace = Source::open(&plan.workspace)?;
    let init = Source::open(&plan.init)?;
    let tool = plan.tool.as_deref().map(Source::open).transpose()?;
    let is_init = plan.program == plan.init;
    let lone = plan.lone_program().filter(|_| !is_init).map(Source::open).transpose()?;
    let base = mounts::base()?;
    mounts::memory(&base, TREE_BYTES, 0o755)?;
    let put = |source: &Source, name: &str, access| {
        let target = base.join(name);
        source.bind(&target, access).map(|()| target)
    };
    plan.workspace = put(&workspace, "workspace", Access::Writable)?;
    plan.init = put(&init, "init", Access::ReadOnly)?;
    if is_init {
        plan.program.clone_from(&plan.init);
    }
    if let Some(tool) = tool {
        let folder = put(&tool, "tool", Access::ReadOnly)?;
        plan.move_tool(&folder);
    }
    if let Some(lone) = lone {
        let name = plan.program.file_name().unwrap_or_default();
        let name = Path::new("program").join(name);
        plan.program = put(&lone, &name.to_string_lossy(), Access::ReadOnly)?;
    }
    mounts::restrict(&base, Access::ReadOnly).map_err(|e| format!("{}: {e}", base.display()))
}
