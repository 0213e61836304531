//! What calls to another node cost, measured in the node itself: `octomesh bench dispatch` without HTTP. They are calls like any others.
//!
//! In turn with each call one frame goes there and back on a step stream that stays open, and is answered by the task that reads it: what
//! no call can be faster than.
use std::{
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use octomesh_protocol::step::{Event, Message, Renew, StatusReply, StepStatus};
use serde_json::{Map, Value};
use tokio::{
    sync::{Mutex, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::backend::NodeBackend;
use crate::{
    api::{
        ApiError,
        types::{CallRequest, TrialReply, TrialRequest},
    },
    dispatch::{CallAsk, Dispatcher},
    net::{FrameReader, FrameWriter},
};

const CALLS: std::ops::RangeInclusive<u32> = 1..=100_000;
/// Calls before anything is measured: caches, windows of streams and the allocator settle.
const WARM_UP: u32 = 50;
/// Characters of the argument: a kilobyte of JSON with its name.
const TEXT: usize = 1_000;
/// Calls in flight: the other node's slots, at most so many.
const IN_FLIGHT: u16 = 64;
/// A call or a round trip that takes longer is no measurement.
const CALL_TIMEOUT_S: u32 = 10;
/// The whole of it.
const LIMIT: Duration = Duration::from_secs(240);
/// Writes to the disk that are measured.
const FSYNCS: usize = 100;
const FSYNC_BYTES: usize = 4096;

fn failed(message: impl Into<String>) -> ApiError {
    ApiError::new(502, "not_measured", message).hint("look whether `octomesh call` works there")
}

impl NodeBackend {
    pub(super) async fn measure_dispatch(&self, request: TrialRequest) -> Result<TrialReply, ApiError> {
        if !CALLS.contains(&request.calls) {
            return Err(ApiError::invalid_request("calls must be from 1 to 100000"));
        }
        let measured = tokio::time::timeout(LIMIT, self.measure(request)).await;
        measured.map_err(|_| failed(format!("it was not over in {} s", LIMIT.as_secs())))?
    }

    async fn measure(&self, request: TrialRequest) -> Result<TrialReply, ApiError> {
        let node = self.resolve(&request.node)?;
        if node == self.0.caller.node {
            return Err(ApiError::invalid_request(
                "a call of this node to itself takes no stream; name another node",
            ));
        }
        let (name, slots) = {
            let view = self.view();
            let member = view.get(node);
            let slots = member.and_then(|m| m.advert.as_ref()).map_or(1, |a| a.load.slots);
            (member.map(|m| m.name.to_string()).unwrap_or_default(), slots)
        };
        let arguments = Map::from_iter([("text".to_owned(), Value::String("x".repeat(TEXT)))]);
        let argument_bytes = serde_json::to_vec(&arguments).map_or(0, |b| b.len());
        let call = CallRequest {
            tool: request.tool.unwrap_or_else(|| "echo".to_owned()),
            arguments,
            node: Some(node.to_string()),
            timeout_s: Some(CALL_TIMEOUT_S),
        };
        let stream = self.0.net.open_step(node).await.map_err(|e| failed(e.to_string()))?;
        let (mut reader, mut writer) = stream.split();
        let (mut calls, mut baseline) = (Vec::new(), Vec::new());
        for n in 0..WARM_UP + request.calls {
            let bare = round_trip(&mut reader, &mut writer).await?;
            let ask = self.ask(call.clone())?;
            let took = one(&self.0.dispatcher, ask).await?;
            if n >= WARM_UP {
                baseline.push(bare);
                calls.push(took);
            }
        }
        let in_flight = slots.clamp(1, IN_FLIGHT);
        let took = self.many(&call, request.calls, in_flight).await?;
        let home = self.0.home.path().to_owned();
        let fsyncs = tokio::task::spawn_blocking(move || fsyncs(&home)).await;
        let fsyncs = fsyncs.map_err(|e| ApiError::internal(e.to_string()))?;
        let mut fsyncs = fsyncs.map_err(|e| failed(format!("the disk could not be measured: {e}")))?;
        Ok(TrialReply {
            node: name,
            tool: call.tool,
            calls: request.calls,
            argument_bytes: u32::try_from(argument_bytes).unwrap_or(u32::MAX),
            p50_us: percentile(&mut calls, 50),
            p99_us: percentile(&mut calls, 99),
            baseline_p50_us: percentile(&mut baseline, 50),
            baseline_p99_us: percentile(&mut baseline, 99),
            in_flight: u32::from(in_flight),
            steps_per_s: (f64::from(request.calls) / took.as_secs_f64()).round(),
            fsync_p50_us: percentile(&mut fsyncs, 50),
        })
    }

    /// So many calls, `in_flight` at a time; how long they took together.
    async fn many(&self, call: &CallRequest, calls: u32, in_flight: u16) -> Result<Duration, ApiError> {
        let mut asks = Vec::new();
        for _ in 0..calls {
            asks.push(self.ask(call.clone())?);
        }
        let asks = Arc::new(Mutex::new(asks));
        let cancel = CancellationToken::new();
        let _guard = cancel.clone().drop_guard();
        let (done, mut over) = mpsc::channel(usize::from(in_flight));
        let began = Instant::now();
        for _ in 0..in_flight {
            let (dispatcher, asks, cancel, done) =
                (self.0.dispatcher.clone(), Arc::clone(&asks), cancel.clone(), done.clone());
            self.0.supervisor.spawn("measured calls", async move {
                let mut result = Ok(());
                while let (Ok(()), false, Some(ask)) =
                    (&result, cancel.is_cancelled(), asks.lock().await.pop())
                {
                    result = one(&dispatcher, ask).await.map(drop);
                }
                // silent-ok: whoever measures has gone away
                let _ = done.send(result).await;
            });
        }
        drop(done);
        while let Some(result) = over.recv().await {
            result?;
        }
        Ok(began.elapsed())
    }
}

async fn one(dispatcher: &Dispatcher, ask: CallAsk) -> Result<Duration, ApiError> {
    let (events, _) = mpsc::channel::<Event>(1);
    let began = Instant::now();
    let done = dispatcher.call(ask, &CancellationToken::new(), &events).await;
    let took = began.elapsed();
    if done.status == StepStatus::Ok {
        return Ok(took);
    }
    let why = done.output.pointer("/error/message").and_then(Value::as_str).unwrap_or("no reason given");
    Err(failed(format!("a call ended as {}: {why}", done.status)))
}

async fn round_trip(reader: &mut FrameReader, writer: &mut FrameWriter) -> Result<Duration, ApiError> {
    let broken = |e: crate::net::StreamError| failed(format!("the stream of bare round trips broke: {e}"));
    let began = Instant::now();
    writer.send(Renew { leases: Vec::new() }).await.map_err(broken)?;
    match reader.receive().await.map_err(broken)? {
        Message::StatusReply(StatusReply::Running) => Ok(began.elapsed()),
        other => Err(failed(format!("a bare round trip was answered with {}", other.name()))),
    }
}

/// A page of a file written anew and synchronised, as often as [`FSYNCS`] says.
fn fsyncs(home: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = tempfile::tempfile_in(home)?;
    let page = [0x5a; FSYNC_BYTES];
    let mut took = Vec::with_capacity(FSYNCS);
    for n in 0..FSYNCS {
        file.seek(SeekFrom::Start((n % 8 * FSYNC_BYTES) as u64))?;
        let began = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        took.push(began.elapsed());
    }
    Ok(took)
}

/// In microseconds, to a tenth.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    let us = times.get(place).map_or(0.0, |t| t.as_secs_f64() * 1e6);
    (us * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut times: Vec<Duration> = (1..=100).rev().map(Duration::from_micros).collect();
        assert!((percentile(&mut times, 50) - 51.0).abs() < 1e-9);
        assert!((percentile(&mut times, 99) - 100.0).abs() < 1e-9);
        assert!((percentile(&mut times[..1], 99) - 1.0).abs() < 1e-9);
        assert!(percentile(&mut [], 50).abs() < 1e-9);
    }

    #[test]
    fn a_page_reaches_the_disk() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(fsyncs(home.path()).unwrap().len(), FSYNCS);
    }
}
