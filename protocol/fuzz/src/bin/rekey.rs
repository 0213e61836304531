//! Both ends of a session, driven by the data: they speak, rekey and close; records are delivered, lost, changed, or made up by somebody
//! with the old keys. No panic; and two ends that both believe a rekey to be done have the same keys.
#![no_main]
use std::collections::VecDeque;

use octomesh_fuzz::{KEYS, byte, initiator_random, responder_random, sealed, split, take};
use octomesh_protocol::session::{
    record::{CloseReason, RecordLimits},
    rekey::{Opened, Session},
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let limits = RecordLimits { records: 4, bytes: 1 << 16 };
    let mut ends = [true, false].map(|initiator| Session::new(&split(initiator), initiator, limits));
    let mut wire: [VecDeque<Vec<u8>>; 2] = Default::default();
    let (mut honest, mut failed) = (true, [false; 2]);
    for fill in 1..=64u8 {
        if data.is_empty() {
            break;
        }
        let how = byte(&mut data);
        let side = usize::from(how & 1);
        match how >> 1 & 7 {
            0 => {
                let mut record = vec![0, 0, 0, fill];
                if ends[side].seal(&mut record).is_ok() {
                    wire[side].push_back(record[2..].to_vec());
                }
            }
            1 => {
                if let Ok(record) = ends[side].start(&initiator_random(fill)) {
                    wire[side].push_back(record[2..].to_vec());
                }
            }
            2 if how > 0xf0 => {
                if let Ok(record) = ends[side].close(CloseReason::Done) {
                    wire[side].push_back(record[2..].to_vec());
                }
            }
            3 if how > 0xe0 => {
                let length = usize::from(byte(&mut data)) * 5;
                let plain = [take(&mut data, 8), &vec![fill; length]].concat();
                wire[side].push_front(sealed(&KEYS[side], u64::from(fill % 4), &plain));
                honest = false;
            }
            4 if how > 0xe0 => {
                wire[side].pop_front();
                honest = false;
            }
            5 if how > 0xe0 => {
                if let Some(byte) = wire[side].front_mut().and_then(|record| record.last_mut()) {
                    *byte ^= 1;
                    honest = false;
                }
            }
            _ => {
                let Some(mut record) = wire[side].pop_front() else { continue };
                let to = 1 - side;
                match ends[to].open(&mut record) {
                    Ok(Opened::Asked) => {
                        let answer = ends[to].answer(&responder_random(fill));
                        if let Ok(record) = answer {
                            wire[to].push_back(record[2..].to_vec());
                        }
                    }
                    Ok(Opened::Send(record)) => wire[to].push_back(record[2..].to_vec()),
                    Ok(_) => assert!(!failed[to], "opened after an error"),
                    Err(_) => failed[to] = true,
                }
            }
        }
    }
    // As long as nobody interfered, everything that is on the way can be read.
    if honest {
        assert_eq!(failed, [false; 2]);
    }
});
