//! A listener with a bound on open connections.
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};

/// A person's browser tabs, scripts and a scraper; more wait in the kernel's queue.
pub(super) const CONNECTIONS: usize = 256;

/// Until the head of its first request is here, a client has shown no token: it may not hold its place for long.
const FIRST_HEAD: Duration = Duration::from_secs(10);

/// Accepts while fewer than [`CONNECTIONS`] are open.
pub(super) struct Bounded {
    inner: TcpListener,
    permits: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(inner: TcpListener) -> Self {
        Self { inner, permits: Arc::new(Semaphore::new(CONNECTIONS)) }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
                // The semaphore is never closed; if it were, nothing would be accepted any more.
                std::future::pending::<()>().await;
                continue;
            };
            // The provided implementation also waits when the process has no descriptors left.
            let (stream, address) = Listener::accept(&mut self.inner).await;
            // silent-ok: without it answers are a little later, not wrong
            let _ = stream.set_nodelay(true);
            let head = Some(Head { deadline: Box::pin(sleep(FIRST_HEAD)), begun: false, line_ends: 0 });
            return (Connection { stream, head, _permit: permit }, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection that gives its place back when it ends.
pub(super) struct Connection {
    stream: TcpStream,
    /// Gone when the head of the first request has come.
    head: Option<Head>,
    _permit: OwnedSemaphorePermit,
}

/// Waits for the empty line that ends the first head.
struct Head {
    deadline: Pin<Box<Sleep>>,
    /// Empty lines before the request are none of it.
    begun: bool,
    line_ends: u8,
}

impl Head {
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                b'\n' if self.begun => self.line_ends += 1,
                b'\n' | b'\r' => {}
                _ => (self.begun, self.line_ends) = (true, 0),
            }
            if self.line_ends == 2 {
                return true;
            }
        }
        false
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(head) = &mut this.head
            && head.deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let fresh = buf.filled().get(before..).unwrap_or_default();
        if this.head.as_mut().is_some_and(|head| head.ends_in(fresh)) {
            this.head = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_head_is_found_however_it_is_cut() {
        let head = || Head { deadline: Box::pin(sleep(FIRST_HEAD)), begun: false, line_ends: 0 };
        for ends in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\r\n\r\nGET /\n\n"] {
            for cut in 0..ends.len() {
                let (a, b) = ends.split_at(cut);
                let mut head = head();
                assert!(head.ends_in(a) || head.ends_in(b));
            }
        }
        for open in [&b"\r\n\r\n\n\n"[..], b"GET / HTTP/1.1\r\nHost: a\r\n", b""] {
            assert!(!head().ends_in(open));
        }
    }
}
