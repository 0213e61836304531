//! Two members that can't dial each other, and a third one between them.
use std::{
    io,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
};

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, StreamExt as _};
use libp2p::{
    Swarm, Transport as _,
    core::transport::{MemoryTransport, OrTransport},
    relay,
    swarm::{NetworkBehaviour, SwarmEvent, dial_opts::DialOpts},
    yamux,
};
use octomesh_protocol::{session, step::Have};

use super::*;
use crate::net::{
    behaviour::STEP_PROTOCOL,
    circuit,
    handle::peer_id,
    outbound::{Open, Outbound},
    secure::tests::revoked::{changing, revoke},
};

/// `inner` waits for circuits at `relay`, which has taken it in.
async fn reserved(inner: &Peer, relay: &Peer) {
    let accepted = || relay.metrics.net.relay_requests.with_label_values(&["reservation", "accepted"]).get();
    let before = accepted();
    assert!(inner.handle.reserve(vec![relay.node]));
    let taken = async {
        while accepted() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, taken).await.expect("the reservation is accepted");
}

/// A connection of two over `relay`, by circuit.
async fn over(a: &mut Peer, b: &mut Peer, relay: &Peer) {
    assert!(a.handle.dial_over(b.node, relay.node));
    let (at_a, at_b, between) = (b.node, a.node, Some(relay.node));
    let open = |who: NodeId| {
        move |e| match e {
            NetEvent::Connected { node, relay, .. } if node == who => Some(relay),
            NetEvent::CircuitFailed { node, reason, .. } if node == who => panic!("{reason}"),
            _ => None,
        }
    };
    let (here, there) = tokio::join!(a.wait(open(at_a)), b.wait(open(at_b)));
    assert_eq!((here, there), (between, between));
}

/// `a` and `b` each have a session with `c`, and `b` waits for circuits there.
async fn three(listen: &str) -> (Peer, Peer, Peer) {
    let (mut a, mut b, mut c) = (peer(11, listen).await, peer(12, listen).await, peer(13, listen).await);
    a.connect(&mut c).await;
    b.connect(&mut c).await;
    reserved(&b, &c).await;
    (a, b, c)
}

/// A step message from `a` to `b`, on the stream that is given.
async fn exchange(a: &mut super::super::FrameWriter, b: &mut super::super::FrameReader, bytes: u64) {
    a.send(Have { bytes }).await.unwrap();
    let got = tokio::time::timeout(PATIENCE, b.receive()).await.unwrap().unwrap();
    assert_eq!(got, Have { bytes }.into());
}

#[tokio::test]
async fn a_session_over_a_third_member() {
    for listen in ["memory:0", "127.0.0.1:0"] {
        let (mut a, mut b, c) = three(listen).await;
        over(&mut a, &mut b, &c).await;
        let stream = a.handle.open_step(b.node).await.unwrap();
        let (_, mut writer) = stream.split();
        let (from, there) = b.steps.accept().await.unwrap();
        assert_eq!(from, a.node);
        exchange(&mut writer, &mut there.split().0, 7).await;
        let sessions = a.handle.sessions().await.unwrap();
        let relayed = sessions.iter().find(|s| s.node == b.node).unwrap();
        assert_eq!((relayed.relay, &relayed.address), (Some(c.node), &None));
        assert_eq!(relayed.certificate_name.as_str(), "node-12", "its own certificate, not the relay's");
        assert!(sessions.iter().any(|s| s.node == c.node && s.relay.is_none()));
        let rtt = |e| match e {
            NetEvent::Rtt { node, rtt } => Some((node, rtt)),
            _ => None,
        };
        let b_node = b.node;
        let measured = a.wait(|e| rtt(e).filter(|(node, _)| *node == b_node)).await;
        assert!(measured.1 > Duration::ZERO);
        assert_eq!(a.metrics.net.relayed_sessions.get(), 1);
        assert_eq!(c.metrics.net.relay_circuits.get(), 1);
        // The relay goes: so does the session, and both are told.
        let ended = |who: NodeId| {
            move |e| match e {
                NetEvent::Disconnected { node, last: true, .. } if node == who => Some(()),
                _ => None,
            }
        };
        let (at_a, at_b) = (b.node, a.node);
        c.stop().await;
        tokio::join!(a.wait(ended(at_a)), b.wait(ended(at_b)));
        assert_eq!(a.metrics.net.relayed_sessions.get(), 0);
        for peer in [a, b] {
            peer.stop().await;
        }
    }
}

/// All that goes in and out of a connection, below its session.
struct Tap<T> {
    io: T,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Tap<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_read(cx, out);
        if let Poll::Ready(Ok(read)) = result {
            self.heard.lock().unwrap().extend_from_slice(&out[..read]);
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tap<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = result {
            self.heard.lock().unwrap().extend_from_slice(&bytes[..written]);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_close(cx)
    }
}

#[derive(NetworkBehaviour)]
struct Bare {
    circuits: relay::client::Behaviour,
    step: Outbound,
}

/// Everything that a member puts on a circuit goes through the hands of the relay. Here it is caught where the relay has it: below the
/// session of the two, and above those of each with the relay.
#[tokio::test]
async fn what_a_relay_sees() {
    let (mut b, mut c) = (peer(12, "memory:0").await, peer(13, "memory:0").await);
    b.connect(&mut c).await;
    reserved(&b, &c).await;
    let member = member(1, 1, 11, NOW, None);
    let local = peer_id(member.node()).unwrap();
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    let (over, circuits) = relay::client::new(local);
    let heard_by_relay = Arc::clone(&heard);
    let over = over.map(move |io, _| Tap { io, heard: Arc::clone(&heard_by_relay) });
    let transport = OrTransport::new(over, MemoryTransport::default())
        .upgrade(libp2p::core::upgrade::Version::V1)
        .authenticate(member.security.clone())
        .multiplex(yamux::Config::default())
        .boxed();
    let step = Outbound::new(&[STEP_PROTOCOL], Open::default());
    let opener = step.opener();
    let config = libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(PATIENCE);
    let mut swarm = Swarm::new(transport, Bare { circuits, step }, local, config);
    let at = crate::net::address::to_multiaddr(&c.address).unwrap();
    let (relay, to) = (peer_id(c.node).unwrap(), peer_id(b.node).unwrap());
    swarm.dial(DialOpts::peer_id(relay).addresses(vec![at.clone()]).build()).unwrap();
    while swarm.connected_peers().next().is_none() {
        swarm.select_next_some().await;
    }
    swarm.dial(circuit::address(&at, relay, Some(to))).unwrap();
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, .. } if peer_id == to => break,
            SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error:?}"),
            _ => {}
        }
    }
    let mut driven = JoinSet::new();
    driven.spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    let secret = b"nobody but the two of them reads this; ".repeat(500);
    let mut stream = opener.open(to, STEP_PROTOCOL).await.unwrap();
    stream.write_all(&secret).await.unwrap();
    stream.flush().await.unwrap();
    let there = async {
        let (_, mut stream) = b.steps.0.recv().await.unwrap();
        let mut got = vec![0; secret.len()];
        stream.read_exact(&mut got).await.unwrap();
        got
    };
    assert_eq!(tokio::time::timeout(PATIENCE, there).await.unwrap(), secret);
    let heard = heard.lock().unwrap().clone();
    let contains = |text: &[u8]| heard.windows(text.len()).any(|window| window == text);
    assert!(heard.len() > secret.len(), "all of it went there");
    assert!(contains(session::PROTOCOL.as_bytes()), "the two negotiate a session of their own");
    assert!(
        !contains(b"nobody but the two of them") && !contains(b"/octomesh/step/1") && !contains(b"node-12")
    );
    driven.abort_all();
}

/// Another mesh's member gets no session, and so nothing to reserve with or to ask over.
#[tokio::test]
async fn strangers_neither_reserve_nor_ask() {
    let mut c = peer(13, "memory:0").await;
    let mut stranger = peer_of(member(2, 2, 14, NOW, None), "memory:0").await;
    assert!(stranger.handle.dial(Some(c.node), vec![c.address.clone()]));
    stranger.wait(|e| matches!(e, NetEvent::DialFailed { .. }).then_some(())).await;
    let (other, relay) = (NodeId::from_bytes([9; 32]), c.node);
    assert!(stranger.handle.reserve(vec![relay]));
    assert!(stranger.handle.dial_over(other, relay));
    let said = |e| match e {
        NetEvent::CircuitFailed { reason, .. } => Some(reason),
        _ => None,
    };
    assert_eq!(stranger.wait(said).await, "no session with it");
    let mut member = peer(15, "memory:0").await;
    member.connect(&mut c).await;
    for kind in ["reservation", "circuit"] {
        for result in ["accepted", "denied"] {
            assert_eq!(c.metrics.net.relay_requests.with_label_values(&[kind, result]).get(), 0);
        }
    }
}

/// A relay decides nothing: who is refused at the door is refused over a circuit.
#[tokio::test]
async fn a_circuit_brings_nobody_in_who_was_revoked() {
    let (knows, trust) = changing(12);
    let (mut a, mut b) = (peer(11, "memory:0").await, peer_of(knows, "memory:0").await);
    let mut c = peer(13, "memory:0").await;
    a.connect(&mut c).await;
    b.connect(&mut c).await;
    reserved(&b, &c).await;
    revoke(&trust, a.node);
    assert!(a.handle.dial_over(b.node, c.node));
    let target = b.node;
    let refused = a.wait(|e| match e {
        NetEvent::CircuitFailed { node, revoked, .. } => Some((node, revoked)),
        NetEvent::Disconnected { node, revoked, .. } => Some((node, revoked)),
        _ => None,
    });
    assert_eq!(refused.await, (target, true));
    assert!(b.handle.sessions().await.unwrap().iter().all(|s| s.node == c.node));
    // One whose session lasts is out in the same way.
    let mut d = peer(14, "memory:0").await;
    d.connect(&mut c).await;
    over(&mut d, &mut b, &c).await;
    revoke(&trust, d.node);
    let gone = d.node;
    b.wait(|e| matches!(e, NetEvent::Disconnected { node, last: true, .. } if node == gone).then_some(()))
        .await;
}

#[tokio::test]
async fn a_member_that_carries_no_circuits_says_so() {
    let (mut a, mut b) = (peer(11, "memory:0").await, peer(12, "memory:0").await);
    let mut c = peer_that(member(1, 1, 13, NOW, None), "memory:0", false).await;
    a.connect(&mut c).await;
    b.connect(&mut c).await;
    let relay = c.node;
    assert!(b.handle.reserve(vec![relay]));
    b.wait(|e| matches!(e, NetEvent::NotReserved { relay: r, .. } if r == relay).then_some(())).await;
    let said = |e| match e {
        NetEvent::CircuitFailed { reason, .. } => Some(reason),
        _ => None,
    };
    assert!(a.handle.dial_over(b.node, relay));
    let reason = a.wait(said).await;
    assert!(reason.contains("carries no circuits"), "{reason}");
}

/// One member can ask for so many circuits, not for more; others still can.
#[tokio::test]
async fn who_asks_too_often_is_told_so() {
    let (mut a, mut b, c) = three("memory:0").await;
    let said = |e| match e {
        NetEvent::CircuitFailed { reason, .. } => Some(reason),
        _ => None,
    };
    let mut full = 0;
    for n in 0..80_u8 {
        let nobody = octomesh_protocol::trust::NodeIdentity::from_seed([n + 100; 64]).node_id();
        assert!(a.handle.dial_over(nobody, c.node));
        let reason = a.wait(said).await;
        let busy = reason.contains("as many circuits as it can");
        assert!(busy || reason.contains("not there"), "{reason}");
        full += usize::from(busy);
    }
    assert!((10..=16).contains(&full), "{full} of 80 were one too many");
    let mut d = peer(14, "memory:0").await;
    let mut c = c;
    d.connect(&mut c).await;
    over(&mut d, &mut b, &c).await;
}

#[tokio::test]
async fn a_direct_session_takes_the_place_of_one_over_a_relay() {
    let (mut a, mut b, c) = three("127.0.0.1:0").await;
    over(&mut a, &mut b, &c).await;
    let old = a.handle.open_step(b.node).await.unwrap();
    let (_, mut old) = old.split();
    let (_, there) = b.steps.accept().await.unwrap();
    let (mut there, _keep) = there.split();
    exchange(&mut old, &mut there, 1).await;
    // A firewall was opened.
    assert!(a.handle.dial(Some(b.node), vec![b.address.clone()]));
    let direct = |who: NodeId| {
        move |e| match e {
            NetEvent::Connected { node, relay: None, address: Some(_), .. } if node == who => Some(()),
            _ => None,
        }
    };
    let (at_a, at_b) = (b.node, a.node);
    tokio::join!(a.wait(direct(at_a)), b.wait(direct(at_b)));
    // The stream that is there goes on; new ones take the better way, each time.
    let relayed_bytes = |sessions: &[crate::net::SessionReport]| {
        sessions.iter().find(|s| s.node == at_a && s.relay.is_some()).map(|s| s.bytes_out)
    };
    exchange(&mut old, &mut there, 2).await;
    let before = relayed_bytes(&a.handle.sessions().await.unwrap()).expect("it is needed");
    for _ in 0..8 {
        let (_, mut writer) = a.handle.open_step(at_a).await.unwrap().split();
        let (_, stream) = b.steps.accept().await.unwrap();
        let (mut reader, _keep) = stream.split();
        for n in 0..200 {
            exchange(&mut writer, &mut reader, n).await;
        }
    }
    let after = relayed_bytes(&a.handle.sessions().await.unwrap()).expect("it is still needed");
    assert!(after - before < 8 * 200, "{before} -> {after}: pings and the like, none of the streams");
    exchange(&mut old, &mut there, 3).await;
    drop((old, there, _keep));
    let only = |sessions: Vec<crate::net::SessionReport>, who: NodeId| {
        let with: Vec<_> = sessions.into_iter().filter(|s| s.node == who).collect();
        with.len() == 1 && with[0].relay.is_none()
    };
    let gone = async {
        while !only(a.handle.sessions().await.unwrap(), at_a)
            || !only(b.handle.sessions().await.unwrap(), at_b)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("what nobody needs is closed");
}

#[tokio::test]
async fn another_relay_takes_over() {
    let (mut a, mut b, c) = three("memory:0").await;
    let mut d = peer(14, "memory:0").await;
    a.connect(&mut d).await;
    b.connect(&mut d).await;
    reserved(&b, &d).await;
    over(&mut a, &mut b, &c).await;
    let (at_a, relay) = (b.node, c.node);
    c.kill();
    a.wait(|e| matches!(e, NetEvent::Disconnected { node, last: true, .. } if node == at_a).then_some(()))
        .await;
    let said = |e| match e {
        NetEvent::CircuitFailed { reason, .. } => Some(reason),
        _ => None,
    };
    assert!(a.handle.dial_over(at_a, relay));
    assert_eq!(a.wait(said).await, "no session with it");
    over(&mut a, &mut b, &d).await;
}
