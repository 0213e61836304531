//! No input panics, and none but the real one is taken.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use octomesh_protocol::{
    id::MeshId,
    join::{JoinAnswer, JoinRequest},
    session::{
        handshake::{AwaitHello, HandshakeError, Initiator, TranscriptHash},
        record::{
            CloseReason, MAX_CLOSE_DETAIL_BYTES, MAX_SEALED_BYTES, Opener, Record, RecordError, RecordLimits,
            Sealer,
        },
        secret::SessionKey,
    },
    trust::{CertificateChain, Side, Ticket, VerifiedLinks, identity_payload},
};
use proptest::prelude::*;

mod support;
use support::{initiator_random, params, responder_random};

fn key() -> SessionKey {
    SessionKey::from_bytes([5; 32])
}

fn pair(limits: RecordLimits) -> (Sealer, Opener) {
    (Sealer::new(&key(), limits), Opener::new(&key(), limits))
}

/// The record without its length.
fn seal(sealer: &mut Sealer, body: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut record = vec![0; 3];
    record.extend_from_slice(body);
    sealer.seal(&mut record)?;
    Ok(record.split_off(2))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Lengths around those of the messages are the interesting ones.
    let length = prop_oneof![0..64usize, 1190..1400usize, 17_000..19_000usize, Just(21_000), Just(65_535)];
    (length, any::<u8>(), any::<u64>()).prop_map(|(length, fill, seed)| {
        let mut state = seed | 1;
        (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if fill < 32 { fill } else { state as u8 }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn junk_is_no_handshake_message(junk in bytes()) {
        let nothing = |_: TranscriptHash| Ok::<_, HandshakeError>(Vec::new());
        prop_assert!(AwaitHello::new(&params(7, 2)).read(&junk).is_err());
        let (state, first) = Initiator::start(&params(7, 1), initiator_random(3)).unwrap();
        prop_assert!(state.read(&junk).is_err());
        let hello = AwaitHello::new(&params(7, 2)).read(&first).unwrap();
        let (_, state) = hello.write(responder_random(4), nothing).unwrap();
        prop_assert!(state.read(&junk).is_err());
    }

    #[test]
    fn junk_is_nothing_else_either(junk in bytes()) {
        let (h, links) = (TranscriptHash::from_bytes([1; 32]), VerifiedLinks::new());
        prop_assert!(Opener::new(&key(), RecordLimits::default()).open(&mut junk.clone()).is_err());
        prop_assert!(identity_payload::verify(&junk, Side::Responder, h, MeshId::from_bytes([0; 32]), 0, 0, &links).is_err());
        prop_assert!(JoinRequest::verify(&junk, h).is_err());
        let refused = CertificateChain::from_bytes(&junk)
            .map_or(true, |chain| chain.verify(MeshId::from_bytes([0; 32]), 0, 0).is_err());
        prop_assert!(refused);
        // Some junk is a refusal with an empty text, which is fine; it must only not panic.
        let _ = JoinAnswer::from_bytes(&junk);
    }

    #[test]
    fn junk_is_no_ticket(text in "(octo1)?[a-z2-7]{0,400}|\\PC{0,80}") {
        prop_assert!(Ticket::parse(&text).is_err());
    }

    #[test]
    fn records_arrive_as_sent(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let (mut sealer, mut opener) = pair(RecordLimits::default());
        for body in &bodies {
            let mut record = seal(&mut sealer, body).unwrap();
            prop_assert_eq!(opener.open(&mut record).unwrap(), Record::Data(body));
        }
    }

    #[test]
    fn a_changed_record_ends_the_direction(body in prop::collection::vec(any::<u8>(), 0..100), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let (mut sealer, mut opener) = pair(RecordLimits::default());
        let good = seal(&mut sealer, &body).unwrap();
        let mut bad = good.clone();
        bad[at.index(good.len())] ^= 1 << bit;
        prop_assert_eq!(opener.open(&mut bad).unwrap_err(), RecordError::Authentication);
        // Not even the real one is taken afterwards.
        prop_assert_eq!(opener.open(&mut { good }).unwrap_err(), RecordError::Closed);
    }
}

#[test]
fn replay_reorder_and_gaps_are_refused() {
    let (mut sealer, mut opener) = pair(RecordLimits::default());
    let first = seal(&mut sealer, b"one").unwrap();
    let second = seal(&mut sealer, b"two").unwrap();
    assert!(opener.open(&mut first.clone()).is_ok());
    assert_eq!(opener.open(&mut { first }).unwrap_err(), RecordError::Authentication);
    let mut gap = Opener::new(&key(), RecordLimits::default());
    assert_eq!(gap.open(&mut { second }).unwrap_err(), RecordError::Authentication);
}

#[test]
fn close_is_authentic_and_final() {
    let (mut sealer, mut opener) = pair(RecordLimits::default());
    let record = sealer.close(CloseReason::Shutdown).unwrap();
    assert_eq!(record.len(), 2 + 1 + 1 + 16);
    assert_eq!(opener.open(&mut record[2..].to_vec()).unwrap(), Record::Close(CloseReason::Shutdown));
    assert_eq!(seal(&mut sealer, b"more").unwrap_err(), RecordError::Closed);
    assert_eq!(sealer.close(CloseReason::Done).unwrap_err(), RecordError::Closed);
    assert_eq!(opener.open(&mut record[2..].to_vec()).unwrap_err(), RecordError::Closed);
}

#[test]
fn a_close_record_says_why_in_a_few_words() {
    let (mut sealer, mut opener) = pair(RecordLimits::default());
    let record = sealer.close_with(CloseReason::Refused, "clock:+3600").unwrap();
    assert_eq!(opener.close_detail(), "");
    assert_eq!(opener.open(&mut record[2..].to_vec()).unwrap(), Record::Close(CloseReason::Refused));
    assert_eq!(opener.close_detail(), "clock:+3600");
    // Cut between characters.
    let (mut sealer, mut opener) = pair(RecordLimits::default());
    let record = sealer.close_with(CloseReason::IdentityInUse, &"é".repeat(500)).unwrap();
    opener.open(&mut record[2..].to_vec()).unwrap();
    assert_eq!(opener.close_detail(), "é".repeat(MAX_CLOSE_DETAIL_BYTES / 2));
    for (reason, number) in
        [(CloseReason::IdentityInUse, 2), (CloseReason::Revoked, 4), (CloseReason::Refused, 5)]
    {
        assert!(reason.is_refusal() && reason as u8 == number);
    }
    assert!(!CloseReason::Done.is_refusal() && !CloseReason::LimitReached.is_refusal());
}

#[test]
fn a_direction_ends_at_its_limit_and_can_say_so() {
    for limits in [RecordLimits { records: 2, bytes: 1 << 30 }, RecordLimits { records: 100, bytes: 2 * 20 }]
    {
        let (mut sealer, mut opener) = pair(limits);
        for _ in 0..2 {
            let mut record = seal(&mut sealer, b"abc").unwrap();
            assert!(opener.open(&mut record).is_ok());
        }
        assert_eq!(seal(&mut sealer, b"abc").unwrap_err(), RecordError::LimitReached);
        let close = sealer.close(CloseReason::LimitReached).unwrap();
        assert_eq!(opener.open(&mut close[2..].to_vec()).unwrap(), Record::Close(CloseReason::LimitReached));
    }
    // A sender without limits does not get past those of the receiver.
    let mut sealer = Sealer::new(&key(), RecordLimits::default());
    let mut opener = Opener::new(&key(), RecordLimits { records: 1, bytes: 1 << 30 });
    assert!(opener.open(&mut seal(&mut sealer, b"a").unwrap()).is_ok());
    assert_eq!(opener.open(&mut seal(&mut sealer, b"b").unwrap()).unwrap_err(), RecordError::LimitReached);
}

#[test]
fn impossible_lengths() {
    assert_eq!(Opener::sealed_bytes(16u16.to_be_bytes()), Err(RecordError::Length));
    assert_eq!(Opener::sealed_bytes(17u16.to_be_bytes()), Ok(17));
    assert_eq!(Opener::sealed_bytes([0xff; 2]), Ok(MAX_SEALED_BYTES));
    let (mut sealer, mut opener) = pair(RecordLimits::default());
    assert_eq!(opener.open(&mut [0; 16]).unwrap_err(), RecordError::Length);
    assert_eq!(seal(&mut sealer, &[0; 65_519]).unwrap_err(), RecordError::Length);
    let (mut sealer, _) = pair(RecordLimits::default());
    assert_eq!(sealer.seal(&mut vec![0; 2]).unwrap_err(), RecordError::Length);
    let (mut sealer, _) = pair(RecordLimits::default());
    assert_eq!(sealer.seal(&mut Vec::new()).unwrap_err(), RecordError::Length);
}
