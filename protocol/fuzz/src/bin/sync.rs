//! Requests and replies of `/octomesh/sync/1`; the first byte says which.
#![no_main]
use octomesh_protocol::sync::{SyncReply, SyncRequest};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    if *which % 2 == 0 {
        if let Ok(request) = SyncRequest::from_bytes(data) {
            assert_eq!(SyncRequest::from_bytes(&request.to_bytes().unwrap()).unwrap(), request);
        }
    } else if let Ok(reply) = SyncReply::from_bytes(data) {
        assert_eq!(SyncReply::from_bytes(&reply.to_bytes().unwrap()).unwrap(), reply);
    }
});
