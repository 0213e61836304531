//! Namespaces without bubblewrap: own users, mounts, processes, network, IPC and host name.
//!
//! Two stages, because only the first child of a process that asks for a process namespace is in it: `outer` makes the file
//! tree, `inner` is process 1, mounts `/proc`, moves into the tree, gives up all rights and starts the program.
use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{Pid, chdir, getgid, getuid, pivot_root, sethostname},
};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{
    SANDBOX_INIT_ARGUMENT,
    init::die_with_parent,
    mounts::{self, Access, Source},
    plan::{ETC, ETC_NETWORK, ID_INSIDE, INIT_INSIDE, Plan, SYSTEM, TOOL_INSIDE, WORKSPACE_INSIDE},
};

/// Folders, links and mount points only.
const TREE_BYTES: u64 = 4 << 20;
/// Devices of the tree.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Parts of `/proc` that change the machine.
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];
/// The kernel refuses a smaller number of processes per namespace.
const PIDS_LEAST: u64 = 301;
/// Rights that `inner` needs after it has been started as another program.
const INNER: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_RESOURCE).union(CapabilitySet::SETPCAP);

/// Makes the namespaces and the file tree, starts `inner` and waits for it.
pub(super) fn outer(plan: &Plan, args: &[OsString]) -> Result<ExitCode, String> {
    let (uid, gid) = (getuid(), getgid());
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    if !plan.network && plan.defends("netns") {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    if plan.defends("pidns") {
        flags |= CloneFlags::CLONE_NEWPID;
    }
    unshare(flags).map_err(|e| format!("namespaces: {e}"))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{ID_INSIDE} {uid} 1")),
        ("gid_map", format!("{ID_INSIDE} {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), text).map_err(|e| format!("{file}: {e}"))?;
    }
    mounts::make_private()?;
    let base = mounts::base()?;
    tree(plan, &base)?;
    sethostname("sandbox").map_err(|e| format!("host name: {e}"))?;
    keep_rights()?;
    let text = serde_json::to_string(&plan.inside()).map_err(|e| e.to_string())?;
    let child = Command::new("/proc/self/exe")
        .args([SANDBOX_INIT_ARGUMENT, "inner"])
        .arg(text)
        .arg(&base)
        .args(args)
        .spawn()
        .map_err(|e| format!("first process: {e}"))?;
    Ok(wait(child.id()))
}

fn tree(plan: &Plan, base: &Path) -> Result<(), String> {
    let fixed = |path: &Path, to: &str, access| Source::open(path).map(|s| (s, PathBuf::from(to), access));
    let mut shown = vec![
        fixed(&plan.workspace, WORKSPACE_INSIDE, Access::Writable)?,
        fixed(&plan.init, INIT_INSIDE, Access::ReadOnly)?,
    ];
    if let Some(tool) = &plan.tool {
        shown.push(fixed(tool, TOOL_INSIDE, Access::ReadOnly)?);
    }
    let mut links = Vec::new();
    let etc = ETC.iter().chain(ETC_NETWORK.iter().filter(|_| plan.network));
    let lone = plan.lone_program().filter(|p| *p != plan.init);
    for path in SYSTEM.iter().chain(etc).map(Path::new).chain(lone) {
        match path.read_link() {
            Ok(to) if SYSTEM.iter().any(|s| Path::new(s) == path) => links.push((path.to_owned(), to)),
            _ => shown.extend(Source::find(path).map(|s| (s, path.to_owned(), Access::ReadOnly))),
        }
    }
    let devices = DEVICES.iter().map(|d| Path::new("/dev").join(d)).chain(plan.devices.iter().cloned());
    for path in devices {
        shown.extend(Source::find(&path).map(|s| (s, path, Access::Device)));
    }
    if !plan.defends("files") {
        shown.push(fixed(Path::new("/"), "/outside", Access::Writable)?);
    }
    mounts::memory(base, TREE_BYTES, 0o755)?;
    let place = |path: &Path| base.join(path.strip_prefix("/").unwrap_or(path));
    for (source, target, access) in &shown {
        source.bind(&place(target), *access)?;
    }
    for (link, to) in links {
        symlink(to, place(&link)).map_err(|e| format!("{}: {e}", link.display()))?;
    }
    rest(plan, &place).map_err(|e| format!("file tree: {e}"))?;
    for path in ["/tmp", "/dev/shm"] {
        mounts::memory(&place(Path::new(path)), plan.tmp_bytes, 0o755)?;
    }
    Ok(())
}

fn rest(plan: &Plan, place: &dyn Fn(&Path) -> PathBuf) -> io::Result<()> {
    let at = |path: &str| place(Path::new(path));
    fs::create_dir_all(at("/etc"))?;
    fs::create_dir_all(at("/proc"))?;
    fs::create_dir_all(at("/dev/pts"))?;
    fs::write(at("/etc/passwd"), Plan::passwd())?;
    fs::write(at("/etc/group"), Plan::group())?;
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(to, at("/dev").join(name))?;
    }
    let options = Some("newinstance,ptmxmode=0666,mode=0620");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    if let Err(error) = mount(Some("devpts"), &at("/dev/pts"), Some("devpts"), flags, options)
        && plan.defends("terminals")
    {
        return Err(error.into());
    }
    Ok(())
}

/// Starting another program ends the rights of a user that is not 0; these few are kept.
fn keep_rights() -> Result<(), String> {
    let say = |e: rustix::io::Errno| format!("rights: {e}");
    let mut sets = rustix::thread::capabilities(None).map_err(say)?;
    sets.inheritable |= INNER;
    rustix::thread::set_capabilities(None, sets).map_err(say)?;
    for right in INNER.iter() {
        rustix::thread::configure_capability_in_ambient_set(right, true).map_err(say)?;
    }
    Ok(())
}

/// Process 1: moves into the tree, gives up all rights, starts the program and waits; when it ends, all others end.
pub(super) fn inner(plan: &Plan, base: &Path, args: &[OsString]) -> Result<ExitCode, String> {
    die_with_parent()?;
    processes(plan, &base.join("proc"))?;
    let say = |e: nix::errno::Errno| format!("file tree: {e}");
    chdir(base).map_err(say)?;
    // The old root is put over the new one and taken away again.
    pivot_root(".", ".").map_err(say)?;
    umount2(".", MntFlags::MNT_DETACH).map_err(say)?;
    chdir("/").map_err(say)?;
    mounts::restrict(Path::new("/"), Access::ReadOnly).map_err(say)?;
    chdir(&plan.workspace).map_err(say)?;
    if plan.defends("rights") {
        give_up_rights()?;
    }
    let text = serde_json::to_string(plan).map_err(|e| e.to_string())?;
    let child = Command::new(INIT_INSIDE)
        .args([SANDBOX_INIT_ARGUMENT, "confine"])
        .arg(text)
        .args(args)
        .spawn()
        .map_err(|e| format!("{INIT_INSIDE}: {e}"))?;
    Ok(wait(child.id()))
}

/// A `/proc` of the own process namespace, whose parts that change the machine are read-only.
fn processes(plan: &Plan, proc: &Path) -> Result<(), String> {
    let none = None::<&str>;
    if !plan.defends("pidns") {
        return mount(Some("/proc"), proc, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
            .map_err(|e| format!("/proc: {e}"));
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), proc, Some("proc"), flags, none).map_err(|e| format!("/proc: {e}"))?;
    if let Some(pids) = plan.limits.processes.filter(|_| plan.defends("limits")) {
        // silent-ok: kernels before 6.14 have one number for the whole machine; RLIMIT_NPROC counts there
        let _ = fs::write(proc.join("sys/kernel/pid_max"), (pids * 2).max(PIDS_LEAST).to_string());
    }
    for part in PROC_READ_ONLY.iter().map(|p| proc.join(p)).filter(|p| p.exists() && plan.defends("proc")) {
        mount(Some(&part), &part, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
            .map_err(|e| format!("{}: {e}", part.display()))?;
        let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        mount(none, &part, none, flags, none).map_err(|e| format!("{}: {e}", part.display()))?;
    }
    Ok(())
}

/// All capabilities, also those that a program could get back.
pub(super) fn give_up_rights() -> Result<(), String> {
    let say = |e: rustix::io::Errno| format!("rights: {e}");
    rustix::thread::clear_ambient_capability_set().map_err(say)?;
    for right in CapabilitySet::all().iter() {
        // silent-ok: rights that this kernel does not know, or that nobody here can give
        let _ = rustix::thread::remove_capability_from_bounding_set(right);
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(say)
}

/// Waits for a child, collecting all others that end meanwhile. Gives its exit code in a shell's counting.
fn wait(child: u32) -> ExitCode {
    let child = i32::try_from(child).map(Pid::from_raw).ok();
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if Some(pid) == child => {
                return ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if Some(pid) == child => {
                return ExitCode::from(128u8.saturating_add(u8::try_from(signal as i32).unwrap_or(0)));
            }
            Err(nix::errno::Errno::ECHILD) => return ExitCode::FAILURE,
            Ok(_) | Err(_) => {}
        }
    }
}
