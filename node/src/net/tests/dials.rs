//! PROTOCOL 5.7: two nodes that dial each other at the same moment, again and again.
use super::*;

/// What a node sees of the other until it asks. `listens`: the only address at which the other can have been dialled.
fn drain(peer: &mut Peer, listens: &str) {
    while let Ok(event) = peer.events.try_recv() {
        match event {
            NetEvent::Sync { reply, .. } => {
                reply.send(vec![1]).ok();
            }
            NetEvent::Connected { dialled: Some(dialled), .. } => assert_eq!(dialled, listens),
            _ => {}
        }
    }
}

/// Whether `a` gets an answer of `b`.
async fn answered(a: &mut Peer, b: &mut Peer) -> bool {
    let question = a.handle.sync(b.node, vec![7]);
    let mut answer = std::pin::pin!(b.wait(|e| match e {
        NetEvent::Sync { reply, .. } => reply.send(vec![1]).ok(),
        _ => None,
    }));
    tokio::select! {
        result = question => result.is_ok(),
        () = async { (&mut answer).await; std::future::pending().await } => unreachable!(),
    }
}

#[tokio::test]
async fn simultaneous_dials() {
    for round in 0..20 {
        let (mut a, mut b) = (peer(2, "127.0.0.1:0").await, peer(3, "127.0.0.1:0").await);
        assert!(a.handle.dial(Some(b.node), vec![b.address.clone()]));
        assert!(b.handle.dial(Some(a.node), vec![a.address.clone()]));
        let (at_a, at_b) = (b.node, a.node);
        let (a_listens, b_listens) = (a.address.clone(), b.address.clone());
        let first = |who, listens: String| {
            move |e| match e {
                NetEvent::Connected { node, dialled, .. } if node == who => {
                    assert!(dialled.is_none_or(|d| d == listens), "round {round}");
                    Some(())
                }
                _ => None,
            }
        };
        tokio::join!(a.wait(first(at_a, b_listens.clone())), b.wait(first(at_b, a_listens.clone())));
        // Both have a session now; a second one may still come or go. Neither may be left without one.
        for _ in 0..20 {
            drain(&mut a, &b_listens);
            drain(&mut b, &a_listens);
            let open = (a.handle.sessions().await.unwrap().len(), b.handle.sessions().await.unwrap().len());
            assert!(open.0 >= 1 && open.1 >= 1, "round {round}: {open:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(answered(&mut a, &mut b).await && answered(&mut b, &mut a).await, "round {round}");
        let open = (a.handle.sessions().await.unwrap().len(), b.handle.sessions().await.unwrap().len());
        assert!((1..=2).contains(&open.0) && open.0 == open.1, "round {round}: {open:?}");
    }
}

/// A second session beside one that the other node dialled: its dial reached the address, the first one's far end was never dialled.
#[tokio::test]
async fn a_port_that_was_dialled_from_is_no_address_to_dial() {
    let (mut a, mut b) = (peer(23, "127.0.0.1:0").await, peer(24, "127.0.0.1:0").await);
    b.connect(&mut a).await;
    // Without a name, as configured peers are dialled: that the node is connected already shows only when it answers.
    assert!(a.handle.dial(None, vec![b.address.clone()]));
    let at = b.node;
    let dialled = a.wait(|e| match e {
        NetEvent::Connected { node, dialled, .. } if node == at => Some(dialled),
        _ => None,
    });
    assert_eq!(dialled.await, Some(b.address.clone()));
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_told_apart() {
    let mut a = peer(21, "127.0.0.1:0").await;
    let b = peer(22, "127.0.0.1:0").await;
    let (node, address) = (b.node, b.address.clone());
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = silent.local_addr().unwrap().to_string();
    b.stop().await;
    let how = |e| match e {
        NetEvent::DialFailed { refused, .. } => Some(refused),
        _ => None,
    };
    assert!(a.handle.dial(Some(node), vec![address]));
    assert!(a.wait(how).await, "its process is gone");
    // Somebody listens there, and hangs up.
    assert!(a.handle.dial(Some(node), vec![other]));
    drop(silent.accept().await.unwrap());
    assert!(!a.wait(how).await);
    a.stop().await;
}
