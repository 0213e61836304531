//! What a peer offers before there is any security. Negotiation is done by multistream-select, which does not tell what it turned
//! down; so the first bytes are remembered on their way to it, until one of our protocols is among them.
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{AsyncRead, AsyncWrite};
use libp2p::{Multiaddr, core::ConnectedPoint};
use octomesh_protocol::{join, session};
use tokio::sync::mpsc;

use crate::net::printable;

/// Bytes remembered of a connection: a header and several proposals.
const HEARD: usize = 256;
/// Proposals told, and the longest text of them.
const TOLD: usize = 3;
const TOLD_CHARS: usize = 96;

/// What was offered in vain from an address.
#[derive(Debug)]
pub(in crate::net) struct Offer {
    pub(in crate::net) from: Multiaddr,
    /// `/noise`, or several with commas.
    pub(in crate::net) protocols: String,
}

/// A connection whose first bytes are remembered.
pub(in crate::net) struct Heard<T> {
    io: T,
    /// For those who dialled us.
    ear: Option<Ear>,
}

struct Ear {
    bytes: Vec<u8>,
    from: Multiaddr,
    tell: mpsc::Sender<Offer>,
}

impl<T> Heard<T> {
    pub(in crate::net) fn new(io: T, endpoint: &ConnectedPoint, tell: mpsc::Sender<Offer>) -> Self {
        let ear = match endpoint {
            ConnectedPoint::Listener { send_back_addr, .. } => {
                Some(Ear { bytes: Vec::new(), from: send_back_addr.clone(), tell })
            }
            ConnectedPoint::Dialer { .. } => None,
        };
        Self { io, ear }
    }
}

impl Ear {
    fn hear(&mut self, bytes: &[u8]) {
        let room = HEARD.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
}

impl<T> Drop for Heard<T> {
    fn drop(&mut self) {
        let Some(ear) = self.ear.take() else { return };
        if let Some(protocols) = offered(&ear.bytes) {
            // silent-ok: in a flood some refusals are told without what was offered
            let _ = ear.tell.try_send(Offer { from: ear.from, protocols });
        }
    }
}

/// The proposals in the beginning of a negotiation: `length varint │ text │ \n`, each. `None` if one of ours is there, or none at all.
fn offered(mut bytes: &[u8]) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    // Lines of 128 bytes and more are no protocol of anybody.
    while let Some((length @ 1..0x80, rest)) = bytes.split_first() {
        let Some((line, after)) = rest.split_at_checked(usize::from(*length)) else { break };
        bytes = after;
        match line.strip_suffix(b"\n").map(std::str::from_utf8) {
            Some(Ok(ours)) if ours == session::PROTOCOL || ours == join::PROTOCOL => return None,
            Some(Ok(other)) if other.starts_with("/multistream/") => {}
            Some(Ok(other)) if other.starts_with('/') && found.len() < TOLD => {
                if !found.iter().any(|f| f == other) {
                    found.push(other.to_owned());
                }
            }
            _ => break,
        }
    }
    (!found.is_empty()).then(|| printable(&found.join(", "), TOLD_CHARS))
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let read = ready!(Pin::new(&mut this.io).poll_read(cx, out))?;
        if let Some(ear) = &mut this.ear
            && ear.bytes.len() < HEARD
        {
            ear.hear(out.get(..read).unwrap_or_default());
        }
        Poll::Ready(Ok(read))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<u8> {
        lines
            .iter()
            .flat_map(|line| [&[u8::try_from(line.len() + 1).unwrap()][..], line.as_bytes(), b"\n"].concat())
            .collect()
    }

    #[test]
    fn proposals_are_found_and_ours_are_none() {
        let header = "/multistream/1.0.0";
        assert_eq!(offered(&lines(&[header, "/noise"])).unwrap(), "/noise");
        assert_eq!(
            offered(&lines(&[header, "/tls/1.0.0", "/noise", "/noise"])).unwrap(),
            "/tls/1.0.0, /noise"
        );
        assert_eq!(offered(&lines(&[header, "/noise", session::PROTOCOL])), None);
        assert_eq!(offered(&lines(&[header, join::PROTOCOL])), None);
        assert_eq!(offered(&lines(&[header])), None);
        assert_eq!(offered(b""), None);
        // Cut, junk behind it, or nothing of the kind.
        assert_eq!(offered(&lines(&[header, "/noise", "/tls/1.0.0"])[..30]).unwrap(), "/noise");
        assert_eq!(
            offered(&[&lines(&[header, "/noise"])[..], &[0, 32], &[7; 32]].concat()).unwrap(),
            "/noise"
        );
        assert_eq!(offered(b"GET / HTTP/1.1\r\n\r\n"), None);
        assert_eq!(offered(&[0xff; 256]), None);
    }

    #[test]
    fn what_a_stranger_says_is_short_and_printable() {
        let told = offered(&lines(&["/a\u{1b}[2J\r\u{202e}", &format!("/{}", "x".repeat(120))])).unwrap();
        assert!(told.chars().count() <= TOLD_CHARS && !told.chars().any(char::is_control), "{told:?}");
    }
}
