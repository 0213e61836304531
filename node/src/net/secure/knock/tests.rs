use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::core::upgrade::InboundConnectionUpgrade as _;
use multistream_select::{Version, dialer_select_proto};
use octomesh_protocol::session::{self, handshake::MESSAGE_1_BYTES};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::*;
use crate::net::secure::tests::{Member, member};

const NOW: u64 = 1_800_000_000;

fn pipe() -> (DuplexStream, Compat<DuplexStream>) {
    let (stranger, io) = tokio::io::duplex(1 << 16);
    (stranger, io.compat())
}

/// What a dialler of `protocol` says before its first message.
fn proposals(protocols: &[&str]) -> Vec<u8> {
    let lines = ["/multistream/1.0.0"].iter().chain(protocols);
    lines.flat_map(|l| [&[u8::try_from(l.len() + 1).unwrap()][..], l.as_bytes(), b"\n"].concat()).collect()
}

fn first(byte: u8) -> Vec<u8> {
    [&u16::try_from(MESSAGE_1_BYTES).unwrap().to_be_bytes()[..], &[byte; MESSAGE_1_BYTES]].concat()
}

/// Says everything at once and gives why it was refused and what it was told.
async fn refused(by: &Member, words: &[u8]) -> (Cause, Vec<u8>) {
    let (mut stranger, io) = pipe();
    stranger.write_all(words).await.unwrap();
    let found = knock(io, &by.security).await.err().unwrap();
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).await.unwrap();
    (found.cause, told)
}

/// A member passes, and both have a session over the connection that begins anew; whatever way it negotiates.
#[tokio::test]
async fn a_member_passes_and_notices_nothing() {
    for version in [Version::V1, Version::V1Lazy] {
        let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
        let (x, y) = pipe();
        let dial = async {
            let (_, io) = dialer_select_proto(x.compat(), [session::PROTOCOL], version).await.unwrap();
            let (_, mut secure) = a.security.config().secure(io, true).await.unwrap();
            secure.write_all(b"hello").await.unwrap();
            secure.flush().await.unwrap();
            let mut answer = [0; 5];
            secure.read_exact(&mut answer).await.unwrap();
            answer
        };
        let listen = async {
            let io = knock(y, &b.security).await.unwrap();
            let (protocol, io) = listener_select_proto(io, b.security.protocol_info()).await.unwrap();
            let (_, mut secure) = b.security.clone().upgrade_inbound(io, protocol).await.unwrap();
            let mut bytes = [0; 5];
            secure.read_exact(&mut bytes).await.unwrap();
            secure.write_all(&bytes).await.unwrap();
            secure.flush().await.unwrap();
        };
        assert_eq!(&tokio::join!(dial, listen).0, b"hello");
    }
}

#[tokio::test]
async fn junk_is_refused_without_a_byte_in_answer() {
    let b = member(1, 1, 3, NOW, None);
    let ours = proposals(&[session::PROTOCOL]);
    let wrong = [&ours[..], &first(7)].concat();
    assert_eq!(refused(&b, &wrong).await, (Cause::WrongMeshSecret, vec![]));
    assert_eq!(refused(&b, &[&ours[..], &[0xff; 2]].concat()).await, (Cause::Io, vec![]));
    assert_eq!(refused(&b, &[0xff; 2000]).await, (Cause::NoNegotiation, vec![]));
}

/// A first message that was taken once is refused here already.
#[tokio::test]
async fn a_replay_does_not_pass() {
    let b = member(1, 1, 3, NOW, None);
    let config = b.security.config();
    let taken = [7; MESSAGE_1_BYTES];
    config.hear_first(&taken, || Ok(())).unwrap();
    let replay = [proposals(&[session::PROTOCOL]), first(7)].concat();
    assert_eq!(refused(&b, &replay).await.0, Cause::Replay);
}

/// An honest program of another kind learns that there is no such protocol here, also when it goes on at once.
#[tokio::test]
async fn a_classical_peer_is_told_and_explained() {
    let b = member(1, 1, 3, NOW, None);
    let (cause, told) = refused(&b, &[proposals(&["/noise"]), vec![0, 32], vec![7; 32]].concat()).await;
    assert_eq!(cause, Cause::ClassicalOnly);
    assert!(told.ends_with(b"\x03na\n"), "{told:?}");
}

/// However it is done, memory is bounded.
#[tokio::test]
async fn who_proposes_without_end_is_refused() {
    let b = member(1, 1, 3, NOW, None);
    for line in ["/noise", "ls"] {
        let (mut stranger, io) = pipe();
        stranger.write_all(&proposals(&vec![line; 5000 / line.len()])).await.unwrap();
        assert!(knock(io, &b.security).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_after_the_negotiation_has_two_seconds() {
    let b = member(1, 1, 3, NOW, None);
    let (mut stranger, io) = pipe();
    stranger.write_all(&proposals(&[session::PROTOCOL])).await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(knock(io, &b.security).await.err().unwrap().cause, Cause::Timeout);
    assert_eq!(began.elapsed(), super::super::FIRST_MESSAGE);
}
