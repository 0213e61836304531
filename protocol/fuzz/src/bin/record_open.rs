//! A row of records, sealed with the right key around any content, or not sealed at all. After the first error or close nothing is
//! opened any more.
#![no_main]
use octomesh_fuzz::{KEYS, byte, sealed, take};
use octomesh_protocol::session::{
    record::{Opener, Record, RecordError, RecordLimits},
    secret::SessionKey,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let limits = RecordLimits { records: 8, bytes: 1000 };
    let mut opener = Opener::new(&SessionKey::from_bytes(KEYS[0]), limits);
    let (mut over, mut counter) = (false, 0);
    while !data.is_empty() {
        let (how, length) = (byte(&mut data), usize::from(byte(&mut data)));
        let plain = take(&mut data, length);
        let authentic = how % 8 != 0;
        let mut record = if authentic { sealed(&KEYS[0], counter, plain) } else { plain.to_vec() };
        let prefix = u16::try_from(record.len()).unwrap().to_be_bytes();
        assert_eq!(Opener::sealed_bytes(prefix).is_ok(), record.len() > 16);
        counter += u64::from(authentic);
        let opened = opener.open(&mut record);
        if over {
            assert_eq!(opened.unwrap_err(), RecordError::Closed);
            continue;
        }
        match opened {
            Ok(Record::Data(body)) => assert!(authentic && plain[0] == 0 && body == &plain[1..]),
            Ok(Record::Rekey(message)) => assert!(authentic && (1..=3).contains(&message[0])),
            Ok(Record::Close(_)) => over = true,
            Err(_) => over = true,
        }
    }
});
