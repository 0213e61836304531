//! How programs of the owner are confined, and how all that they start is ended with them.
//!
//! ```text
//!  node ── spawns ──> launcher (this binary, `__launch run`)      own process group, subreaper, ignores signals of the terminal
//!   │ stdin: one line of JSON, the program's input, then nothing: the lifeline
//!   │                    ├─ level rlimits: spawns ─> `__launch exec`: new session, limits, no new privileges, dies with the
//!   │                    │                           launcher; becomes the program
//!   │                    └─ levels above: spawns ──> `__sandbox-init enter`, see `init.rs`
//!   └ stdin closed (cancel, deadline, dropped future, node killed) ─> the launcher ends the whole tree
//! ```
//!
//! What a machine can do is not believed but tried (`selftest.rs`): the level is the best one at which every attempt to get
//! out has failed.
//!
//! Processes that leave the program's session (setsid, double fork) become children of the launcher, because it is their
//! subreaper, so it finds and ends them too; in a process namespace the kernel ends all with its first process. No signal has to reach the launcher for that: the kernel closes the lifeline also
//! when the node is killed. What the level `rlimits` does not do: hide files or the network, or stop a program
//! that kills its launcher on purpose (then only the program itself dies with it).
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

mod attempts;
mod bwrap;
mod init;
mod kills;
mod ladder;
mod landlock;
mod limits;
mod mounts;
mod namespaces;
mod plan;
mod quota;
mod root;
pub(crate) mod run;
mod seccomp;
mod selftest;
mod supervise;
mod tree;

pub use init::sandbox_init_main;
pub use ladder::{RENEW_EVERY, Sandbox, SandboxConfig, UID_BASE};
pub use limits::Limits;
pub use quota::Quota;
pub use selftest::{Proof, SelfTest};

/// The hidden first argument that makes the node's binary a launcher.
pub const LAUNCH_ARGUMENT: &str = "__launch";
/// The hidden first argument that makes the node's binary a stage between launcher and program.
pub const SANDBOX_INIT_ARGUMENT: &str = "__sandbox-init";
/// Exit code of a launcher that could not start the program.
pub(crate) const NOT_STARTED: u8 = 127;
/// What the launcher's own messages on stderr begin with.
pub(crate) const MESSAGE_PREFIX: &str = "octomesh-launch: ";

/// The command that starts programs: this very binary with a hidden argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The binary.
    pub program: PathBuf,
    /// Its first arguments.
    pub args: Vec<String>,
}

impl Launcher {
    /// The running binary with [`LAUNCH_ARGUMENT`]. By its handle, so that it also works after an update has replaced the file.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn current() -> std::io::Result<Self> {
        let program = PathBuf::from("/proc/self/exe");
        std::fs::metadata(&program)?;
        Ok(Self { program, args: vec![LAUNCH_ARGUMENT.to_owned()] })
    }
}

/// The launcher's main: called before anything else, before threads and tokio. `args` are those after [`LAUNCH_ARGUMENT`].
/// Its exit code is that of the program, 128 + n when signal n ended it, 127 when it could not be started.
#[must_use]
pub fn launcher_main(args: &[OsString]) -> ExitCode {
    let mut rest = args.iter();
    match rest.next().and_then(|mode| mode.to_str()) {
        Some("run") => supervise::run(args.len()),
        Some("exec") => supervise::exec(rest.as_slice()),
        _ => supervise::complain("is started by a node, not by people"),
    }
}
