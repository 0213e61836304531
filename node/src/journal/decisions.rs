//! Decisions of the router, as the JSON that `why` prints.
use octomesh_protocol::id::StepKey;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use super::{JournalError, JournalHandle};

impl JournalHandle {
    /// Keeps a decision; one with the same id is replaced. Nobody waits for the disk: a decision explains, it does not decide
    /// what may run again. Its JSON is made where it is written, and not on the way of the call.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn put_decision(
        &self,
        id: String,
        key: &StepKey,
        json: impl FnOnce() -> Value + Send + 'static,
    ) -> Result<(), JournalError> {
        let (key, now) = (key.clone(), self.now());
        self.write_idle(move |c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO decisions (id, run_id, step_id, made_at, json) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![id, key.run.as_str(), key.step.as_str(), now, json().to_string()])
            .map(drop)
        })
        .await
    }

    /// The decision with that id (`dec-…`), or the newest one of a step (`run-…/s001`, `s001` for the newest run that has it)
    /// or of a call or run (`call-…`).
    ///
    /// Writes that nobody waited for are waited for here: who was told an id finds it.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn get_decision(&self, id: &str) -> Result<Option<Value>, JournalError> {
        self.flush().await?;
        let id = id.to_owned();
        let json = self.read(move |c| find(c, &id)).await?;
        json.map(|text| serde_json::from_str(&text).map_err(|e| JournalError::Sql(e.to_string()))).transpose()
    }
}

fn find(c: &Connection, id: &str) -> rusqlite::Result<Option<String>> {
    if id.starts_with("dec-") {
        return c.query_row("SELECT json FROM decisions WHERE id = ?1", [id], |r| r.get(0)).optional();
    }
    let newest = "ORDER BY made_at DESC, rowid DESC LIMIT 1";
    let (run, step) = match id.split_once('/') {
        Some((run, step)) => (Some(run), Some(step)),
        None if id.starts_with("run-") || id.starts_with("call-") => (Some(id), None),
        None => (None, Some(id)),
    };
    // `s001` also finds its later attempts, `s001.2`.
    let sql = format!(
        "SELECT json FROM decisions WHERE (?1 IS NULL OR run_id = ?1) \
         AND (?2 IS NULL OR step_id = ?2 OR substr(step_id, 1, length(?2) + 1) = ?2 || '.') {newest}"
    );
    c.query_row(&sql, params![run, step], |r| r.get(0)).optional()
}
