//! Fresh secrets every ten records under full load in both directions, for as long as it takes to believe it. The short forms run
//! always; `cargo test --release -p octomesh --lib soak -- --ignored --nocapture` is the minute of each.
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures::future::poll_fn;
use libp2p::{
    Transport as _,
    core::{
        Endpoint,
        muxing::StreamMuxerExt as _,
        transport::{DialOpts, ListenerId, PortUse, TransportEvent},
    },
};
use tokio::{runtime::Handle, sync::oneshot, task::JoinSet};

use super::*;
use crate::{
    app::supervise::Supervisor,
    metrics::NodeMetrics,
    net::{
        doorkeeper::Book,
        refusal::Refusals,
        transport::{self, TransportKind},
    },
};

const EVERY_10: RecordLimits = RecordLimits { records: 10, bytes: 1 << 40 };
/// Rekeys of the shortest load.
const ENOUGH: u64 = 30;
/// After the last byte was written, or instead of a deadlock.
const GRACE: Duration = Duration::from_secs(30);

/// A prime, so that what is lost, doubled or swapped shifts what follows; the count at the end finds the rest.
const PERIOD: u64 = 65_521;
const LONGEST: usize = 100_003;

/// What stands in every stream, long enough for a part that begins anywhere in it.
fn pattern_of_streams() -> Arc<[u8]> {
    let byte = |n: u64| ((n % PERIOD + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..PERIOD + LONGEST as u64).map(byte).collect()
}

fn part_at(pattern: &[u8], position: u64, bytes: usize) -> &[u8] {
    &pattern[(position % PERIOD) as usize..][..bytes]
}

/// Parts of many sizes, most far below a record's, some above it.
fn part(number: u64) -> usize {
    if number % 32 == 31 { LONGEST } else { [1, 17, 977, 4_001, 2, 9_001][(number % 6) as usize] }
}

/// Until when a load goes on: for a time, and on a slow machine on until there were some rekeys.
#[derive(Clone)]
struct Until(Instant, Arc<AtomicU64>);

impl Until {
    fn is_over(&self) -> bool {
        Instant::now() >= self.0 && self.1.load(Ordering::Relaxed) >= ENOUGH
    }
}

/// Writes until `until`, and says how much it was.
async fn write(mut to: impl AsyncWrite + Unpin, until: Until, total: oneshot::Sender<u64>) {
    let (pattern, mut position, mut number) = (pattern_of_streams(), 0, 0);
    while !until.is_over() {
        let bytes = part_at(&pattern, position, part(number));
        to.write_all(bytes).await.unwrap();
        // Sometimes several parts in one record.
        if number % 3 != 2 {
            to.flush().await.unwrap();
        }
        (position, number) = (position + bytes.len() as u64, number + 1);
    }
    to.flush().await.unwrap();
    total.send(position).unwrap();
    // A direction that is closed can't answer a rekey of the other.
    std::future::pending::<()>().await;
}

/// Reads and checks until everything that was written is there, and then on, as a multiplexer does.
async fn read(mut from: impl AsyncRead + Unpin, mut total: oneshot::Receiver<u64>, done: mpsc::Sender<u64>) {
    let (pattern, mut position, mut buffer) = (pattern_of_streams(), 0u64, vec![0; 40_000]);
    let mut expected = None;
    loop {
        if expected.is_none() {
            expected = total.try_recv().ok();
        }
        if expected == Some(position) {
            done.send(position).await.unwrap();
            // From here on the other side's rekeys are heard; that the stream ends with the test is no failure.
            assert!(!matches!(from.read(&mut buffer).await, Ok(1..)), "more than was sent");
            return std::future::pending().await;
        }
        // The writer's word may come after its last byte.
        let read = if expected.is_none() {
            tokio::select! {
                biased;
                read = from.read(&mut buffer) => read.unwrap(),
                told = &mut total => {
                    expected = told.ok();
                    continue;
                }
            }
        } else {
            from.read(&mut buffer).await.unwrap()
        };
        assert_ne!(read, 0, "the stream ended at {position}");
        let sound = buffer[..read] == *part_at(&pattern, position, read);
        assert!(sound, "lost, reordered or corrupted between {position} and {read} bytes later");
        position += read as u64;
    }
}

/// Loads all `pairs` of stream ends both ways for `time`; gives how many bytes arrived.
async fn soak<S>(pairs: Vec<(S, S)>, rekeys: &Arc<AtomicU64>, time: Duration) -> u64
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut tasks, until) = (JoinSet::new(), Until(Instant::now() + time, Arc::clone(rekeys)));
    let (done, mut arrived) = mpsc::channel(64);
    let ways = pairs.len() * 2;
    for (left, right) in pairs {
        let ((from_left, to_left), (from_right, to_right)) = (left.split(), right.split());
        for (to, from) in [(to_left, from_right), (to_right, from_left)] {
            let (told, total) = oneshot::channel();
            tasks.spawn(write(to, until.clone(), told));
            tasks.spawn(read(from, total, done.clone()));
        }
    }
    let mut sum = 0;
    let all = async {
        for _ in 0..ways {
            tokio::select! {
                Some(bytes) = arrived.recv() => sum += bytes,
                Some(ended) = tasks.join_next() => ended.unwrap(),
            }
        }
    };
    timeout(time + GRACE, all).await.expect("a deadlock, or a wake-up was lost");
    sum
}

fn figures(what: &str, bytes: u64, rekeys: u64, began: Instant) -> String {
    let time = began.elapsed();
    let rate = bytes as f64 / time.as_secs_f64() / f64::from(1 << 20);
    format!(
        "{what}: {bytes} bytes ({rate:.1} MiB/s) arrived whole and in order under {rekeys} rekeys in {time:?}"
    )
}

/// Over buffers of `buffer` bytes.
async fn in_memory(buffer: usize, time: Duration) {
    let (one, other) = split_pair();
    let (x, y) = tokio::io::duplex(buffer);
    let left = limited(x.compat(), &one, true, EVERY_10);
    let right = limited(y.compat(), &other, false, EVERY_10);
    let (rekeys, wire) = (Arc::clone(&left.traffic.rekeys), Arc::clone(&left.traffic.bytes_out));
    let began = Instant::now();
    let bytes = soak(vec![(left, right)], &rekeys, time).await;
    let rekeys = rekeys.load(Ordering::Relaxed);
    println!("{}", figures(&format!("buffers of {buffer} bytes"), bytes, rekeys, began));
    // At most 20 records under one key, and none is longer than 64 KiB.
    assert!(rekeys + 1 >= wire.load(Ordering::Relaxed) / (20 << 16), "{rekeys}");
    assert!(bytes > 0 && rekeys >= ENOUGH, "{bytes} bytes, {rekeys} rekeys");
}

/// Two members over TCP on loopback: the transport of the program, with its multiplexer and `streams` streams.
async fn over_tcp(streams: usize, time: Duration) {
    let (a, mut b) = (rekeying(2, EVERY_10), rekeying(3, EVERY_10));
    let build = |m: &Member| {
        // Nobody is refused here.
        let book = Book {
            metrics: NodeMetrics::new("test").unwrap().net,
            refusals: Refusals::new().0,
            events: tokio::sync::mpsc::channel(1).0,
        };
        let door = (Gate::new(), book);
        let (transport, doorkeeper, _) = transport::build(
            TransportKind::Tcp,
            m.security.clone(),
            false,
            door,
            Handle::current(),
            m.peer_id(),
        );
        (transport, doorkeeper)
    };
    let ((mut dialler, _nobody_comes), (mut listener, doorkeeper)) = (build(&a), build(&b));
    let tasks = Supervisor::new();
    doorkeeper.start(&tasks).await.unwrap();
    listener.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let TransportEvent::NewAddress { listen_addr, .. } = poll_fn(|cx| Pin::new(&mut listener).poll(cx)).await
    else {
        panic!("no address")
    };
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = dialler.dial(listen_addr, options).unwrap();
    let accept = async {
        match poll_fn(|cx| Pin::new(&mut listener).poll(cx)).await {
            TransportEvent::Incoming { upgrade, .. } => upgrade.await,
            other => panic!("{other:?}"),
        }
    };
    let (near, far) = tokio::join!(dial, accept);
    let ((_, mut near), (_, mut far)) = (near.unwrap(), far.unwrap());

    let mut pairs = Vec::new();
    for _ in 0..streams {
        let mut opened = poll_fn(|cx| {
            let _ = near.poll_unpin(cx);
            near.poll_outbound_unpin(cx)
        })
        .await
        .unwrap();
        // A stream is told of with its first bytes.
        opened.write_all(b"!").await.unwrap();
        let flushed = poll_fn(|cx| {
            let _ = near.poll_unpin(cx);
            Pin::new(&mut opened).poll_flush(cx)
        });
        flushed.await.unwrap();
        let mut taken = poll_fn(|cx| {
            let _ = (near.poll_unpin(cx), far.poll_unpin(cx));
            far.poll_inbound_unpin(cx)
        })
        .await
        .unwrap();
        let mut byte = [0];
        let first = poll_fn(|cx| {
            let _ = (near.poll_unpin(cx), far.poll_unpin(cx));
            Pin::new(&mut taken).poll_read(cx, &mut byte)
        });
        assert_eq!(first.await.unwrap(), 1);
        pairs.push((opened, taken));
    }
    // Each connection has a task that moves it, as in a swarm.
    let mut connections = JoinSet::new();
    for mut muxer in [near, far] {
        connections.spawn(async move {
            poll_fn(|cx| {
                while muxer.poll_inbound_unpin(cx).is_ready() {}
                muxer.poll_unpin(cx).map(|event| panic!("{event:?}"))
            })
            .await
        });
    }
    let rekeys: Arc<AtomicU64> = b.opened.try_recv().unwrap().rekeys;
    let began = Instant::now();
    let bytes = soak(pairs, &rekeys, time).await;
    let rekeys = rekeys.load(Ordering::Relaxed);
    println!("{}", figures(&format!("yamux over TCP, {streams} streams"), bytes, rekeys, began));
    assert!(connections.try_join_next().is_none(), "a connection ended");
    assert!(bytes > 0 && rekeys >= ENOUGH, "{bytes} bytes, {rekeys} rekeys");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rekey_every_ten_records_through_small_buffers() {
    for buffer in [97, 1_400, 70_000] {
        in_memory(buffer, Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rekey_every_ten_records_through_yamux_and_tcp() {
    over_tcp(4, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute"]
async fn rekey_every_ten_records_for_a_minute_through_small_buffers() {
    in_memory(1_400, Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute"]
async fn rekey_every_ten_records_for_a_minute_through_yamux_and_tcp() {
    over_tcp(4, Duration::from_secs(60)).await;
}
