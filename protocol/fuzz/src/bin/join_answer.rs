//! The issuer's answer to a joiner.
#![no_main]
use octomesh_protocol::{join::JoinAnswer, limits};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(answer) = JoinAnswer::from_bytes(data) {
        if let JoinAnswer::Granted(grant) = &answer {
            assert!(grant.members.len() <= limits::SYNC_MEMBERS);
            let _ = grant.chain.verify(octomesh_fuzz::ROOT.mesh_id(), octomesh_fuzz::NOW, 300);
        }
        let again = answer.to_bytes().unwrap();
        assert_eq!(JoinAnswer::from_bytes(&again).unwrap(), answer);
    }
});
