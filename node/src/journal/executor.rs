//! The executor's side of a step: that it began, and how it ended. Rows belong to the node that asked for the step.
use octomesh_protocol::{
    blob::BlobRef,
    card::{Effect, SandboxLevel},
    id::{BlobHash, NodeId, StepKey},
    step::{Outcome, StepStatus},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{JournalError, JournalHandle, Persistence, coordinator::wrong};

/// Answer to "may this step begin?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It may; the row is written.
    Fresh,
    /// It ran before, to this end. It must not run again.
    Done(Outcome),
    /// It was running when an earlier process ended. Only what may repeat may run again.
    Interrupted,
    /// It began before and has no end: it runs now.
    Running,
}

/// What the journal knows of a step that ran here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorStatus {
    /// Nothing.
    Unseen,
    /// It began.
    Started,
    /// It ended.
    Done(Outcome),
    /// It was running when an earlier process ended.
    Interrupted,
}

fn status_from(text: &str) -> Option<StepStatus> {
    use StepStatus::{Cancelled, Error, Ok, Refused, Timeout, Uncertain};
    [Ok, Error, Uncertain, Cancelled, Timeout, Refused].into_iter().find(|s| <&'static str>::from(s) == text)
}

const COLUMNS: &str = "state, status, output, elapsed_ms, sandbox, digest, blob_bytes";

fn row(r: &Row<'_>) -> rusqlite::Result<ExecutorStatus> {
    let state: String = r.get(0)?;
    Ok(match state.as_str() {
        "started" => ExecutorStatus::Started,
        "interrupted" => ExecutorStatus::Interrupted,
        "done" => {
            let (status, sandbox): (String, String) = (r.get(1)?, r.get(4)?);
            let status = status_from(&status).ok_or_else(|| wrong(1, "not the status of a step"))?;
            let elapsed_ms = r.get::<_, i64>(3)?.cast_unsigned();
            let sandbox = SandboxLevel::parse(&sandbox).ok_or_else(|| wrong(4, "not a sandbox level"))?;
            // What is a blob lies in the blob store.
            ExecutorStatus::Done(match r.get::<_, i64>(6)?.cast_unsigned() {
                0 => Outcome::new(status, r.get(2)?, elapsed_ms, sandbox),
                bytes => {
                    let blob = BlobRef { hash: BlobHash::from_bytes(r.get(5)?), bytes };
                    Outcome::with_blob(status, blob, elapsed_ms, sandbox)
                }
            })
        }
        _ => return Err(wrong(0, "not the state of a step")),
    })
}

fn find(c: &Connection, key: &StepKey, owner: Option<NodeId>) -> rusqlite::Result<ExecutorStatus> {
    let sql = format!(
        "SELECT {COLUMNS} FROM executed WHERE run_id = ?1 AND step_id = ?2 AND (?3 IS NULL OR owner = ?3) LIMIT 1"
    );
    let owner = owner.map(|o| o.as_bytes().to_vec());
    let mut statement = c.prepare_cached(&sql)?;
    let found = statement.query_row(params![key.run.as_str(), key.step.as_str(), owner], row).optional()?;
    Ok(found.unwrap_or(ExecutorStatus::Unseen))
}

fn start(
    c: &Connection,
    key: &StepKey,
    epoch: u64,
    effect: Effect,
    owner: NodeId,
    now: i64,
) -> rusqlite::Result<Started> {
    let answer = match find(c, key, Some(owner))? {
        ExecutorStatus::Unseen => Started::Fresh,
        ExecutorStatus::Started => return Ok(Started::Running),
        // Stopped, and harmless to run again: its coordinator came back for it.
        ExecutorStatus::Done(outcome) if outcome.status == StepStatus::Cancelled && effect.may_repeat() => {
            Started::Fresh
        }
        ExecutorStatus::Done(outcome) => return Ok(Started::Done(outcome)),
        ExecutorStatus::Interrupted if !effect.may_repeat() => return Ok(Started::Interrupted),
        ExecutorStatus::Interrupted => Started::Fresh,
    };
    let effect: &'static str = effect.into();
    c.prepare_cached(
        "INSERT OR REPLACE INTO executed (owner, run_id, step_id, epoch, effect, state, started_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, 'started', ?6)",
    )?
    .execute(params![
        owner.as_bytes(),
        key.run.as_str(),
        key.step.as_str(),
        epoch.cast_signed(),
        effect,
        now
    ])?;
    Ok(answer)
}

impl JournalHandle {
    /// A step is about to run here for `owner`. For `once` the row is on the disk when this returns, and the step runs only
    /// when the answer is [`Started::Fresh`]; for others nobody waits, and the answer is always that.
    ///
    /// # Errors
    /// [`JournalError`]; a `once` step must not run then.
    pub async fn executor_started(
        &self,
        key: &StepKey,
        epoch: u64,
        effect: Effect,
        owner: NodeId,
    ) -> Result<Started, JournalError> {
        let (key, now) = (key.clone(), self.now());
        match Persistence::of(effect, &key) {
            Persistence::None => Ok(Started::Fresh),
            Persistence::Durable => self.write(move |c| start(c, &key, epoch, effect, owner, now)).await,
            Persistence::Lazy => {
                self.write_later(move |c| start(c, &key, epoch, effect, owner, now).map(drop)).await?;
                Ok(Started::Fresh)
            }
        }
    }

    /// The step ended. For `once` the result is on the disk when this returns.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn executor_done(
        &self,
        key: &StepKey,
        effect: Effect,
        owner: NodeId,
        outcome: &Outcome,
    ) -> Result<(), JournalError> {
        let persistence = Persistence::of(effect, key);
        if persistence == Persistence::None {
            return Ok(());
        }
        let (key, outcome, now) = (key.clone(), outcome.clone(), self.now());
        self.write_as(persistence, move |c| {
            let status: &'static str = outcome.status.into();
            c.prepare_cached(
                "UPDATE executed SET state = 'done', status = ?4, output = ?5, elapsed_ms = ?6, sandbox = ?7, \
                 done_at = ?8, digest = ?9, blob_bytes = ?10 WHERE owner = ?1 AND run_id = ?2 AND step_id = ?3 AND \
                 state = 'started'",
            )?
            .execute(
                params![
                    owner.as_bytes(),
                    key.run.as_str(),
                    key.step.as_str(),
                    status,
                    outcome.output,
                    outcome.elapsed_ms.cast_signed(),
                    outcome.sandbox.as_str(),
                    now,
                    outcome.blob().map(|b| *b.hash.as_bytes()),
                    outcome.blob_bytes.cast_signed(),
                ],
            )
            .map(drop)
        })
        .await
    }

    /// What is known of a step; with `owner`, only of that node's.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn executor_status(
        &self,
        key: &StepKey,
        owner: Option<NodeId>,
    ) -> Result<ExecutorStatus, JournalError> {
        let key = key.clone();
        self.read(move |c| find(c, &key, owner)).await
    }
}
