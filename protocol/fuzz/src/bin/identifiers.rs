//! Every identifier that has a text form: what is taken prints as text that is taken again.
#![no_main]
use std::{fmt::Display, str::FromStr};

use octomesh_protocol::{
    id::{CardHash, MeshId, NodeId, NodeName, RunId, StepId, ToolName},
    trust::TicketId,
};

fn check<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(id) = text.parse::<T>() {
        assert!(id.to_string().parse::<T>().is_ok_and(|again| again == id), "{text:?}");
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check::<NodeId>(text);
    check::<MeshId>(text);
    check::<CardHash>(text);
    check::<ToolName>(text);
    check::<NodeName>(text);
    check::<RunId>(text);
    check::<StepId>(text);
    check::<TicketId>(text);
});
