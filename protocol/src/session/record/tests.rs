//! Records that only somebody with the right key can make, and that break the rules.
use super::*;

#[test]
fn a_malformed_close_record_is_an_error() {
    let key = SessionKey::from_bytes([5; 32]);
    let too_long = [&[5][..], &[b'a'; MAX_CLOSE_DETAIL_BYTES + 1]].concat();
    // No reason, unknown ones, text that is none, too much of it.
    for body in [vec![], vec![6], vec![255], vec![5, 0xff, 0xfe], too_long] {
        let mut record = [&[0; HEADER_BYTES][..], &body].concat();
        Sealer::new(&key, RecordLimits::default()).0.seal(CLOSE, &mut record).unwrap();
        let mut opener = Opener::new(&key, RecordLimits::default());
        let error = opener.open(&mut record[LENGTH_BYTES..]).unwrap_err();
        assert_eq!(error, RecordError::Kind(CLOSE), "{body:?}");
        assert_eq!(opener.close_detail(), "");
    }
}
