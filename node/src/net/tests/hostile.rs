//! A member with a valid certificate that does not keep to the rules.
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::StreamProtocol;
use multistream_select::{Version, dialer_select_proto};
use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    id::CardHash,
    session,
};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::*;
use crate::net::handle::peer_id;

/// Completes the handshake and hangs up before there is a session.
async fn handshake_and_hang_up(evil: &Peer, address: &str) {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let (_, mut io) = dialer_select_proto(socket.compat(), [session::PROTOCOL], Version::V1).await.unwrap();
    config(evil).authenticate(&mut io, true).await.ok();
}

#[tokio::test]
async fn handshakes_that_become_no_session_do_not_lock_the_door() {
    let (mut honest, mut victim) = (peer(2, "127.0.0.1:0").await, peer(3, "127.0.0.1:0").await);
    let evil = peer(4, "127.0.0.1:0").await;
    // More than the victim's channel of announcements holds.
    for _ in 0..10 {
        handshake_and_hang_up(&evil, &victim.address).await;
    }
    for _ in 0..10 {
        victim.wait(|e| matches!(e, NetEvent::Refused { .. }).then_some(())).await;
    }
    honest.connect(&mut victim).await;
}

#[tokio::test]
async fn a_session_is_reported_with_its_own_traffic_whatever_came_before() {
    let mut victim = peer(3, "127.0.0.1:0").await;
    let mut member = peer(4, "127.0.0.1:0").await;
    handshake_and_hang_up(&member, &victim.address).await;
    victim.wait(|e| matches!(e, NetEvent::Refused { .. }).then_some(())).await;
    member.connect(&mut victim).await;
    let before = victim.handle.sessions().await.unwrap()[0].bytes_in;
    let target = victim.node;
    let question = member.handle.sync(target, vec![7; 10_000]);
    let answer = victim.wait(|e| match e {
        NetEvent::Sync { reply, .. } => reply.send(vec![]).ok(),
        _ => None,
    });
    tokio::join!(question, answer).0.unwrap();
    let after = victim.handle.sessions().await.unwrap()[0].bytes_in;
    assert!(after >= before + 10_000, "{before} -> {after}");
}

/// What is no message of any protocol here.
fn junk() -> Vec<Vec<u8>> {
    vec![
        vec![0xff; 4],
        vec![0, 0, 0, 0],
        vec![0, 0, 0, 1, 1],
        vec![0, 0, 0, 3, 9, 1, 0],
        vec![0, 0, 0, 3, 1, 99, 0],
        vec![0, 0, 0, 200, 1, 1, 0],
        [&[0, 0, 16, 0, 1, 1, 1, 253][..], &[0xff; 8], &[0; 4086]].concat(),
        vec![0x41; 2_000_000],
    ]
}

#[tokio::test]
async fn junk_on_any_protocol_ends_its_stream_and_nothing_else() {
    let (mut evil, mut victim) = (peer(2, "memory:0").await, peer(3, "memory:0").await);
    evil.connect(&mut victim).await;
    let control = evil.handle.control.clone();
    let target = peer_id(victim.node).unwrap();
    for protocol in ["/octomesh/cards/1", "/octomesh/sync/1", "/octomesh/swim/1"] {
        for bytes in junk() {
            let protocol = StreamProtocol::new(protocol);
            let mut stream = control.open(target, protocol).await.unwrap();
            // The victim may be done with it before all of it is written.
            stream.write_all(&bytes).await.ok();
            stream.close().await.ok();
            let mut rest = Vec::new();
            let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
            ended.expect("the stream ends").ok();
            assert!(rest.is_empty(), "no answer to junk");
        }
    }
    let node = victim.node;
    let asked = CardsRequest::Cards(vec![CardHash::from_bytes([1; 32])]);
    let answer = victim.wait(|e| match e {
        NetEvent::Cards { reply, .. } => reply.send(CardsReply::Unknown).ok(),
        NetEvent::Disconnected { .. } => panic!("the session ended"),
        _ => None,
    });
    assert_eq!(tokio::join!(evil.handle.cards(node, asked), answer).0, Ok(CardsReply::Unknown));
}

/// PROTOCOL 5.4 and 5.5 over TCP: a thousand wrong first messages from an address where a member was seen; another member connects from
/// there afterwards, and the first one's session is as it was.
#[tokio::test]
async fn a_flood_of_wrong_secrets_does_not_keep_a_member_out() {
    let (mut seen, mut victim) = (peer(2, "127.0.0.1:0").await, peer(3, "127.0.0.1:0").await);
    let mut honest = peer(4, "127.0.0.1:0").await;
    seen.connect(&mut victim).await;
    let address = victim.address.clone();
    let flood = async {
        for _ in 0..1000 {
            let socket = tokio::net::TcpStream::connect(&address).await.unwrap();
            let select = dialer_select_proto(socket.compat(), [session::PROTOCOL], Version::V1);
            // Refused at the door, or after the message.
            if let Ok((_, mut io)) = select.await {
                io.write_all(&[&[0x04, 0xe0][..], &[7; 1248]].concat()).await.ok();
                let _hung_up = io.read(&mut [0; 1]).await;
            }
        }
    };
    // Whoever owns the victim reads its events meanwhile.
    tokio::select! {
        flooded = tokio::time::timeout(PATIENCE, flood) => flooded.expect("refusals are quick"),
        never = victim.wait(|_| None::<()>) => never,
    }
    honest.connect(&mut victim).await;
    assert_eq!(victim.handle.sessions().await.unwrap().len(), 2);
}
