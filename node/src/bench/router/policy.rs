//! How a node is picked. All but ours see what their adverts said, send the step, and hope.
use serde::Serialize;

use super::{
    random::Random,
    world::{Us, World},
};

/// Share of the best score that keeps a step at home in `OptimClaw`'s document.
const HOME: f64 = 0.9;
/// Latency assumed before it was measured, in seconds: Finagle's way to try everybody.
const UNKNOWN_LATENCY: f64 = 0.3;

/// How a node is picked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::EnumIter, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Policy {
    /// The router of this program.
    Octomesh,
    /// The earliest end, with everything known exactly. Greedy, not the optimum.
    Oracle,
    /// Any node that has the tool.
    Random,
    /// One after the other.
    RoundRobin,
    /// The fewest steps per slot in the last advert.
    LeastLoaded,
    /// The weighted score of `OptimClaw`'s document: a missing tool is only a worse score.
    OptimclawDoc,
    /// The score of `OptimClaw`'s code.
    OptimclawCode,
    /// The less loaded of two.
    TwoChoices,
    /// Of two the one with the lower peak of own latencies times own steps under way.
    PeakEwma,
}

/// What the last advert of a node said, or what a node knows of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Steps that run or wait there.
    pub(super) jobs: f64,
    pub(super) draining: bool,
    pub(super) down: bool,
}

/// What one coordinator measured itself.
#[derive(Debug, Clone)]
pub(super) struct Own {
    latency: Vec<f64>,
    under_way: Vec<f64>,
    turn: usize,
}

impl Own {
    pub(super) fn new(nodes: usize) -> Self {
        Self { latency: vec![UNKNOWN_LATENCY; nodes], under_way: vec![0.0; nodes], turn: 0 }
    }

    pub(super) fn sent(&mut self, node: usize) {
        self.under_way[node] += 1.0;
    }

    pub(super) fn back(&mut self, node: usize, latency: f64) {
        self.under_way[node] -= 1.0;
        let known = &mut self.latency[node];
        *known = if latency > *known { latency } else { *known * 0.9 + latency * 0.1 };
    }
}

/// A baseline's choice for one step.
pub(super) struct Choice<'a> {
    pub(super) world: &'a World,
    pub(super) step: usize,
    /// What each node said last; what the own node knows of itself.
    pub(super) seen: &'a dyn Fn(usize) -> Seen,
    /// When the step would end on each node, for the oracle.
    pub(super) ends: &'a dyn Fn(usize) -> Us,
    /// Nodes that are out for this step.
    pub(super) lost: &'a [usize],
}

impl Choice<'_> {
    fn load(&self, node: usize) -> f64 {
        (self.seen)(node).jobs / f64::from(self.world.machines[node].slots)
    }

    fn is_up(&self, node: usize) -> bool {
        let seen = (self.seen)(node);
        !seen.down && !seen.draining && !self.lost.contains(&node)
    }

    fn has_tool(&self, node: usize) -> bool {
        self.world.machines[node].tools[self.world.work[self.step].tool]
    }

    /// The node to send it to; `None` when none is up.
    pub(super) fn pick(&self, policy: Policy, own: &mut Own, random: &mut Random) -> Option<usize> {
        let nodes = 0..self.world.machines.len();
        let able: Vec<usize> = nodes.filter(|n| self.is_up(*n) && self.has_tool(*n)).collect();
        if able.is_empty() {
            return None;
        }
        Some(match policy {
            Policy::Random | Policy::Octomesh => random.pick(&able),
            Policy::RoundRobin => {
                own.turn += 1;
                able[own.turn % able.len()]
            }
            Policy::Oracle => able.into_iter().min_by_key(|n| (self.ends)(*n))?,
            Policy::LeastLoaded => {
                let least = able.iter().map(|n| self.load(*n)).fold(f64::MAX, f64::min);
                let best: Vec<usize> = able.into_iter().filter(|n| self.load(*n) <= least).collect();
                random.pick(&best)
            }
            Policy::TwoChoices => {
                let (a, b) = (random.pick(&able), random.pick(&able));
                if self.load(a) <= self.load(b) { a } else { b }
            }
            Policy::PeakEwma => {
                let (a, b) = (random.pick(&able), random.pick(&able));
                let cost = |n: usize| own.latency[n] * (own.under_way[n] + 1.0);
                if cost(a) <= cost(b) { a } else { b }
            }
            Policy::OptimclawDoc => self.by_document()?,
            Policy::OptimclawCode => self.by_code(&able)?,
        })
    }

    /// 0.35 (1 - load) + 0.25 (1 - latency) + 0.25 capability + 0.05 locality; 0.10 for the session's node is nobody's here.
    fn by_document(&self) -> Option<usize> {
        let origin = self.world.work[self.step].origin;
        let nodes = || (0..self.world.machines.len()).filter(|n| self.is_up(*n));
        let slowest = nodes().map(|n| self.world.rtt(origin, n)).fold(0.0, f64::max);
        let score = |n: usize| {
            let latency = self.world.rtt(origin, n) / slowest.max(1e-9);
            let near = self.world.machines[n].region == self.world.machines[origin].region;
            0.35 * (1.0 - self.load(n).min(1.0))
                + 0.25 * (1.0 - latency)
                + if self.has_tool(n) { 0.25 } else { 0.0 }
                + if near { 0.05 } else { 0.0 }
        };
        let best = nodes().max_by(|a, b| score(*a).total_cmp(&score(*b)))?;
        let home = self.is_up(origin) && score(origin) >= HOME * score(best);
        Some(if home { origin } else { best })
    }

    /// Tools are a filter; 0.35 (1 - load) + 0.15 free memory + 0.15 / (hops + 1); nobody needs a GPU or a model.
    fn by_code(&self, able: &[usize]) -> Option<usize> {
        let origin = self.world.work[self.step].origin;
        let score = |n: usize| {
            let hops = if n == origin { 1.0 } else { 2.0 };
            0.35 * (1.0 - self.load(n).min(1.0)) + 0.15 * self.world.machines[n].memory + 0.15 / hops
        };
        able.iter().copied().max_by(|a, b| score(*a).total_cmp(&score(*b)))
    }
}
