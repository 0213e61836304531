//! Resource limits of a program, applied by the process that becomes it.
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Limits of one program and, where the kernel counts per process, of each process it starts.
///
/// The number of processes is only limited in a user namespace or for a spare user: elsewhere the kernel counts all programs
/// of the owner (and does not count at all for root). There the deadline ends a fork bomb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time per process, in seconds over all its threads.
    pub cpu_s: u64,
    /// Open files.
    pub open_files: u64,
    /// Size of any file it writes, in bytes.
    pub file_bytes: u64,
    /// Heap and private writable memory, in bytes. Not the address space: that limit breaks programs that only reserve.
    pub data_bytes: u64,
    /// Processes and threads, counted over all that the program starts, where the kernel can count that.
    #[serde(default)]
    pub processes: Option<u64>,
}

/// Two GiB: what a program gets when its card does not ask for more.
const DATA_BYTES: u64 = 2 << 30;
/// Processes, besides one thread for each processor.
const PROCESSES: u64 = 64;

impl Limits {
    /// The default for a program that may run `timeout_s` seconds and needs `memory` bytes (0: not said).
    #[must_use]
    pub fn new(timeout_s: u64, memory: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self {
            // All processors for the whole time: the deadline comes first, this is for processes that got away.
            cpu_s: timeout_s.saturating_add(1).saturating_mul(threads),
            open_files: 256,
            file_bytes: 256 << 20,
            data_bytes: memory.max(DATA_BYTES),
            processes: Some(PROCESSES + threads),
        }
    }

    /// Applies them to this process; they are inherited and can't be raised again.
    pub(super) fn apply(&self) -> Result<(), String> {
        let processes = self.processes.map(|n| (Resource::RLIMIT_NPROC, n));
        for (resource, wanted) in [
            (Resource::RLIMIT_CPU, self.cpu_s),
            (Resource::RLIMIT_NOFILE, self.open_files),
            (Resource::RLIMIT_FSIZE, self.file_bytes),
            (Resource::RLIMIT_DATA, self.data_bytes),
            (Resource::RLIMIT_CORE, 0),
        ]
        .into_iter()
        .chain(processes)
        {
            let (_, hard) = getrlimit(resource).map_err(|e| format!("{resource:?}: {e}"))?;
            // A second between the signal that says why and the one that is certain.
            let most = if resource == Resource::RLIMIT_CPU { wanted + 1 } else { wanted };
            setrlimit(resource, wanted.min(hard), most.min(hard))
                .map_err(|e| format!("{resource:?}: {e}"))?;
        }
        Ok(())
    }
}
