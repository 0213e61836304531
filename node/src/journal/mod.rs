//! What must survive a crash: runs, decisions, and both sides of every step, in one SQLite file.
//!
//! ```text
//!  handles ──jobs──> writer thread ── one transaction for all that wait ── COMMIT (fsync) ── replies
//!        └─queries─> reader thread ── its own connection
//! ```
//!
//! A method that promises durability returns after the commit. WAL and `synchronous = FULL`: a commit that returned is on the
//! disk, also after a power cut.
mod coordinator;
#[cfg(test)]
mod cut;
mod decisions;
mod estimates;
mod executor;
mod runs;
mod schema;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
    time::UNIX_EPOCH,
};

use octomesh_protocol::card::Effect;
use octomesh_protocol::id::StepKey;
use octomesh_tools::tool::WallClock;
use rusqlite::Connection;
use tokio::{sync::oneshot, time::Instant};

use self::worker::{Query, Worker};
pub use self::{
    coordinator::{AttemptRow, AttemptState, StartSent},
    estimates::{ESTIMATES, KeptEstimate},
    executor::{ExecutorStatus, Started},
    runs::{InvalidRunStatus, RunFinished, RunRow, RunStatus},
};
use crate::metrics::JournalMetrics;

/// Rows of steps and decisions are kept this long: how long an executor answers for a key.
pub const KEEP_STEPS_MS: i64 = 7 * 24 * 3600 * 1000;
/// Finished runs are kept longer, for their answers.
pub const KEEP_RUNS_MS: i64 = 90 * 24 * 3600 * 1000;

/// Why the journal did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum JournalError {
    /// The file can't be opened or written.
    #[error(
        "can't open the journal {path}: {reason}; make the directory writable for this user, or choose another with --home"
    )]
    Unwritable {
        /// The file.
        path: String,
        /// SQLite's or the operating system's words.
        reason: String,
    },
    /// The file is no SQLite database, or damaged.
    #[error(
        "the journal {path} is damaged: {reason}; move it away (with {path}-wal and {path}-shm) and start again: runs and results in it are lost, the identity is not"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// SQLite's words.
        reason: String,
    },
    /// A newer version of the program wrote it.
    #[error(
        "the journal {path} has format {found}, this version knows {known}; update the program or move the file away"
    )]
    Newer {
        /// The file.
        path: String,
        /// Format of the file.
        found: i64,
        /// Newest format that this version knows.
        known: i64,
    },
    /// A statement failed: the disk is full, or a row is not what it should be.
    #[error("journal: {0}")]
    Sql(String),
    /// The writer is gone; the node is stopping.
    #[error("the journal is closed")]
    Closed,
}

impl From<rusqlite::Error> for JournalError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error.to_string())
    }
}

/// How much a step's rows are worth waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Not written: a crash means a rerun, which is harmless.
    None,
    /// Written, but nobody waits for the disk.
    Lazy,
    /// On the disk before the next thing happens.
    Durable,
}

impl Persistence {
    /// For a step with this effect. `once` is durable; idempotent steps and all steps of runs are written without waiting; a pure
    /// single call leaves no trace on the path.
    #[must_use]
    pub fn of(effect: Effect, key: &StepKey) -> Self {
        match effect {
            Effect::Once => Self::Durable,
            Effect::Idempotent => Self::Lazy,
            Effect::Pure if key.run.as_str().starts_with("run-") => Self::Lazy,
            Effect::Pure => Self::None,
        }
    }
}

enum Backend {
    /// A file: one thread writes, one reads.
    Threads(Worker),
    /// Memory, without threads, for tests and simulations: every call is done when it returns.
    Inline(Mutex<Connection>),
}

/// Whoever asks more often whether a row can be written gets the last answer: each costs a commit, and anybody may ask `/readyz`.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// When a row was last tried, and how it went.
type Probed = (Instant, Result<(), JournalError>);

/// The journal. Cheap to clone; the threads end when the last handle is dropped.
#[derive(Clone)]
pub struct JournalHandle {
    backend: Arc<Backend>,
    wall: WallClock,
    probed: Arc<Mutex<Option<Probed>>>,
    /// At which write its process is to end.
    #[cfg(test)]
    cut: cut::Cut,
}

impl fmt::Debug for JournalHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalHandle").finish_non_exhaustive()
    }
}

impl JournalHandle {
    /// Opens or makes the file. Steps that were running when the last process ended become `interrupted`, old rows go.
    ///
    /// Blocks for a few milliseconds; called once, at the start.
    ///
    /// # Errors
    /// [`JournalError::Unwritable`], [`JournalError::Corrupt`], [`JournalError::Newer`].
    pub fn open(path: &Path, wall: WallClock, metrics: Option<JournalMetrics>) -> Result<Self, JournalError> {
        let writer = schema::open(path, unix_ms(&wall))?;
        let reader = schema::open_reader(path)?;
        let worker = Worker::start(path, writer, reader, metrics)?;
        Ok(Self::of(Backend::Threads(worker), wall))
    }

    /// A journal that lives and dies with its handles, without threads.
    ///
    /// # Errors
    /// [`JournalError::Sql`] when SQLite itself fails.
    pub fn open_in_memory(wall: WallClock) -> Result<Self, JournalError> {
        let connection = schema::open_in_memory(unix_ms(&wall))?;
        Ok(Self::of(Backend::Inline(Mutex::new(connection)), wall))
    }

    fn of(backend: Backend, wall: WallClock) -> Self {
        Self {
            backend: Arc::new(backend),
            wall,
            probed: Arc::default(),
            #[cfg(test)]
            cut: cut::Cut::default(),
        }
    }

    /// Waits until everything written before is on the disk.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.write(|_| Ok(())).await
    }

    /// Writes a row that nobody reads, to see that one can be written now; the answer is at most five seconds old.
    ///
    /// # Errors
    /// [`JournalError`]: the disk is full, or the file is read-only, gone or damaged.
    pub async fn probe(&self) -> Result<(), JournalError> {
        let last = || self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, result)) = last().as_ref()
            && at.elapsed() < PROBE_EVERY
        {
            return result.clone();
        }
        let now = self.now();
        let result = self
            .write(move |c| {
                let sql = "INSERT INTO meta (key, value) VALUES ('probe', ?1) \
                           ON CONFLICT (key) DO UPDATE SET value = excluded.value";
                c.execute(sql, [now]).map(drop)
            })
            .await;
        *last() = Some((Instant::now(), result.clone()));
        result
    }

    /// Raises and returns the epoch of this node's coordinator. Every start of the node takes one; executors refuse lower ones.
    ///
    /// # Errors
    /// [`JournalError`] when it could not be made durable.
    pub async fn next_epoch(&self) -> Result<u64, JournalError> {
        self.write(|c| {
            let sql = "INSERT INTO meta (key, value) VALUES ('epoch', 1) \
                       ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value";
            c.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
        })
        .await
    }

    /// Proves that rows still come to the disk: writes one, always the same, and waits for it.
    ///
    /// # Errors
    /// [`JournalError`]: the disk is full, say.
    pub async fn prove(&self) -> Result<(), JournalError> {
        let now = self.now();
        self.write(move |c| {
            let sql = "INSERT INTO meta (key, value) VALUES ('proved_at', ?1) \
                       ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            c.execute(sql, [now]).map(drop)
        })
        .await
    }

    /// Nothing can be written any more, as on a full disk, or it can be again.
    #[cfg(test)]
    pub(crate) async fn break_off(&self, on: bool) {
        // Not by `write`, whose transaction could not end then.
        let (reply, answer) = oneshot::channel();
        match &*self.backend {
            Backend::Inline(connection) => {
                let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = reply.send(connection.pragma_update(None, "query_only", on));
            }
            Backend::Threads(_) => panic!("in memory only"),
        }
        answer.await.unwrap().unwrap();
    }

    /// Drops rows that are over their age. Called by the owner now and then; opening does it too.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn prune(&self) -> Result<(), JournalError> {
        let now = self.now();
        self.write(move |c| schema::prune(c, now)).await
    }

    /// Unix time in milliseconds.
    fn now(&self) -> i64 {
        unix_ms(&self.wall)
    }

    /// Runs `job` in the writer and returns after the commit.
    async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (reply, answer) = oneshot::channel();
        match &*self.backend {
            Backend::Inline(connection) => return self.write_inline(connection, job),
            Backend::Threads(worker) => worker.write(worker::job(job, Some(reply))).await?,
        }
        answer.await.map_err(|_| JournalError::Closed)?
    }

    /// Hands `job` to the writer and does not wait for it. Waits for a place in the queue, so that nothing is lost while the
    /// node runs; what is queued at a crash is lost.
    async fn write_later(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), JournalError> {
        match &*self.backend {
            Backend::Inline(connection) => self.write_inline(connection, job),
            Backend::Threads(worker) => worker.write(worker::job(job, None)).await,
        }
    }

    /// As [`Self::write_later`], for rows that explain and decide nothing: they wait a little for others to share a commit with.
    async fn write_idle(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), JournalError> {
        match &*self.backend {
            Backend::Inline(connection) => self.write_inline(connection, job),
            Backend::Threads(worker) => worker.write(worker::job(job, None).idle()).await,
        }
    }

    fn write_inline<T>(
        &self,
        connection: &Mutex<Connection>,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        #[cfg(test)]
        self.cut.before();
        let written = inline(connection, job);
        #[cfg(test)]
        self.cut.after();
        written
    }

    async fn write_as(
        &self,
        persistence: Persistence,
        job: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), JournalError> {
        match persistence {
            Persistence::None => Ok(()),
            Persistence::Lazy => self.write_later(job).await,
            Persistence::Durable => self.write(job).await,
        }
    }

    /// Runs `query` on the reader's own connection; it sees everything that is committed.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, JournalError> {
        let (reply, answer) = oneshot::channel();
        let worker = match &*self.backend {
            Backend::Inline(connection) => return inline(connection, query),
            Backend::Threads(worker) => worker,
        };
        let job: Query = Box::new(move |connection| {
            // silent-ok: whoever asked has gone away
            let _ = reply.send(query(connection).map_err(JournalError::from));
        });
        worker.read(job).await?;
        answer.await.map_err(|_| JournalError::Closed)?
    }
}

fn inline<T>(
    connection: &Mutex<Connection>,
    job: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, JournalError> {
    let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(job(&connection)?)
}

/// A clock before 1970 or after the year 292 million is taken for its nearest end.
fn unix_ms(wall: &WallClock) -> i64 {
    match wall().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}
