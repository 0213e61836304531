//! Runs: the question, how far it is, the answer.
use std::str::FromStr;

use octomesh_protocol::id::RunId;
use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JournalError, JournalHandle};

/// Runs given by one list; nobody reads more, and a list is held in memory.
const LISTED: u32 = 1000;

/// Where a run stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RunStatus {
    /// Accepted, nothing done yet.
    NotStarted,
    /// Under way, or cut off by a crash.
    InProgress,
    /// It has an answer.
    Completed,
    /// It has none.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// Nobody can know whether one of its steps ran.
    Uncertain,
}

impl RunStatus {
    /// Whether the run is over.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::NotStarted | Self::InProgress)
    }
}

/// Text that is no run status.
pub type InvalidRunStatus = strum::ParseError;

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunRow {
    /// Its id.
    pub run_id: String,
    /// The question.
    pub question: String,
    /// Where it stands.
    pub status: RunStatus,
    /// Unix time in milliseconds.
    pub started_at: i64,
    /// Unix time in milliseconds.
    pub finished_at: Option<i64>,
    /// Steps that have an outcome.
    pub steps_done: u32,
    /// Steps known so far.
    pub steps_total: u32,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFinished {
    /// How it ended.
    pub status: RunStatus,
    /// What `runs show` prints.
    pub result: Value,
}

fn row(r: &Row<'_>) -> rusqlite::Result<RunRow> {
    let status: String = r.get(2)?;
    let status = RunStatus::from_str(&status).map_err(|e| {
        rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(e))
    })?;
    Ok(RunRow {
        run_id: r.get(0)?,
        question: r.get(1)?,
        status,
        started_at: r.get(3)?,
        finished_at: r.get(4)?,
        steps_done: r.get(5)?,
        steps_total: r.get(6)?,
    })
}

const COLUMNS: &str = "run_id, question, status, started_at, finished_at, steps_done, steps_total";

impl JournalHandle {
    /// A run begins. Durable: an accepted question is not forgotten, nor what was asked with it (`request`).
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn run_started(
        &self,
        run: &RunId,
        question: &str,
        request: &Value,
    ) -> Result<(), JournalError> {
        let (run, question, now) = (run.to_string(), question.to_owned(), self.now());
        let request = request.to_string();
        self.write(move |c| {
            c.execute(
                "INSERT INTO runs (run_id, question, status, started_at, request) \
                 VALUES (?1, ?2, 'in_progress', ?3, ?4)",
                params![run, question, now, request],
            )
            .map(drop)
        })
        .await
    }

    /// A run that is known goes on. Durable. Gives how often it went on since the last step that it completed, this time
    /// included, and what was asked.
    ///
    /// # Errors
    /// [`JournalError`], also when there is no such run.
    pub async fn run_resumed(&self, run: &RunId) -> Result<(u32, Option<Value>), JournalError> {
        let run = run.to_string();
        let (resumes, request) = self
            .write(move |c| {
                let sql = "UPDATE runs SET status = 'in_progress', finished_at = NULL, resumes = resumes + 1 \
                           WHERE run_id = ?1 RETURNING resumes, request";
                c.query_row(sql, [run], |r| Ok((r.get::<_, u32>(0)?, r.get::<_, Option<String>>(1)?)))
            })
            .await?;
        let request = request
            .map(|text| serde_json::from_str(&text).map_err(|e| JournalError::Sql(e.to_string())))
            .transpose()?;
        Ok((resumes, request))
    }

    /// How far a run is.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn run_progress(&self, run: &RunId, done: u32, total: u32) -> Result<(), JournalError> {
        let run = run.to_string();
        self.write_later(move |c| {
            let sql = "UPDATE runs SET resumes = CASE WHEN steps_done < ?2 THEN 0 ELSE resumes END, \
                       steps_done = ?2, steps_total = ?3 WHERE run_id = ?1";
            c.execute(sql, params![run, done, total]).map(drop)
        })
        .await
    }

    /// A run ended. Durable.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn run_finished(&self, run: &RunId, end: RunFinished) -> Result<(), JournalError> {
        let (run, now, result) = (run.to_string(), self.now(), end.result.to_string());
        let status: &'static str = end.status.into();
        self.write(move |c| {
            let sql = "UPDATE runs SET status = ?2, result = ?3, finished_at = ?4 WHERE run_id = ?1";
            c.execute(sql, params![run, status, result, now]).map(drop)
        })
        .await
    }

    /// The newest runs first, at most 1,000.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn list_runs(&self, limit: u32) -> Result<Vec<RunRow>, JournalError> {
        self.read(move |c| {
            let sql = format!("SELECT {COLUMNS} FROM runs ORDER BY started_at DESC, rowid DESC LIMIT ?1");
            c.prepare(&sql)?.query_map([limit.min(LISTED)], row)?.collect()
        })
        .await
    }

    /// Runs without an end, oldest first: what a restarted node has to look after.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn unfinished_runs(&self) -> Result<Vec<RunRow>, JournalError> {
        self.read(|c| {
            let sql = format!(
                "SELECT {COLUMNS} FROM runs WHERE status IN ('not_started', 'in_progress') \
                 ORDER BY started_at, rowid LIMIT {LISTED}"
            );
            c.prepare(&sql)?.query_map([], row)?.collect()
        })
        .await
    }

    /// One run and its result, when it has one. `text` is its id or a prefix of it; the newest run that fits.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn show_run(&self, text: &str) -> Result<Option<(RunRow, Option<Value>)>, JournalError> {
        let text = text.to_owned();
        let found = self
            .read(move |c| {
                let sql = format!(
                    "SELECT {COLUMNS}, result FROM runs WHERE substr(run_id, 1, length(?1)) = ?1 \
                     ORDER BY started_at DESC, rowid DESC LIMIT 1"
                );
                c.query_row(&sql, [text], |r| Ok((row(r)?, r.get::<_, Option<String>>(7)?))).optional()
            })
            .await?;
        let Some((run, result)) = found else { return Ok(None) };
        let result = result
            .map(|text| serde_json::from_str(&text).map_err(|e| JournalError::Sql(e.to_string())))
            .transpose()?;
        Ok(Some((run, result)))
    }
}
