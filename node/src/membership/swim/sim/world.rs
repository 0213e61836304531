//! The world: nodes, sessions, a queue of what happens when.
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use octomesh_protocol::{id::NodeId, swim::Message};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;

use super::{
    super::core::{At, Effect, Input, Swim},
    FRAMING,
};
use crate::membership::view::MemberState;

/// A dial into nothing fails after this long; a session over a cut ends after the pings' time-outs.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const PING_DEATH: Duration = Duration::from_secs(14);
/// Up to so many nodes everybody keeps a session with everybody.
const FULL_MESH: usize = 64;
/// In larger meshes a node begins with so many.
const SEEDS: usize = 8;
const BACKOFF_MOST: Duration = Duration::from_secs(30);
const UNIX: u64 = 1_700_000_000;

#[derive(Debug)]
enum Event {
    Deliver { from: usize, to: usize, session: u64, message: Message },
    Wake { node: usize, life: u32 },
    Established { a: usize, b: usize },
    Closes { at: usize, other: usize, session: u64 },
    DialFails { from: usize, to: usize, life: u32, refused: bool },
    Redial { from: usize, to: usize, life: u32, failures: u32 },
    PingDeath { a: usize, b: usize, session: u64 },
    Resume { node: usize },
}

/// What happens to messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) loss: f64,
    /// This part is late by up to four seconds.
    pub(super) late: f64,
}

pub(super) const FINE: Weather = Weather { loss: 0.0, late: 0.0 };

struct Node {
    swim: Swim,
    up: bool,
    life: u32,
    incarnation: u64,
    paused: Option<Vec<Event>>,
    wake: Option<Duration>,
    dialling: BTreeSet<usize>,
}

/// A state that a node showed of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) at: Duration,
    pub(super) by: usize,
    pub(super) of: usize,
    pub(super) to: MemberState,
}

pub(super) struct World {
    epoch: Instant,
    pub(super) now: Duration,
    nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    numbered: u64,
    rng: SmallRng,
    pub(super) weather: Weather,
    /// Who can reach whom: two nodes of different sides can't; a pair here can't in that direction.
    side: Vec<u8>,
    blocked: BTreeSet<(usize, usize)>,
    sessions: BTreeMap<(usize, usize), u64>,
    pub(super) log: Vec<Shown>,
    pub(super) states: Vec<BTreeMap<usize, MemberState>>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) dials: u64,
    pub(super) pauses: u64,
    pub(super) refused: Vec<&'static str>,
}

pub(super) fn id(node: usize) -> NodeId {
    let mut bytes = [0xab; 32];
    bytes[..8].copy_from_slice(&(node as u64).to_be_bytes());
    NodeId::from_bytes(bytes)
}

fn index(id: NodeId) -> usize {
    usize::try_from(u64::from_be_bytes(id.as_bytes()[..8].try_into().unwrap())).unwrap()
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    /// `size` nodes that start within a second.
    pub(super) fn new(size: usize, seed: u64, weather: Weather) -> Self {
        let mut world = Self {
            epoch: Instant::now(),
            now: Duration::ZERO,
            nodes: Vec::new(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            numbered: 0,
            rng: SmallRng::seed_from_u64(seed),
            weather,
            side: vec![0; size],
            blocked: BTreeSet::new(),
            sessions: BTreeMap::new(),
            log: Vec::new(),
            states: vec![BTreeMap::new(); size],
            messages: 0,
            bytes: 0,
            dials: 0,
            pauses: 0,
            refused: Vec::new(),
        };
        for node in 0..size {
            let incarnation = UNIX + node as u64;
            let swim = Swim::new(id(node), incarnation, world.rng.random());
            world.nodes.push(Node {
                swim,
                up: true,
                life: 0,
                incarnation,
                paused: None,
                wake: None,
                dialling: BTreeSet::new(),
            });
        }
        for node in 0..size {
            world.introduce(node);
        }
        world
    }

    pub(super) fn size(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].up
    }

    fn at(&self) -> At {
        At { now: self.epoch + self.now, boot: Some(self.now), unix: UNIX + 1_000_000 + self.now.as_secs() }
    }

    fn push(&mut self, after: Duration, event: Event) {
        self.numbered += 1;
        self.events.insert(self.numbered, event);
        self.queue.push(Reverse((self.now + after, self.numbered)));
    }

    /// A node that has just started dials the others.
    fn introduce(&mut self, node: usize) {
        let size = self.size();
        let others: Vec<usize> = if size <= FULL_MESH {
            (0..size).filter(|o| *o != node).collect()
        } else {
            (0..SEEDS).map(|_| self.rng.random_range(0..size)).filter(|o| *o != node).collect()
        };
        let life = self.nodes[node].life;
        for to in others {
            let after = Duration::from_millis(self.rng.random_range(0..1000));
            self.push(after, Event::Redial { from: node, to, life, failures: 0 });
        }
        self.schedule(node);
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.side[from] == self.side[to] && !self.blocked.contains(&(from, to))
    }

    fn dial(&mut self, from: usize, to: usize) {
        if self.sessions.contains_key(&pair(from, to)) || !self.nodes[from].dialling.insert(to) {
            return;
        }
        self.dials += 1;
        let life = self.nodes[from].life;
        if !self.reaches(from, to) || !self.reaches(to, from) || self.nodes[to].paused.is_some() {
            self.push(DIAL_TIMEOUT, Event::DialFails { from, to, life, refused: false });
        } else if self.nodes[to].up {
            let takes = Duration::from_millis(self.rng.random_range(15..40));
            self.push(takes, Event::Established { a: from, b: to });
        } else {
            self.push(Duration::from_millis(1), Event::DialFails { from, to, life, refused: true });
        }
    }

    /// The process dies and the kernel closes its connections.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node].up = false;
        self.nodes[node].paused = None;
        self.nodes[node].life += 1;
        self.nodes[node].dialling.clear();
        self.states[node].clear();
        self.close_all(node);
    }

    fn close_all(&mut self, node: usize) {
        let ended: Vec<_> = self
            .sessions
            .iter()
            .filter(|((a, b), _)| *a == node || *b == node)
            .map(|(p, s)| (*p, *s))
            .collect();
        for ((a, b), session) in ended {
            let other = if a == node { b } else { a };
            if self.reaches(node, other) {
                self.sessions.remove(&(a, b));
                let takes = Duration::from_micros(self.rng.random_range(100..3000));
                self.push(takes, Event::Closes { at: other, other: node, session });
            } else {
                self.push(PING_DEATH, Event::PingDeath { a, b, session });
            }
        }
    }

    /// It says good-bye and dies.
    pub(super) fn leave(&mut self, node: usize) {
        self.input(node, Input::Leave);
        self.push(Duration::from_millis(200), Event::Closes { at: node, other: node, session: 0 });
    }

    /// A new process with the same home.
    pub(super) fn restart(&mut self, node: usize) {
        let seed = self.rng.random();
        let it = &mut self.nodes[node];
        assert!(!it.up);
        it.incarnation = (it.incarnation + 1).max(UNIX + 1_000_000 + self.now.as_secs());
        it.swim = Swim::new(id(node), it.incarnation, seed);
        (it.up, it.wake) = (true, None);
        it.life += 1;
        self.introduce(node);
    }

    /// The node's cable is pulled (`true`) or plugged in again.
    pub(super) fn cut(&mut self, node: usize, cut: bool) {
        self.move_to(node, if cut { u8::try_from(node + 100).unwrap() } else { 0 });
    }

    /// Puts a node on a side of a partition.
    pub(super) fn move_to(&mut self, node: usize, side: u8) {
        self.side[node] = side;
        let dead: Vec<_> = self
            .sessions
            .iter()
            .filter(|((a, b), _)| self.side[*a] != self.side[*b])
            .map(|((a, b), s)| (*a, *b, *s))
            .collect();
        for (a, b, session) in dead {
            self.push(PING_DEATH, Event::PingDeath { a, b, session });
        }
    }

    /// Nothing goes from `from` to `to` any more.
    pub(super) fn block(&mut self, from: usize, to: usize) {
        self.blocked.insert((from, to));
        if let Some(session) = self.sessions.get(&pair(from, to)) {
            self.push(PING_DEATH, Event::PingDeath { a: from, b: to, session: *session });
        }
    }

    /// The process stands still for so long.
    pub(super) fn pause(&mut self, node: usize, takes: Duration) {
        self.nodes[node].paused = Some(Vec::new());
        self.push(takes, Event::Resume { node });
    }

    /// Runs until that much time has passed.
    pub(super) fn run(&mut self, takes: Duration) {
        let end = self.now + takes;
        while let Some(Reverse((due, number))) = self.queue.peek().copied() {
            if due > end {
                break;
            }
            self.queue.pop();
            self.now = due;
            let event = self.events.remove(&number).unwrap();
            self.event(event);
        }
        self.now = end;
    }

    /// Runs until `done`, looking ten times a second; gives how long it took, or nothing when `most` was not enough.
    pub(super) fn run_until(&mut self, most: Duration, done: impl Fn(&Self) -> bool) -> Option<Duration> {
        let begin = self.now;
        loop {
            if done(self) {
                return Some(self.now - begin);
            }
            if self.now - begin >= most {
                return None;
            }
            self.run(Duration::from_millis(100));
        }
    }

    /// Holds back what a paused process does not see; gives what it does.
    fn seen(&mut self, node: usize, event: Event) -> Option<Event> {
        match &mut self.nodes[node].paused {
            Some(waiting) => {
                waiting.push(event);
                None
            }
            None => Some(event),
        }
    }

    fn event(&mut self, event: Event) {
        let sees = match &event {
            Event::Deliver { to, .. } => Some(*to),
            Event::Wake { node, .. } => Some(*node),
            Event::Closes { at, .. } => Some(*at),
            Event::DialFails { from, .. } | Event::Redial { from, .. } => Some(*from),
            _ => None,
        };
        let event = match sees {
            Some(node) => match self.seen(node, event) {
                Some(event) => event,
                None => return,
            },
            None => event,
        };
        match event {
            Event::Deliver { from, to, session, message } => {
                let open = self.sessions.get(&pair(from, to)) == Some(&session);
                if self.nodes[to].up && open && self.reaches(from, to) {
                    self.input(to, Input::Message { from: id(from), message });
                }
            }
            Event::Wake { node, life } => {
                let it = &mut self.nodes[node];
                if it.up && it.life == life && it.wake.is_some_and(|w| w <= self.now) {
                    it.wake = None;
                    self.input(node, Input::Tick);
                }
            }
            Event::Established { a, b } => self.established(a, b),
            Event::Closes { at, other, session: 0 } if at == other => self.kill(at),
            Event::Closes { at, other, session } => {
                let again = self.sessions.get(&pair(at, other)).is_some_and(|s| *s != session);
                if self.nodes[at].up && !again {
                    self.input(at, Input::Closed { node: id(other) });
                    self.redial(at, other, 0);
                }
            }
            Event::DialFails { from, to, life, refused } => {
                if self.nodes[from].up && self.nodes[from].life == life {
                    self.nodes[from].dialling.remove(&to);
                    self.input(from, Input::DialFailed { node: id(to), refused });
                }
            }
            Event::Redial { from, to, life, failures } => {
                let wanted = self.nodes[from].up && self.nodes[from].life == life;
                if wanted && !self.sessions.contains_key(&pair(from, to)) {
                    self.dial(from, to);
                    self.redial(from, to, failures + 1);
                }
            }
            Event::PingDeath { a, b, session } => {
                let healed = self.reaches(a, b) && self.reaches(b, a) && self.nodes[a].up && self.nodes[b].up;
                if self.sessions.get(&pair(a, b)) == Some(&session) && !healed {
                    self.sessions.remove(&pair(a, b));
                    for (at, other) in [(a, b), (b, a)] {
                        self.push(Duration::ZERO, Event::Closes { at, other, session });
                    }
                }
            }
            Event::Resume { node } => {
                let waiting = self.nodes[node].paused.take().unwrap_or_default();
                for event in waiting {
                    self.event(event);
                }
                self.schedule(node);
            }
        }
    }

    /// The member table of a small mesh keeps dialling whoever is not connected.
    fn redial(&mut self, from: usize, to: usize, failures: u32) {
        if self.size() <= FULL_MESH {
            let after = (Duration::from_millis(500) * 2u32.pow(failures.min(8))).min(BACKOFF_MOST);
            let life = self.nodes[from].life;
            self.push(after, Event::Redial { from, to, life, failures });
        }
    }

    fn established(&mut self, a: usize, b: usize) {
        self.nodes[a].dialling.remove(&b);
        self.nodes[b].dialling.remove(&a);
        let can = self.nodes[a].up && self.nodes[b].up && self.reaches(a, b) && self.reaches(b, a);
        if !can || self.sessions.contains_key(&pair(a, b)) {
            return;
        }
        self.numbered += 1;
        self.sessions.insert(pair(a, b), self.numbered);
        self.input(a, Input::Connected { node: id(b) });
        self.input(b, Input::Connected { node: id(a) });
    }

    fn input(&mut self, node: usize, input: Input) {
        let at = self.at();
        let effects = self.nodes[node].swim.handle(input, at);
        for effect in effects {
            self.effect(node, effect);
        }
        self.schedule(node);
    }

    fn effect(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                let to = index(to);
                self.messages += 1;
                let size = message.to_frame().unwrap().len() - 6;
                self.bytes += (size + FRAMING) as u64;
                let Some(session) = self.sessions.get(&pair(node, to)).copied() else { return };
                if self.rng.random_bool(self.weather.loss) {
                    return;
                }
                let mut takes = Duration::from_micros(self.rng.random_range(300..3000));
                if self.rng.random_bool(self.weather.late) {
                    takes += Duration::from_millis(self.rng.random_range(0..4000));
                }
                self.push(takes, Event::Deliver { from: node, to, session, message });
            }
            Effect::Dial { node: to } => self.dial(node, index(to)),
            Effect::State { node: of, to } => {
                let of = index(of);
                self.states[node].insert(of, to);
                self.log.push(Shown { at: self.now, by: node, of, to });
            }
            Effect::Refused { why, .. } => self.refused.push(why),
            Effect::Paused { .. } => self.pauses += 1,
        }
    }

    fn schedule(&mut self, node: usize) {
        let now = self.epoch + self.now;
        let it = &mut self.nodes[node];
        let wanted = self.now + (it.swim.wake(now) - now).max(Duration::from_millis(1));
        if it.up && it.wake.is_none_or(|w| wanted < w) {
            it.wake = Some(wanted);
            let life = it.life;
            self.push(wanted - self.now, Event::Wake { node, life });
        }
    }

    /// What `by` shows of `of`.
    pub(super) fn state(&self, by: usize, of: usize) -> MemberState {
        self.states[by].get(&of).copied().unwrap_or(MemberState::Down)
    }

    /// Whether everybody who is up shows `of` as this.
    pub(super) fn all_show(&self, of: usize, state: MemberState) -> bool {
        (0..self.size()).filter(|by| *by != of && self.is_up(*by)).all(|by| self.state(by, of) == state)
    }

    /// Whether everybody who is up shows exactly those alive that are up.
    pub(super) fn converged(&self) -> bool {
        (0..self.size()).all(|of| {
            let right = |by| {
                let state = self.state(by, of);
                if self.is_up(of) { state == MemberState::Alive } else { !state.is_present() }
            };
            (0..self.size()).filter(|by| *by != of && self.is_up(*by)).all(right)
        })
    }

    /// Downs that were shown of a node since `since`.
    pub(super) fn downs(&self, since: Duration, of: impl Fn(&Shown) -> bool) -> Vec<Shown> {
        self.log.iter().filter(|s| s.at >= since && s.to == MemberState::Down && of(s)).copied().collect()
    }
}
