//! When a stream gets fresh secrets, and how the messages for that find their way between the records.
//!
//! They have a buffer of their own, filled by reading and by the clock and emptied by whoever is polled: two ends that are both busy
//! writing read on, answer in that buffer, and so never wait for each other.
use std::{
    io,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::AsyncWrite;
use octomesh_protocol::session::{
    handshake::{InitiatorRandom, ResponderRandom},
    record::CloseReason,
    rekey::Opened,
};
use tokio::time::{Instant, Sleep, sleep_until};
use zeroize::{Zeroize as _, Zeroizing};

use super::{Ending, Reading, SecureStream, Writing, invalid};

/// Keys live this long; a session that carries less than the limits gets new ones, too.
pub(super) const AGE: Duration = Duration::from_secs(3600);
/// The other side has this long to say what a rekey waits for. Two round trips behind a full send buffer of a slow link fit.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// What a stream keeps for its rekeys.
pub(super) struct Rekeying {
    /// Sealed messages, of which `sent` bytes are written. At most one message and a close record.
    control: Vec<u8>,
    sent: usize,
    /// When the keys are old.
    old_at: Instant,
    /// When the other side has taken too long.
    deadline: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// The two halves may be polled by two tasks; each wakes the other when it has made way for it.
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl Rekeying {
    pub(super) fn new() -> Self {
        let old_at = Instant::now() + AGE;
        Self {
            control: Vec::new(),
            sent: 0,
            old_at,
            deadline: None,
            timer: Box::pin(sleep_until(old_at)),
            reader: None,
            writer: None,
        }
    }

    pub(super) fn rest(&self) -> &[u8] {
        self.control.get(self.sent..).unwrap_or_default()
    }

    pub(super) fn wrote(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.control.len() {
            (self.control, self.sent) = (Vec::new(), 0);
        }
    }

    fn await_other_side(&mut self) {
        self.deadline = Some(Instant::now() + ANSWER);
    }

    fn settled(&mut self) {
        (self.deadline, self.old_at) = (None, Instant::now() + AGE);
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl<T> SecureStream<T> {
    /// Starts a rekey if enough was carried, or if the keys are `old`.
    pub(super) fn start_if_due(&mut self, old: bool) -> io::Result<()> {
        let due = self.session.is_due() || (old && self.session.may_start());
        if !due || self.ending != Ending::Open || !self.rekeying.rest().is_empty() {
            return Ok(());
        }
        let mut random = Zeroizing::new([0; InitiatorRandom::BYTES]);
        self.clock.fill(&mut *random).map_err(io::Error::other)?;
        let init = self.session.start(&InitiatorRandom::from_bytes(&random)).map_err(invalid)?;
        self.rekeying.control.extend_from_slice(&init);
        self.rekeying.await_other_side();
        Ok(())
    }

    /// Takes note of what a record said besides data.
    pub(super) fn turned(&mut self, opened: Turn) -> io::Result<()> {
        match opened {
            Turn::Asked => {
                let mut random = Zeroizing::new([0; ResponderRandom::BYTES]);
                self.clock.fill(&mut *random).map_err(io::Error::other)?;
                let answer = self.session.answer(&ResponderRandom::from_bytes(&random)).map_err(invalid)?;
                self.rekeying.control.extend_from_slice(&answer);
                self.rekeying.await_other_side();
            }
            Turn::Send(done) => {
                self.rekeying.control.extend_from_slice(&done);
                self.renewed();
            }
            Turn::Done => self.renewed(),
            Turn::Over => self.rekeying.deadline = None,
        }
        // A writer may have waited for a key with room.
        if let Some(writer) = self.rekeying.writer.take() {
            writer.wake();
        }
        Ok(())
    }

    fn renewed(&mut self) {
        self.rekeying.settled();
        self.traffic.rekeys.fetch_add(1, Ordering::Relaxed);
        if let Some(all) = &self.traffic.all_rekeys {
            all.inc();
        }
    }

    /// Whether the plaintext in the buffer has to wait for a new key; the wait is bounded.
    pub(super) fn must_wait(&mut self, bytes: usize) -> bool {
        let can_come = self.session.can_rekey() && self.reading == Reading::Open;
        let wait = !self.session.has_room(bytes) && can_come;
        if wait && self.rekeying.deadline.is_none() {
            self.rekeying.await_other_side();
        }
        wait
    }

    /// What time brings: a rekey that is due by age, or the end of a session whose other side does not go along.
    pub(super) fn poll_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.start_if_due(false)?;
        loop {
            let old_at = self.session.may_start().then_some(self.rekeying.old_at);
            let Some(next) = self.rekeying.deadline.into_iter().chain(old_at).min() else { return Ok(()) };
            if self.rekeying.timer.deadline() != next {
                self.rekeying.timer.as_mut().reset(next);
            }
            if self.rekeying.timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            if self.rekeying.deadline.is_some_and(|deadline| deadline <= next) {
                return Err(self.give_up());
            }
            self.start_if_due(true)?;
            if self.session.may_start() {
                // Something is still on its way out; asked again when it is.
                return Ok(());
            }
        }
    }

    /// Nothing is received any more, so a writer that waits for a new key waits in vain.
    pub(super) fn died(&mut self) {
        self.reading = Reading::Dead;
        self.rekeying.wake();
    }

    fn give_up(&mut self) -> io::Error {
        self.reading = Reading::Dead;
        self.rekeying.deadline = None;
        if self.ending == Ending::Open {
            if self.writing == Writing::Plain {
                self.out.zeroize();
                self.out = vec![0; super::HEADER_BYTES];
            }
            // After whatever is sealed already.
            if let Ok(close) = self.session.close(CloseReason::LimitReached) {
                self.rekeying.control.extend_from_slice(&close);
            }
            self.ending = Ending::CloseQueued;
        }
        self.rekeying.wake();
        io::Error::new(io::ErrorKind::TimedOut, "the other side did not go along with a rekey")
    }
}

/// [`Opened`] without the data.
pub(super) enum Turn {
    Asked,
    Send(Vec<u8>),
    Done,
    /// The other side closed.
    Over,
}

impl Turn {
    pub(super) fn of(opened: Opened<'_>) -> Self {
        match opened {
            Opened::Asked => Self::Asked,
            Opened::Send(record) => Self::Send(record),
            Opened::Done => Self::Done,
            Opened::Data(_) | Opened::Close(_) => Self::Over,
        }
    }
}

impl<T: AsyncWrite + Unpin> SecureStream<T> {
    /// Sends what a rekey has to say as far as the socket takes it; reading never waits for that.
    pub(super) fn push_control(&mut self, cx: &mut Context<'_>) {
        if self.rekeying.rest().is_empty() {
            return;
        }
        match self.poll_drain(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                // silent-ok: a broken connection shows in the next read or write
                let _ = Pin::new(&mut self.io).poll_flush(cx);
                if let Some(writer) = self.rekeying.writer.take() {
                    writer.wake();
                }
            }
            // The writer meets the same error; what was received before it can still be read.
            Poll::Ready(Err(_)) => {
                if let Some(writer) = self.rekeying.writer.take() {
                    writer.wake();
                }
            }
        }
    }
}
