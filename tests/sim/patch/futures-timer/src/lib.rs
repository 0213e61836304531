//! Stands in for `futures-timer`, whose timers run on a thread of their own: the same `Delay`, on tokio's clock, which can be stopped.
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// Ends once, after a time.
#[derive(Debug)]
pub struct Delay(Pin<Box<Sleep>>);

impl Delay {
    /// Ends after `after`.
    #[must_use]
    pub fn new(after: Duration) -> Self {
        Self(Box::pin(sleep(after)))
    }

    /// Begins anew.
    pub fn reset(&mut self, after: Duration) {
        self.0.as_mut().reset(Instant::now() + after);
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}
