use std::pin::pin;

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use octomesh_protocol::trust::{CertificateRequest, Grants, MeshRoot, Role, certificate::LIFETIME_S};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::*;
use crate::app::clock::TestClock;

const NOW: u64 = 1_800_000_000;

/// A member of the mesh with root `root`, its clock at `unix`.
pub(in crate::net) struct Member {
    pub(in crate::net) security: Security,
    pub(in crate::net) identity: Arc<NodeIdentity>,
    pub(in crate::net) opened: mpsc::Receiver<SessionOpened>,
}

impl Member {
    pub(in crate::net) fn node(&self) -> NodeId {
        self.identity.node_id()
    }

    pub(in crate::net) fn peer_id(&self) -> PeerId {
        PeerId::from_bytes(&self.node().to_peer_id_bytes()).unwrap()
    }
}

pub(in crate::net) fn member(root: u8, secret: u8, seed: u8, unix: u64, join: Option<JoinService>) -> Member {
    build(root, secret, seed, unix, join, RecordLimits::default(), LIFETIME_S)
}

/// A member whose sessions rekey at `limits`.
fn rekeying(seed: u8, limits: RecordLimits) -> Member {
    build(1, 1, seed, NOW, None, limits, LIFETIME_S)
}

fn build(
    root: u8,
    secret: u8,
    seed: u8,
    unix: u64,
    join: Option<JoinService>,
    rekey_at: RecordLimits,
    lifetime_s: u64,
) -> Member {
    let identity = Arc::new(NodeIdentity::from_seed([seed; 64]));
    let request = CertificateRequest {
        keys: identity.public().clone(),
        name: NodeName::parse(&format!("node-{seed}")).unwrap(),
        role: Role::Admin,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s,
    };
    let chain = MeshRoot::from_seed([root; 64]).issue(request).unwrap();
    let (sessions, opened) = mpsc::channel(4);
    // Every process draws another static key, also one with an identity that another has.
    static PROCESSES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let process = PROCESSES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let clock = Arc::new(TestClock::new(unix, process << 8 | u64::from(seed)));
    let secret = MeshSecret::from_bytes([secret; 32]);
    let config = SecureConfig::new(identity.clone(), Trust::fixed(chain, &secret), clock, sessions)
        .unwrap()
        .rekey_at(rekey_at);
    Member { security: Security::new(Arc::new(config), join), identity, opened }
}

type Io = Compat<DuplexStream>;
type Upgraded = Result<(PeerId, SecureStream<Io>), SecureError>;

async fn connect(a: &Member, b: &Member) -> (Upgraded, Upgraded) {
    let (x, y) = tokio::io::duplex(1 << 16);
    let dial = a.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL);
    let listen = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL);
    tokio::join!(dial, listen)
}

async fn streams(a: &Member, b: &Member) -> (SecureStream<Io>, SecureStream<Io>) {
    let (dialled, accepted) = connect(a, b).await;
    (dialled.unwrap().1, accepted.unwrap().1)
}

#[tokio::test]
async fn both_sides_learn_who_is_there() {
    let (mut a, mut b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let (dialled, accepted) = connect(&a, &b).await;
    assert_eq!(dialled.unwrap().0, b.peer_id());
    assert_eq!(accepted.unwrap().0, a.peer_id());
    let (at_a, at_b) = (a.opened.try_recv().unwrap(), b.opened.try_recv().unwrap());
    assert_eq!((at_a.peer, at_a.outbound), (b.node(), true));
    assert_eq!((at_b.peer, at_b.outbound), (a.node(), false));
    assert_eq!(at_b.certificate.name.as_str(), "node-2");
}

#[tokio::test]
async fn another_mesh_secret_is_refused_and_explained() {
    let (mut a, mut b) = (member(1, 1, 2, NOW, None), member(1, 2, 3, NOW, None));
    let (x, y) = tokio::io::duplex(1 << 16);
    let listen = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL);
    let dial = a.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL);
    let (dialled, accepted) = tokio::join!(dial, listen);
    let error = accepted.unwrap_err();
    assert!(matches!(error, SecureError::WrongMeshSecret(_)), "{error}");
    assert!(error.to_string().contains("another mesh secret or is no member"), "{error}");
    assert!(matches!(dialled.unwrap_err(), SecureError::HungUp));
    assert!(a.opened.try_recv().is_err() && b.opened.try_recv().is_err());
}

#[tokio::test]
async fn another_mesh_is_refused_even_with_the_same_secret() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(9, 1, 3, NOW, None));
    let (dialled, accepted) = connect(&a, &b).await;
    assert!(matches!(accepted.unwrap_err(), SecureError::WrongMeshSecret(_)));
    assert!(matches!(dialled.unwrap_err(), SecureError::HungUp));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_with_the_clocks() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW + LIFETIME_S + 3 * 3600, None));
    let (_, accepted) = connect(&a, &b).await;
    let error = accepted.unwrap_err();
    assert!(matches!(error, SecureError::Identity(IdentityError::Clock { .. })), "{error}");
    assert!(error.to_string().contains("clocks differ by 3 h"), "{error}");
}

fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    diagnose(error, Cause::Io).message
}

#[tokio::test]
async fn a_full_owner_refuses_more_sessions() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    for _ in 0..4 {
        connect(&a, &b).await.0.unwrap();
    }
    assert!(matches!(connect(&a, &b).await.0.unwrap_err(), SecureError::Busy));
}

#[tokio::test(start_paused = true)]
async fn silence_and_slowness_are_bounded() {
    let b = member(1, 1, 3, NOW, None);
    let (_silent, y) = tokio::io::duplex(1 << 16);
    let began = Instant::now();
    let result = b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL).await;
    assert!(matches!(result.unwrap_err(), SecureError::Timeout));
    assert_eq!(began.elapsed().as_secs(), FIRST_MESSAGE.as_secs());

    let (_silent, x) = tokio::io::duplex(1 << 16);
    let began = Instant::now();
    let result = b.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL).await;
    assert!(matches!(result.unwrap_err(), SecureError::Timeout));
    assert_eq!(began.elapsed().as_secs(), HANDSHAKE.as_secs());
}

#[tokio::test]
async fn junk_instead_of_a_handshake() {
    let b = member(1, 1, 3, NOW, None);
    for junk in [&[0xff; 3000][..], &[0, 0, 1], b"\x04\xe0", b"GET / HTTP/1.1\r\n\r\n"] {
        let (mut x, y) = tokio::io::duplex(1 << 16);
        x.write_all(junk).await.unwrap();
        drop(x);
        assert!(b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL).await.is_err());
    }
}

/// The listener knows none of the protocols that stock libp2p offers, and the other way round.
#[tokio::test]
async fn a_classical_peer_is_refused_and_explained() {
    use multistream_select::{Version, dialer_select_proto, listener_select_proto};
    for version in [Version::V1, Version::V1Lazy] {
        let a = member(1, 1, 2, NOW, None);
        let (x, y) = tokio::io::duplex(1 << 16);
        let dial = async {
            let (_, io) = dialer_select_proto(x.compat(), a.security.protocol_info(), version)
                .await
                .map_err(|error| explain(&error))?;
            let upgrade = a.security.clone().upgrade_outbound(io, session::PROTOCOL);
            upgrade.await.map(|_| ()).map_err(|error| explain(&error))
        };
        let listen = listener_select_proto(y.compat(), ["/noise"]);
        let (dialled, accepted) = tokio::join!(dial, async { listen.await.map(|_| ()) });
        let text = dialled.unwrap_err();
        assert!(text.contains("no post-quantum session"), "{version:?}: {text}");
        assert!(accepted.is_err());
    }
}

#[test]
fn an_explanation_is_found_under_wrappers() {
    let inner = SecureError::SelfDial;
    let wrapped = io::Error::other(io::Error::other(inner));
    assert_eq!(explain(&wrapped), "connected to this node itself");
    assert_eq!(explain(&io::Error::other("plain")), "plain");
}

#[test]
fn only_an_issuer_offers_to_let_machines_join() {
    let without = member(1, 1, 2, NOW, None).security;
    assert_eq!(without.protocol_info().collect::<Vec<_>>(), ["/octomesh/pq/1"]);
    let (_keep, open) = tokio::sync::watch::channel(Arc::default());
    let join = JoinService::new(open, mpsc::channel(1).0);
    let with = member(1, 1, 2, NOW, Some(join)).security;
    assert_eq!(with.protocol_info().collect::<Vec<_>>(), ["/octomesh/pq/1", "/octomesh/join/1"]);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[tokio::test]
async fn megabytes_arrive_whole_in_both_directions() {
    let (mut a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let (left, right) = streams(&a, &b).await;
    let sent = pattern(3_000_017);
    let send_and_receive = |stream: SecureStream<Io>, chunk: usize| {
        let sent = sent.clone();
        async move {
            let (mut reader, mut writer) = stream.split();
            let write = async {
                for part in sent.chunks(chunk) {
                    writer.write_all(part).await.unwrap();
                }
                writer.close().await.unwrap();
            };
            let read = async {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).await.unwrap();
                got
            };
            tokio::join!(write, read).1
        }
    };
    let (at_left, at_right) = tokio::join!(send_and_receive(left, 70_001), send_and_receive(right, 613));
    assert!(at_left == sent && at_right == sent);
    let opened = a.opened.try_recv().unwrap();
    // Every record costs 19 bytes more than it carries.
    for counted in [opened.bytes_in, opened.bytes_out] {
        let counted = counted.load(std::sync::atomic::Ordering::Relaxed);
        assert!((3_000_017..3_200_000).contains(&counted), "{counted}");
    }
}

/// Copies from one end to the other and keeps what went by.
async fn tap(
    mut from: tokio::io::ReadHalf<DuplexStream>,
    mut to: tokio::io::WriteHalf<DuplexStream>,
) -> Vec<u8> {
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 8192]);
    loop {
        let read = from.read(&mut buffer).await.unwrap();
        if read == 0 {
            to.shutdown().await.ok();
            return seen;
        }
        seen.extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return seen;
        }
    }
}

fn contains(wire: &[u8], what: &[u8]) -> bool {
    wire.windows(what.len()).any(|window| window == what)
}

#[tokio::test]
async fn the_wire_shows_neither_data_nor_names() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let ((x, tap_x), (tap_y, y)) = (tokio::io::duplex(1 << 16), tokio::io::duplex(1 << 16));
    let (from_a, to_a) = tokio::io::split(tap_x);
    let (from_b, to_b) = tokio::io::split(tap_y);
    let secret = b"the question of the household";
    let dial = async {
        let (_, mut stream) =
            a.security.clone().upgrade_outbound(x.compat(), session::PROTOCOL).await.unwrap();
        stream.write_all(secret).await.unwrap();
        stream.close().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let listen = async {
        let (_, mut stream) =
            b.security.clone().upgrade_inbound(y.compat(), session::PROTOCOL).await.unwrap();
        let mut question = Vec::new();
        stream.read_to_end(&mut question).await.unwrap();
        stream.write_all(&question).await.unwrap();
        stream.close().await.unwrap();
        question
    };
    let (answer, question, there, back) = tokio::join!(dial, listen, tap(from_a, to_b), tap(from_b, to_a));
    assert_eq!((&answer[..], &question[..]), (&secret[..], &secret[..]));
    assert!(there.len() > 1248 + secret.len() && back.len() > 1248 + secret.len());
    for wire in [there, back] {
        for hidden in [&secret[..], b"node-2", b"node-3", a.node().as_bytes(), b.node().as_bytes()] {
            assert!(!contains(&wire, hidden));
        }
    }
}

#[tokio::test]
async fn close_is_an_end_and_a_cut_is_an_error() {
    let (a, b) = (member(1, 1, 2, NOW, None), member(1, 1, 3, NOW, None));
    let (mut left, mut right) = streams(&a, &b).await;
    left.write_all(b"all of it").await.unwrap();
    left.close().await.unwrap();
    let mut got = Vec::new();
    right.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"all of it");
    assert_eq!(right.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(left.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    // The other direction is still open.
    right.write_all(b"answer").await.unwrap();
    right.close().await.unwrap();
    let mut got = Vec::new();
    left.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"answer");

    let (mut left, mut right) = streams(&a, &b).await;
    left.write_all(b"half of it").await.unwrap();
    left.flush().await.unwrap();
    drop(left);
    let mut got = Vec::new();
    let error = right.read_to_end(&mut got).await.unwrap_err();
    assert_eq!((error.kind(), &got[..]), (io::ErrorKind::UnexpectedEof, &b"half of it"[..]));
    assert!(right.read(&mut [0; 8]).await.is_err(), "and stays one");
}

fn split_pair() -> (Split, Split) {
    use octomesh_protocol::session::{
        handshake::TranscriptHash,
        secret::{RekeySecret, SessionKey},
    };
    let split = |send, receive| Split {
        send: SessionKey::from_bytes([send; 32]),
        receive: SessionKey::from_bytes([receive; 32]),
        rekey_secret: RekeySecret::from_bytes([0; 32]),
        hash: TranscriptHash::from_bytes([0; 32]),
        remote_static: [0; 32],
    };
    (split(1, 2), split(2, 1))
}

/// One end of a session, as a handshake would leave it.
fn stream(io: Io, split: &Split, initiator: bool) -> SecureStream<Io> {
    limited(io, split, initiator, RecordLimits::default())
}

fn limited(io: Io, split: &Split, initiator: bool, limits: RecordLimits) -> SecureStream<Io> {
    let session = Session::new(split, initiator, limits);
    SecureStream::new(io, session, Traffic::default(), Arc::new(TestClock::new(NOW, 1)))
}

#[tokio::test]
async fn a_flipped_replayed_cut_or_reflected_record_ends_the_stream() {
    let (one, other) = split_pair();
    let record = |split: &Split| {
        let mut record = [0, 0, 0, b'h', b'i'].to_vec();
        octomesh_protocol::session::record::Sealer::new(&split.send, Default::default())
            .seal(&mut record)
            .unwrap();
        record
    };
    let good = record(&one);
    let mut flipped = good.clone();
    flipped[4] ^= 1;
    let cases = [
        ("flipped", flipped, 0),
        ("replayed", good.repeat(2), 2),
        ("cut", good[..good.len() - 1].to_vec(), 0),
        ("reflected", record(&other), 0),
        ("too short", vec![0, 16], 0),
    ];
    for (what, wire, arrives) in cases {
        let (mut x, y) = tokio::io::duplex(1 << 16);
        let mut stream = stream(y.compat(), &other, false);
        x.write_all(&wire).await.unwrap();
        drop(x);
        let mut got = Vec::new();
        assert!(stream.read_to_end(&mut got).await.is_err(), "{what}");
        assert_eq!(got.len(), arrives, "{what}");
    }
}

/// A writer whose socket is full waits, and what it wrote goes out in order once there is room.
#[tokio::test]
async fn back_pressure_reaches_the_writer() {
    let (one, other) = split_pair();
    let (x, y) = tokio::io::duplex(100);
    let mut left = stream(x.compat(), &one, true);
    let mut right = stream(y.compat(), &other, false);
    let sent = pattern(400_000);
    let mut got = Vec::new();
    {
        let mut write = pin!(async {
            left.write_all(&sent).await.unwrap();
            left.close().await.unwrap();
        });
        for _ in 0..100 {
            assert!(futures::poll!(write.as_mut()).is_pending(), "nobody reads");
        }
        tokio::join!(write, right.read_to_end(&mut got)).1.unwrap();
    }
    assert!(got == sent);
}

/// As the swarm does it: negotiation, upgrade and multiplexing of libp2p, with an issuer listening.
#[tokio::test]
async fn libp2p_takes_it_as_its_security() {
    use futures::{StreamExt as _, future::poll_fn};
    use libp2p::core::{
        Transport as _,
        muxing::StreamMuxerExt as _,
        transport::{DialOpts, ListenerId, MemoryTransport, PortUse, TransportEvent},
        upgrade::Version,
    };
    let (_keep, open) = tokio::sync::watch::channel(Arc::default());
    let a = member(1, 1, 2, NOW, None);
    let b = member(1, 1, 3, NOW, Some(JoinService::new(open, mpsc::channel(1).0)));
    let transport = |member: &Member| {
        MemoryTransport::default()
            .upgrade(Version::V1Lazy)
            .authenticate(member.security.clone())
            .multiplex(libp2p::yamux::Config::default())
            .boxed()
    };
    let (mut dialler, mut listener) = (transport(&a), transport(&b));
    listener.listen_on(ListenerId::next(), "/memory/0".parse().unwrap()).unwrap();
    let Some(TransportEvent::NewAddress { listen_addr, .. }) = listener.next().await else {
        panic!("no address")
    };
    let options = DialOpts { role: libp2p::core::Endpoint::Dialer, port_use: PortUse::Reuse };
    let dial = dialler.dial(listen_addr, options).unwrap();
    // A lazy negotiation is sent with the first bytes, so both sides go on at once.
    let talk = async {
        let (peer, mut muxer) = dial.await.unwrap();
        assert_eq!(peer, b.peer_id());
        let mut stream = poll_fn(|cx| muxer.poll_outbound_unpin(cx)).await.unwrap();
        let write = async {
            stream.write_all(b"over yamux").await.unwrap();
            stream.close().await.unwrap();
            std::future::pending::<()>().await;
        };
        // A stream moves only while its connection is polled.
        tokio::select! {
            () = write => {}
            _ = poll_fn(|cx| muxer.poll_unpin(cx)) => {}
        }
    };
    let hear = async {
        let upgrade = loop {
            if let Some(TransportEvent::Incoming { upgrade, .. }) = listener.next().await {
                break upgrade;
            }
        };
        let (peer, mut muxer) = upgrade.await.unwrap();
        assert_eq!(peer, a.peer_id());
        let mut stream = poll_fn(|cx| muxer.poll_inbound_unpin(cx)).await.unwrap();
        let mut got = Vec::new();
        tokio::select! {
            read = stream.read_to_end(&mut got) => { read.unwrap(); }
            _ = poll_fn(|cx| muxer.poll_unpin(cx)) => panic!("the connection ended"),
        }
        got
    };
    tokio::select! {
        got = hear => assert_eq!(got, b"over yamux"),
        () = talk => panic!("the connection ended"),
    }
}

mod limits;
mod refused;
mod rekey;
pub(in crate::net) mod revoked;
mod soak;
