//! What the stages between the launcher and the program are told.
use std::path::{Path, PathBuf};

use octomesh_protocol::card::SandboxLevel;
use serde::{Deserialize, Serialize};

use super::limits::Limits;

/// Where the workspace is for programs in namespaces of their own.
pub(super) const WORKSPACE_INSIDE: &str = "/workspace";
/// Where the folder of a process tool is for them.
pub(super) const TOOL_INSIDE: &str = "/tool";
/// Where our own binary is for them.
pub(super) const INIT_INSIDE: &str = "/run/octomesh-init";
/// User and group that a program in a user namespace believes to be.
pub(super) const ID_INSIDE: u32 = 1000;

/// Folders of programs and libraries: shown read-only where they exist.
pub(super) const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/opt", "/nix/store", "/gnu/store"];
/// What is shown of `/etc`: nothing in it is secret, and programs break without it.
pub(super) const ETC: [&str; 23] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/nsswitch.conf",
    "/etc/fonts",
    "/etc/matplotlibrc",
    "/etc/terminfo",
    "/etc/magic",
    "/etc/inputrc",
    "/etc/bash.bashrc",
    "/etc/python3",
    "/etc/python3.11",
];
/// What a tool that may use the network is shown besides.
pub(super) const ETC_NETWORK: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf"];

/// How one program is confined.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) level: SandboxLevel,
    /// User and group to become first; given when the node runs as root.
    pub(crate) spare: Option<u32>,
    /// The program bubblewrap.
    pub(crate) bwrap: PathBuf,
    /// Our own binary.
    pub(crate) init: PathBuf,
    /// The only folder that is writable, and the program's working directory.
    pub(crate) workspace: PathBuf,
    /// The folder of a process tool, read-only.
    pub(crate) tool: Option<PathBuf>,
    /// The program is below `tool`, or below one of [`SYSTEM`], or is shown alone.
    pub(crate) program: PathBuf,
    /// Whether it may use the network.
    pub(crate) network: bool,
    /// Devices it may use, like those of a GPU.
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) limits: Limits,
    /// Bytes of its private `/tmp`, and of its `/dev/shm`.
    pub(crate) tmp_bytes: u64,
    /// Defences that a test has switched off.
    #[serde(default)]
    pub(crate) without: Vec<String>,
}

impl Plan {
    /// Whether programs get namespaces of their own.
    pub(super) fn has_namespaces(&self) -> bool {
        self.level >= SandboxLevel::UsernsLandlockSeccomp
    }

    /// Whether a defence is on. Only a build made for tests can switch one off.
    pub(super) fn defends(&self, what: &str) -> bool {
        !cfg!(feature = "sandbox-mutations") || !self.without.iter().any(|w| w == what)
    }

    /// The tool's folder is at another path from here on, and its program with it.
    pub(super) fn move_tool(&mut self, to: &Path) {
        if let Some(old) = self.tool.replace(to.to_owned())
            && let Ok(rest) = self.program.strip_prefix(&old)
        {
            self.program = to.join(rest);
        }
    }

    /// The program's own file, when no folder that is shown contains it.
    pub(super) fn lone_program(&self) -> Option<&Path> {
        let below = |folder: &Path| self.program.starts_with(folder);
        let shown = SYSTEM.iter().any(|s| below(Path::new(s)))
            || self.tool.as_deref().is_some_and(below)
            || below(Path::new(INIT_INSIDE));
        (!shown).then_some(self.program.as_path())
    }

    /// The plan as it is passed to where only inside paths exist.
    pub(super) fn inside(&self) -> Self {
        let mut plan = self.clone();
        plan.workspace = WORKSPACE_INSIDE.into();
        if plan.tool.is_some() {
            plan.move_tool(Path::new(TOOL_INSIDE));
        }
        if plan.program == plan.init {
            plan.program = INIT_INSIDE.into();
        }
        plan.init = INIT_INSIDE.into();
        plan.bwrap = PathBuf::new();
        plan
    }

    /// Lines for `/etc/passwd` and `/etc/group` of the sandbox: it has one user.
    pub(super) fn passwd() -> String {
        format!("sandbox:x:{ID_INSIDE}:{ID_INSIDE}:sandbox:{WORKSPACE_INSIDE}:/bin/sh\n")
    }

    /// As [`Plan::passwd`].
    pub(super) fn group() -> String {
        format!("sandbox:x:{ID_INSIDE}:\n")
    }
}
