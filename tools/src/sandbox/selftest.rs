//! Proving a level: a program is really run at it, tries to get out, and what it could do is looked at from outside.
use std::{
    fs, io,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use octomesh_protocol::card::SandboxLevel;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use super::attempts::Proof;
use super::{
    SANDBOX_INIT_ARGUMENT, Sandbox,
    attempts::Bait,
    limits::Limits,
    run::{Program, Terms},
};
use crate::tool::EventSink;

/// The program needs milliseconds; a machine under load needs more.
const LIMIT: Duration = Duration::from_secs(20);

/// Proofs that only namespaces give.
const NAMESPACES_ONLY: [&str; 2] = ["outside_metadata_fixed", "processes_hidden"];

/// What the self-test found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SelfTest {
    /// The best level at which everything held that it promises.
    pub level: SandboxLevel,
    /// What was tried at that level, and whether it held.
    pub proved: Vec<Proof>,
    /// Why the levels above are not reached, and what to do about it.
    pub missing: Vec<String>,
}

/// Tries one level. `scratch` is a folder of the node that nothing else uses.
///
/// # Errors
/// In words: the program did not start, or an attempt worked.
pub(super) async fn prove(
    sandbox: &Sandbox,
    level: SandboxLevel,
    scratch: &Path,
) -> Result<Vec<Proof>, String> {
    let outside = Outside::prepare(scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    let result = attempt(sandbox, level, &outside).await;
    let result = result.and_then(|mut proofs| {
        proofs.push(outside.untouched());
        let promised = |p: &&Proof| {
            level >= SandboxLevel::UsernsLandlockSeccomp || !NAMESPACES_ONLY.contains(&p.name.as_str())
        };
        let failed: Vec<String> = proofs
            .iter()
            .filter(promised)
            .filter(|p| !p.ok)
            .map(|p| format!("{}: {}", p.name, p.detail))
            .collect();
        if failed.is_empty() {
            Ok(proofs)
        } else {
            Err(format!("the self-test got out: {}", failed.join("; ")))
        }
    });
    outside.remove();
    result
}

async fn attempt(sandbox: &Sandbox, level: SandboxLevel, outside: &Outside) -> Result<Vec<Proof>, String> {
    let bait = serde_json::to_string(&outside.bait).map_err(|e| e.to_string())?;
    let stage = if level > SandboxLevel::Rlimits { "attempts" } else { "start" };
    let program = Program {
        program: sandbox.own_program(),
        args: vec![SANDBOX_INIT_ARGUMENT.into(), stage.into(), bait],
        env: std::collections::BTreeMap::new(),
        dir: outside.workspace.clone(),
        tool: None,
        network: false,
        devices: Vec::new(),
        limits: Limits::new(LIMIT.as_secs(), 0),
        input: Vec::new(),
        timeout: LIMIT,
        has_quota: false,
    };
    let terms = Terms {
        cancel: &CancellationToken::new(),
        deadline: Instant::now() + LIMIT,
        events: &EventSink::none(),
        secret: Some(&outside.bait.secret),
    };
    let finished = sandbox.run_at(level, program, &terms).await.map_err(|e| e.to_string())?;
    if !finished.succeeded() {
        let said = finished.stderr.last(500);
        return Err(if said.is_empty() { finished.describe() } else { said });
    }
    serde_json::from_slice(&finished.stdout.kept()).map_err(|e| format!("the self-test's answer: {e}"))
}

/// What must not be reached, and notices when it is.
struct Outside {
    folder: PathBuf,
    workspace: PathBuf,
    bait: Bait,
    tcp: TcpListener,
    udp: UdpSocket,
    local: UnixListener,
}

impl Outside {
    fn prepare(scratch: &Path) -> io::Result<Self> {
        let folder = scratch.to_owned();
        // silent-ok: left by a self-test that was interrupted, or not there
        let _ = fs::remove_dir_all(&folder);
        let workspace = folder.join("workspace");
        fs::create_dir_all(&workspace)?;
        let pid = std::process::id();
        // A name per process and folder, so that nodes on one machine do not meet.
        let secret = format!("octomesh-probe-{pid}-{}", folder.display());
        let file = folder.join("bait.txt");
        fs::write(&file, &secret)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        tcp.set_nonblocking(true)?;
        let udp = UdpSocket::bind("127.0.0.1:0")?;
        udp.set_nonblocking(true)?;
        let local = secret.chars().rev().take(90).collect::<String>();
        let name = std::os::unix::net::SocketAddr::from_abstract_name(&local)?;
        let listener = UnixListener::bind_addr(&name)?;
        listener.set_nonblocking(true)?;
        let bait = Bait {
            file,
            secret,
            tcp: tcp.local_addr()?,
            udp: udp.local_addr()?,
            local,
            pid: i32::try_from(pid).unwrap_or(1),
            processes: fs::read_link("/proc/self/ns/pid").unwrap_or_default(),
        };
        Ok(Self { folder, workspace, bait, tcp, udp, local: listener })
    }

    /// The other side of the attempts: believing the program alone would be believing whoever got out.
    fn untouched(&self) -> Proof {
        let text = fs::read_to_string(&self.bait.file).unwrap_or_default();
        let mode = fs::metadata(&self.bait.file).map_or(0, |about| about.permissions().mode() & 0o777);
        let maker = fs::metadata(self.workspace.join("probe.txt")).ok().map(|about| about.uid());
        let detail = if text != self.bait.secret {
            "the file outside has changed"
        } else if self.tcp.accept().is_ok() {
            "a TCP connection came"
        } else if self.udp.recv_from(&mut [0; 16]).is_ok() {
            "a UDP packet came"
        } else if self.local.accept().is_ok() {
            "a local connection came"
        } else if maker.is_none() {
            "the file that was written into the workspace is not there"
        } else if maker == Some(0) {
            "what it makes belongs to root"
        } else {
            let detail = format!("nothing outside has changed (mode {mode:o})");
            return Proof { name: "outside_untouched".into(), ok: true, detail };
        };
        Proof { name: "outside_untouched".into(), ok: false, detail: detail.into() }
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::debug!(folder = %self.folder.display(), %error, "what the self-test made was not removed");
        }
    }
}

/// What a level needs that is not here, for people.
pub(super) fn advice(level: SandboxLevel, why: &str) -> String {
    let why = why.trim();
    let refused = ["ermission denied", "not permitted", "No permissions"].iter().any(|w| why.contains(w));
    let how = match level {
        SandboxLevel::BwrapLandlockSeccomp if why.contains("not installed") => {
            "install bubblewrap (Debian, Ubuntu: `apt install bubblewrap`)"
        }
        SandboxLevel::BwrapLandlockSeccomp | SandboxLevel::UsernsLandlockSeccomp if refused => {
            "user namespaces are refused here. Ubuntu 23.10 and later: allow them with an AppArmor profile for bwrap, or \
             `sysctl kernel.apparmor_restrict_unprivileged_userns=0`. Docker: start the container with \
             `--security-opt seccomp=unconfined --security-opt systempaths=unconfined` (compose: `security_opt`). \
             Older Debian: `sysctl kernel.unprivileged_userns_clone=1`"
        }
        SandboxLevel::LandlockSeccomp if why.contains("landlock") => {
            "Landlock needs Linux 5.13 or later with `landlock` in the kernel parameter `lsm=`"
        }
        _ => "see the self-test's words",
    };
    format!("{level}: {why}. What helps: {how}")
}

/// The level without any confinement: only that programs can be started at all.
pub(super) async fn starts(sandbox: &Sandbox, scratch: &Path) -> Result<Vec<Proof>, String> {
    let outside = Outside::prepare(scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    let result = attempt(sandbox, SandboxLevel::Rlimits, &outside).await;
    outside.remove();
    match result {
        Ok(proofs) if proofs.iter().all(|p| p.ok) => Ok(proofs),
        Ok(proofs) => Err(format!("{proofs:?}")),
        Err(error) => Err(error),
    }
}
