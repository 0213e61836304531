//! What a connection from outside holds until it has said a whole first message: a place at the door. It is given up after two seconds,
//! and taken away before that when a newcomer needs it, so that those who say nothing can't keep out those who do.
use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use futures::{AsyncRead, AsyncWrite, task::AtomicWaker};
use libp2p::{Multiaddr, core::ConnectedPoint};
use octomesh_protocol::session::{self, handshake::MESSAGE_1_BYTES};
use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

use super::FIRST_MESSAGE;
use crate::net::handover::Handover;

/// Bytes of the shortest negotiation and of the first message after it: two lines with their lengths, one more length.
const FIRST_BYTES: usize =
    "_/multistream/1.0.0\n".len() + "_\n".len() + session::PROTOCOL.len() + 2 + MESSAGE_1_BYTES;

const SILENT: u8 = 0;
const SPOKE: u8 = 1;
const LOST: u8 = 2;
const OVER: u8 = 3;

/// Shared by the rules, which may take it away, and by the connection that holds it.
#[derive(Debug, Default)]
pub(super) struct Place {
    state: AtomicU8,
    holder: AtomicWaker,
}

impl Place {
    /// Whether its connection has not said a first message yet.
    pub(super) fn is_silent(&self) -> bool {
        self.state.load(Ordering::Acquire) == SILENT
    }

    /// Its connection ends, as soon as it is looked at.
    pub(super) fn take_away(&self) {
        self.state.store(LOST, Ordering::Release);
        self.holder.wake();
    }

    /// The handshake is over; nobody takes this place away any more.
    pub(super) fn over(&self) {
        self.state.store(OVER, Ordering::Release);
    }

    pub(super) fn spoke(&self) {
        // silent-ok: it was taken away, or it is over
        let _ = self.state.compare_exchange(SILENT, SPOKE, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Places that were given and whose connections have not come for them yet, by the address from which they come.
#[derive(Debug, Clone, Default)]
pub(in crate::net) struct Places(Arc<Mutex<HashMap<Multiaddr, Arc<Place>>>>);

impl Places {
    pub(super) fn give(&self, remote: &Multiaddr) -> Arc<Place> {
        let place = Arc::new(Place::default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(remote.clone(), Arc::clone(&place));
        place
    }

    /// Of a connection that never came for its place.
    pub(super) fn forget(&self, remote: &Multiaddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(remote);
    }

    /// A connection that is watched if it came from outside.
    pub(in crate::net) fn watch<T>(&self, io: T, point: &ConnectedPoint) -> Watched<T> {
        let watch = match point {
            ConnectedPoint::Listener { send_back_addr, .. } => {
                let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(send_back_addr);
                let timer = Box::pin(sleep_until(Instant::now() + FIRST_MESSAGE));
                Some(Watch { place: place.unwrap_or_default(), silence: Some(timer), heard: 0 })
            }
            ConnectedPoint::Dialer { .. } => None,
        };
        Watched { io, watch }
    }
}

struct Watch {
    place: Arc<Place>,
    /// Runs out while too little was said.
    silence: Option<Pin<Box<Sleep>>>,
    heard: usize,
}

impl Watch {
    /// `true` when there is nothing to watch any more.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.place.holder.register(cx.waker());
        match self.place.state.load(Ordering::Acquire) {
            OVER => return Ok(true),
            LOST => {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "others needed the place of a handshake that did not go on",
                ));
            }
            _ => {}
        }
        if self.silence.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            let words = format!("no first message within {} s", FIRST_MESSAGE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, words));
        }
        Ok(false)
    }

    fn heard(&mut self, bytes: usize) {
        self.heard = self.heard.saturating_add(bytes);
        if self.heard >= FIRST_BYTES {
            self.silence = None;
            self.place.spoke();
        }
    }
}

/// A connection that can lose its place until its handshake is over.
pub(in crate::net) struct Watched<T> {
    io: T,
    watch: Option<Watch>,
}

impl<T: Handover> Handover for Watched<T> {
    fn hand_over(self, runtime: &Handle) -> io::Result<Self> {
        let Self { io, mut watch } = self;
        if let Some(watch) = &mut watch {
            // The first message was heard, if in fewer bytes; and the timer is of the runtime that is left.
            watch.silence = None;
            watch.place.spoke();
        }
        Ok(Self { io: io.hand_over(runtime)?, watch })
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(watch) = &mut this.watch
            && watch.poll_over(cx)?
        {
            this.watch = None;
        }
        let result = Pin::new(&mut this.io).poll_read(cx, out);
        if let (Some(watch), Poll::Ready(Ok(read))) = (&mut this.watch, &result) {
            watch.heard(*read);
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

#[cfg(test)]
mod tests;
