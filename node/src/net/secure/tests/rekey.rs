//! Fresh secrets while data flows. Where four halves of two streams run, each has a waker of its own, as in four tasks: one that is
//! forgotten hangs the test.
use std::{sync::atomic::Ordering, time::Duration};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use octomesh_protocol::session::record::{CloseReason, LENGTH_BYTES, Opener, Record};

use super::*;

const EVERY_10: RecordLimits = RecordLimits { records: 10, bytes: 1 << 40 };

fn ends(buffer: usize, limits: RecordLimits) -> (SecureStream<Io>, SecureStream<Io>) {
    let (one, other) = split_pair();
    let (x, y) = tokio::io::duplex(buffer);
    (limited(x.compat(), &one, true, limits), limited(y.compat(), &other, false, limits))
}

/// What one half of a stream came to: nothing for the writing one; side, bytes and reader for the other.
type Half = Option<(usize, Vec<u8>, futures::io::ReadHalf<SecureStream<Io>>)>;

/// Sends `sent` in parts of `part` bytes, each its own record, and gives what arrived. Who has heard everything reads on, as a
/// multiplexer does: the other side's rekey may need an answer.
async fn both_ways(streams: [SecureStream<Io>; 2], sent: &[u8], parts: [usize; 2]) -> [Vec<u8>; 2] {
    let mut halves = FuturesUnordered::<BoxFuture<'_, Half>>::new();
    for (side, (stream, part)) in streams.into_iter().zip(parts).enumerate() {
        let (mut reader, mut writer) = stream.split();
        halves.push(Box::pin(async move {
            for part in sent.chunks(part) {
                writer.write_all(part).await.unwrap();
                writer.flush().await.unwrap();
            }
            None
        }));
        let length = sent.len();
        halves.push(Box::pin(async move {
            let mut got = vec![0; length];
            reader.read_exact(&mut got).await.unwrap();
            Some((side, got, reader))
        }));
    }
    let mut got = [Vec::new(), Vec::new()];
    let all = async {
        let mut running = halves.len();
        while running > 0 {
            running -= 1;
            if let Some((side, bytes, mut reader)) = halves.next().await.unwrap() {
                got[side] = bytes;
                halves.push(Box::pin(async move {
                    reader.read_exact(&mut [0; 1]).await.unwrap();
                    panic!("more than was sent");
                }));
            }
        }
    };
    timeout(Duration::from_secs(120), all).await.expect("a deadlock, or a wake-up was lost");
    got
}

#[tokio::test]
async fn every_10_records_under_full_load_both_ways() {
    // From buffers that take less than a rekey message up to those that take many records.
    for (buffer, parts) in [(700, [4_001, 977]), (5_000, [65_518, 65_518]), (1 << 20, [13, 60_000])] {
        let sent = pattern(if parts[0] == 13 { 40_003 } else { 4_000_003 });
        let (left, right) = ends(buffer, EVERY_10);
        let counters = [left.traffic.rekeys.clone(), right.traffic.rekeys.clone()];
        let got = both_ways([left, right], &sent, parts).await;
        assert!(got[0] == sent && got[1] == sent, "lost, reordered or corrupted");
        let rekeys = counters.map(|counter| counter.load(Ordering::Relaxed));
        // Never more than 20 records under one key.
        let records = sent.len() / parts[0].min(parts[1]);
        assert!(rekeys[0] as usize + 1 >= records / 20, "{rekeys:?} of {records}");
        assert!(rekeys[0].abs_diff(rekeys[1]) <= 1, "{rekeys:?}");
    }
}

/// A multiplexer that owes an answer writes and does not read until it is out. Each side has more to say than fits under one key.
#[tokio::test(start_paused = true)]
async fn two_ends_that_only_write_do_not_wait_for_each_other() {
    let (mut left, mut right) = ends(1 << 20, EVERY_10);
    let sent = pattern(30_000);
    let write = async |stream: &mut SecureStream<Io>| {
        for part in sent.chunks(1000) {
            stream.write_all(part).await?;
            stream.flush().await?;
        }
        Ok::<_, io::Error>(())
    };
    let (here, there) = tokio::join!(write(&mut left), write(&mut right));
    here.and(there).expect("the other side's key is read for, too");
    for stream in [&mut left, &mut right] {
        let mut got = vec![0; sent.len()];
        stream.read_exact(&mut got).await.unwrap();
        assert!(got == sent, "what was read ahead comes first");
    }
}

#[tokio::test]
async fn sessions_of_members_tell_how_often_they_rekeyed() {
    let (mut a, mut b) = (rekeying(2, EVERY_10), rekeying(3, EVERY_10));
    let (left, right) = streams(&a, &b).await;
    let sent = pattern(100_000);
    let got = both_ways([left, right], &sent, [1000, 1000]).await;
    assert!(got[0] == sent && got[1] == sent);
    for member in [&mut a, &mut b] {
        let opened = member.opened.try_recv().unwrap();
        assert!(opened.rekeys.load(Ordering::Relaxed) >= 4, "at most 20 of the 100 records under one key");
    }
}

/// Copies `limit` bytes and then cuts the line; `false` if it ended before.
async fn until(
    mut from: tokio::io::ReadHalf<DuplexStream>,
    mut to: tokio::io::WriteHalf<DuplexStream>,
    mut limit: usize,
) -> bool {
    let mut buffer = vec![0; 512];
    while limit > 0 {
        let read = from.read(&mut buffer[..limit.min(512)]).await.unwrap_or(0);
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            to.shutdown().await.ok();
            return false;
        }
        limit -= read;
    }
    true
}

/// The line is cut at every 151st byte of a conversation with several rekeys, so inside and around each of the three messages:
/// what arrived is a beginning of what was sent, and the cut is an error on both sides.
#[tokio::test]
async fn interrupted_at_each_of_its_messages() {
    let sent = pattern(25 * 20);
    let mut whole = 0;
    for cut in (0..9_000).step_by(151) {
        let ((x, tap_x), (tap_y, y)) = (tokio::io::duplex(256), tokio::io::duplex(256));
        let ((from_x, to_x), (from_y, to_y)) = (tokio::io::split(tap_x), tokio::io::split(tap_y));
        let (one, other) = split_pair();
        let end = |stream: SecureStream<Io>| {
            let sent = &sent;
            async move {
                let (mut reader, mut writer) = stream.split();
                let (all_heard, heard) = tokio::sync::oneshot::channel();
                let write = async {
                    for part in sent.chunks(20) {
                        if writer.write_all(part).await.is_err() || writer.flush().await.is_err() {
                            return;
                        }
                    }
                    // A closed direction can't answer a rekey, so nobody closes before the other is done.
                    if heard.await.is_ok() {
                        writer.close().await.ok();
                    }
                };
                let read = async {
                    let (mut got, mut byte, mut all_heard) = (Vec::new(), [0; 64], Some(all_heard));
                    loop {
                        if got.len() == sent.len()
                            && let Some(all_heard) = all_heard.take()
                        {
                            all_heard.send(()).ok();
                        }
                        match reader.read(&mut byte).await {
                            Ok(0) => return (got, true),
                            Ok(read) => got.extend_from_slice(&byte[..read]),
                            Err(_) => return (got, false),
                        }
                    }
                };
                tokio::join!(read, write).0
            }
        };
        let left = end(limited(x.compat(), &one, true, EVERY_10));
        let right = end(limited(y.compat(), &other, false, EVERY_10));
        // A line is cut in both directions at once.
        let wire = async {
            let (there, back) = (pin!(until(from_x, to_y, cut)), pin!(until(from_y, to_x, usize::MAX)));
            if let futures::future::Either::Left((false, back)) = futures::future::select(there, back).await {
                back.await;
            }
        };
        let all = async { tokio::join!(left, right, wire) };
        let ((at_left, left_ended), (at_right, right_ended), ()) =
            timeout(Duration::from_secs(60), all).await.unwrap_or_else(|_| panic!("hangs at {cut}"));
        assert!(sent.starts_with(&at_left) && sent.starts_with(&at_right), "cut at {cut}");
        // An end in order only after everything; a cut is an error.
        assert!(!left_ended || at_left == sent, "cut at {cut}");
        assert!(!right_ended || at_right == sent, "cut at {cut}");
        whole += usize::from(left_ended && right_ended);
    }
    assert!(whole > 0, "the sweep goes past the whole conversation");
}

/// Reads off the wire what a stream sends, as a peer that never answers.
async fn hear(mut io: DuplexStream, split: &Split) -> (usize, usize, Option<CloseReason>) {
    let mut opener = Opener::new(&split.receive, RecordLimits::default());
    let (mut data, mut rekeys) = (0, 0);
    loop {
        let mut prefix = [0; LENGTH_BYTES];
        if io.read_exact(&mut prefix).await.is_err() {
            return (data, rekeys, None);
        }
        let mut sealed = vec![0; Opener::sealed_bytes(prefix).unwrap()];
        io.read_exact(&mut sealed).await.unwrap();
        match opener.open(&mut sealed).unwrap() {
            Record::Data(_) => data += 1,
            Record::Rekey(_) => rekeys += 1,
            Record::Close(reason) => return (data, rekeys, Some(reason)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_does_not_go_along_is_left_after_30_seconds() {
    for initiator in [true, false] {
        let (one, other) = split_pair();
        let (x, y) = tokio::io::duplex(1 << 16);
        let mut left = limited(x.compat(), &one, initiator, EVERY_10);
        let began = Instant::now();
        let write = async {
            loop {
                let wrote = left.write_all(b"x").await;
                if let Err(error) = wrote.and(left.flush().await) {
                    left.close().await.ok();
                    return error;
                }
            }
        };
        let (error, (data, rekeys, close)) = tokio::join!(write, hear(y, &other));
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert_eq!((data, rekeys), (20, usize::from(initiator)), "twice the limit is a hard stop");
        assert_eq!(close, Some(CloseReason::LimitReached));
        assert_eq!(began.elapsed().as_secs(), 30);
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_gets_new_keys_after_an_hour() {
    let (mut left, mut right) = ends(1 << 16, RecordLimits::default());
    let counters = [left.traffic.rekeys.clone(), right.traffic.rekeys.clone()];
    let (mut a, mut b) = ([0; 8], [0; 8]);
    let count = || counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    let idle = async { tokio::join!(left.read(&mut a), right.read(&mut b)) };
    let mut idle = pin!(idle);
    for (minutes, expected) in [(59, 0), (2, 1), (58, 1), (2, 2)] {
        tokio::select! {
            _ = &mut idle => panic!("the session ended"),
            () = tokio::time::sleep(Duration::from_secs(60 * minutes)) => {}
        }
        assert_eq!(count(), [expected; 2], "after {minutes} more minutes");
    }
}

#[tokio::test]
async fn a_session_can_close_in_the_middle_of_a_rekey() {
    for closes_first in [0, 1] {
        let (mut left, mut right) = ends(1 << 16, EVERY_10);
        for _ in 0..10 {
            left.write_all(b"a").await.unwrap();
            left.flush().await.unwrap();
        }
        // The eleventh starts the rekey; nobody has read yet.
        left.write_all(b"b").await.unwrap();
        left.flush().await.unwrap();
        let (first, second) =
            if closes_first == 0 { (&mut left, &mut right) } else { (&mut right, &mut left) };
        first.close().await.unwrap();
        second.close().await.unwrap();
        let (mut at_left, mut at_right) = (Vec::new(), Vec::new());
        let both = async { tokio::join!(left.read_to_end(&mut at_left), right.read_to_end(&mut at_right)) };
        let (read_left, read_right) = both.await;
        assert_eq!((read_left.unwrap(), read_right.unwrap()), (0, 11));
        assert_eq!(at_right, b"aaaaaaaaaab");
    }
}
