//! What the self-test tries inside a sandbox. Every attempt is one that has opened a sandbox before.
use std::{
    ffi::OsStr,
    fs,
    io::{self, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{PermissionsExt, symlink},
            net::UnixStream,
        },
    },
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::kill,
        stat::{Mode, SFlag, makedev, mknod},
    },
    unistd::{Pid, geteuid},
};
use serde::{Deserialize, Serialize};

/// How long a connection is tried.
const CONNECT: Duration = Duration::from_millis(500);

/// What the outside has prepared.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Bait {
    /// A file beside the workspace that the node can read and write.
    pub(super) file: PathBuf,
    /// What is in it, and in the environment of the launcher.
    pub(super) secret: String,
    /// Listens outside.
    pub(super) tcp: SocketAddr,
    /// Listens outside.
    pub(super) udp: SocketAddr,
    /// A local socket without a file, listening outside.
    pub(super) local: String,
    /// A process outside.
    pub(super) pid: i32,
    /// The process namespace outside, as `/proc/self/ns/pid` names it.
    pub(super) processes: PathBuf,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// What had to hold.
    pub name: String,
    /// Whether it held.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

/// Tries everything and prints the proofs as JSON.
pub(super) fn main(bait: &OsStr) -> Result<ExitCode, String> {
    let bait: Bait = bait
        .to_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .ok_or("the self-test's arguments are not what they should be")?;
    let proofs = serde_json::to_vec(&all(&bait)).map_err(|e| e.to_string())?;
    io::stdout().write_all(&proofs).map_err(|e| format!("stdout: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Only that a program starts and may work: where nothing would hold, nothing is tried.
pub(super) fn start() -> Result<ExitCode, String> {
    let proofs = [
        allowed("workspace_writable", fs::write("probe.txt", "x")),
        status("no_new_privileges", "NoNewPrivs", "1"),
    ];
    let proofs = serde_json::to_vec(&proofs).map_err(|e| e.to_string())?;
    io::stdout().write_all(&proofs).map_err(|e| format!("stdout: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

fn all(bait: &Bait) -> Vec<Proof> {
    vec![
        allowed("workspace_writable", fs::write("probe.txt", "x")),
        user(),
        status("no_new_privileges", "NoNewPrivs", "1"),
        status("seccomp_filter", "Seccomp", "2"),
        status("no_capabilities", "CapEff", "0000000000000000"),
        denied("outside_unreadable", fs::read(&bait.file)),
        denied("outside_unwritable", fs::write(&bait.file, "changed")),
        denied("link_outside_useless", symlink(&bait.file, "link").and_then(|()| fs::read("link"))),
        denied("shadow_unreadable", fs::read("/etc/shadow")),
        denied("outside_metadata_fixed", fs::set_permissions(&bait.file, fs::Permissions::from_mode(0o777))),
        denied("system_unwritable", system()),
        denied("sysctl_unwritable", open_for_writing("/proc/sys/kernel/core_pattern")),
        environments(bait),
        other_processes(bait),
        signal(bait),
        denied("tcp_outside", TcpStream::connect_timeout(&bait.tcp, CONNECT)),
        denied("udp_outside", UdpSocket::bind("0.0.0.0:0").and_then(|s| s.send_to(b"x", bait.udp))),
        denied("local_socket_outside", local(&bait.local)),
        denied("user_namespace", errno(unshare(CloneFlags::CLONE_NEWUSER))),
        denied("mount", mount_here()),
        denied("device_node", errno(mknod("disk", SFlag::S_IFBLK, Mode::S_IRUSR, makedev(8, 0)))),
        suid(),
    ]
}

fn proof(name: &str, ok: bool, detail: impl Into<String>) -> Proof {
    Proof { name: name.into(), ok, detail: detail.into() }
}

/// Leaves nothing when it works.
fn system() -> io::Result<()> {
    const FILE: &str = "/usr/octomesh-probe";
    fs::write(FILE, "x")?;
    fs::remove_file(FILE)
}

/// Over a folder of its own.
fn mount_here() -> io::Result<()> {
    fs::create_dir("point")?;
    errno(mount(Some("x"), "point", Some("tmpfs"), MsFlags::empty(), None::<&str>))
}

fn errno<T>(result: Result<T, nix::errno::Errno>) -> io::Result<T> {
    result.map_err(io::Error::from)
}

fn denied<T>(name: &str, result: io::Result<T>) -> Proof {
    match result {
        Ok(_) => proof(name, false, "it worked"),
        Err(error) => proof(name, true, error.to_string()),
    }
}

fn allowed<T>(name: &str, result: io::Result<T>) -> Proof {
    match result {
        Ok(_) => proof(name, true, "it worked"),
        Err(error) => proof(name, false, error.to_string()),
    }
}

fn open_for_writing(path: &str) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(path)
}

/// Whom the number stands for outside is seen outside, at the files it makes.
fn user() -> Proof {
    proof("not_root", !geteuid().is_root(), format!("user {}", geteuid()))
}

fn status(name: &str, field: &str, wanted: &str) -> Proof {
    let text = match fs::read_to_string("/proc/self/status") {
        Ok(text) => text,
        // `/proc` is closed where it shows all of the machine; what the field says is then seen by the other attempts.
        Err(error) => return proof(name, true, format!("not to be seen: {error}")),
    };
    let value =
        text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':')).unwrap_or_default().trim();
    proof(name, value == wanted, format!("{field} {value}"))
}

fn processes() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// The launcher has a secret in its environment; nobody inside may read it.
fn environments(bait: &Bait) -> Proof {
    let leak = processes().into_iter().find(|pid| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&text).contains(&bait.secret)
    });
    proof(
        "environment_hidden",
        leak.is_none(),
        leak.map_or("no".into(), |pid| format!("seen at process {pid}")),
    )
}

/// A namespace of one's own, and a `/proc` that belongs to it.
fn has_own_processes(bait: &Bait) -> bool {
    let own = fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link != bait.processes);
    let me = Pid::this().to_string();
    own && fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == me.as_str())
}

fn other_processes(bait: &Bait) -> Proof {
    let count = processes().len();
    let own = has_own_processes(bait);
    let what = if own { "a namespace of its own" } else { "the namespace outside" };
    proof("processes_hidden", own && count < 10, format!("{what}, {count} processes to be seen"))
}

fn signal(bait: &Bait) -> Proof {
    if has_own_processes(bait) {
        // The number means another process here, or none.
        return proof("signal_outside", true, "a namespace of its own");
    }
    denied("signal_outside", errno(kill(Pid::from_raw(bait.pid), None)))
}

fn local(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)
}

fn suid() -> Proof {
    let made = fs::write("suid", "x")
        .and_then(|()| fs::set_permissions("suid", fs::Permissions::from_mode(0o4755)))
        .and_then(|()| fs::metadata("suid"));
    match made {
        Ok(about) if about.permissions().mode() & 0o6000 != 0 => {
            proof("suid_refused", false, "a file with the bit was made")
        }
        Ok(_) => proof("suid_refused", true, "the bit does not stay"),
        Err(error) => proof("suid_refused", true, error.to_string()),
    }
}
