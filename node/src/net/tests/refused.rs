//! Peers that are refused, as their drivers tell it: one test for each attack, over real connections.
use octomesh_protocol::session;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use super::*;
use crate::net::{RefusalReport, secure::Cause};

fn the_one(list: &[RefusalReport]) -> RefusalReport {
    assert_eq!(list.len(), 1, "{list:?}");
    list[0].clone()
}

async fn dial_fails(from: &mut Peer, to: &str, node: NodeId) -> String {
    assert!(from.handle.dial(Some(node), vec![to.to_owned()]));
    from.wait(|e| match e {
        NetEvent::DialFailed { reason, .. } => Some(reason),
        NetEvent::Connected { .. } => panic!("a session"),
        _ => None,
    })
    .await
}

async fn is_refused(at: &mut Peer) -> String {
    at.wait(|e| match e {
        NetEvent::Refused { reason, .. } => Some(reason),
        _ => None,
    })
    .await
}

/// Reads a peer's events while something else happens.
async fn meanwhile<T>(peer: &mut Peer, what: impl Future<Output = T>) -> T {
    tokio::select! {
        done = what => done,
        never = peer.wait(|_| None::<T>) => never,
    }
}

/// A node whose membership answers: whoever asks whether it is still there hears of it.
async fn answers<T>(peer: &mut Peer) -> T {
    peer.wait(|e| {
        if let NetEvent::Cards { reply, .. } = e {
            reply.send(octomesh_protocol::advert::CardsReply::Unknown).ok();
        }
        None::<T>
    })
    .await
}

async fn a_cloned_identity(listen: &str) {
    let (mut first, mut friend) = (peer(2, listen).await, peer(3, listen).await);
    let mut copy = peer(2, listen).await;
    first.connect(&mut friend).await;
    // Dialling, and dialled.
    let (address, node) = (friend.address.clone(), friend.node);
    let fails = dial_fails(&mut copy, &address, node);
    let refuses = is_refused(&mut friend);
    let (at_copy, at_friend) = tokio::select! {
        both = async { tokio::join!(fails, refuses) } => both,
        never = answers(&mut first) => never,
    };
    for text in [&at_copy, &at_friend] {
        assert!(text.contains("identity_in_use") && text.contains("node-2"), "{text}");
    }
    let told = the_one(&copy.handle.refusals());
    assert_eq!((told.cause, told.by_peer, told.outbound), (Cause::IdentityInUse, true, true));
    let told = the_one(&friend.handle.refusals());
    assert_eq!((told.cause, told.by_peer, told.outbound), (Cause::IdentityInUse, false, false));
    assert_eq!(friend.metrics.net.handshakes.with_label_values(&["in", "identity_in_use"]).get(), 1);

    assert!(friend.handle.dial(None, vec![copy.address.clone()]));
    let at_copy = tokio::select! {
        at_copy = meanwhile(&mut friend, is_refused(&mut copy)) => at_copy,
        never = answers(&mut first) => never,
    };
    assert!(at_copy.contains("identity_in_use"), "{at_copy}");

    // The first is there as before; and once it is gone, the copy is the node.
    let sessions = friend.handle.sessions().await.unwrap();
    assert_eq!(sessions.len(), 1);
    first.kill();
    copy.connect(&mut friend).await;
}

#[tokio::test]
async fn a_cloned_identity_over_memory() {
    a_cloned_identity("memory:0").await;
}

#[tokio::test]
async fn a_cloned_identity_over_tcp() {
    a_cloned_identity("127.0.0.1:0").await;
}

/// A wire that goes dead without a word, as after a power cut.
pub(super) async fn wire(to: String) -> (String, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (cut, dead) = oneshot::channel::<()>();
    tokio::task::spawn_local(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => {}
            _ = dead => {}
        }
        std::future::pending::<()>().await;
    });
    (address, cut)
}

#[tokio::test]
async fn a_silent_session_makes_way_for_its_node() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let (first, mut friend) = (peer(2, "127.0.0.1:0").await, peer(3, "127.0.0.1:0").await);
            let (address, cut) = wire(friend.address.clone()).await;
            assert!(first.handle.dial(Some(friend.node), vec![address]));
            let node = first.node;
            friend
                .wait(|e| matches!(e, NetEvent::Connected { node: n, .. } if n == node).then_some(()))
                .await;
            cut.send(()).unwrap();
            // The same node after its restart.
            let mut again = peer(2, "127.0.0.1:0").await;
            let began = tokio::time::Instant::now();
            again.connect(&mut friend).await;
            assert!(began.elapsed() > Duration::from_secs(1), "it was asked first");
            assert_eq!(friend.handle.sessions().await.unwrap().len(), 1);
            assert!(friend.handle.refusals().is_empty());
        })
        .await;
}

/// Two sessions between the same two processes are no copy.
#[tokio::test]
async fn both_may_dial_at_once() {
    let (mut a, mut b) = (peer(2, "127.0.0.1:0").await, peer(3, "127.0.0.1:0").await);
    a.connect(&mut b).await;
    assert!(b.handle.dial(None, vec![a.address.clone()]));
    let second = |e| matches!(e, NetEvent::Connected { .. }).then_some(());
    tokio::join!(a.wait(second), b.wait(second));
    assert!(a.handle.refusals().is_empty() && b.handle.refusals().is_empty());
}

#[tokio::test]
async fn an_expired_certificate() {
    let (mut a, mut late) = (peer(2, "127.0.0.1:0").await, peer_at(3, "127.0.0.1:0", NOW * 2).await);
    let (address, node) = (late.address.clone(), late.node);
    let (at_a, at_late) = tokio::join!(dial_fails(&mut a, &address, node), is_refused(&mut late));
    assert!(at_a.contains("the other node refuses this one: clock"), "{at_a}");
    assert!(at_late.contains("clocks differ"), "{at_late}");
    assert_eq!(the_one(&a.handle.refusals()).cause, Cause::Clock);
    assert_eq!(the_one(&late.handle.refusals()).cause, Cause::Clock);
    // Neither side ever told of a session.
    assert!(a.handle.sessions().await.unwrap().is_empty());
    assert_eq!(a.metrics.net.handshakes.with_label_values(&["out", "clock"]).get(), 1);
    assert_eq!(late.metrics.net.handshakes.with_label_values(&["in", "clock"]).get(), 1);
}

/// Stock libp2p in both of its ways to negotiate, and what can't be told apart from a port scan.
#[tokio::test]
async fn a_classical_only_peer() {
    use futures::{AsyncReadExt as _, AsyncWriteExt as _};
    use multistream_select::{Version, dialer_select_proto};
    use tokio_util::compat::TokioAsyncReadCompatExt as _;
    for version in [Version::V1, Version::V1Lazy] {
        let mut node = peer(3, "127.0.0.1:0").await;
        let socket = TcpStream::connect(&node.address).await.unwrap();
        let dial = async {
            if let Ok((_, mut io)) = dialer_select_proto(socket.compat(), ["/noise"], version).await {
                io.write_all(&[&[0, 32][..], &[7; 32]].concat()).await.ok();
                io.flush().await.ok();
                let _hung_up = io.read(&mut [0; 1]).await;
            }
        };
        let (reason, ()) = tokio::join!(is_refused(&mut node), dial);
        assert!(reason.contains("it offered /noise") && reason.contains(session::PROTOCOL), "{reason}");
        let told = the_one(&node.handle.refusals());
        assert_eq!((told.cause, told.address.as_deref()), (Cause::ClassicalOnly, Some("127.0.0.1")));
    }
    let mut node = peer(3, "127.0.0.1:0").await;
    drop(TcpStream::connect(&node.address).await.unwrap());
    let reason = is_refused(&mut node).await;
    assert!(reason.contains("left before it named a protocol"), "{reason}");
    assert_eq!(the_one(&node.handle.refusals()).cause, Cause::NoNegotiation);
}
