//! How others talk to the executor.
use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use octomesh_protocol::{
    advert::LoadState,
    id::{LeaseId, NodeId, StepKey},
    step::{Event, Granted, Have, Missing, Outcome, Probe, Refused, Reserve, Start, StatusReply},
};
use octomesh_tools::{
    policy,
    tool::{Caller, DataProbe},
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::{ports::ToolRunner, proof::Health, run};
use crate::{
    journal::{ExecutorStatus, JournalHandle},
    load::CardState,
};

/// Looking for a file takes microseconds; on a network file system that hangs, for ever.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Probes at once, over all callers.
pub(super) const PROBES: usize = 32;

/// The executor has stopped, or never answered: nothing is known of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the executor of this node has stopped")]
pub struct ExecutorGone;

pub(super) enum Command {
    Reserve {
        request: Reserve,
        caller: Caller,
        proof: bool,
        reply: oneshot::Sender<Result<Granted, Refused>>,
    },
    Start {
        start: Start,
        caller: Caller,
        events: mpsc::Sender<Event>,
        outcome: oneshot::Sender<Outcome>,
    },
    StartIfFree {
        request: Reserve,
        arguments: Vec<u8>,
        caller: Caller,
        events: mpsc::Sender<Event>,
        reply: oneshot::Sender<Result<Begun, Refused>>,
    },
    /// The end of a step that whoever asked for it has run.
    Finished {
        lease: LeaseId,
        outcome: Outcome,
    },
    /// A step that was begun by whoever asked for it, and takes longer than a moment.
    Adopt {
        lease: LeaseId,
        step: Step,
    },
    Renew {
        leases: Vec<LeaseId>,
        owner: NodeId,
    },
    Cancel {
        key: StepKey,
        epoch: u64,
        caller: Caller,
        reply: oneshot::Sender<StatusReply>,
    },
    Status {
        key: StepKey,
        caller: Caller,
        reply: oneshot::Sender<StatusReply>,
    },
    Evict {
        owner: NodeId,
    },
    Drain {
        on: bool,
        reply: oneshot::Sender<usize>,
    },
    Ping {
        reply: oneshot::Sender<()>,
    },
    /// The task stands still until the sender is gone.
    #[cfg(any(test, feature = "testing"))]
    Hold {
        until: oneshot::Receiver<()>,
    },
}

/// A step on its way to its outcome.
pub(super) type Step = Pin<Box<dyn Future<Output = (LeaseId, Outcome)> + Send>>;

/// Answer to [`Command::StartIfFree`].
pub(super) struct Begun {
    pub(super) granted: Granted,
    /// The outcome to come, if it began at once.
    pub(super) running: Option<oneshot::Receiver<Outcome>>,
    /// The step itself, if this is the first start: to be polled once and given back, or its outcome be told.
    pub(super) step: Option<Step>,
}

impl Begun {
    pub(super) const fn new(
        granted: Granted,
        running: Option<oneshot::Receiver<Outcome>>,
        step: Option<Step>,
    ) -> Self {
        Self { granted, running, step }
    }
}

/// What came of [`ExecutorHandle::start_if_free`].
pub(super) enum AtOnce {
    /// It is over already.
    Over(Granted, Outcome),
    /// It runs.
    Runs(Granted, oneshot::Receiver<Outcome>),
    /// It has a place.
    Waits(Granted),
}

/// Talks to the executor's task. Cheap to clone.
#[derive(Clone)]
pub struct ExecutorHandle {
    pub(super) commands: mpsc::Sender<Command>,
    /// Written by the executor's task; by the self-calls too, for a task that does not turn any more.
    pub(super) load: watch::Sender<LoadState>,
    /// What the last self-calls came to.
    pub(super) health: watch::Sender<Health>,
    pub(super) remaining: watch::Receiver<usize>,
    pub(super) cards: watch::Receiver<Vec<CardState>>,
    pub(super) runner: Arc<dyn ToolRunner>,
    pub(super) journal: JournalHandle,
    pub(super) offers_tools: bool,
    pub(super) probes: Arc<Semaphore>,
}

impl std::fmt::Debug for ExecutorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutorHandle").finish_non_exhaustive()
    }
}

impl ExecutorHandle {
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, ExecutorGone> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| ExecutorGone)?;
        answer.await.map_err(|_| ExecutorGone)
    }

    /// Asks for a place to run a step.
    ///
    /// # Errors
    /// [`ExecutorGone`]; a refusal is an answer.
    pub async fn reserve(
        &self,
        request: Reserve,
        caller: Caller,
    ) -> Result<Result<Granted, Refused>, ExecutorGone> {
        self.ask(|reply| Command::Reserve { request, caller, proof: false, reply }).await
    }

    /// A place for a self-call, beside all others.
    pub(super) async fn reserve_proof(
        &self,
        request: Reserve,
        caller: Caller,
    ) -> Result<Result<Granted, Refused>, ExecutorGone> {
        self.ask(|reply| Command::Reserve { request, caller, proof: true, reply }).await
    }

    /// What the last self-calls came to.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Makes the executor's task stand still, as a fault would, until the returned sender is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) async fn hold(&self) -> oneshot::Sender<()> {
        let (guard, until) = oneshot::channel();
        // silent-ok: an executor that has gone stands still for good
        let _ = self.commands.send(Command::Hold { until }).await;
        guard
    }

    /// Starts a granted lease. The outcome comes through the receiver; dropping it does not stop the step. A receiver that
    /// ends without an outcome means that the executor has gone: nothing is known of the step. The same start again attaches
    /// to the running step (its events then go to the newest `events`) or gets the outcome that it had.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn start(
        &self,
        start: Start,
        caller: Caller,
        events: mpsc::Sender<Event>,
    ) -> Result<oneshot::Receiver<Outcome>, ExecutorGone> {
        let (outcome, receiver) = oneshot::channel();
        let command = Command::Start { start, caller, events, outcome };
        self.commands.send(command).await.map_err(|_| ExecutorGone)?;
        Ok(receiver)
    }

    /// A reservation that is a start as well, if the step may repeat, a slot is free and nobody waits for one; else it is only the
    /// reservation. `events` is as for [`ExecutorHandle::start`].
    ///
    /// # Errors
    /// [`ExecutorGone`]; a refusal is an answer.
    pub(super) async fn start_if_free(
        &self,
        request: Reserve,
        arguments: Vec<u8>,
        caller: Caller,
        events: mpsc::Sender<Event>,
    ) -> Result<Result<AtOnce, Refused>, ExecutorGone> {
        let asked = self.ask(|reply| Command::StartIfFree { request, arguments, caller, events, reply });
        let Begun { granted, running, step } = match asked.await? {
            Ok(begun) => begun,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(running) = running else { return Ok(Ok(AtOnce::Waits(granted))) };
        let Some(mut step) = step else { return Ok(Ok(AtOnce::Runs(granted, running))) };
        // A small step is over when it is looked at for the first time, and costs nobody a task then.
        let looked = poll_fn(|cx| {
            let looked = catch_unwind(AssertUnwindSafe(|| step.as_mut().poll(cx)));
            Poll::Ready(looked.unwrap_or_else(|_| Poll::Ready((granted.lease, run::lost_track()))))
        });
        match looked.await {
            Poll::Ready((lease, outcome)) => {
                let finished = Command::Finished { lease, outcome: outcome.clone() };
                self.commands.send(finished).await.map_err(|_| ExecutorGone)?;
                Ok(Ok(AtOnce::Over(granted, outcome)))
            }
            Poll::Pending => {
                let adopt = Command::Adopt { lease: granted.lease, step };
                self.commands.send(adopt).await.map_err(|_| ExecutorGone)?;
                Ok(Ok(AtOnce::Runs(granted, running)))
            }
        }
    }

    /// Keeps started leases of `owner` alive; unknown ones are ignored. A local caller needs none.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn renew(&self, leases: Vec<LeaseId>, owner: NodeId) -> Result<(), ExecutorGone> {
        self.commands.send(Command::Renew { leases, owner }).await.map_err(|_| ExecutorGone)
    }

    /// Stops a step and everything it started, and says what is known of it then. A running step answers `Running`: it
    /// ends a moment later with its own outcome. Somebody else's step is `Unseen`.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn cancel(
        &self,
        key: StepKey,
        epoch: u64,
        caller: Caller,
    ) -> Result<StatusReply, ExecutorGone> {
        self.ask(|reply| Command::Cancel { key, epoch, caller, reply }).await
    }

    /// Stops everything that `owner` placed here: it was revoked.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn evict(&self, owner: NodeId) -> Result<(), ExecutorGone> {
        self.commands.send(Command::Evict { owner }).await.map_err(|_| ExecutorGone)
    }

    /// What became of a step of the caller's, from memory or the journal; somebody else's is `Unseen`.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn status(&self, key: StepKey, caller: Caller) -> Result<StatusReply, ExecutorGone> {
        let in_memory = self.status_in_memory(&key, &caller).await?;
        if in_memory != StatusReply::Unseen {
            return Ok(in_memory);
        }
        match self.journal.executor_status(&key, Some(caller.node)).await {
            Ok(ExecutorStatus::Unseen) => Ok(StatusReply::Unseen),
            Ok(ExecutorStatus::Done(outcome)) => Ok(StatusReply::Done(outcome)),
            Ok(ExecutorStatus::Interrupted) => Ok(StatusReply::Interrupted),
            // It may have begun between the two questions. If not, its end was never written: nobody knows.
            Ok(ExecutorStatus::Started) => match self.status_in_memory(&key, &caller).await? {
                StatusReply::Unseen => Ok(StatusReply::Interrupted),
                known => Ok(known),
            },
            // `Unseen` would invite a second run of a step that may have run.
            Err(error) => {
                tracing::error!(%key, %error, "the status of a step could not be read");
                Err(ExecutorGone)
            }
        }
    }

    async fn status_in_memory(&self, key: &StepKey, caller: &Caller) -> Result<StatusReply, ExecutorGone> {
        let (key, caller) = (key.clone(), caller.clone());
        self.ask(|reply| Command::Status { key, caller, reply }).await
    }

    /// Whether the data that the arguments point to is here.
    ///
    /// # Errors
    /// [`Missing`] with the reason: no such data, no such tool, not for this caller, or no answer in time.
    pub async fn probe(&self, probe: &Probe, caller: &Caller) -> Result<Have, Missing> {
        let missing = |detail: &str| Missing { detail: detail.to_owned() };
        let Ok((_, card)) = self.runner.card(&probe.tool) else {
            return Err(missing("the tool is not here"));
        };
        // Who may not call a tool does not hear of the data that it would see.
        let may = || self.offers_tools && policy::decide(caller, &card, self.runner.sandbox()).is_ok();
        if !(caller.local || may()) {
            return Err(missing("this caller may not use the tool here"));
        }
        let answer = async {
            // silent-ok: the semaphore is never closed; without a permit there is no answer, which is a `Missing`
            let _permit = self.probes.acquire().await.ok()?;
            Some(self.runner.probe(&probe.tool, caller, &probe.arguments).await)
        };
        match tokio::time::timeout(PROBE_TIMEOUT, answer).await {
            Ok(Some(DataProbe::Have(bytes))) => Ok(Have { bytes }),
            Ok(Some(DataProbe::Missing(detail))) => Err(Missing { detail }),
            Ok(None) | Err(_) => Err(missing("no answer in time")),
        }
    }

    /// Takes no new leases (or takes them again); running steps finish. Returns how many leases are left.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn drain(&self, on: bool) -> Result<usize, ExecutorGone> {
        self.ask(|reply| Command::Drain { on, reply }).await
    }

    /// Proves that the executor's task still turns: the answer comes from its loop.
    ///
    /// # Errors
    /// [`ExecutorGone`].
    pub async fn ping(&self) -> Result<(), ExecutorGone> {
        self.ask(|reply| Command::Ping { reply }).await
    }

    /// Load of this node; changes whenever a lease does, and every second while there are any.
    #[must_use]
    pub fn load(&self) -> watch::Receiver<LoadState> {
        self.load.subscribe()
    }

    /// Leases that are not over: granted, waiting and running.
    #[must_use]
    pub fn remaining(&self) -> usize {
        *self.remaining.borrow()
    }

    /// The same, to wait for.
    #[must_use]
    pub fn watch_remaining(&self) -> watch::Receiver<usize> {
        self.remaining.clone()
    }

    /// GPUs with what leases hold of them, in the order of [`super::Resources::gpus`].
    #[must_use]
    pub fn cards(&self) -> watch::Receiver<Vec<CardState>> {
        self.cards.clone()
    }
}
