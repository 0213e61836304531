//! One setting under one policy: a queue of events in virtual time. Nothing waits, nothing reads a clock.
mod nodes;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use octomesh_protocol::{
    advert::LoadState,
    id::LeaseId,
    step::{Granted, RefuseReason, Refused},
};

use super::{
    BenchError,
    ours::{Asked, Mesh, millis},
    policy::{Choice, Own, Policy, Seen},
    random::Random,
    world::{SLOW, Scenario, Setting, Us, World, seconds, us},
};
use crate::router::{Exclusion, FilterReason, Tries};

/// Between two crashes of an executor, and until it is back, in seconds.
const CRASH: (f64, f64) = (240.0, 15.0);
/// Between two drains of a node, and how long they last, in seconds.
const DRAIN: (f64, f64) = (300.0, 20.0);
/// Until all know that a node does not answer; until a coordinator gives up a step that was there, or a question to it.
const NOTICED: Us = 1_000_000;
const GIVEN_UP: Us = 3_000_000;
const UNANSWERED: Us = 2_000_000;
/// Nobody can run it: the caller tries again then.
const AGAIN: Us = 1_000_000;
/// Steps that are not done so long after the last one came count as unfinished: the policy is unstable.
const PATIENCE: Us = 900_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A step wants a node.
    Place,
    /// A reservation arrives, its answer arrives, the start arrives.
    Ask,
    Answer,
    Start,
    /// A step arrives at a node that asks nobody.
    Reach,
    /// It ends; its outcome is back.
    Finish,
    Outcome,
    /// The coordinator gives it up there.
    Lost,
    Gossip,
    Slow,
    Crash,
    Noticed,
    Back,
    Drain,
    Undrain,
}

/// `number` is a step or a node; `serial` tells what is out of date: attempts of a step, lives of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Us,
    order: u64,
    what: What,
    number: usize,
    serial: u32,
}

#[derive(Default)]
struct Step {
    placed_at: Us,
    node: usize,
    attempt: u32,
    took: Us,
    done: bool,
    tries: Tries,
    asked: Option<Asked>,
    answer: Option<Result<Granted, Refused>>,
    lease: Option<LeaseId>,
    lost_on: Vec<usize>,
    begun: bool,
}

struct Node {
    slow: f64,
    down: bool,
    draining: bool,
    life: u32,
    seen: Seen,
    /// Steps that run, with their end; and those that wait. Of a node that asks nobody.
    running: BTreeMap<usize, Us>,
    queue: VecDeque<usize>,
    /// Steps by lease, of a node with a lease table.
    leases: BTreeMap<LeaseId, usize>,
    random: Random,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of each step from its coming to its outcome, in seconds; not those of the first tenth.
    pub(super) latencies: Vec<f64>,
    /// Of each dependent run.
    pub(super) makespans: Vec<f64>,
    pub(super) refusals: u64,
    /// Calls for which nobody could be found at first.
    pub(super) turned_away: u64,
    pub(super) unfinished: usize,
    pub(super) steps: usize,
    /// Predicted over real time of steps, of ours only.
    pub(super) ratios: Vec<f64>,
}

struct Simulation<'a> {
    policy: Policy,
    setting: &'a Setting,
    world: &'a World,
    mesh: Option<Mesh>,
    steps: Vec<Step>,
    nodes: Vec<Node>,
    own: Vec<Option<Own>>,
    random: Random,
    followers: Vec<Option<usize>>,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    now: Us,
    done: usize,
    out: Outcome,
}

/// Runs one setting to its end.
pub(super) fn simulate(setting: &Setting, policy: Policy) -> Result<Outcome, BenchError> {
    let world = World::new(setting);
    let n = world.machines.len();
    let mesh = if policy == Policy::Octomesh { Some(Mesh::new(&world)?) } else { None };
    let mut followers = vec![None; world.work.len()];
    for (step, work) in world.work.iter().enumerate() {
        if let Some(before) = work.after {
            followers[before] = Some(step);
        }
    }
    let node = |number: usize| Node {
        slow: 1.0,
        down: false,
        draining: false,
        life: 0,
        seen: Seen::default(),
        running: BTreeMap::new(),
        queue: VecDeque::new(),
        leases: BTreeMap::new(),
        random: Random::new(setting.seed, 100 + number as u64),
    };
    let mut simulation = Simulation {
        policy,
        setting,
        world: &world,
        mesh,
        steps: world.work.iter().map(|_| Step::default()).collect(),
        nodes: (0..n).map(node).collect(),
        own: (0..n).map(|_| None).collect(),
        random: Random::new(setting.seed, 4),
        followers,
        events: BinaryHeap::new(),
        order: 0,
        now: 0,
        done: 0,
        out: Outcome::default(),
    };
    simulation.run();
    Ok(simulation.out)
}

impl Simulation<'_> {
    fn run(&mut self) {
        for (step, work) in self.world.work.iter().enumerate() {
            if work.after.is_none() {
                self.push(work.at, What::Place, step, 0);
            }
        }
        for node in 0..self.nodes.len() {
            let first = us(self.nodes[node].random.unit() * self.setting.gossip_s);
            self.push(first, What::Gossip, node, 0);
            self.later(SLOW.2, What::Slow, node);
            if self.setting.scenario == Scenario::Trouble {
                self.later(CRASH.0, What::Crash, node);
                self.later(DRAIN.0, What::Drain, node);
            }
        }
        let end = self.world.work.last().map_or(0, |w| w.at) + PATIENCE;
        while self.done < self.steps.len() {
            let Some(Reverse(event)) = self.events.pop() else { break };
            if event.at > end {
                break;
            }
            self.now = event.at;
            self.handle(event);
        }
        self.out.steps = self.steps.len();
        self.out.unfinished = self.steps.len() - self.done;
    }

    fn push(&mut self, at: Us, what: What, number: usize, serial: u32) {
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, what, number, serial }));
    }

    fn push_in(&mut self, after_s: f64, what: What, number: usize, serial: u32) {
        self.push(self.now + us(after_s), what, number, serial);
    }

    /// After a time that only this node's own numbers decide.
    fn later(&mut self, mean_s: f64, what: What, node: usize) {
        let after = self.nodes[node].random.exponential(mean_s);
        let life = self.nodes[node].life;
        self.push_in(after, what, node, life);
    }

    fn handle(&mut self, event: Event) {
        let n = event.number;
        let is_current = |s: &Self| s.steps[n].attempt == event.serial && !s.steps[n].done;
        match event.what {
            What::Place => self.place(n),
            What::Ask if is_current(self) => self.ask(n),
            What::Answer if is_current(self) => self.answer(n),
            What::Start if is_current(self) => self.start(n),
            What::Reach if is_current(self) => self.reach(n),
            What::Outcome if is_current(self) => self.outcome(n),
            What::Lost if is_current(self) => self.lost(n),
            What::Finish if is_current(self) => self.finish(n),
            What::Ask | What::Answer | What::Start | What::Reach => {}
            What::Outcome | What::Lost | What::Finish => {}
            What::Gossip => self.gossip(n),
            What::Slow => self.slow(n),
            What::Crash => self.crash(n),
            What::Noticed => self.noticed(n, event.serial),
            What::Back => self.back(n),
            What::Drain | What::Undrain => self.drain(n, event.what == What::Drain),
        }
    }

    fn place(&mut self, step: usize) {
        if !self.steps[step].begun {
            (self.steps[step].begun, self.steps[step].placed_at) = (true, self.now);
        }
        self.steps[step].attempt += 1;
        if self.mesh.is_some() { self.place_ours(step) } else { self.place_baseline(step) }
    }

    fn again(&mut self, step: usize) {
        self.out.turned_away += 1;
        self.steps[step].tries = Tries::default();
        self.steps[step].lost_on.clear();
        self.push(self.now + AGAIN, What::Place, step, 0);
    }

    fn place_ours(&mut self, step: usize) {
        let Some(mesh) = &mut self.mesh else { return };
        let state = &mut self.steps[step];
        let asked =
            if state.tries.is_over() { None } else { mesh.place(self.world, step, &state.tries, self.now) };
        let Some((node, asked)) = asked.and_then(|a| Some((mesh.node(&a)?, a))) else {
            return self.again(step);
        };
        (state.asked, state.node, state.lease) = (Some(asked), node, None);
        let (attempt, rtt) = (state.attempt, self.world.rtt(self.world.work[step].origin, node));
        self.push_in(rtt / 2.0, What::Ask, step, attempt);
    }

    fn ask(&mut self, step: usize) {
        let (node, attempt) = (self.steps[step].node, self.steps[step].attempt);
        if self.nodes[node].down {
            return self.push(self.now + UNANSWERED, What::Lost, step, attempt);
        }
        let (Some(mesh), state) = (&mut self.mesh, &mut self.steps[step]) else { return };
        state.answer = state.asked.as_ref().and_then(|a| mesh.reserve(self.world, step, a, self.now));
        if let Some(Ok(granted)) = &state.answer {
            self.nodes[node].leases.insert(granted.lease, step);
        }
        self.push_in(self.rtt(step) / 2.0, What::Answer, step, attempt);
    }

    fn rtt(&self, step: usize) -> f64 {
        self.world.rtt(self.world.work[step].origin, self.steps[step].node)
    }

    fn answer(&mut self, step: usize) {
        let Some(mesh) = &mut self.mesh else { return };
        let state = &mut self.steps[step];
        let (granted, load): (_, LoadState) = match &state.answer {
            Some(Ok(granted)) => (Some(granted.lease), granted.state),
            Some(Err(refused)) => (None, refused.state),
            None => return,
        };
        mesh.answered(self.world, step, state.node, granted.is_some(), load, self.now);
        if let (Some(Err(refused)), Some(asked)) = (&state.answer, &state.asked) {
            if refused.reason == RefuseReason::Fenced {
                tracing::error!("a simulated step was fenced off");
            }
            state.tries.refused(asked.candidate.node, refused.reason, &refused.detail);
            self.out.refusals += 1;
            return self.place(step);
        }
        state.lease = granted;
        let (node, attempt, work) = (state.node, state.attempt, self.world.work[step]);
        let on_the_way = self.rtt(step) / 2.0 + self.world.transfer(work.origin, node, work.bytes);
        self.push_in(on_the_way, What::Start, step, attempt);
    }

    fn start(&mut self, step: usize) {
        let (node, attempt) = (self.steps[step].node, self.steps[step].attempt);
        let (Some(mesh), Some(lease)) = (&mut self.mesh, self.steps[step].lease) else { return };
        let begun =
            if self.nodes[node].down { None } else { mesh.start(self.world, step, node, lease, self.now) };
        match begun {
            Some(leases) => self.begin_leases(node, &leases),
            None => self.push(self.now + GIVEN_UP, What::Lost, step, attempt),
        }
    }

    fn begin_leases(&mut self, node: usize, leases: &[LeaseId]) {
        for lease in leases {
            if let Some(step) = self.nodes[node].leases.get(lease).copied() {
                self.begin(step, node);
            }
        }
    }

    /// The step runs from now on.
    fn begin(&mut self, step: usize, node: usize) -> Us {
        let took = us(self.world.duration(step, node, self.nodes[node].slow));
        self.steps[step].took = took;
        let attempt = self.steps[step].attempt;
        self.push(self.now + took, What::Finish, step, attempt);
        self.now + took
    }

    fn finish(&mut self, step: usize) {
        let (node, attempt, took) = (self.steps[step].node, self.steps[step].attempt, self.steps[step].took);
        if self.nodes[node].down {
            return;
        }
        if let (Some(mesh), Some(lease)) = (&mut self.mesh, self.steps[step].lease) {
            self.nodes[node].leases.remove(&lease);
            let begun = mesh.finished(node, lease, millis(took), self.now);
            self.begin_leases(node, &begun);
        } else {
            self.nodes[node].running.remove(&step);
            self.fill(node);
        }
        self.push_in(self.rtt(step) / 2.0, What::Outcome, step, attempt);
    }

    fn outcome(&mut self, step: usize) {
        let took = seconds(self.now - self.steps[step].placed_at);
        let state = &mut self.steps[step];
        state.done = true;
        self.done += 1;
        let work = self.world.work[step];
        if step >= self.world.work.len() / 10 {
            self.out.latencies.push(took);
        }
        match (&mut self.mesh, &state.asked) {
            (Some(mesh), Some(asked)) => {
                mesh.ended(self.world, step, asked, millis(state.took), self.now);
                self.out.ratios.push(asked.candidate.cost_ms / (took * 1000.0).max(0.1));
            }
            _ => self.own[work.origin].iter_mut().for_each(|own| own.back(state.node, took)),
        }
        (state.asked, state.answer, state.tries) = (None, None, Tries::default());
        match self.followers[step] {
            Some(next) => self.push(self.now, What::Place, next, 0),
            None if self.setting.scenario == Scenario::Runs => {
                let makespan = seconds(self.now - work.at);
                self.out.makespans.push(makespan);
            }
            None => {}
        }
    }

    fn lost(&mut self, step: usize) {
        let state = &mut self.steps[step];
        if let (Some(mesh), Some(asked)) = (&mut self.mesh, &state.asked) {
            mesh.lost(self.world, step, asked, self.now);
            let why = Exclusion { reason: FilterReason::Lost, detail: "was lost".into() };
            match state.lease {
                Some(_) => state.tries.leave_out(asked.candidate.node, why),
                None => state.tries.lost(asked.candidate.node, "no answer"),
            }
        } else {
            let latency = seconds(self.now - state.placed_at);
            let own = &mut self.own[self.world.work[step].origin];
            own.iter_mut().for_each(|own| own.back(state.node, latency));
            state.lost_on.push(state.node);
        }
        self.place(step);
    }
}
