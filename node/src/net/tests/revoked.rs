//! A driver that hears of a revocation while sessions are open.
use octomesh_protocol::{sync::SyncRequest, trust::SignedRevocation};
use tokio::time::Instant;

use super::{refused::wire, *};
use crate::net::secure::tests::revoked::{changing, revoke};

/// PROTOCOL 2: sessions close within this time.
const LIMIT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_revoked_node_is_told_and_its_sessions_end() {
    let (member, trust) = changing(3);
    let (mut knows, mut revoked) = (peer_of(member, "127.0.0.1:0").await, peer(2, "127.0.0.1:0").await);
    let mut other = peer(4, "127.0.0.1:0").await;
    revoked.connect(&mut knows).await;
    other.connect(&mut knows).await;
    let gone = revoked.node;
    revoke(&trust, gone);
    let began = Instant::now();
    // The signed word first, so that its owner learns it from more than hearsay.
    let proof = revoked.wait(|e| match e {
        NetEvent::Sync { bytes, reply, .. } => {
            drop(reply.send(vec![]));
            Some(bytes)
        }
        _ => None,
    });
    let Ok(SyncRequest::Revoked(bytes)) = SyncRequest::from_bytes(&proof.await) else { panic!("not told") };
    let signed = SignedRevocation::from_bytes(&bytes).unwrap();
    assert_eq!(signed.verify(trust.borrow().mesh).unwrap().node, gone);
    let ended = |e| match e {
        NetEvent::Disconnected { node, last: true, revoked, .. } => Some((node, revoked)),
        _ => None,
    };
    assert_eq!(revoked.wait(ended).await, (knows.node, true), "and why, in the close record");
    assert_eq!(knows.wait(ended).await, (gone, false));
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    // Nobody else is disturbed, and it does not come back, whoever dials.
    assert_eq!(knows.handle.sessions().await.unwrap().len(), 1);
    revoked.handle.dial(Some(knows.node), vec![knows.address.clone()]);
    let refused = revoked.wait(|e| match e {
        NetEvent::DialFailed { revoked, .. } | NetEvent::Disconnected { revoked, .. } => Some(revoked),
        _ => None,
    });
    assert!(refused.await);
    knows.handle.dial(Some(gone), vec![revoked.address.clone()]);
    knows.wait(|e| matches!(e, NetEvent::DialFailed { .. }).then_some(())).await;
    for peer in [knows, revoked, other] {
        peer.stop().await;
    }
}

/// One that reads nothing any more is cut: its last session is over in time, too.
#[tokio::test]
async fn a_revoked_node_that_does_not_listen_is_cut() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let (member, trust) = changing(3);
            let (mut knows, revoked) = (peer_of(member, "127.0.0.1:0").await, peer(2, "127.0.0.1:0").await);
            let (address, cut) = wire(knows.address.clone()).await;
            assert!(revoked.handle.dial(Some(knows.node), vec![address]));
            let gone = revoked.node;
            knows.wait(|e| matches!(e, NetEvent::Connected { node, .. } if node == gone).then_some(())).await;
            // Nothing goes through any more, in either direction.
            cut.send(()).unwrap();
            let began = Instant::now();
            revoke(&trust, gone);
            knows
                .wait(|e| matches!(e, NetEvent::Disconnected { node, .. } if node == gone).then_some(()))
                .await;
            assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
            knows.stop().await;
        })
        .await;
}
