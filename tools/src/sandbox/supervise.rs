//! The launcher process: starts one program, waits for it or for the end of the lifeline, and leaves nothing behind.
//!
//! Synchronous, and one thread but for the one that feeds the program's input.
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{self, BufRead, Read, Write},
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, killpg},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    MESSAGE_PREFIX, NOT_STARTED, SANDBOX_INIT_ARGUMENT, init,
    limits::Limits,
    plan::Plan,
    tree::{self, Reaped},
};

/// Bytes of the line that says what to start: 64 words and 64 variables of a manifest of at most 128 KiB, as JSON.
const SPEC_BYTES: u64 = 1024 * 1024;
/// Between the polite and the certain signal: 20 times 10 ms.
const POLITE_ROUNDS: usize = 20;
const ROUND_MS: u8 = 10;
/// Rounds of killing until we give up: 4 s. Only a process that hangs in the kernel survives the first.
const KILL_ROUNDS: usize = 400;

/// What to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) dir: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) input_bytes: usize,
    /// How it is confined; without, by its limits only.
    #[serde(default)]
    pub(crate) plan: Option<Plan>,
}

/// A message of the launcher itself.
pub(super) fn complain(text: &str) -> ExitCode {
    // silent-ok: when stderr is gone nobody is there to be told
    let _ = writeln!(io::stderr(), "{MESSAGE_PREFIX}{text}");
    ExitCode::from(NOT_STARTED)
}

/// `__launch run`. `own_args`: how many of the process's arguments are ours; those before them make this binary a launcher.
pub(super) fn run(own_args: usize) -> ExitCode {
    match supervise(own_args) {
        Ok(code) => ExitCode::from(code),
        Err(text) => complain(&text),
    }
}

fn supervise(own_args: usize) -> Result<u8, String> {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        mask.add(signal);
    }
    mask.thread_block().map_err(|e| format!("signals: {e}"))?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|e| format!("signals: {e}"))?;
    prctl::set_child_subreaper(true).map_err(|e| format!("subreaper: {e}"))?;
    let (spec, input) = read_spec()?;
    let child = start(own_args, &spec, input)?;
    let mut watched = Watched { child, code: None, alone: false };
    watched.until_over(&signals);
    watched.end_all(&signals);
    // A program that was stopped has no code of its own any more; nobody reads it then.
    Ok(watched.code.unwrap_or(NOT_STARTED))
}

/// The line of JSON and the program's input. Nothing is read beyond them, so the buffer of stdin is empty afterwards.
fn read_spec() -> Result<(Spec, Vec<u8>), String> {
    let mut stdin = io::stdin().lock();
    let mut line = Vec::new();
    (&mut stdin).take(SPEC_BYTES).read_until(b'\n', &mut line).map_err(|e| format!("stdin: {e}"))?;
    let spec: Spec = serde_json::from_slice(&line).map_err(|e| format!("what to start: {e}"))?;
    let mut input = Vec::new();
    (&mut stdin).take(spec.input_bytes as u64).read_to_end(&mut input).map_err(|e| format!("stdin: {e}"))?;
    if input.len() < spec.input_bytes {
        return Err("the input ended early".into());
    }
    Ok((spec, input))
}

fn start(own_args: usize, spec: &Spec, input: Vec<u8>) -> Result<Pid, String> {
    let mut command = Command::new("/proc/self/exe");
    let parent = Pid::this().to_string();
    if let Some(plan) = &spec.plan {
        let plan = serde_json::to_string(plan).map_err(|e| e.to_string())?;
        command.args([SANDBOX_INIT_ARGUMENT, "enter", &parent, &plan]);
    } else {
        let all: Vec<OsString> = std::env::args_os().collect();
        let prefix = all.get(1..all.len().saturating_sub(own_args)).unwrap_or_default();
        let limits = serde_json::to_string(&spec.limits).map_err(|e| e.to_string())?;
        command.args(prefix).args(["exec", &parent, &limits]).arg(&spec.program);
    }
    let mut child = command
        .args(&spec.args)
        .env_clear()
        .envs(&spec.env)
        .current_dir(&spec.dir)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| format!("start in {}: {e}", spec.dir.display()))?;
    let pid = i32::try_from(child.id()).map(Pid::from_raw).map_err(|e| e.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A pipe holds 64 KiB; a program that does not read must not keep us from watching it.
        std::thread::spawn(move || {
            // silent-ok: a program may ignore its input
            let _ = stdin.write_all(&input);
        });
    }
    Ok(pid)
}

struct Watched {
    child: Pid,
    code: Option<u8>,
    /// No process is left below us.
    alone: bool,
}

impl Watched {
    /// Returns when the program has ended, the lifeline is closed or we are told to stop.
    fn until_over(&mut self, signals: &SignalFd) {
        let stdin = io::stdin();
        loop {
            let mut fds = [
                PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            if !matches!(poll(&mut fds, PollTimeout::NONE), Ok(n) if n > 0) {
                continue;
            }
            let [lifeline, _] = &fds;
            let told = lifeline.any().unwrap_or(true) && lifeline_closed();
            let stop = drain(signals);
            self.reap_all();
            if told || stop || self.code.is_some() {
                return;
            }
        }
    }

    fn reap_all(&mut self) {
        loop {
            match tree::reap() {
                Reaped::Ended(pid, code) if pid == self.child => self.code = Some(code),
                Reaped::Ended(..) => {}
                Reaped::Nothing => return,
                Reaped::NoChildren => {
                    self.alone = true;
                    return;
                }
            }
        }
    }

    /// Asks the program's group to end, then ends everything.
    fn end_all(&mut self, signals: &SignalFd) {
        self.reap_all();
        if !self.alone && self.code.is_none() {
            // silent-ok: the program may just have ended; before it has a session of its own there is no such group
            let _ = killpg(self.child, Signal::SIGTERM);
            self.rounds(signals, POLITE_ROUNDS, || {});
        }
        self.rounds(signals, KILL_ROUNDS, tree::kill_all);
    }

    fn rounds(&mut self, signals: &SignalFd, rounds: usize, each: fn()) {
        for _ in 0..rounds {
            if self.alone {
                return;
            }
            each();
            let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            // silent-ok: an interrupted wait is a shorter wait
            let _ = poll(&mut fds, PollTimeout::from(ROUND_MS));
            drain(signals);
            self.reap_all();
        }
    }
}

/// Reads all waiting signals; true when one of them asks us to stop.
fn drain(signals: &SignalFd) -> bool {
    let mut stop = false;
    while let Ok(Some(signal)) = signals.read_signal() {
        stop |= signal.ssi_signo != Signal::SIGCHLD as u32;
    }
    stop
}

/// Whether stdin is at its end. Bytes that come instead are dropped: the node sends none.
fn lifeline_closed() -> bool {
    let mut bytes = [0u8; 512];
    !matches!(io::stdin().read(&mut bytes), Ok(n) if n > 0)
}

/// `__launch exec PARENT LIMITS PROGRAM ARGS…`: becomes the program.
pub(super) fn exec(args: &[OsString]) -> ExitCode {
    let [parent, limits, program, rest @ ..] = args else {
        return complain("exec: arguments are missing");
    };
    match confine(parent, limits) {
        Ok(()) => {
            let error = Command::new(program).args(rest).exec();
            complain(&format!("{}: {error}", program.display()))
        }
        Err(text) => complain(&text),
    }
}

fn confine(parent: &OsStr, limits: &OsStr) -> Result<(), String> {
    let limits = limits.to_str().ok_or("exec: not UTF-8")?;
    let limits: Limits = serde_json::from_str(limits).map_err(|e| format!("exec: {e}"))?;
    init::prepare(parent)?;
    prctl::set_no_new_privs().map_err(|e| format!("no new privileges: {e}"))?;
    limits.apply()
}

/// What an exit code of the launcher says, for people.
pub(crate) fn describe(status: std::process::ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if code > 128 && code <= 192 => match Signal::try_from(code - 128) {
            Ok(Signal::SIGXCPU) => "ended by SIGXCPU (its CPU time is used up)".to_owned(),
            Ok(Signal::SIGXFSZ) => "ended by SIGXFSZ (a file over 256 MiB)".to_owned(),
            Ok(signal) => format!("ended by {signal}"),
            Err(_) => format!("ended with exit code {code}"),
        },
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("its launcher was ended by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
