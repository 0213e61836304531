//! `octomesh bench`: measurements on this machine. None needs a running node; `dispatch --node` uses one.
mod dispatch;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{CliError, Context, Exit, render::Table};
use crate::bench::router;

/// Measures this machine.
#[derive(Debug, Args)]
pub(super) struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compare a session with libp2p's Noise and TLS and with no encryption; needs a build with the feature bench-sessions
    Sessions(SessionsCommand),
    /// Compare a routed call with a bare round trip between two nodes
    Dispatch(dispatch::DispatchCommand),
    /// Compare the router with other policies in a simulated mesh; the same seed gives the same rows
    Router(RouterCommand),
}

/// Simulates.
#[derive(Debug, Args)]
struct RouterCommand {
    /// Sizes of meshes; each is simulated at nine settings, and 1000 nodes take some minutes
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "3,8,64", value_parser = clap::value_parser!(u32).range(2..=1000))]
    nodes: Vec<u32>,
    /// What all that is random comes from
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write a picture of it to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Measures sessions.
#[derive(Debug, Args)]
struct SessionsCommand {
    /// At most so many rounds
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// No round begins after so many seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

impl BenchCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        match &self.what {
            What::Sessions(c) => c.run(context).await,
            What::Dispatch(c) => c.run(context).await,
            What::Router(c) => c.run(context),
        }
    }
}

impl RouterCommand {
    /// Nothing else runs in this process, so that it may as well compute here.
    fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let nodes = self.nodes.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
        let options = router::Options { nodes, seed: self.seed };
        let progress = |s: &router::Setting| {
            let scenario: &str = s.scenario.into();
            let text = format!(
                "{} nodes, {scenario}, load {}, adverts every {} s, estimates wrong by {}",
                s.nodes, s.load, s.gossip_s, s.estimate_error
            );
            context.screen.progress(&text);
        };
        let report = router::run(&options, progress).map_err(|e| CliError::failed(e.to_string()))?;
        if let Some(file) = &self.plot {
            std::fs::write(file, router::svg(&report)).map_err(|e| {
                CliError::failed(format!("can't write {}: {e}", file.display()))
                    .hint("name a file in a directory that you may write to")
            })?;
        }
        context.screen.show(&report, router_text)?;
        Ok(Exit::Ok)
    }
}

fn router_text(report: &router::Report) -> String {
    let mut table = Table::new(&[
        "nodes",
        "scenario",
        "load",
        "gossip s",
        "error",
        "policy",
        "mean s",
        "p50 s",
        "p99 s",
        "refused",
        "run s",
        "unfinished",
    ]);
    for row in &report.rows {
        let (scenario, policy): (&str, &str) = (row.scenario.into(), row.policy.into());
        table.row([
            row.nodes.to_string(),
            scenario.to_owned(),
            row.load.to_string(),
            row.gossip_s.to_string(),
            row.estimate_error.to_string(),
            policy.to_owned(),
            format!("{:.3}", row.mean_s),
            format!("{:.3}", row.p50_s),
            format!("{:.2}", row.p99_s),
            format!("{:.2}", row.refusals_per_step),
            row.makespan_s.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}")),
            row.unfinished.to_string(),
        ]);
    }
    format!(
        "{table}\nSeed {}. Refused reservations are per step; run s is the mean time of a run of dependent steps.",
        report.seed
    )
}

#[cfg(not(feature = "bench-sessions"))]
impl SessionsCommand {
    #[expect(clippy::unused_async, reason = "with the feature it waits")]
    async fn run(&self, _: &Context) -> Result<Exit, CliError> {
        Err(CliError::usage(
            "this octomesh was built without classical Noise and TLS, so there is nothing to compare with",
        )
        .hint("`cargo build --release -p octomesh --features bench-sessions` builds one that has them"))
    }
}

#[cfg(feature = "bench-sessions")]
mod sessions {
    use std::time::Duration;

    use super::SessionsCommand;
    use crate::{
        bench::sessions::{self, Options, Report},
        cli::{CliError, Context, Exit, render::Table},
    };

    impl SessionsCommand {
        pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
            let options = Options { rounds: self.rounds, limit: Duration::from_secs(self.seconds) };
            let progress = |round| {
                if round % 10 == 0 {
                    context.screen.progress(&format!("round {round}"));
                }
            };
            let report =
                sessions::run(options, progress).await.map_err(|e| CliError::failed(e.to_string()))?;
            context.screen.show(&report, text)?;
            Ok(Exit::Ok)
        }
    }

    fn text(report: &Report) -> String {
        let mut table = Table::new(&[
            "variant",
            "handshake us",
            "per s",
            "CPU us",
            "x noise",
            "CPU x",
            "MB/s",
            "CPU s/GiB",
            "x noise",
            "64 B us",
            "x noise",
            "CPU x",
        ]);
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        for row in &report.rows {
            table.row([
                row.variant.to_owned(),
                number(row.handshake_median_us),
                number(row.handshakes_per_s),
                number(row.handshake_cpu_us),
                number(row.times_noise.handshake),
                number(row.times_noise.handshake_cpu),
                number(row.bulk_mb_per_s),
                number(row.bulk_cpu_s_per_gib),
                number(row.times_noise.bulk_cpu),
                number(row.roundtrip_p50_us),
                number(row.times_noise.roundtrip),
                number(row.times_noise.roundtrip_cpu),
            ]);
        }
        let tls = report.tls_suite.as_deref().unwrap_or("nothing");
        format!(
            "{table}\nMedians of {} rounds, both ends in this process, on {} cores ({}).\nRecords of octomesh by {}; TLS negotiated {tls}.\nCPU time is that of both ends. Ratios are medians of the ratios within a round.",
            report.rounds,
            report.cores,
            if report.cpu.is_empty() { "no vector unit known".to_owned() } else { report.cpu.join(", ") },
            report.aead,
        )
    }
}
