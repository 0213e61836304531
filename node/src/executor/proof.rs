//! Whether this executor still works: a small step, sent the way that every step goes, must come to its end in time.
//!
//! A task that does not turn, a registry that is stuck and a journal that takes nothing any more look alive from outside: the
//! heartbeat is another task's. The self-call needs no slot and no place in the queue, so that a busy node is not thought broken.
use std::{sync::Arc, time::Duration};

use octomesh_protocol::{
    card::Effect,
    id::{CardHash, RunId, StepId, StepKey, ToolName},
    step::{Event, Outcome, Reserve, Start, StepStatus},
};
use octomesh_tools::tool::Caller;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{ExecutorGone, ExecutorHandle};
use crate::journal::JournalError;

/// Between two self-calls. Each costs well below a millisecond.
const EVERY: Duration = Duration::from_secs(10);
/// The next one after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// It takes microseconds; on a machine that swaps, seconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// So many in a row: one can fall into a pause of the whole process. Together: not ready at most 21 s after the fault.
const FAILURES: u32 = 2;
/// The journal is written to for this less often: flash memory wears out.
const JOURNAL_EVERY: Duration = Duration::from_secs(60);
/// What is called: built in, pure, and always there.
const TOOL: &str = "echo";
const ARGUMENTS: &[u8] = br#"{"text":"self-call"}"#;
/// Its events; `echo` sends none.
const EVENTS: usize = 1;

/// What the last self-calls came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// None has come back yet.
    #[default]
    Unproven,
    /// The last one worked, or was the first that did not.
    Proven,
    /// Several in a row did not work.
    Failing(Arc<Unproven>),
}

impl Health {
    /// Whether steps may come here.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Proven)
    }

    /// Why they may not, in a sentence.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Proven => None,
            Self::Unproven => Some("the executor has not proved itself by a self-call yet".to_owned()),
            Self::Failing(why) => Some(why.to_string()),
        }
    }
}

/// Why a self-call did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Unproven {
    /// The executor's task has ended.
    #[error(transparent)]
    Gone(#[from] ExecutorGone),
    /// It did not answer.
    #[error("the executor did not bring its self-call to an end within {} s", DEADLINE.as_secs())]
    Silent,
    /// It did not take the step.
    #[error("the executor refused its self-call: {0}")]
    Refused(String),
    /// The step ended otherwise than it should.
    #[error("the executor's self-call ended with {status}: {output}")]
    Failed {
        /// How it ended.
        status: StepStatus,
        /// What it said.
        output: String,
    },
    /// Steps with effects can't be written down, and so not run.
    #[error("{0}; is the disk full?")]
    Journal(JournalError),
    /// The same, without an answer.
    #[error("the journal did not take a row within {} s; does the disk answer?", DEADLINE.as_secs())]
    JournalSilent,
}

/// Calls this node's own executor now and then.
#[derive(Debug)]
pub struct Prover {
    handle: ExecutorHandle,
    me: Caller,
    failures: u32,
    /// When the journal was last proved to work.
    journal_at: Option<Instant>,
}

impl Prover {
    /// For the executor of `me`.
    #[must_use]
    pub fn new(handle: ExecutorHandle, me: Caller) -> Self {
        Self { handle, me, failures: 0, journal_at: None }
    }

    /// Until `stop`. The first self-call was the owner's, before anybody could send a step.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let wait = if self.failures == 0 { EVERY } else { AGAIN };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.turn() => {}
            }
        }
    }

    /// One self-call; what it means is published when this returns, at most ten seconds later.
    pub async fn turn(&mut self) {
        match self.prove().await {
            Ok(()) => {
                self.failures = 0;
                self.publish(Health::Proven);
            }
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(failures = self.failures, %why, "a self-call failed");
                if self.failures >= FAILURES {
                    self.publish(Health::Failing(Arc::new(why)));
                }
            }
        }
    }

    fn publish(&self, health: Health) {
        let ready = health.is_ready();
        let changed = self.handle.health.send_if_modified(|old| {
            let changed = *old != health;
            *old = health;
            changed
        });
        if changed {
            tracing::info!(ready, "the executor's state by its self-calls");
        }
        // A task that does not turn can't say so itself; one that turns says the same.
        self.handle.load.send_if_modified(|load| std::mem::replace(&mut load.ready, ready) != ready);
    }

    async fn prove(&mut self) -> Result<(), Unproven> {
        let outcome = tokio::time::timeout(DEADLINE, self.call()).await.map_err(|_| Unproven::Silent)??;
        if outcome.status != StepStatus::Ok {
            let output = String::from_utf8_lossy(&outcome.output).chars().take(200).collect();
            return Err(Unproven::Failed { status: outcome.status, output });
        }
        if self.journal_at.is_some_and(|at| at.elapsed() < JOURNAL_EVERY) {
            return Ok(());
        }
        self.journal_at = None;
        let written = tokio::time::timeout(DEADLINE, self.handle.journal.prove()).await;
        written.map_err(|_| Unproven::JournalSilent)?.map_err(Unproven::Journal)?;
        self.journal_at = Some(Instant::now());
        Ok(())
    }

    async fn call(&self) -> Result<Outcome, Unproven> {
        let refused = Unproven::Refused;
        let tool = ToolName::parse(TOOL).map_err(|e| refused(e.to_string()))?;
        let step = StepId::parse("s001").map_err(|e| refused(e.to_string()))?;
        let request = Reserve {
            // While one is stuck the next one waits for it, and nothing piles up.
            key: StepKey { run: RunId::call([0; 8]), step },
            tool,
            // The executor takes its own: a registry that is stuck must not hold up who notices it.
            card: CardHash::from_bytes([0; 32]),
            effect: Effect::Pure,
            est_ms: 0,
            vram: 0,
            memory: 0,
            argument_bytes: ARGUMENTS.len() as u64,
            deadline_ms: u64::try_from(DEADLINE.as_millis()).unwrap_or(u64::MAX),
            epoch: 0,
            longest_wait_ms: u32::MAX,
        };
        let granted = self.handle.reserve_proof(request, self.me.clone()).await?;
        let lease = granted.map_err(|r| refused(r.detail))?.lease;
        let (events, _) = mpsc::channel::<Event>(EVENTS);
        let start = Start::new(lease, 0, ARGUMENTS.to_vec());
        let outcome = self.handle.start(start, self.me.clone(), events).await?;
        outcome.await.map_err(|_| Unproven::Gone(ExecutorGone))
    }
}

#[cfg(test)]
mod tests;
