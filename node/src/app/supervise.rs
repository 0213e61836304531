//! The one place that spawns tasks: each has a name, an owner, a stop signal and a policy for its panic.
use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Owns the tasks of one node. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Supervisor {
    pub(crate) fn new() -> Self {
        Self { tracker: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Cancelled when the node stops; tasks watch it (or a child of it).
    pub(crate) fn stop_token(&self) -> &CancellationToken {
        &self.stop
    }

    /// A task without which the node is not a node: when it ends before the stop signal or panics, the node stops.
    pub(crate) fn spawn_critical<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.track(async move {
            let ended = AssertUnwindSafe(task).catch_unwind().await;
            match ended {
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => tracing::error!(task = name, "a critical task ended by itself; the node stops"),
                Err(_) => tracing::error!(task = name, "a critical task panicked; the node stops"),
            }
            stop.cancel();
        });
    }

    /// A task of its own concern: a panic is logged and ends only the task.
    pub(crate) fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.track(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                tracing::error!(task = name, "a task panicked");
            }
        });
    }

    #[expect(clippy::disallowed_methods, reason = "the only place that spawns")]
    fn track<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        tokio::spawn(self.tracker.track_future(task));
    }

    /// Waits until all tasks ended, at most `patience`; gives whether they did.
    pub(crate) async fn join(&self, patience: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(patience, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_critical_task_that_panics_stops_the_node() {
        let supervisor = Supervisor::new();
        supervisor.spawn_critical("test", async { panic!("boom") });
        tokio::time::timeout(Duration::from_secs(5), supervisor.stop_token().cancelled()).await.unwrap();
        assert!(supervisor.join(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn an_ordinary_task_that_panics_does_not() {
        let supervisor = Supervisor::new();
        supervisor.spawn("test", async { panic!("boom") });
        assert!(supervisor.join(Duration::from_secs(5)).await);
        assert!(!supervisor.stop_token().is_cancelled());
    }
}
