//! The coordinator's side of a step: to which node it was sent, and what came of it.
use octomesh_protocol::{
    card::Effect,
    id::{LeaseId, NodeId, RunId, StepId, StepKey, ToolName},
    step::{Outcome, StepStatus},
};
use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};
use serde::Serialize;

use super::{JournalError, JournalHandle, Persistence};

/// A step is about to be started on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartSent {
    /// The step.
    pub key: StepKey,
    /// The tool.
    pub tool: ToolName,
    /// Where.
    pub node: NodeId,
    /// Under which lease.
    pub lease: LeaseId,
    /// The coordinator's epoch.
    pub epoch: u64,
    /// The effect of the card.
    pub effect: Effect,
}

/// What the coordinator knows of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AttemptState {
    /// Start was sent, or was about to be; no outcome yet.
    StartSent,
    /// It has an outcome.
    Done,
}

/// One attempt of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttemptRow {
    /// The step with its attempt, `s001.2`.
    pub step_id: String,
    /// The run or call.
    pub run_id: String,
    /// The tool.
    pub tool: String,
    /// Where; shown by name, which only the view knows.
    #[serde(skip)]
    pub node: NodeId,
    /// The lease.
    #[serde(skip)]
    pub lease: LeaseId,
    /// The coordinator's epoch.
    pub epoch: u64,
    /// The effect.
    pub effect: Effect,
    /// How far it is.
    pub state: AttemptState,
    /// Unix time in milliseconds.
    pub sent_at: i64,
    /// Unix time in milliseconds.
    pub done_at: Option<i64>,
    /// How it ended.
    pub status: Option<String>,
    /// How long the tool ran, in milliseconds.
    pub elapsed_ms: Option<u64>,
}

impl AttemptRow {
    /// The step; `None` for a row that names none.
    #[must_use]
    pub fn key(&self) -> Option<StepKey> {
        Some(StepKey { run: RunId::parse(&self.run_id).ok()?, step: StepId::parse(&self.step_id).ok()? })
    }
}

pub(super) fn effect_from(text: &str) -> Option<Effect> {
    [Effect::Pure, Effect::Idempotent, Effect::Once].into_iter().find(|e| <&'static str>::from(e) == text)
}

pub(super) fn wrong(column: usize, what: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, what.into())
}

fn row(r: &Row<'_>) -> rusqlite::Result<AttemptRow> {
    let effect: String = r.get(6)?;
    let state: String = r.get(7)?;
    Ok(AttemptRow {
        run_id: r.get(0)?,
        step_id: r.get(1)?,
        tool: r.get(2)?,
        node: NodeId::from_bytes(r.get(3)?),
        lease: LeaseId(r.get::<_, i64>(4)?.cast_unsigned()),
        epoch: r.get::<_, i64>(5)?.cast_unsigned(),
        effect: effect_from(&effect).ok_or_else(|| wrong(6, "not an effect"))?,
        state: state.parse().map_err(|_| wrong(7, "not the state of an attempt"))?,
        sent_at: r.get(8)?,
        done_at: r.get(9)?,
        status: r.get(10)?,
        elapsed_ms: r.get::<_, Option<i64>>(11)?.map(i64::cast_unsigned),
    })
}

const COLUMNS: &str =
    "run_id, step_id, tool, node, lease, epoch, effect, state, sent_at, done_at, status, elapsed_ms";
/// Attempts given at once: more than the steps of any run.
const LISTED: u32 = 10_000;

fn ended(
    c: &Connection,
    key: &StepKey,
    status: StepStatus,
    elapsed_ms: u64,
    now: i64,
) -> rusqlite::Result<()> {
    let status: &'static str = status.into();
    c.prepare_cached(
        "UPDATE attempts SET state = 'done', status = ?3, elapsed_ms = ?4, done_at = ?5 \
         WHERE run_id = ?1 AND step_id = ?2",
    )?
    .execute(params![key.run.as_str(), key.step.as_str(), status, elapsed_ms.cast_signed(), now])
    .map(drop)
}

impl JournalHandle {
    /// Start is about to be sent. For `once` the row is on the disk when this returns, and Start must not be sent when it
    /// fails; for others it is written without waiting, or not at all ([`Persistence`]).
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn coordinator_start_sent(&self, start: StartSent) -> Result<(), JournalError> {
        let now = self.now();
        let persistence = Persistence::of(start.effect, &start.key);
        self.write_as(persistence, move |c| {
            let effect: &'static str = start.effect.into();
            c.prepare_cached(
                "INSERT OR REPLACE INTO attempts (run_id, step_id, tool, node, lease, epoch, effect, state, sent_at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'start_sent', ?8)",
            )?
            .execute(
                params![
                    start.key.run.as_str(),
                    start.key.step.as_str(),
                    start.tool.as_str(),
                    start.node.as_bytes(),
                    start.lease.0.cast_signed(),
                    start.epoch.cast_signed(),
                    effect,
                    now
                ],
            )
            .map(drop)
        })
        .await
    }

    /// The attempt has an outcome of its executor, which keeps it for days: nobody waits for this row. Without it the executor is asked.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn coordinator_told(
        &self,
        key: &StepKey,
        effect: Effect,
        outcome: &Outcome,
    ) -> Result<(), JournalError> {
        if Persistence::of(effect, key) == Persistence::None {
            return Ok(());
        }
        let (key, now) = (key.clone(), self.now());
        let (status, elapsed_ms) = (outcome.status, outcome.elapsed_ms);
        // With the start of the next step, perhaps, so that that one does not stand behind a commit of this.
        self.write_idle(move |c| ended(c, &key, status, elapsed_ms, now)).await
    }

    /// The attempt has an outcome. Does nothing for an attempt that was not written.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn coordinator_done(
        &self,
        key: &StepKey,
        effect: Effect,
        outcome: &Outcome,
    ) -> Result<(), JournalError> {
        self.coordinator_ended(key, effect, outcome.status, outcome.elapsed_ms).await
    }

    /// The attempt ended without an outcome of its executor, as `uncertain`, say.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn coordinator_ended(
        &self,
        key: &StepKey,
        effect: Effect,
        status: StepStatus,
        elapsed_ms: u64,
    ) -> Result<(), JournalError> {
        let persistence = Persistence::of(effect, key);
        let (key, now) = (key.clone(), self.now());
        self.write_as(persistence, move |c| ended(c, &key, status, elapsed_ms, now)).await
    }

    /// All attempts of a run, in order.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn attempts(&self, run: &RunId) -> Result<Vec<AttemptRow>, JournalError> {
        let run = run.to_string();
        self.read(move |c| {
            let sql =
                format!("SELECT {COLUMNS} FROM attempts WHERE run_id = ?1 ORDER BY step_id LIMIT {LISTED}");
            c.prepare(&sql)?.query_map([run], row)?.collect()
        })
        .await
    }

    /// The newest start of a step.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn attempt(&self, key: &StepKey) -> Result<Option<AttemptRow>, JournalError> {
        let key = key.clone();
        self.read(move |c| {
            let sql = format!("SELECT {COLUMNS} FROM attempts WHERE run_id = ?1 AND step_id = ?2");
            c.query_row(&sql, params![key.run.as_str(), key.step.as_str()], row).optional()
        })
        .await
    }

    /// Attempts without an outcome: what a restarted coordinator has to ask about.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn open_attempts(&self) -> Result<Vec<AttemptRow>, JournalError> {
        self.read(|c| {
            let sql = format!(
                "SELECT {COLUMNS} FROM attempts WHERE state = 'start_sent' ORDER BY sent_at LIMIT {LISTED}"
            );
            c.prepare(&sql)?.query_map([], row)?.collect()
        })
        .await
    }
}
