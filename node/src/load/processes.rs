//! Whose a process is that uses a card: this node's, and then for which step, or somebody else's.
use std::path::{Path, PathBuf};

use octomesh_tools::regular;

/// The environment of a process is not longer than this where it is ours.
const ENVIRONMENT_BYTES: u64 = 256 * 1024;
/// A line of `/proc/PID/stat`.
const STAT_BYTES: u64 = 8 * 1024;
/// Generations from a tool's process up to this node: launcher, sandbox, shells, and what they start.
const GENERATIONS: usize = 64;
/// The variable that every program of a step has.
const CALL: &[u8] = b"OCTOMESH_CALL=";

/// Reads `/proc`.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    root: PathBuf,
    me: u32,
}

impl Processes {
    pub(super) fn new(root: PathBuf, me: u32) -> Self {
        Self { root, me }
    }

    /// The step that the process works for, and whether it is a child of this node's.
    pub(super) fn owner(&self, pid: u32) -> (Option<String>, bool) {
        let ours = self.is_ours(pid);
        // Anybody can set a variable; only what this node started is believed.
        (if ours { self.call(pid) } else { None }, ours)
    }

    fn folder(&self, pid: u32) -> PathBuf {
        self.root.join(pid.to_string())
    }

    fn call(&self, pid: u32) -> Option<String> {
        let environment = regular::read(&self.folder(pid).join("environ"), ENVIRONMENT_BYTES).ok()?;
        let value = environment.split(|b| *b == 0).find_map(|line| line.strip_prefix(CALL))?;
        String::from_utf8(value.to_vec()).ok()
    }

    fn is_ours(&self, pid: u32) -> bool {
        let mut at = pid;
        for _ in 0..GENERATIONS {
            if at == self.me {
                return true;
            }
            match parent(&self.folder(at)) {
                Some(parent) if parent > 1 => at = parent,
                _ => return false,
            }
        }
        false
    }
}

/// The fourth field; the second is a name that may hold anything.
fn parent(process: &Path) -> Option<u32> {
    let stat = regular::read(&process.join("stat"), STAT_BYTES).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descendants_of_this_node_work_for_a_step() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: u32, parent: u32, environment: &str| {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("stat"), format!("{pid} (a ) b) S {parent} 1 1 0")).unwrap();
            std::fs::write(folder.join("environ"), environment).unwrap();
        };
        process(100, 1, "");
        process(200, 100, "PATH=/bin\0OCTOMESH_CALL=call-1/s001\0");
        process(300, 200, "OCTOMESH_CALL=call-1/s001\0");
        process(400, 1, "OCTOMESH_CALL=call-1/s001\0");
        process(500, 500, "");
        let processes = Processes::new(proc.path().to_owned(), 100);
        assert_eq!(processes.owner(300), (Some("call-1/s001".into()), true));
        assert_eq!(processes.owner(100), (None, true));
        assert_eq!(processes.owner(400), (None, false), "a variable proves nothing");
        assert_eq!(processes.owner(500), (None, false), "a circle ends");
        assert_eq!(processes.owner(999), (None, false));
    }

    #[test]
    fn the_real_proc_is_understood() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("OCTOMESH_CALL", "call-2/s001")
            .spawn()
            .unwrap();
        let processes = Processes::new("/proc".into(), me);
        // Between fork and exec the environment is still the parent's.
        let until = std::time::Duration::from_secs(5);
        let begin = Instant::now();
        let mut found = processes.owner(child.id());
        while found.0.is_none() && begin.elapsed() < until {
            std::thread::yield_now();
            found = processes.owner(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (Some("call-2/s001".into()), true));
    }

    use tokio::time::Instant;
}
