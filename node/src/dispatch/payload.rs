//! Arguments and results that are too large for a frame: they go beside the step, as blobs.
use std::{collections::BTreeSet, time::Duration};

use octomesh_protocol::{
    blob::BlobRef,
    id::{BlobHash, LeaseId, NodeId},
    limits::{ARGUMENT_BYTES, OUTPUT_BYTES, PATH_BYTES},
    step::{Start, StepStatus},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CallAsk, CallDone, Dispatcher, Memory, digest};
use crate::{journal::KEEP_STEPS_MS, router::Candidate};

/// The largest result that a single call is answered with as a whole; of a larger one the answer has the beginning, and says where the
/// rest is. It is held in memory several times on its way to the caller.
pub(crate) const WHOLE_BYTES: u64 = 4 * 1024 * 1024;
/// What stays of a larger one in an answer, and in the record of a run, which is written anew after each step.
const SHORTENED_BYTES: usize = 192 * 1024;
/// A result that nobody was given as a whole waits for whoever asks for it.
const CALL_RESULT_LASTS: Duration = Duration::from_secs(24 * 3600);
/// That a node has somebody's arguments is believed this long; it keeps them for ten minutes.
const THERE_FOR: Duration = Duration::from_secs(300);
/// Of so many arguments.
const THERE: usize = 256;

/// Whether a step is one of a run.
fn is_of_a_run(ask: &CallAsk) -> bool {
    ask.key.run.as_str().starts_with("run-")
}

/// Arguments that are to be asked about: what is long names no data.
pub(super) fn to_be_probed(ask: &CallAsk, arguments: &[u8]) -> Vec<u8> {
    if arguments.len() <= ARGUMENT_BYTES {
        return arguments.to_vec();
    }
    let short = |value: &Value| value.as_str().is_some_and(|text| text.len() <= PATH_BYTES);
    let names: serde_json::Map<String, Value> =
        ask.arguments.iter().filter(|(_, v)| short(v)).map(|(k, v)| (k.clone(), v.clone())).collect();
    serde_json::to_vec(&names).unwrap_or_default()
}

/// The start of a step on another node; arguments that do not fit were brought there before.
pub(super) fn start(lease: LeaseId, epoch: u64, arguments: Vec<u8>) -> Start {
    if arguments.len() <= ARGUMENT_BYTES {
        return Start::new(lease, epoch, arguments);
    }
    let blob = BlobRef { hash: BlobHash::from_bytes(digest(&arguments)), bytes: arguments.len() as u64 };
    Start { input: Some(blob), ..Start::new(lease, epoch, Vec::new()) }
}

impl Memory {
    fn note_there(&mut self, node: NodeId, arguments: [u8; 32], now: Instant) {
        self.inputs.retain(|_, at| now.saturating_duration_since(*at) < THERE_FOR);
        if self.inputs.len() < THERE {
            self.inputs.insert((node, arguments), now);
        }
    }
}

impl Dispatcher {
    /// Nodes that have these arguments already.
    pub(super) fn there(&self, arguments: &[u8], now: Instant) -> BTreeSet<NodeId> {
        if arguments.len() <= ARGUMENT_BYTES {
            return BTreeSet::new();
        }
        let arguments = digest(arguments);
        let is = |at: &Instant| now.saturating_duration_since(*at) < THERE_FOR;
        self.memory(|m| {
            m.inputs.iter().filter(|((_, a), at)| *a == arguments && is(at)).map(|((n, _), _)| *n).collect()
        })
    }

    /// Brings arguments that do not fit a frame to where the step is to run. Before the lease, which lasts seconds.
    pub(super) async fn bring_input(&self, ask: &CallAsk, candidate: &Candidate) -> Result<(), String> {
        // Arguments are a part of what the step works on.
        if self.is_me(candidate.node) || candidate.work_bytes <= ARGUMENT_BYTES as u64 {
            return Ok(());
        }
        let arguments = serde_json::to_vec(&ask.arguments).map_err(|e| e.to_string())?;
        if arguments.len() <= ARGUMENT_BYTES {
            return Ok(());
        }
        let begun = Instant::now();
        let brought = self.0.parts.blobs.bring_input(candidate.node, &arguments).await;
        let now = Instant::now();
        match brought {
            Ok(bytes) => {
                self.memory(|m| m.note_there(candidate.node, digest(&arguments), now));
                self.note_transfer(candidate.node, bytes, now.saturating_duration_since(begun));
                Ok(())
            }
            Err(error) => Err(format!("its arguments could not be brought there: {error}")),
        }
    }

    /// So many bytes went to or came from the node: what later ones will cost is estimated by that.
    pub(crate) fn note_transfer(&self, node: NodeId, bytes: u64, took: Duration) {
        if !self.is_me(node) {
            self.memory(|m| m.history.record_transfer(node, bytes, took, Instant::now()));
        }
    }

    /// A result that is a blob is brought here, and into the answer as far as it may.
    pub(super) async fn collect(&self, ask: &CallAsk, done: &mut CallDone) {
        let Some(blob) = done.blob else { return };
        match self.collected(ask, done, blob).await {
            Ok((value, true)) => (done.output, done.blob) = (value, None),
            Ok((value, false)) => done.output = shortened(value, blob),
            Err(why) => {
                let node = done.node.as_ref().map_or_else(String::new, |n| format!(" on {n}"));
                let message = format!(
                    "the tool ran to its end{node}, but its result of {} bytes could not be fetched: {why}",
                    blob.bytes
                );
                done.status = StepStatus::Error;
                done.output = json!({"error": {"code": "result_lost", "message": message}});
                done.blob = None;
            }
        }
    }

    /// The result, and whether it is small enough to be given as a whole.
    async fn collected(
        &self,
        ask: &CallAsk,
        done: &CallDone,
        blob: BlobRef,
    ) -> Result<(Value, bool), String> {
        let blobs = &self.0.parts.blobs;
        let lasts = if is_of_a_run(ask) {
            Duration::from_millis(KEEP_STEPS_MS.cast_unsigned())
        } else {
            CALL_RESULT_LASTS
        };
        let node = done.node.as_ref().and_then(|name| self.view().by_name(name.as_str()).map(|m| m.node));
        let node = node.ok_or("the node is not known any more")?;
        if !self.is_me(node) {
            let begun = Instant::now();
            blobs.fetch_result(node, blob, lasts).await.map_err(|e| e.to_string())?;
            self.note_transfer(node, blob.bytes, begun.elapsed());
        }
        let bytes = blobs.store.read(blob.hash).await.map_err(|e| e.to_string())?;
        let value = serde_json::from_slice(&bytes).map_err(|e| format!("it is not JSON: {e}"))?;
        let most = if is_of_a_run(ask) { OUTPUT_BYTES as u64 } else { WHOLE_BYTES };
        if blob.bytes > most {
            return Ok((value, false));
        }
        // Whoever asked has it all now.
        blobs.store.release(blob.hash, blobs.me).await;
        Ok((value, true))
    }
}

/// What is shown of a result that is a blob: its shape, with the beginnings of its texts and lists, and what the whole is called.
pub(super) fn shortened(value: Value, blob: BlobRef) -> Value {
    let mut longest = SHORTENED_BYTES;
    let mut shown = value;
    while shown.to_string().len() > SHORTENED_BYTES {
        longest /= 2;
        if longest < 16 {
            shown = Value::Null;
            break;
        }
        shown = cut(shown, longest);
    }
    let whole = json!({
        "sha256": blob.hash.to_string(),
        "bytes": blob.bytes,
        "fetch": format!("octomesh cp blob:{} FILE", blob.hash),
    });
    match shown {
        Value::Object(mut fields) => {
            fields.insert("blob".into(), whole);
            Value::Object(fields)
        }
        other => json!({"value": other, "blob": whole}),
    }
}

/// Texts of at most `longest` bytes, lists and objects with a part for each sixteen.
fn cut(value: Value, longest: usize) -> Value {
    match value {
        Value::String(mut text) => {
            let mut end = text.len().min(longest);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            Value::String(text)
        }
        Value::Array(items) => items.into_iter().take(longest / 16).map(|v| cut(v, longest)).collect(),
        Value::Object(fields) => {
            fields.into_iter().take(longest / 16).map(|(k, v)| (k, cut(v, longest))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob() -> BlobRef {
        BlobRef { hash: BlobHash::from_bytes([5; 32]), bytes: 7 }
    }

    #[test]
    fn what_is_shortened_fits_and_names_the_whole() {
        let rows: Vec<Value> = (0..100_000).map(|n| json!({"n": n, "text": "ä".repeat(20)})).collect();
        for value in [
            json!({"content": "ä".repeat(400_000), "lines": 3}),
            json!("x".repeat(1 << 20)),
            json!({"rows": rows}),
            Value::Object((0..50_000).map(|n| (n.to_string(), json!(n))).collect()),
            json!({"\u{1}".repeat(400_000): 1}),
        ] {
            let shown = shortened(value, blob());
            assert!(shown.to_string().len() < SHORTENED_BYTES + 1024);
            assert_eq!(shown["blob"]["bytes"], 7);
        }
        let shown = shortened(json!({"content": "ä".repeat(400_000), "lines": 3}), blob());
        assert_eq!(shown["lines"], 3, "what is short stays");
        assert!(shown["content"].as_str().unwrap().len() > SHORTENED_BYTES / 4);
    }

    #[test]
    fn what_fits_a_frame_is_in_it() {
        assert!(start(LeaseId(1), 1, vec![b'1'; ARGUMENT_BYTES]).input.is_none());
        let large = vec![b'1'; ARGUMENT_BYTES + 1];
        let sent = start(LeaseId(1), 1, large.clone());
        assert_eq!((sent.arguments.len(), sent.input.map(|b| b.bytes)), (0, Some(large.len() as u64)));
    }
}
