//! Which processor a thread runs on: where two machines are played on one, neither may take the other's time.
use std::fs;

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The first two processors that this process may use; `None` if there is one.
pub fn two() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).unwrap();
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([usable.next()?, usable.next()?])
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// Keeps this thread, and those that it starts from now on, on `processor`.
///
/// # Panics
/// When the kernel refuses.
pub fn pin_this_thread(processor: usize) {
    sched_setaffinity(None, &only(processor)).unwrap();
}

/// Keeps all threads of a process on `processor`; those that it starts later inherit that.
///
/// # Panics
/// When it does not exist.
pub fn pin_process(process: u32, processor: usize) {
    // Twice: a thread may have been started by one that was not reached yet.
    for _ in 0..2 {
        for task in fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
            let id = task.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            // It may have ended by now.
            let _ = sched_setaffinity(id, &only(processor));
        }
    }
}

/// Processor time that a process has used, in seconds, in steps of 10 ms.
///
/// # Panics
/// When it does not exist.
pub fn used(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the name, which may hold anything, comes field 3; user and system time are 14 and 15, in hundredths.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field - 3].parse::<f64>().unwrap();
    (ticks(14) + ticks(15)) / 100.0
}
