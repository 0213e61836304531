//! The door by itself, with its thread and real sockets: behind it is nobody but the test.
use std::net::SocketAddr;

use futures::future::poll_fn;
use libp2p::{
    PeerId,
    core::{
        Endpoint,
        muxing::StreamMuxerBox,
        transport::{Boxed, PortUse},
    },
};
use octomesh_protocol::session::{self, handshake::MESSAGE_1_BYTES};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use super::*;
use crate::{
    metrics::NodeMetrics,
    net::{
        secure::tests::{Member, member},
        tests::PATIENCE,
        transport::{self, TransportKind},
    },
};

const NOW: u64 = 1_800_000_000;

struct Door {
    transport: Boxed<(PeerId, StreamMuxerBox)>,
    address: Multiaddr,
    told: tokio::sync::mpsc::Receiver<NetEvent>,
    metrics: NetMetrics,
    tasks: Supervisor,
}

fn build(member: &Member, book: Book) -> (Boxed<(PeerId, StreamMuxerBox)>, Doorkeeper) {
    let door = (Gate::new(), book);
    let security = member.security.clone();
    let (transport, doorkeeper, _) =
        transport::build(TransportKind::Tcp, security, false, door, Handle::current(), member.peer_id());
    (transport, doorkeeper)
}

fn book() -> (Book, tokio::sync::mpsc::Receiver<NetEvent>) {
    let (events, told) = tokio::sync::mpsc::channel(64);
    let metrics = NodeMetrics::new("test").unwrap().net;
    (Book { metrics, refusals: Refusals::new().0, events }, told)
}

async fn next(transport: &mut Boxed<(PeerId, StreamMuxerBox)>) -> Incoming {
    poll_fn(|cx| Pin::new(&mut *transport).poll(cx)).await
}

type Incoming = TransportEvent<
    <Boxed<(PeerId, StreamMuxerBox)> as Transport>::ListenerUpgrade,
    <Boxed<(PeerId, StreamMuxerBox)> as Transport>::Error,
>;

async fn door(member: &Member) -> Door {
    let (book, told) = book();
    let metrics = book.metrics.clone();
    let (mut transport, doorkeeper) = build(member, book);
    let tasks = Supervisor::new();
    doorkeeper.start(&tasks).await.unwrap();
    transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let TransportEvent::NewAddress { listen_addr: address, .. } = next(&mut transport).await else {
        panic!("no address")
    };
    Door { transport, address, told, metrics, tasks }
}

impl Door {
    async fn connect(&self) -> TcpStream {
        let address: SocketAddr = address::from_multiaddr(&self.address).unwrap().parse().unwrap();
        TcpStream::connect(address).await.unwrap()
    }
}

/// A negotiation and a first message, of which only the length is right.
fn junk() -> Vec<u8> {
    let mut words = Vec::new();
    for line in ["/multistream/1.0.0", session::PROTOCOL] {
        words.push(u8::try_from(line.len() + 1).unwrap());
        words.extend_from_slice(line.as_bytes());
        words.push(b'\n');
    }
    words.extend_from_slice(&u16::try_from(MESSAGE_1_BYTES).unwrap().to_be_bytes());
    words.extend_from_slice(&[7; MESSAGE_1_BYTES]);
    words
}

#[tokio::test]
async fn the_swarm_does_not_see_whoever_says_something_wrong() {
    let mut door = door(&member(1, 1, 3, NOW, None)).await;
    let mut stranger = door.connect().await;
    stranger.write_all(&junk()).await.unwrap();
    let told = tokio::select! {
        told = timeout(PATIENCE, door.told.recv()) => told.unwrap().unwrap(),
        event = next(&mut door.transport) => panic!("{event:?}"),
    };
    assert!(matches!(told, NetEvent::Refused { .. }), "{told:?}");
}

#[tokio::test]
async fn an_address_has_eight_places_at_the_door() {
    let mut door = door(&member(1, 1, 3, NOW, None)).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(door.connect().await);
    }
    let turned_away = door.metrics.turned_away.with_label_values(&["address"]);
    let crowd = async {
        while turned_away.get() < 12 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        crowd = timeout(PATIENCE, crowd) => crowd.unwrap(),
        event = next(&mut door.transport) => panic!("{event:?}"),
    }
}

/// Its socket is not the door's any more: that its thread and its reactor are gone means nothing to it.
#[tokio::test]
async fn whoever_passed_lives_on_without_the_door() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let mut door = door(&b).await;
    let (mut dialler, _nobody_comes) = build(&a, book().0);
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = dialler.dial(door.address.clone(), options).unwrap();
    let accept = async {
        let TransportEvent::Incoming { upgrade, .. } = next(&mut door.transport).await else {
            panic!("nobody came")
        };
        door.tasks.stop_token().cancel();
        assert!(door.tasks.join(PATIENCE).await, "the thread ends");
        upgrade.await
    };
    let (near, far) = timeout(PATIENCE, async { tokio::join!(dial, accept) }).await.unwrap();
    near.unwrap();
    far.unwrap();
}

#[tokio::test]
async fn without_a_swarm_there_is_no_doorkeeper() {
    let Door { transport, tasks, .. } = door(&member(1, 1, 3, NOW, None)).await;
    drop(transport);
    assert!(tasks.join(PATIENCE).await);
    assert!(tasks.stop_token().is_cancelled(), "and the node learns of it");
}
