//! `octomesh bench sessions`: our session beside libp2p's Noise, its TLS, and no encryption.
use std::{sync::Arc, time::Duration};

use octomesh_protocol::session;
use serde::Serialize;
use strum::IntoEnumIterator as _;
use tokio::time::Instant;

use super::statistics::{median, rounded};
use crate::{
    app::clock::SystemClock,
    net::bench::{BenchError, Cost, Link, Suites, Variant},
};

/// Handshakes one after the other in a round, of each variant.
const HANDSHAKES: usize = 6;
/// Handshakes at once.
const AT_ONCE: u32 = 16;
/// Round trips in a round.
const ROUND_TRIPS: u32 = 200;
/// Bytes through one stream in a round: some tens of milliseconds.
const BULK_BYTES: u64 = 32 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// At most so many rounds.
    pub(crate) rounds: u32,
    /// No round begins after this.
    pub(crate) limit: Duration,
}

/// What one variant gave, round by round.
#[derive(Default)]
struct Samples {
    handshake_us: Vec<f64>,
    handshake_cpu_us: Vec<f64>,
    per_s: Vec<f64>,
    mb_per_s: Vec<f64>,
    cpu_s_per_gib: Vec<f64>,
    roundtrip_us: Vec<f64>,
    roundtrip_cpu_us: Vec<f64>,
}

/// The medians of one variant. `None` where its bytes travel as those of `octomesh`.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// Which.
    pub(crate) variant: &'static str,
    /// From a TCP connection to two ends that can send, negotiation and all.
    pub(crate) handshake_median_us: Option<f64>,
    /// 16 at once.
    pub(crate) handshakes_per_s: Option<f64>,
    /// CPU time of both ends.
    pub(crate) handshake_cpu_us: Option<f64>,
    /// Through one yamux stream, in 10^6 bytes.
    pub(crate) bulk_mb_per_s: Option<f64>,
    /// CPU time of both ends, the kernel's part included.
    pub(crate) bulk_cpu_s_per_gib: Option<f64>,
    /// 64 bytes there and back on a stream that stays.
    pub(crate) roundtrip_p50_us: Option<f64>,
    /// CPU time of both ends.
    pub(crate) roundtrip_cpu_us: Option<f64>,
    /// The same measures, each as the median of its ratio to `noise` in the same round.
    pub(crate) times_noise: Ratios,
}

/// Ratios to `noise`; below 1 is cheaper.
#[derive(Debug, Serialize)]
pub(crate) struct Ratios {
    pub(crate) handshake: Option<f64>,
    pub(crate) handshake_cpu: Option<f64>,
    pub(crate) bulk_cpu: Option<f64>,
    pub(crate) roundtrip: Option<f64>,
    pub(crate) roundtrip_cpu: Option<f64>,
}

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    /// Rounds that were measured, after one that was not.
    pub(crate) rounds: u32,
    /// What seals our records.
    pub(crate) aead: &'static str,
    /// What libp2p's TLS negotiated.
    pub(crate) tls_suite: Option<String>,
    /// Cores of this machine.
    pub(crate) cores: usize,
    /// What of its vector units this program uses or could use.
    pub(crate) cpu: Vec<&'static str>,
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl Samples {
    fn add_handshakes(&mut self, one_by_one: &[f64], at_once: Cost) {
        self.handshake_us.extend(median(one_by_one));
        self.handshake_cpu_us.push(micros(at_once.cpu));
        self.per_s.push(1.0 / at_once.wall.as_secs_f64());
    }

    async fn add_link(&mut self, link: &mut Link) -> Result<(), BenchError> {
        let bulk = link.bulk(BULK_BYTES).await?;
        let bytes = BULK_BYTES as f64;
        self.mb_per_s.push(bytes / bulk.wall.as_secs_f64() / 1e6);
        self.cpu_s_per_gib.push(bulk.cpu.as_secs_f64() * GIB / bytes);
        let (took, cpu) = link.round_trips(ROUND_TRIPS).await?;
        let took: Vec<f64> = took.into_iter().map(micros).collect();
        self.roundtrip_us.extend(median(&took));
        self.roundtrip_cpu_us.push(micros(cpu));
        Ok(())
    }
}

struct Measured {
    variant: Variant,
    link: Option<Link>,
    samples: Samples,
}

/// Measures. `progress` is told of each round.
///
/// # Errors
/// [`BenchError`] of whatever broke; nothing is reported then.
pub(crate) async fn run(options: Options, mut progress: impl FnMut(u32)) -> Result<Report, BenchError> {
    let mut suites = Suites::new(Arc::new(SystemClock)).await?;
    let mut all = Vec::new();
    for variant in Variant::iter() {
        let link = if variant.carries() { Some(suites.connect(variant).await?) } else { None };
        all.push(Measured { variant, link, samples: Samples::default() });
    }
    // Caches, windows of streams and the allocator settle.
    round(&mut suites, &mut all).await?;
    for measured in &mut all {
        measured.samples = Samples::default();
    }
    let began = Instant::now();
    let mut rounds = 0;
    while rounds < options.rounds && (rounds == 0 || began.elapsed() < options.limit) {
        // Each variant has each place in a round.
        all.rotate_left(1);
        round(&mut suites, &mut all).await?;
        rounds += 1;
        progress(rounds);
    }
    all.sort_by_key(|measured| Variant::iter().position(|v| v == measured.variant));
    Ok(report(&all, rounds, suites.tls()))
}

async fn round(suites: &mut Suites, all: &mut [Measured]) -> Result<(), BenchError> {
    for measured in &mut *all {
        let mut one_by_one = Vec::new();
        for _ in 0..HANDSHAKES {
            one_by_one.push(micros(suites.handshake(measured.variant).await?));
        }
        let at_once = suites.handshakes(measured.variant, AT_ONCE).await?;
        measured.samples.add_handshakes(&one_by_one, at_once);
    }
    for measured in all {
        if let Some(link) = &mut measured.link {
            measured.samples.add_link(link).await?;
        }
    }
    Ok(())
}

fn report(all: &[Measured], rounds: u32, tls: Option<&str>) -> Report {
    let noise = all.iter().find(|measured| measured.variant == Variant::Noise).map(|m| &m.samples);
    let rows = all.iter().map(|measured| row(measured, noise)).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let tls_suite = tls.map(str::to_owned);
    Report { rows, rounds, aead: session::AEAD_PROVIDER, tls_suite, cores, cpu: cpu() }
}

fn row(measured: &Measured, noise: Option<&Samples>) -> Row {
    let samples = &measured.samples;
    let of = |values: &[f64], digits| median(values).map(|value| rounded(value, digits));
    let beside = |pick: fn(&Samples) -> &Vec<f64>| {
        let ratios: Vec<f64> = noise
            .into_iter()
            .flat_map(|noise| pick(samples).iter().zip(pick(noise)))
            .map(|(a, b)| a / b)
            .collect();
        of(&ratios, 2)
    };
    Row {
        variant: measured.variant.into(),
        handshake_median_us: of(&samples.handshake_us, 0),
        handshakes_per_s: of(&samples.per_s, 0),
        handshake_cpu_us: of(&samples.handshake_cpu_us, 0),
        bulk_mb_per_s: of(&samples.mb_per_s, 0),
        bulk_cpu_s_per_gib: of(&samples.cpu_s_per_gib, 2),
        roundtrip_p50_us: of(&samples.roundtrip_us, 1),
        roundtrip_cpu_us: of(&samples.roundtrip_cpu_us, 1),
        times_noise: Ratios {
            handshake: beside(|s| &s.handshake_us),
            handshake_cpu: beside(|s| &s.handshake_cpu_us),
            bulk_cpu: beside(|s| &s.cpu_s_per_gib),
            roundtrip: beside(|s| &s.roundtrip_us),
            roundtrip_cpu: beside(|s| &s.roundtrip_cpu_us),
        },
    }
}

/// Vector units that the ciphers care about.
fn cpu() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            found.push("avx2");
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            found.push("avx512f");
        }
    }
    found
}
