//! A session that its owner ends is over soon, even if the other side takes nothing any more: the close record may stand behind a
//! full send buffer for as long as TCP tries.
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

/// Revoked nodes are gone within 2 s everywhere (PROTOCOL 2); half of it is for their close record.
const PATIENCE: Duration = Duration::from_secs(1);

/// Begins to run when somebody first waits.
#[derive(Default)]
pub(super) struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    pub(super) fn poll<O>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<O>> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the other side did not take the end of the session",
        )))
    }
}
