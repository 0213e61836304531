//! The one place that spawns tasks: each has a name, an owner, a stop signal and a policy for its panic.
use std::{
    future::Future,
    io,
    panic::{AssertUnwindSafe, resume_unwind},
    thread,
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Added to the nice value of a thread whose work is to wait for everybody else's.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

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

    /// Of a node that others stop by `stop`.
    #[cfg(feature = "testing")]
    pub(crate) fn stopped_by(stop: CancellationToken) -> Self {
        Self { tracker: TaskTracker::new(), stop }
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

    /// A critical task with a thread and a runtime of its own, whose handle it gives, and with less right to the processor than the
    /// other threads: where that runtime's sockets make work, the others do not notice.
    ///
    /// # Errors
    /// When the system gives no thread or no reactor.
    pub(crate) async fn thread_critical<F>(&self, name: &'static str, task: F) -> io::Result<Handle>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (ready, started) = oneshot::channel();
        let (over, ended) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropped at the end, be it a panic.
            let _over = over;
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    be_nice(name);
                    // silent-ok: nobody waits where the start was given up, and the task learns of that by its stop signal
                    let _ = ready.send(Ok(runtime.handle().clone()));
                    runtime.block_on(task);
                }
                // silent-ok: the same
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        self.spawn_critical(name, async move {
            // silent-ok: nothing is ever sent
            let _ = ended.await;
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        });
        started.await.map_err(|_| io::Error::other("its thread ended"))?
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

/// Lowers the priority of this thread. Elsewhere than on Linux a nice value is the whole process's.
fn be_nice(name: &'static str) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICER) {
        tracing::debug!(thread = name, %error, "the thread keeps its priority");
    }
    #[cfg(not(target_os = "linux"))]
    tracing::debug!(thread = name, "the thread keeps its priority");
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

    #[tokio::test]
    async fn a_thread_that_panics_stops_the_node() {
        let supervisor = Supervisor::new();
        supervisor.thread_critical("test", async { panic!("boom") }).await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), supervisor.stop_token().cancelled()).await.unwrap();
        assert!(supervisor.join(Duration::from_secs(5)).await);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_thread_waits_for_everybody_else() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let (told, asked) = oneshot::channel();
        let supervisor = Supervisor::new();
        let task = async move { told.send(nice()).unwrap() };
        supervisor.thread_critical("test", task).await.unwrap();
        assert_eq!(asked.await.unwrap(), (nice() + NICER).min(19));
    }
}
