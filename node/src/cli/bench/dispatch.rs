//! `octomesh bench dispatch`: what a routed call costs beside a bare round trip, and what HTTP adds to it.
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{
    api::types::{CallReply, CallRequest, TrialReply, TrialRequest},
    bench::dispatch::{FAR, Mesh, ONCE},
    cli::{
        CliError, Context, Exit,
        client::{self, Client},
        render::Table,
    },
};

/// Calls over HTTP: enough for a p99.
const HTTP_CALLS: u32 = 1000;
/// Calls of a tool that must not run twice: each waits for the disk three times.
const ONCE_CALLS: u32 = 500;
const TEXT: usize = 1000;

/// Measures calls.
#[derive(Debug, Args)]
pub(super) struct DispatchCommand {
    /// Call this node from the running one, instead of two nodes that are started for it
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Calls one after the other, and as many at once
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
}

/// The result. Times are in microseconds.
#[derive(Debug, Serialize)]
struct Report {
    /// The node that ran the steps; `far` of the two that were started for it.
    node: String,
    calls: u32,
    argument_bytes: u32,
    p50_us: f64,
    p99_us: f64,
    baseline_p50_us: f64,
    baseline_p99_us: f64,
    in_flight: u32,
    steps_per_s: f64,
    /// The same call through the API.
    http_p50_us: f64,
    http_p99_us: f64,
    /// A tool that must not run twice; only where the bench has its own nodes.
    once_p50_us: Option<f64>,
    once_p99_us: Option<f64>,
    fsync_p50_us: f64,
}

impl DispatchCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let report = match &self.node {
            Some(node) => measure(context, &context.client()?, node, self.calls, false).await?,
            None => {
                context.screen.progress("starting two nodes");
                let mesh = Mesh::start().await.map_err(|e| CliError::failed(e.to_string()))?;
                let (address, token) = mesh.api();
                let client = Client::new(client::base_url(&address.to_string())?, Some(token))?;
                let report = measure(context, &client, FAR, self.calls, true).await;
                mesh.stop().await;
                report?
            }
        };
        context.screen.show(&report, text)?;
        Ok(Exit::Ok)
    }
}

async fn measure(
    context: &Context,
    client: &Client,
    node: &str,
    calls: u32,
    own: bool,
) -> Result<Report, CliError> {
    let trial = |tool: Option<&str>, calls| TrialRequest {
        node: node.to_owned(),
        tool: tool.map(str::to_owned),
        calls,
    };
    let path = ["api", "bench", "dispatch"];
    context.screen.progress("calls in turn with bare round trips, then many at once");
    let pure: TrialReply = client.post(&path, &trial(None, calls), true).await?;
    context.screen.progress("calls over HTTP");
    let http = over_http(client, node, calls.min(HTTP_CALLS)).await?;
    let once: Option<TrialReply> = if own {
        context.screen.progress("calls that must not run twice");
        Some(client.post(&path, &trial(Some(ONCE), calls.min(ONCE_CALLS)), true).await?)
    } else {
        None
    };
    Ok(Report {
        node: pure.node,
        calls: pure.calls,
        argument_bytes: pure.argument_bytes,
        p50_us: pure.p50_us,
        p99_us: pure.p99_us,
        baseline_p50_us: pure.baseline_p50_us,
        baseline_p99_us: pure.baseline_p99_us,
        in_flight: pure.in_flight,
        steps_per_s: pure.steps_per_s,
        http_p50_us: of(&http, 50),
        http_p99_us: of(&http, 99),
        once_p50_us: once.as_ref().map(|o| o.p50_us),
        once_p99_us: once.as_ref().map(|o| o.p99_us),
        fsync_p50_us: once.as_ref().map_or(pure.fsync_p50_us, |o| o.fsync_p50_us),
    })
}

/// Sorted times.
async fn over_http(client: &Client, node: &str, calls: u32) -> Result<Vec<Duration>, CliError> {
    let request = CallRequest {
        tool: "echo".to_owned(),
        arguments: Map::from_iter([("text".to_owned(), Value::String("x".repeat(TEXT)))]),
        node: Some(node.to_owned()),
        timeout_s: Some(10),
    };
    let mut times = Vec::new();
    for _ in 0..calls {
        let began = Instant::now();
        let _: CallReply = client.post(&["api", "call"], &request, true).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn of(sorted: &[Duration], percent: usize) -> f64 {
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).map_or(0.0, |t| (t.as_secs_f64() * 1e7).round() / 10.0)
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["", "p50 us", "p99 us", "x bare p50", "x bare p99"]);
    let mut row = |what: &str, p50: f64, p99: f64| {
        table.row([
            what.to_owned(),
            p50.to_string(),
            p99.to_string(),
            format!("{:.2}", p50 / report.baseline_p50_us),
            format!("{:.2}", p99 / report.baseline_p99_us),
        ]);
    };
    row("bare round trip", report.baseline_p50_us, report.baseline_p99_us);
    row("pure call", report.p50_us, report.p99_us);
    row("pure call over HTTP", report.http_p50_us, report.http_p99_us);
    if let (Some(p50), Some(p99)) = (report.once_p50_us, report.once_p99_us) {
        row("call that must not run twice", p50, p99);
    }
    format!(
        "{table}\n{} calls of {} bytes on {}; {} a second with {} in flight. One write to the disk takes {} us.",
        report.calls,
        report.argument_bytes,
        report.node,
        report.steps_per_s,
        report.in_flight,
        report.fsync_p50_us,
    )
}
