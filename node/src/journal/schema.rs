//! The file: how it is opened, what is in it, what is thrown away.
use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt as _, path::Path};

use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use super::{ESTIMATES, JournalError, KEEP_RUNS_MS, KEEP_STEPS_MS};

/// Format of the file, in SQLite's `user_version`.
const FORMAT: i64 = 1;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, question TEXT NOT NULL, status TEXT NOT NULL,
    started_at INTEGER NOT NULL, finished_at INTEGER,
    steps_done INTEGER NOT NULL DEFAULT 0, steps_total INTEGER NOT NULL DEFAULT 0,
    result TEXT, request TEXT, resumes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS runs_by_start ON runs (started_at);
CREATE TABLE IF NOT EXISTS decisions (
    id TEXT PRIMARY KEY, run_id TEXT NOT NULL, step_id TEXT NOT NULL, made_at INTEGER NOT NULL, json TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS decisions_by_step ON decisions (run_id, step_id);
CREATE INDEX IF NOT EXISTS decisions_by_age ON decisions (made_at);
CREATE TABLE IF NOT EXISTS attempts (
    run_id TEXT NOT NULL, step_id TEXT NOT NULL, tool TEXT NOT NULL, node BLOB NOT NULL, lease INTEGER NOT NULL,
    epoch INTEGER NOT NULL, effect TEXT NOT NULL, state TEXT NOT NULL, sent_at INTEGER NOT NULL, done_at INTEGER,
    status TEXT, elapsed_ms INTEGER,
    PRIMARY KEY (run_id, step_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_by_age ON attempts (sent_at);
CREATE TABLE IF NOT EXISTS executed (
    owner BLOB NOT NULL, run_id TEXT NOT NULL, step_id TEXT NOT NULL, epoch INTEGER NOT NULL, effect TEXT NOT NULL,
    state TEXT NOT NULL, started_at INTEGER NOT NULL, done_at INTEGER, status TEXT, output BLOB, elapsed_ms INTEGER,
    sandbox TEXT, digest BLOB, blob_bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, run_id, step_id)
) STRICT;
CREATE INDEX IF NOT EXISTS executed_by_step ON executed (run_id, step_id);
CREATE INDEX IF NOT EXISTS executed_by_age ON executed (started_at);
CREATE TABLE IF NOT EXISTS estimates (
    node BLOB NOT NULL, tool TEXT NOT NULL, size_bucket INTEGER NOT NULL, log_ms REAL NOT NULL, miss REAL NOT NULL,
    prior_miss REAL NOT NULL, observations INTEGER NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (node, tool, size_bucket)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS estimates_by_age ON estimates (at);
";

pub(super) fn open(path: &Path, now: i64) -> Result<Connection, JournalError> {
    let explain = |error: rusqlite::Error| explain(path, &error);
    // Results of tools are nobody else's business. SQLite gives its other files the mode of this one.
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(|error| {
        JournalError::Unwritable { path: path.display().to_string(), reason: error.to_string() }
    })?;
    let connection = Connection::open(path).map_err(explain)?;
    // Readers and a second look at the file by a person must not make a commit fail at once.
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(explain)?;
    let found: i64 = connection.query_row("PRAGMA user_version", [], |r| r.get(0)).map_err(explain)?;
    if found > FORMAT {
        return Err(JournalError::Newer { path: path.display().to_string(), found, known: FORMAT });
    }
    connection
        .query_row("PRAGMA journal_mode = WAL", [], |r| r.get::<_, String>(0))
        .and_then(|_| connection.execute_batch("PRAGMA synchronous = FULL"))
        .and_then(|()| check(&connection))
        .and_then(|()| prepare(&connection, now))
        .map_err(explain)?;
    Ok(connection)
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, JournalError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| explain(path, &e))?;
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(|e| explain(path, &e))?;
    Ok(connection)
}

pub(super) fn open_in_memory(now: i64) -> Result<Connection, JournalError> {
    let connection = Connection::open_in_memory()?;
    prepare(&connection, now)?;
    Ok(connection)
}

/// A damaged file is found at the start, not in the middle of a run.
fn check(connection: &Connection) -> rusqlite::Result<()> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(code, Some(verdict)))
}

pub(super) fn prepare(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.execute_batch(TABLES)?;
    add_columns(connection)?;
    connection.execute_batch(&format!("PRAGMA user_version = {FORMAT}"))?;
    // Whoever ran these steps is gone: this process has just begun.
    connection
        .execute("UPDATE executed SET state = 'interrupted', done_at = ?1 WHERE state = 'started'", [now])?;
    prune(connection, now)?;
    connection.execute_batch("COMMIT")
}

/// Columns that a file of an earlier version lacks. That version reads and writes the file all the same.
fn add_columns(connection: &Connection) -> rusqlite::Result<()> {
    for (table, name, kind) in [
        ("runs", "request", "TEXT"),
        ("runs", "resumes", "INTEGER NOT NULL DEFAULT 0"),
        ("executed", "digest", "BLOB"),
        ("executed", "blob_bytes", "INTEGER NOT NULL DEFAULT 0"),
    ] {
        let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
        let there: i64 = connection.query_row(sql, [table, name], |r| r.get(0))?;
        if there == 0 {
            connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
        }
    }
    Ok(())
}

pub(super) fn prune(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    let (steps, runs) = (now.saturating_sub(KEEP_STEPS_MS), now.saturating_sub(KEEP_RUNS_MS));
    // A step that is still running is no old row, however long it takes.
    connection
        .execute("DELETE FROM executed WHERE started_at < ?1 AND state <> 'started'", params![steps])?;
    connection.execute("DELETE FROM attempts WHERE sent_at < ?1", params![steps])?;
    connection.execute("DELETE FROM decisions WHERE made_at < ?1", params![steps])?;
    connection.execute("DELETE FROM runs WHERE finished_at < ?1", params![runs])?;
    connection.execute("DELETE FROM estimates WHERE at < ?1", params![runs])?;
    let surplus = format!(
        "DELETE FROM estimates WHERE at < (SELECT at FROM estimates ORDER BY at DESC LIMIT 1 OFFSET {})",
        ESTIMATES - 1
    );
    connection.execute(&surplus, [])?;
    Ok(())
}

fn explain(path: &Path, error: &rusqlite::Error) -> JournalError {
    let (path, reason) = (path.display().to_string(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => JournalError::Corrupt { path, reason },
        _ => JournalError::Unwritable { path, reason },
    }
}
