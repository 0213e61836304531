//! How programs of the owner are confined, and how all that they start is ended with them.
//!
//! ```text
//!  node ── spawns ──> launcher (this binary, `__launch run`)      own process group, subreaper, ignores signals of the terminal
//!   │ stdin: one line of JSON, the program's input, then nothing: the lifeline
//!   │                    └─ spawns ─> `__launch exec`: new session, limits, no new privileges, dies with the launcher
//!   │                                  └─ becomes the program
//!   └ stdin closed (cancel, deadline, dropped future, node killed) ─> the launcher ends the whole tree
//! ```
//!
//! Processes that leave the program's session (setsid, double fork) become children of the launcher, because it is their
//! subreaper, so it finds and ends them too. No signal has to reach the launcher for that: the kernel closes the lifeline also
//! when the node is killed. What this level does not do: hide files or the network, or stop a program that kills its launcher
//! on purpose (then only the program itself dies with it).
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

mod limits;
pub(crate) mod run;
mod supervise;
mod tree;

pub use limits::Limits;

/// The hidden first argument that makes the node's binary a launcher.
pub const LAUNCH_ARGUMENT: &str = "__launch";
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
