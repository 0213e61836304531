//! The mesh that is simulated and the work that comes to it: the same for every policy, from one seed.
use serde::Serialize;

use super::random::Random;

/// Microseconds of virtual time.
pub(super) type Us = u64;

/// Duration of each tool on an ordinary machine, in seconds, and how often it is called.
pub(super) const TOOLS: [(f64, f64); 8] =
    [(0.03, 4.0), (0.05, 4.0), (0.1, 3.0), (0.2, 3.0), (0.3, 2.0), (0.5, 2.0), (1.0, 1.0), (3.0, 0.5)];
/// Speeds of machines against an ordinary one, and their slots.
const SPEEDS: [f64; 5] = [0.5, 1.0, 1.0, 2.0, 4.0];
const SLOTS: [u16; 5] = [1, 2, 4, 4, 8];
/// Round trips in seconds and bytes per second: within a region, and to the other one.
const NEAR: (f64, f64) = (0.0015, 100e6);
const FAR: (f64, f64) = (0.045, 5e6);
/// From a coordinator to its own executor and back, in seconds.
const OWN: f64 = 0.0002;
/// A node is slow, by this factor and for so many seconds, every now and then: somebody else uses it.
pub(super) const SLOW: (f64, f64, f64) = (4.0, 8.0, 60.0);
/// Deviation of the sizes of steps and of their arguments, which are this many bytes on average.
const SIZES: f64 = 0.8;
const ARGUMENTS: (f64, f64) = (60e3, 1.5);
/// Share of the steps that comes from a quarter of the nodes.
const HOT: f64 = 0.6;
/// Steps of one dependent run.
const RUN_STEPS: (usize, usize) = (5, 20);

/// What is special about a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Scenario {
    /// Steps that have nothing to do with each other.
    Steady,
    /// Runs of 5 to 20 steps, each of which needs the one before.
    Runs,
    /// Executors die and come back, others are drained.
    Trouble,
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setting {
    pub(crate) nodes: usize,
    /// Seconds between two adverts of a node.
    pub(crate) gossip_s: f64,
    /// Share of what the mesh can do at all.
    pub(crate) load: f64,
    /// Each estimate of a tool on a node is wrong by this factor, up or down; 1 is right.
    pub(crate) estimate_error: f64,
    pub(crate) scenario: Scenario,
    /// Steps in all.
    pub(crate) steps: usize,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) speed: f64,
    pub(super) slots: u16,
    pub(super) region: usize,
    pub(super) tools: [bool; TOOLS.len()],
    /// Factor on the true duration of each tool that estimates have.
    pub(super) error: [f64; TOOLS.len()],
    /// Share of memory that is free; only one of the baselines cares.
    pub(super) memory: f64,
}

/// One step as it comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) at: Us,
    pub(super) origin: usize,
    pub(super) tool: usize,
    /// Factor on the tool's duration, not known to anybody before.
    pub(super) size: f64,
    pub(super) bytes: u64,
    /// It comes when the step with this number has ended, not before.
    pub(super) after: Option<usize>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) machines: Vec<Machine>,
    pub(super) work: Vec<Work>,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a simulation")]
pub(super) fn us(seconds: f64) -> Us {
    (seconds * 1e6).round() as Us
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a simulation")]
pub(super) fn seconds(us: Us) -> f64 {
    us as f64 / 1e6
}

impl World {
    pub(super) fn new(setting: &Setting) -> Self {
        let machines = machines(setting);
        let work = work(setting, most(&machines) * setting.load);
        Self { machines, work }
    }

    /// Round trip in seconds.
    pub(super) fn rtt(&self, a: usize, b: usize) -> f64 {
        if a == b { OWN } else { self.link(a, b).0 }
    }

    /// Seconds that `bytes` need.
    pub(super) fn transfer(&self, a: usize, b: usize, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "kilobytes")]
        let bytes = bytes as f64;
        if a == b { 0.0 } else { bytes / self.link(a, b).1 }
    }

    fn link(&self, a: usize, b: usize) -> (f64, f64) {
        if self.machines[a].region == self.machines[b].region { NEAR } else { FAR }
    }

    /// Seconds that the step takes on a machine that is slow by the factor `slow`.
    pub(super) fn duration(&self, step: usize, node: usize, slow: f64) -> f64 {
        let work = &self.work[step];
        TOOLS[work.tool].0 * work.size / self.machines[node].speed * slow
    }
}

fn machines(setting: &Setting) -> Vec<Machine> {
    let mut random = Random::new(setting.seed, 1);
    let mut wrong = Random::new(setting.seed, 2);
    let n = setting.nodes;
    let mut all: Vec<Machine> = (0..n)
        .map(|i| Machine {
            speed: random.pick(&SPEEDS),
            slots: random.pick(&SLOTS),
            region: i % 2,
            tools: std::array::from_fn(|_| random.chance(0.5)),
            error: std::array::from_fn(|_| {
                if wrong.chance(0.5) { setting.estimate_error } else { 1.0 / setting.estimate_error }
            }),
            memory: random.unit(),
        })
        .collect();
    for tool in 0..TOOLS.len() {
        let mut next = tool * 7;
        while all.iter().filter(|m| m.tools[tool]).count() < (n / 3).max(2).min(n) {
            all[next % n].tools[tool] = true;
            next += 1;
        }
    }
    all
}

/// Steps per second that the mesh can just do: for every set of tools, what their nodes can do over what they ask for. That is
/// Hall's condition, and exact.
fn most(machines: &[Machine]) -> f64 {
    let weights: f64 = TOOLS.iter().map(|(_, weight)| weight).sum();
    let asked = |set: usize| -> f64 {
        let of_set = TOOLS.iter().enumerate().filter(|(t, _)| set >> t & 1 == 1);
        of_set.map(|(_, (duration, weight))| duration * weight / weights).sum()
    };
    let capacity = |set: usize| -> f64 {
        let can = |m: &&Machine| m.tools.iter().enumerate().any(|(t, has)| *has && set >> t & 1 == 1);
        machines.iter().filter(can).map(|m| m.speed * f64::from(m.slots)).sum()
    };
    (1..1 << TOOLS.len()).map(|set| capacity(set) / asked(set)).fold(f64::MAX, f64::min)
}

fn work(setting: &Setting, per_second: f64) -> Vec<Work> {
    let mut random = Random::new(setting.seed, 3);
    let hot = (setting.nodes / 4).max(1);
    let weights: f64 = TOOLS.iter().map(|(_, weight)| weight).sum();
    let mut all = Vec::with_capacity(setting.steps);
    let mut at = 0.0;
    while all.len() < setting.steps {
        let steps = match setting.scenario {
            Scenario::Runs => RUN_STEPS.0 + random.below(RUN_STEPS.1 - RUN_STEPS.0 + 1),
            Scenario::Steady | Scenario::Trouble => 1,
        };
        #[expect(clippy::cast_precision_loss, reason = "at most twenty")]
        let gap = steps as f64 / per_second;
        at += random.exponential(gap);
        let origin = if random.chance(HOT) { random.below(hot) } else { random.below(setting.nodes) };
        for n in 0..steps {
            let mut left = random.unit() * weights;
            let tool = TOOLS.iter().position(|(_, weight)| {
                left -= weight;
                left < 0.0
            });
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "kilobytes")]
            let bytes = (ARGUMENTS.0 * random.lognormal(ARGUMENTS.1)) as u64;
            all.push(Work {
                at: us(at),
                origin,
                tool: tool.unwrap_or(0),
                size: random.lognormal(SIZES),
                bytes,
                after: (n > 0).then(|| all.len() - 1),
            });
        }
    }
    all
}
