//! What every transport must give. Each case runs over memory and over TCP on loopback.
use std::collections::BTreeSet;

use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    blob::{BlobMessage, End, Stored},
    id::{BlobHash, CardHash, RunId, StepId, StepKey, ToolSetHash},
    session::SUITE,
    step::{Message, StatusQuery, StatusReply},
};

use super::*;
use crate::net::handle::NetError;

macro_rules! over_both {
    ($($case:ident),* $(,)?) => {
        mod memory { $(#[tokio::test] async fn $case() { super::$case("memory:0").await; })* }
        mod tcp { $(#[tokio::test] async fn $case() { super::$case("127.0.0.1:0").await; })* }
    };
}

over_both!(
    certificates_are_seen_and_ends_are_told,
    adverts_reach_whoever_is_not_connected_to_their_origin,
    exchanges_are_answered_or_fail,
    a_stream_carries_frames_both_ways,
    a_stream_of_a_blob_carries_chunks_and_an_end,
    a_burst_of_streams_loses_none,
    a_dead_address_and_the_own_one_are_told_apart,
    a_killed_peer_is_noticed,
);

async fn certificates_are_seen_and_ends_are_told(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    let address = b.address.clone();
    assert!(a.handle.dial(Some(b.node), vec![address.clone()]));
    let (b_node, a_node) = (b.node, a.node);
    let seen = |e| match e {
        NetEvent::Connected { node, certificate, dialled, .. } => {
            Some((node, certificate.name.to_string(), dialled))
        }
        _ => None,
    };
    let (at_a, at_b) = tokio::join!(a.wait(seen), b.wait(seen));
    assert_eq!(at_a, (b_node, "node-3".to_owned(), Some(address)));
    assert_eq!(at_b, (a_node, "node-2".to_owned(), None));
    let sessions = a.handle.sessions().await.unwrap();
    assert_eq!(sessions.len(), 1);
    assert!(sessions[0].outbound && sessions[0].bytes_in > 0 && sessions[0].bytes_out > 0);
    assert_eq!(a.metrics.net.sessions.with_label_values(&[SUITE]).get(), 1);
    b.stop().await;
    let last = a.wait(|e| match e {
        NetEvent::Disconnected { node, last, .. } => Some((node, last)),
        _ => None,
    });
    assert_eq!(last.await, (b_node, true));
    assert!(a.handle.sessions().await.unwrap().is_empty());
}

async fn adverts_reach_whoever_is_not_connected_to_their_origin(listen: &str) {
    let (mut a, mut b, mut c) = (peer(2, listen).await, peer(3, listen).await, peer(4, listen).await);
    a.connect(&mut b).await;
    b.connect(&mut c).await;
    let mut said = 0u32;
    let mut again = tokio::time::interval(Duration::from_millis(100));
    let heard = async {
        loop {
            tokio::select! {
                // The mesh of gossip forms a moment after the session.
                _ = again.tick() => {
                    said += 1;
                    a.handle.publish(said.to_be_bytes().to_vec());
                }
                event = c.events.recv() => if let Some(NetEvent::Advert { origin, bytes }) = event {
                    break (origin, bytes.len());
                },
                // Somebody has to take them, or the driver waits.
                Some(_) = a.events.recv() => {}
                Some(_) = b.events.recv() => {}
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, heard).await.unwrap(), (a.node, 4));
}

async fn exchanges_are_answered_or_fail(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    a.connect(&mut b).await;
    let (handle, node, asker) = (a.handle.clone(), b.node, a.node);
    let answer = b.wait(|e| match e {
        NetEvent::Cards { request: CardsRequest::Cards(hashes), reply } => {
            reply.send(CardsReply::Cards(vec![vec![7; 60_000]; hashes.len()])).unwrap();
            Some(())
        }
        _ => None,
    });
    let question = handle.cards(node, CardsRequest::Cards(vec![CardHash::from_bytes([1; 32]); 3]));
    assert_eq!(tokio::join!(question, answer).0, Ok(CardsReply::Cards(vec![vec![7; 60_000]; 3])));
    let answer = b.wait(|e| match e {
        NetEvent::Sync { node, bytes, reply } => {
            assert_eq!((node, bytes), (asker, vec![1, 2, 3]));
            reply.send(vec![4]).unwrap();
            Some(())
        }
        _ => None,
    });
    assert_eq!(tokio::join!(handle.sync(node, vec![1, 2, 3]), answer).0, Ok(vec![4]));
    // Nobody answers: an error soon, and nothing stays behind.
    let nobody = b.wait(|e| matches!(e, NetEvent::Cards { .. }).then_some(()));
    let question = handle.cards(node, CardsRequest::Manifest(ToolSetHash::from_bytes([1; 32])));
    let (answer, ()) = tokio::join!(tokio::time::timeout(PATIENCE, question), nobody);
    assert!(matches!(answer.unwrap(), Err(NetError::Exchange(_))));
    // Nobody is there.
    let stranger = NodeId::from_bytes([0x5a; 32]);
    assert!(tokio::time::timeout(PATIENCE, handle.sync(stranger, vec![])).await.unwrap().is_err());
}

fn question(n: usize) -> StatusQuery {
    StatusQuery {
        key: StepKey { run: RunId::run([1; 8]), step: StepId::parse(&format!("s{n:03}")).unwrap() },
    }
}

/// Answers every stream's first message.
async fn a_stream_of_a_blob_carries_chunks_and_an_end(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    a.connect(&mut b).await;
    let (asker, hash) = (a.node, BlobHash::from_bytes([7; 32]));
    let mut stream = a.handle.open_blob(b.node).await.unwrap();
    let send = async {
        for n in 0..40u8 {
            stream.send(BlobMessage::Chunk(vec![n; 64 * 1024]), PATIENCE).await.unwrap();
        }
        stream.send(End { hash }, PATIENCE).await.unwrap();
        assert_eq!(stream.receive(PATIENCE).await.unwrap(), Stored { hash }.into());
    };
    let take = async {
        let (node, mut stream) = b.blobs.accept().await.unwrap();
        assert_eq!(node, asker);
        for n in 0..40u8 {
            assert_eq!(stream.receive(PATIENCE).await.unwrap(), BlobMessage::Chunk(vec![n; 64 * 1024]));
        }
        assert_eq!(stream.receive(PATIENCE).await.unwrap(), End { hash }.into());
        stream.send(Stored { hash }, PATIENCE).await.unwrap();
        stream.close().await;
    };
    tokio::join!(send, take);
}

async fn answer_all(steps: &mut StepListener) {
    let mut open = JoinSet::new();
    while let Some((_, stream)) = steps.accept().await {
        open.spawn(async move {
            let (mut reader, mut writer) = stream.split();
            if let Ok(Message::Status(_)) = reader.receive().await {
                writer.send(StatusReply::Interrupted).await.ok();
                writer.close().await;
            }
        });
    }
}

async fn ask(handle: NetHandle, node: NodeId, n: usize) -> Result<Message, String> {
    let (mut reader, mut writer) = handle.open_step(node).await.map_err(|e| e.to_string())?.split();
    writer.send(question(n)).await.map_err(|e| e.to_string())?;
    reader.receive().await.map_err(|e| e.to_string())
}

async fn a_stream_carries_frames_both_ways(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    a.connect(&mut b).await;
    let answered = tokio::select! {
        answered = ask(a.handle.clone(), b.node, 1) => answered,
        () = answer_all(&mut b.steps) => unreachable!("the driver runs"),
    };
    assert_eq!(answered, Ok(StatusReply::Interrupted.into()));
    assert!(ask(a.handle.clone(), NodeId::from_bytes([0x5a; 32]), 1).await.is_err(), "nobody is there");
}

async fn a_burst_of_streams_loses_none(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    a.connect(&mut b).await;
    let mut asked = JoinSet::new();
    for n in 0..200 {
        asked.spawn(ask(a.handle.clone(), b.node, n));
    }
    let all = async {
        let mut failed = BTreeSet::new();
        while let Some(answer) = asked.join_next().await {
            if let Err(error) = answer.unwrap() {
                failed.insert(error);
            }
        }
        failed
    };
    let failed = tokio::select! {
        failed = tokio::time::timeout(PATIENCE, all) => failed.unwrap(),
        () = answer_all(&mut b.steps) => unreachable!("the driver runs"),
    };
    assert!(failed.is_empty(), "{failed:?}");
}

async fn a_dead_address_and_the_own_one_are_told_apart(listen: &str) {
    let mut a = peer(2, listen).await;
    let gone = {
        let b = peer(3, listen).await;
        let address = b.address.clone();
        b.stop().await;
        address
    };
    let node = NodeId::from_bytes([0x5a; 32]);
    assert!(a.handle.dial(Some(node), vec![gone]));
    let failed = |e| match e {
        NetEvent::DialFailed { node, reason, .. } => Some((node, reason)),
        _ => None,
    };
    let (who, reason) = a.wait(failed).await;
    assert_eq!(who, Some(node));
    assert!(!reason.is_empty());
    let own = a.address.clone();
    assert!(a.handle.dial(None, vec![own]));
    let (_, reason) = a.wait(failed).await;
    assert!(reason.contains("this node's own"), "{reason}");
}

async fn a_killed_peer_is_noticed(listen: &str) {
    let (mut a, mut b) = (peer(2, listen).await, peer(3, listen).await);
    a.connect(&mut b).await;
    let node = b.node;
    b.kill();
    a.wait(|e| match e {
        NetEvent::Disconnected { node: gone, last: true, .. } => (gone == node).then_some(()),
        _ => None,
    })
    .await;
    assert!(ask(a.handle.clone(), node, 1).await.is_err());
}
