//! All processes below this one, and ending them.
use std::{collections::BTreeMap, fs};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Times that the tree is walked while it is being stopped; each walk finds what was started during the one before.
const STOP_WALKS: usize = 20;

/// What there is to reap.
pub(super) enum Reaped {
    /// This child ended with this exit code, in a shell's counting.
    Ended(Pid, u8),
    /// Children live; none has ended.
    Nothing,
    /// There are no children.
    NoChildren,
}

/// Collects one ended child without waiting.
pub(super) fn reap() -> Reaped {
    match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(pid, code)) => Reaped::Ended(pid, u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        Ok(WaitStatus::Signaled(pid, signal, _)) => {
            Reaped::Ended(pid, 128u8.saturating_add(u8::try_from(signal as i32).unwrap_or(0)))
        }
        Err(Errno::ECHILD) => Reaped::NoChildren,
        Ok(_) | Err(_) => Reaped::Nothing,
    }
}

/// Kills everything below this process. Stops all of it first, so that nothing is started while it is counted.
pub(super) fn kill_all() {
    let me = Pid::this();
    let mut stopped: Vec<Pid> = Vec::new();
    for _ in 0..STOP_WALKS {
        let new: Vec<Pid> = below(me).into_iter().filter(|p| !stopped.contains(p)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            signal(pid, Signal::SIGSTOP);
            stopped.push(pid);
        }
    }
    // Asked again: a number seen earlier may belong to somebody else by now.
    for pid in below(me) {
        signal(pid, Signal::SIGKILL);
    }
}

fn signal(pid: Pid, signal: Signal) {
    // silent-ok: it may have ended by itself
    let _ = kill(pid, signal);
}

/// Descendants of `root`, in no order.
fn below(root: Pid) -> Vec<Pid> {
    let parents = parents();
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        if let Some(children) = parents.get(&parent.as_raw()) {
            for child in children {
                found.push(*child);
                next.push(*child);
            }
        }
    }
    found
}

/// Children by parent, as `/proc` says. A process that ends meanwhile is skipped.
fn parents() -> BTreeMap<i32, Vec<Pid>> {
    let mut children: BTreeMap<i32, Vec<Pid>> = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return children };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // `pid (name) state parent …`; the name may contain anything, also parentheses.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(Pid::from_raw(pid));
        }
    }
    children
}
