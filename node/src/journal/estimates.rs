//! What calls took: the router's memory of it over a restart.
use std::time::Duration;

use octomesh_protocol::id::{NodeId, ToolName};
use rusqlite::{Row, params};

use super::{JournalError, JournalHandle, coordinator::wrong};

/// Estimates kept: a thousand nodes with eight tools that are really used on each.
pub const ESTIMATES: usize = 8192;

/// What is known of calls of one tool on one node with data of about one size.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptEstimate {
    /// Where.
    pub node: NodeId,
    /// The tool.
    pub tool: ToolName,
    /// Size of the data it worked on, as a power of 16.
    pub size_bucket: u8,
    /// Moving average of the natural logarithm of the duration in milliseconds.
    pub log_ms: f64,
    /// How far that average was off lately, in natural logarithms.
    pub miss: f64,
    /// How far the card was off lately, in natural logarithms.
    pub prior_miss: f64,
    /// Calls that it is made of.
    pub observations: u32,
    /// Time since the last of them.
    pub age: Duration,
}

fn row(r: &Row<'_>, now: i64) -> rusqlite::Result<KeptEstimate> {
    let tool: String = r.get(1)?;
    let age_ms = now.saturating_sub(r.get::<_, i64>(7)?).max(0);
    Ok(KeptEstimate {
        node: NodeId::from_bytes(r.get(0)?),
        tool: ToolName::parse(&tool).map_err(|_| wrong(1, "not the name of a tool"))?,
        size_bucket: r.get(2)?,
        log_ms: r.get(3)?,
        miss: r.get(4)?,
        prior_miss: r.get(5)?,
        observations: r.get(6)?,
        age: Duration::from_millis(age_ms.unsigned_abs()),
    })
}

impl JournalHandle {
    /// Keeps an estimate in place of the one for the same calls. Nobody waits for the disk.
    ///
    /// # Errors
    /// [`JournalError::Closed`].
    pub async fn put_estimate(&self, kept: KeptEstimate) -> Result<(), JournalError> {
        let now = self.now();
        self.write_idle(move |c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO estimates \
                 (node, tool, size_bucket, log_ms, miss, prior_miss, observations, at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                kept.node.as_bytes(),
                kept.tool.as_str(),
                kept.size_bucket,
                kept.log_ms,
                kept.miss,
                kept.prior_miss,
                kept.observations,
                now
            ])
            .map(drop)
        })
        .await
    }

    /// The estimates that were used last, oldest first.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn estimates(&self) -> Result<Vec<KeptEstimate>, JournalError> {
        let now = self.now();
        self.read(move |c| {
            let sql = format!(
                "SELECT * FROM (SELECT node, tool, size_bucket, log_ms, miss, prior_miss, observations, at \
                 FROM estimates ORDER BY at DESC LIMIT {ESTIMATES}) ORDER BY at"
            );
            c.prepare(&sql)?.query_map([], |r| row(r, now))?.collect()
        })
        .await
    }
}
