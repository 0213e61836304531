//! `octomesh bench router`: the router and the lease table of this program beside other policies, in a simulated mesh.
//!
//! ```text
//!  seed ─> world (machines, tools, steps) ─> simulation ─ policy ─> latencies ─> rows, a picture
//!                                               │  octomesh: router::decide, Tries, OwnReservations, History; executor::Model
//!                                               └  others: the last adverts, or, for the oracle, the truth
//! ```
//!
//! Time is virtual and nothing is random but the seed: the same options give the same rows, on any machine.
#![expect(
    clippy::indexing_slicing,
    reason = "numbers of nodes, steps and tools index tables of as many entries"
)]
mod ours;
mod plot;
mod policy;
mod random;
mod simulation;
#[cfg(test)]
mod tests;
mod world;

use serde::Serialize;
use strum::IntoEnumIterator as _;

pub(crate) use self::{
    plot::svg,
    policy::Policy,
    world::{Scenario, Setting},
};
use super::statistics::rounded;

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BenchError(String);

/// Steps of one run of a mesh of up to 64 nodes; larger meshes get as many per node, up to [`MOST_STEPS`].
const STEPS: usize = 30_000;
const MOST_STEPS: usize = 120_000;
/// What is usual; each setting changes one of it.
const GOSSIP_S: f64 = 5.0;
const LOAD: f64 = 0.7;

/// What to simulate.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Sizes of meshes.
    pub(crate) nodes: Vec<usize>,
    pub(crate) seed: u64,
}

/// One policy in one setting.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) policy: Policy,
    pub(crate) nodes: usize,
    /// Seconds between two adverts of a node.
    pub(crate) gossip_s: f64,
    /// Share of what the mesh can do.
    pub(crate) load: f64,
    /// Factor by which estimates are wrong; 1 is right.
    pub(crate) estimate_error: f64,
    /// What is special.
    pub(crate) scenario: Scenario,
    /// Of a step, from its coming to its outcome.
    pub(crate) mean_s: f64,
    pub(crate) p50_s: f64,
    pub(crate) p99_s: f64,
    pub(crate) refusals_per_step: f64,
    /// Of a dependent run; absent without runs.
    pub(crate) makespan_s: Option<f64>,
    /// Calls per step for which nobody was found at once.
    pub(crate) turned_away_per_step: f64,
    /// Steps that were not done a quarter of an hour after the last one came: the policy can't keep up.
    pub(crate) unfinished: usize,
    /// The middle of predicted over real times; absent for who predicts nothing.
    pub(crate) estimate_ratio: Option<f64>,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) seed: u64,
}

/// The settings for one size of mesh: the usual one, and each thing changed in turn.
pub(crate) fn settings(nodes: usize, seed: u64) -> Vec<Setting> {
    let steps = (STEPS * nodes.max(64) / 64).min(MOST_STEPS);
    let usual = Setting {
        nodes,
        gossip_s: GOSSIP_S,
        load: LOAD,
        estimate_error: 1.0,
        scenario: Scenario::Steady,
        steps,
        seed,
    };
    vec![
        usual,
        Setting { gossip_s: 0.1, ..usual },
        Setting { gossip_s: 1.0, ..usual },
        Setting { gossip_s: 15.0, ..usual },
        Setting { load: 0.3, ..usual },
        Setting { load: 0.85, ..usual },
        Setting { estimate_error: 2.0, ..usual },
        Setting { scenario: Scenario::Runs, ..usual },
        Setting { scenario: Scenario::Trouble, ..usual },
    ]
}

/// Simulates. `progress` is told of each setting.
///
/// # Errors
/// [`BenchError`] when the mesh can't be made up.
pub(crate) fn run(options: &Options, mut progress: impl FnMut(&Setting)) -> Result<Report, BenchError> {
    let mut rows = Vec::new();
    for nodes in &options.nodes {
        for setting in settings(*nodes, options.seed) {
            progress(&setting);
            for policy in Policy::iter() {
                rows.push(row(&setting, policy)?);
            }
        }
    }
    Ok(Report { rows, seed: options.seed })
}

#[expect(clippy::cast_precision_loss, reason = "numbers of steps")]
pub(crate) fn row(setting: &Setting, policy: Policy) -> Result<Row, BenchError> {
    let mut outcome = simulation::simulate(setting, policy)?;
    outcome.latencies.sort_by(f64::total_cmp);
    let all = outcome.latencies.len();
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the list")]
        let place = (all.saturating_sub(1) as f64 * share) as usize;
        rounded(outcome.latencies.get(place).copied().unwrap_or_default(), 4)
    };
    let mean = |values: &[f64]| rounded(values.iter().sum::<f64>() / values.len().max(1) as f64, 4);
    let steps = outcome.steps.max(1) as f64;
    Ok(Row {
        policy,
        nodes: setting.nodes,
        gossip_s: setting.gossip_s,
        load: setting.load,
        estimate_error: setting.estimate_error,
        scenario: setting.scenario,
        mean_s: mean(&outcome.latencies),
        p50_s: at(0.5),
        p99_s: at(0.99),
        refusals_per_step: rounded(outcome.refusals as f64 / steps, 4),
        makespan_s: (!outcome.makespans.is_empty()).then(|| mean(&outcome.makespans)),
        turned_away_per_step: rounded(outcome.turned_away as f64 / steps, 5),
        unfinished: outcome.unfinished,
        estimate_ratio: super::statistics::median(&outcome.ratios).map(|ratio| rounded(ratio, 3)),
    })
}
