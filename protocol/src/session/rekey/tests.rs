use std::collections::{HashSet, VecDeque};

use zeroize::Zeroizing;

use super::*;
use crate::session::record::{HEADER_BYTES, LENGTH_BYTES};

fn initiator_random(fill: u8) -> InitiatorRandom {
    InitiatorRandom::from_bytes(&Zeroizing::new([fill; InitiatorRandom::BYTES]))
}

fn responder_random(fill: u8) -> ResponderRandom {
    ResponderRandom::from_bytes(&Zeroizing::new([fill; ResponderRandom::BYTES]))
}

/// Two ends of one session, as a handshake would leave them: initiator and responder.
fn pair(limits: RecordLimits) -> [Session; 2] {
    let split = |initiator: bool| {
        let (first, second) = if initiator { (1, 2) } else { (2, 1) };
        Split {
            send: SessionKey::from_bytes([first; 32]),
            receive: SessionKey::from_bytes([second; 32]),
            rekey_secret: RekeySecret::from_bytes([3; 32]),
            hash: super::super::handshake::TranscriptHash::from_bytes([4; 32]),
            remote_static: [5; 32],
        }
    };
    [Session::new(&split(true), true, limits), Session::new(&split(false), false, limits)]
}

fn data(session: &mut Session, body: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut record = vec![0; HEADER_BYTES];
    record.extend_from_slice(body);
    session.seal(&mut record)?;
    Ok(record)
}

fn open(session: &mut Session, record: &[u8]) -> Result<Opened<'static>, RecordError> {
    let mut sealed = record[LENGTH_BYTES..].to_vec();
    Ok(match session.open(&mut sealed)? {
        Opened::Data(body) => Opened::Data(body.to_vec().leak()),
        Opened::Close(reason) => Opened::Close(reason),
        Opened::Asked => Opened::Asked,
        Opened::Send(record) => Opened::Send(record),
        Opened::Done => Opened::Done,
    })
}

fn sent(opened: Opened<'_>) -> Vec<u8> {
    match opened {
        Opened::Send(record) => record,
        other => panic!("{other:?}"),
    }
}

/// The three messages of one rekey.
fn rekey([a, b]: &mut [Session; 2], fill: u8) -> [Vec<u8>; 3] {
    let init = a.start(&initiator_random(fill)).unwrap();
    assert_eq!(open(b, &init).unwrap(), Opened::Asked);
    let answer = b.answer(&responder_random(fill)).unwrap();
    let done = sent(open(a, &answer).unwrap());
    assert_eq!(open(b, &done).unwrap(), Opened::Done);
    [init, answer, done]
}

fn talk([a, b]: &mut [Session; 2]) {
    for body in [&b"one"[..], b"two"] {
        let record = data(a, body).unwrap();
        assert_eq!(open(b, &record).unwrap(), Opened::Data(body));
        let record = data(b, body).unwrap();
        assert_eq!(open(a, &record).unwrap(), Opened::Data(body));
    }
}

#[test]
fn new_keys_are_new_and_the_same_on_both_sides() {
    let mut both = pair(RecordLimits::default());
    talk(&mut both);
    let mut secrets = vec![both[0].secret.expose().to_vec()];
    for fill in 1..4 {
        rekey(&mut both, fill);
        assert_eq!(both[0].secret, both[1].secret);
        assert!(!secrets.contains(&both[0].secret.expose().to_vec()));
        secrets.push(both[0].secret.expose().to_vec());
        talk(&mut both);
    }
}

/// Frozen with all randomness fixed: what another implementation has to make of it.
#[test]
fn our_own_rekey_vector() {
    let mut both = pair(RecordLimits::default());
    let messages = rekey(&mut both, 7);
    assert_eq!(
        messages.each_ref().map(Vec::len),
        [2 + 1 + 32 + 1184 + 16, 2 + 1 + 32 + 1088 + 16, 2 + 1 + 16]
    );
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    let record = data(&mut both[0], b"hello").unwrap();
    let back = data(&mut both[1], b"hello").unwrap();
    assert_eq!(
        [hex(&Sha256::digest(messages.concat())), hex(both[0].secret.expose()), hex(&record), hex(&back)],
        [
            "eb6b1d2de2e1b3a7512cbb37a8776e1e5b01d6aa7c5a0caebe04a575a3fd7cfc",
            "1384bc4f88abf5a4a20b8ad540636eecc3f8813a2040f4989314fb8ae9f95d42",
            "001674c27bb3671adee029a7a373439e710fdbf1a52db200",
            "0016f31c49afc31ca6a428a5b83ba462e665e1e966f91a04"
        ]
    );
}

/// RFC 5869, appendix A.1 has a salt of 13 bytes, which HMAC fills up with zeros to the 32 that ours takes.
#[test]
fn hkdf_of_the_rfc() {
    use hex_literal::hex;
    let mut salt = [0; 32];
    salt[..13].copy_from_slice(&hex!("000102030405060708090a0b0c"));
    let [first, second, _] = symmetric::hkdf_sha256(&salt, &[&[0x0b; 22]], &[&hex!("f0f1f2f3f4f5f6f7f8f9")]);
    let expected =
        hex!("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
    assert_eq!([&first[..], &second[..10]].concat(), expected);
}

#[test]
fn replayed_reflected_and_changed_rekey_messages_end_the_session() {
    for number in 0..3 {
        let mut both = pair(RecordLimits::default());
        let before = both.clone();
        let message = rekey(&mut both, 1).into_iter().nth(number).unwrap();
        let to = usize::from(number != 1);
        assert_eq!(open(&mut both[to].clone(), &message).unwrap_err(), RecordError::Authentication, "replay");
        assert_eq!(
            open(&mut both[1 - to].clone(), &message).unwrap_err(),
            RecordError::Authentication,
            "reflected"
        );
        // Changed on the way, at the moment when it is due.
        let mut both = before;
        let mut at = 0;
        let mut flip = |record: Vec<u8>| {
            let mut record = record;
            if at == number {
                let middle = record.len() / 2;
                record[middle] ^= 1;
            }
            at += 1;
            record
        };
        let [a, b] = &mut both;
        let result = (|| {
            open(b, &flip(a.start(&initiator_random(1))?))?;
            let done = sent(open(a, &flip(b.answer(&responder_random(1))?))?);
            open(b, &flip(done))
        })();
        assert_eq!(result.unwrap_err(), RecordError::Authentication, "message {number}");
    }
}

#[test]
fn messages_at_the_wrong_time_end_the_session() {
    // The responder starts none, and nobody a second one.
    let [mut a, mut b] = pair(RecordLimits::default());
    assert_eq!(b.start(&initiator_random(1)).unwrap_err(), RecordError::Rekey);
    a.start(&initiator_random(1)).unwrap();
    assert_eq!(a.start(&initiator_random(1)).unwrap_err(), RecordError::Rekey);
    assert_eq!(b.answer(&responder_random(1)).unwrap_err(), RecordError::Rekey);
    for (kind, length) in [(REKEY_INIT, 1216), (REKEY_ANSWER, 1120), (REKEY_DONE, 0), (REKEY_INIT, 5)] {
        for towards in 0..2 {
            let mut both = pair(RecordLimits::default());
            let message = [&[kind][..], &vec![9; length]].concat();
            let record = both[1 - towards].sealer.control(&message).unwrap();
            let legal = kind == REKEY_INIT && length > 5 && towards == 1;
            let opened = open(&mut both[towards], &record);
            assert_eq!(opened.is_ok(), legal, "kind {kind} to {towards}: {opened:?}");
            if !legal {
                assert_eq!(open(&mut both[towards], &record).unwrap_err(), RecordError::Closed);
            }
        }
    }
}

#[test]
fn bad_keys_in_a_rekey_are_refused() {
    // A point of low order, and an ML-KEM key that is not reduced.
    for fill in [0, 0xff] {
        let [mut a, mut b] = pair(RecordLimits::default());
        let message = [&[REKEY_INIT][..], &[0; 32], &[fill; 1184]].concat();
        let record = a.sealer.control(&message).unwrap();
        assert_eq!(open(&mut b, &record).unwrap(), Opened::Asked);
        assert_eq!(b.answer(&responder_random(1)).unwrap_err(), RecordError::Rekey);
    }
    let [mut a, mut b] = pair(RecordLimits::default());
    a.start(&initiator_random(1)).unwrap();
    let record = b.sealer.control(&[&[REKEY_ANSWER][..], &[0; 32 + 1088]].concat()).unwrap();
    assert_eq!(open(&mut a, &record).unwrap_err(), RecordError::Rekey);
}

#[test]
fn it_is_due_at_the_limit_and_impossible_at_twice_the_limit() {
    let mut both = pair(RecordLimits { records: 3, bytes: 1 << 30 });
    for sender in [1, 0] {
        for n in 0..3 {
            assert!(!both[0].is_due(), "record {n} of {sender}");
            let record = data(&mut both[sender], b"x").unwrap();
            open(&mut both[1 - sender], &record).unwrap();
        }
        assert!(both[0].is_due() && !both[1].is_due());
        for _ in 0..3 {
            assert!(both[sender].has_room(1));
            let record = data(&mut both[sender], b"x").unwrap();
            open(&mut both[1 - sender], &record).unwrap();
        }
        assert!(!both[sender].has_room(1));
        assert_eq!(data(&mut both[sender], b"x").unwrap_err(), RecordError::LimitReached);
        rekey(&mut both, 1);
        assert!(!both[0].is_due() && both[sender].has_room(1));
        talk(&mut both);
        rekey(&mut both, 2);
    }
}

#[test]
fn a_close_ends_every_rekey() {
    // Before the answer: the initiator waits no longer.
    let [mut a, mut b] = pair(RecordLimits::default());
    let init = a.start(&initiator_random(1)).unwrap();
    let close = b.close(CloseReason::Done).unwrap();
    assert_eq!(open(&mut b, &init).unwrap(), Opened::Done);
    assert!(a.is_waiting());
    assert_eq!(open(&mut a, &close).unwrap(), Opened::Close(CloseReason::Done));
    assert!(!a.is_waiting() && !a.may_start() && !a.can_rekey());
    // The other direction is still there, under its old key.
    let record = data(&mut a, b"last words").unwrap();
    assert_eq!(open(&mut b, &record).unwrap(), Opened::Data(b"last words"));
    // After the answer: the initiator's close comes where its done was due.
    let [mut a, mut b] = pair(RecordLimits::default());
    let init = a.start(&initiator_random(1)).unwrap();
    let close = a.close(CloseReason::Done).unwrap();
    open(&mut b, &init).unwrap();
    let answer = b.answer(&responder_random(1)).unwrap();
    assert_eq!(open(&mut a, &answer).unwrap(), Opened::Done);
    assert_eq!(open(&mut b, &close).unwrap(), Opened::Close(CloseReason::Done));
    let record = data(&mut b, b"last words").unwrap();
    assert_eq!(open(&mut a, &record).unwrap(), Opened::Data(b"last words"));
}

/// One state of the model: both ends, what is on the way in each direction, what is left to do.
#[derive(Clone)]
struct World {
    ends: [Session; 2],
    wire: [VecDeque<Vec<u8>>; 2],
    said: [u8; 2],
    heard: [u8; 2],
    rekeys: u8,
    closed: [bool; 2],
}

const EACH_SAYS: u8 = 2;

impl World {
    /// Everything that can happen next, as functions of this state.
    fn next(&self, rekeys: u8, closes: bool) -> Vec<Self> {
        let mut all = Vec::new();
        for side in 0..2 {
            if self.said[side] < EACH_SAYS && !self.closed[side] {
                let mut world = self.clone();
                let record = data(&mut world.ends[side], &[world.said[side]]).unwrap();
                world.said[side] += 1;
                world.wire[side].push_back(record);
                all.push(world);
            }
            if closes && self.said[side] == EACH_SAYS && !self.closed[side] {
                let mut world = self.clone();
                let record = world.ends[side].close(CloseReason::Done).unwrap();
                world.closed[side] = true;
                world.wire[side].push_back(record);
                all.push(world);
            }
            if !self.wire[side].is_empty() {
                let mut world = self.clone();
                world.deliver(side);
                all.push(world);
            }
        }
        if self.rekeys < rekeys && self.ends[0].may_start() {
            let mut world = self.clone();
            world.rekeys += 1;
            let init = world.ends[0].start(&initiator_random(world.rekeys)).unwrap();
            world.wire[0].push_back(init);
            all.push(world);
        }
        all
    }

    /// The next record of `side` arrives at the other.
    fn deliver(&mut self, side: usize) {
        let record = self.wire[side].pop_front().unwrap();
        let to = 1 - side;
        match open(&mut self.ends[to], &record).unwrap() {
            Opened::Data(body) => {
                assert_eq!(body, [self.heard[side]], "lost or out of order");
                self.heard[side] += 1;
            }
            Opened::Asked => {
                let answer = self.ends[to].answer(&responder_random(self.rekeys)).unwrap();
                self.wire[to].push_back(answer);
            }
            Opened::Send(done) => self.wire[to].push_back(done),
            Opened::Done => {}
            Opened::Close(_) => assert_eq!(self.heard[side], EACH_SAYS, "closed before its last record"),
        }
    }
}

impl World {
    /// All that the future depends on, so that states reached in several orders are followed once.
    fn key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (end, wire) in self.ends.iter().zip(&self.wire) {
            hash.update(end.secret.expose());
            let state = match end.state {
                State::Idle => 0,
                State::Offered { .. } => 1,
                State::Asked { .. } => 2,
                State::Answered { .. } => 3u8,
            };
            hash.update([state, u8::from(end.over), wire.len() as u8]);
            wire.iter().for_each(|record| hash.update(record));
        }
        hash.update([self.said, self.heard].concat());
        hash.update([self.rekeys, u8::from(self.closed[0]), u8::from(self.closed[1])]);
        hash.finalize().into()
    }
}

/// All orders in which two ends can speak, rekey, close and hear: nothing is lost, and both end with the same keys. Gives the number of
/// states.
fn explore(rekeys: u8, closes: bool) -> usize {
    let start = World {
        ends: pair(RecordLimits::default()),
        wire: Default::default(),
        said: [0; 2],
        heard: [0; 2],
        rekeys: 0,
        closed: [false; 2],
    };
    let (mut ahead, mut seen, mut finished) = (vec![start], HashSet::new(), 0);
    while let Some(world) = ahead.pop() {
        if !seen.insert(world.key()) {
            continue;
        }
        let next = world.next(rekeys, closes);
        if next.is_empty() {
            finished += 1;
            assert_eq!(world.heard, [EACH_SAYS; 2]);
            assert!(!world.ends[0].is_waiting() && !world.ends[1].is_waiting());
            if !closes {
                assert_eq!(world.rekeys, rekeys);
                assert_eq!(world.ends[0].secret, world.ends[1].secret);
                talk(&mut { world.ends });
            }
        }
        ahead.extend(next);
    }
    assert!(finished > 0);
    seen.len()
}

#[test]
fn every_order_of_speaking_rekeying_and_hearing() {
    let states = explore(2, false);
    assert!(states > 200, "{states}");
}

#[test]
fn every_order_with_closes() {
    let states = explore(1, true);
    assert!(states > 200, "{states}");
}
