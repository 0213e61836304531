//! The two threads behind a journal file. SQLite blocks, and an fsync takes milliseconds: neither belongs on a runtime thread.
use std::{
    path::Path,
    thread::{self, Thread},
    time::Duration,
};

use rusqlite::Connection;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::JournalError;
use crate::metrics::JournalMetrics;

/// Writes that may wait: a second of a slow disk. Beyond it writers wait, which is the brake.
const WRITES: usize = 1024;
/// Queries that may wait.
const QUERIES: usize = 256;
/// Writes that share one commit.
const GROUP: usize = 64;

/// How long rows that decide nothing may wait for others, to share their commit.
const LINGER: Duration = Duration::from_millis(10);

/// Tells the waiting caller; called after the commit with its result.
type Reply = Box<dyn FnOnce(Result<(), JournalError>) + Send>;
/// One write.
pub(super) struct Job {
    /// Runs inside the transaction.
    run: Box<dyn FnOnce(&Connection) -> Done + Send>,
    /// Whether it may wait for others.
    idle: bool,
}
/// One query.
pub(super) type Query = Box<dyn FnOnce(&Connection) + Send>;

/// What a write came to before the commit.
pub(super) struct Done {
    failed: bool,
    reply: Reply,
}

/// Wraps a write and the channel of whoever waits for it.
pub(super) fn job<T: Send + 'static>(
    run: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    reply: Option<oneshot::Sender<Result<T, JournalError>>>,
) -> Job {
    let run = move |connection: &Connection| {
        let result = run(connection).map_err(JournalError::from);
        Done {
            failed: result.is_err(),
            reply: Box::new(move |committed| match (reply, committed.and(result)) {
                // silent-ok: whoever asked has gone away; the row is written all the same
                (Some(reply), result) => drop(reply.send(result)),
                (None, Err(error)) => {
                    tracing::error!(%error, "a journal row that nobody waits for was not written")
                }
                (None, Ok(_)) => {}
            }),
        }
    };
    Job { run: Box::new(run), idle: false }
}

impl Job {
    /// It explains and decides nothing: it may wait a little for others.
    pub(super) fn idle(self) -> Self {
        Self { idle: true, ..self }
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    writer: Thread,
    writes: mpsc::Sender<Job>,
    queries: mpsc::Sender<Query>,
}

impl Worker {
    pub(super) fn start(
        path: &Path,
        writer: Connection,
        reader: Connection,
        metrics: Option<JournalMetrics>,
    ) -> Result<Self, JournalError> {
        let (writes, jobs) = mpsc::channel(WRITES);
        let (queries, questions) = mpsc::channel(QUERIES);
        let failed = |error: std::io::Error| JournalError::Unwritable {
            path: path.display().to_string(),
            reason: error.to_string(),
        };
        let writer = thread::Builder::new()
            .name("journal-write".into())
            .spawn(move || write_loop(&writer, jobs, metrics.as_ref()))
            .map_err(failed)?
            .thread()
            .clone();
        thread::Builder::new()
            .name("journal-read".into())
            .spawn(move || read_loop(&reader, questions))
            .map_err(failed)?;
        Ok(Self { writer, writes, queries })
    }

    pub(super) async fn write(&self, job: Job) -> Result<(), JournalError> {
        let idle = job.idle;
        self.writes.send(job).await.map_err(|_| JournalError::Closed)?;
        if !idle {
            // It may be lingering.
            self.writer.unpark();
        }
        Ok(())
    }

    pub(super) async fn read(&self, query: Query) -> Result<(), JournalError> {
        self.queries.send(query).await.map_err(|_| JournalError::Closed)
    }
}

fn write_loop(connection: &Connection, mut jobs: mpsc::Receiver<Job>, metrics: Option<&JournalMetrics>) {
    while let Some(first) = jobs.blocking_recv() {
        let mut group = vec![first];
        gather(&mut group, &mut jobs);
        if group.len() < GROUP && group.iter().all(|job| job.idle) {
            thread::park_timeout(LINGER);
            gather(&mut group, &mut jobs);
        }
        let begun = Instant::now();
        let (replies, committed) = commit(connection, group);
        if let (Some(metrics), Ok(())) = (metrics, &committed) {
            metrics.writes.inc();
            metrics.commit_seconds.observe(begun.elapsed().as_secs_f64());
        }
        for reply in replies {
            reply(committed.clone());
        }
    }
}

/// Takes what waits.
fn gather(group: &mut Vec<Job>, jobs: &mut mpsc::Receiver<Job>) {
    while group.len() < GROUP
        && let Ok(next) = jobs.try_recv()
    {
        group.push(next);
    }
}

/// Runs a group in one transaction. A write that fails is undone alone, by its savepoint; the others stay.
fn commit(connection: &Connection, group: Vec<Job>) -> (Vec<Reply>, Result<(), JournalError>) {
    let begun = connection.execute_batch("BEGIN IMMEDIATE");
    let mut replies = Vec::with_capacity(group.len());
    let mut undone = Ok(());
    for job in group {
        let saved = connection.execute_batch("SAVEPOINT job");
        let done = (job.run)(connection);
        let end = if done.failed { "ROLLBACK TO job; RELEASE job" } else { "RELEASE job" };
        undone = undone.and(saved).and_then(|()| connection.execute_batch(end));
        replies.push(done.reply);
    }
    let committed = begun.and(undone).and_then(|()| connection.execute_batch("COMMIT"));
    if committed.is_err() {
        // silent-ok: fails when the transaction is already gone, which is what is wanted
        let _ = connection.execute_batch("ROLLBACK");
    }
    (replies, committed.map_err(JournalError::from))
}

fn read_loop(connection: &Connection, mut queries: mpsc::Receiver<Query>) {
    while let Some(query) = queries.blocking_recv() {
        query(connection);
    }
}
