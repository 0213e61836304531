//! `octomesh bench`: measurements on this machine. None needs a running node.
use clap::{Args, Subcommand};

use super::{CliError, Context, Exit};

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
        }
    }
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
