//! Membership messages between two drivers.
use futures::AsyncWriteExt;
use octomesh_protocol::swim::Message;

use super::{PATIENCE, peer};
use crate::net::{behaviour::SWIM_PROTOCOL, handle::peer_id};

#[tokio::test]
async fn messages_go_both_ways_and_survive_a_new_session() {
    let (mut a, mut b) = (peer(11, "memory:0").await, peer(12, "memory:0").await);
    a.connect(&mut b).await;
    for n in 0..3u8 {
        assert!(a.swim.send(b.node, Message::Packet(vec![n])));
        assert!(b.swim.send(a.node, Message::Ask(Some(a.node))));
        a.swim.flush().await;
        b.swim.flush().await;
        let both = async { tokio::join!(b.swim.receive(), a.swim.receive()) };
        let (there, here) = tokio::time::timeout(PATIENCE, both).await.unwrap();
        assert_eq!(there, (a.node, Message::Packet(vec![n])));
        assert_eq!(here, (b.node, Message::Ask(Some(a.node))));
    }
    let counted = a.metrics.net.gossip_bytes.with_label_values(&["out", "swim"]).get();
    assert_eq!(counted, 3 * 7, "frames with their lengths");
    // The other one is another process now; the old stream is of no use.
    b.kill();
    let mut again = peer(12, "memory:0").await;
    let gone = |e| matches!(e, crate::net::NetEvent::Disconnected { last: true, .. }).then_some(());
    a.wait(gone).await;
    a.connect(&mut again).await;
    let arrives = async {
        loop {
            assert!(a.swim.send(again.node, Message::Packet(vec![9])));
            let soon = tokio::time::timeout(std::time::Duration::from_millis(300), again.swim.receive());
            if let Ok(received) = soon.await {
                return received;
            }
        }
    };
    let received = tokio::time::timeout(PATIENCE, arrives).await.unwrap();
    assert_eq!(received, (a.node, Message::Packet(vec![9])));
    a.stop().await;
    again.stop().await;
}

#[tokio::test]
async fn to_somebody_who_is_not_connected_nothing_goes_and_nobody_waits() {
    let (a, b) = (peer(13, "memory:0").await, peer(14, "memory:0").await);
    for _ in 0..20 {
        assert!(a.swim.send(b.node, Message::Packet(vec![1])));
    }
    a.swim.flush().await;
    let dropped = || a.metrics.dropped.with_label_values(&["swim"]).get();
    let all = async {
        while dropped() < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    a.stop().await;
    b.stop().await;
}

/// The end of a connection may never be told of, and with it that of its streams: they do not keep a new one out.
#[tokio::test]
async fn streams_of_dead_connections_keep_no_new_one_out() {
    let (mut a, mut b) = (peer(1, "memory:0").await, peer(2, "memory:0").await);
    a.connect(&mut b).await;
    let mut left_behind = Vec::new();
    for n in 0..8 {
        let to = peer_id(b.node).unwrap();
        let mut stream = a.handle.control.open(to, SWIM_PROTOCOL).await.unwrap();
        stream.write_all(&Message::Packet(vec![n]).to_frame().unwrap()).await.unwrap();
        stream.flush().await.unwrap();
        let heard =
            tokio::time::timeout(PATIENCE, b.swim.receive()).await.expect("the newest stream is heard");
        assert_eq!(heard, (a.node, Message::Packet(vec![n])));
        left_behind.push(stream);
    }
}
