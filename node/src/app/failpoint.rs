//! Points at which a test kills this process as `kill -9` would: between one thing that must survive and the next. They exist
//! only with the feature `testing`; elsewhere they are nothing.
//!
//! `FAILPOINT_FILE` names a file. When it says `start_sent s002`, the process that comes by that point with that step removes
//! the file and ends; a point that belongs to no step has `-` in place of it. The variable does not begin with `OCTOMESH_`, so
//! that no configuration of a node can name it.
#[cfg(feature = "testing")]
use octomesh_protocol::id::StepId;

/// A point of no return that a test may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Failpoint {
    /// Coordinator: the run has its row, and no record yet.
    RunRow,
    /// Coordinator: the plan is in the record.
    PlanStored,
    /// Coordinator: a place was granted; nothing was written of it.
    Granted,
    /// Coordinator: the row says that Start goes out; it has not.
    StartSent,
    /// Coordinator: Start was handed over; the executor may have it.
    Started,
    /// Coordinator: the row has the outcome; the record has not.
    OutcomeStored,
    /// Coordinator: a step is completed in the record.
    StepStored,
    /// Coordinator: the record has its end; the run's row has not.
    Final,
    /// Executor: the row says that the step began; the tool has not.
    ExecutorStarted,
    /// Executor: the tool has ended; nobody was told.
    ExecutorRan,
    /// Executor: the row has the result; the coordinator has not.
    ExecutorDone,
}

/// Ends the process when a test chose this point for this step.
#[cfg(feature = "testing")]
pub(crate) fn reached(point: Failpoint, step: Option<&StepId>) {
    static FILE: std::sync::LazyLock<Option<std::ffi::OsString>> =
        std::sync::LazyLock::new(|| std::env::var_os("FAILPOINT_FILE"));

    /// A point and a step.
    const LONGEST: u64 = 256;
    let Some(file) = &*FILE else { return };
    // silent-ok: without the file no point is chosen
    let Ok(chosen) = octomesh_tools::regular::read_text(std::path::Path::new(file), LONGEST) else { return };
    let here = format!("{} {}", <&str>::from(point), step.map_or("-", StepId::as_str));
    if chosen.trim() == here && std::fs::remove_file(file).is_ok() {
        // Nothing is flushed or dropped, as in a power cut.
        std::process::abort();
    }
}

/// Nothing, outside of tests.
#[cfg(not(feature = "testing"))]
pub(crate) const fn reached(_: Failpoint, _: Option<&octomesh_protocol::id::StepId>) {}
