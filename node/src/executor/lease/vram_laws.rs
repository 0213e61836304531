//! No sequence of reservations, starts, measurements, ends and crashes gives a card's memory away twice, or keeps what nobody holds.
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    tests::{caller, card as tool, key, ok},
    *,
};
use crate::{
    executor::{Resources, vram::tests::card},
    load::gpu::{Card, CardUser},
};

const TOTALS: [u64; 2] = [24, 8];

#[derive(Debug, Clone)]
enum Op {
    Reserve {
        owner: u8,
        need: u64,
    },
    Start(usize),
    /// A step takes of what it reserved.
    Take(usize, u64),
    Measure,
    /// The owner's own programs; only where the driver tells who uses what.
    Others(usize, u64),
    Finish(usize),
    Cancel(usize),
    /// A coordinator is gone for good.
    Crash(u8),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..4u8, 1..26u64).prop_map(|(owner, need)| Op::Reserve { owner, need }),
        3 => any::<usize>().prop_map(Op::Start),
        3 => (any::<usize>(), 1..20u64).prop_map(|(which, bytes)| Op::Take(which, bytes)),
        3 => Just(Op::Measure),
        1 => (0..2usize, 0..24u64).prop_map(|(card, bytes)| Op::Others(card, bytes)),
        2 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => (1..4u8).prop_map(Op::Crash),
        2 => (1..4000u64).prop_map(Op::Pass),
    ]
}

#[derive(Debug, Clone)]
struct Live {
    n: u64,
    owner: u8,
    card: usize,
    reserved: u64,
    taken: u64,
}

struct World {
    state: LeaseState,
    resources: Resources,
    now: Instant,
    next: u64,
    /// Whether the driver says who uses a card.
    tells: bool,
    others: [u64; 2],
    others_read: [u64; 2],
    live: BTreeMap<LeaseId, Live>,
}

impl World {
    fn new(tells: bool, others: [u64; 2]) -> Self {
        let config = ExecutorConfig { slots: 3, offers_tools: true };
        let mut world = Self {
            state: LeaseState::new(config),
            resources: Resources::default(),
            now: Instant::now(),
            next: 1,
            tells,
            others,
            others_read: others,
            live: BTreeMap::new(),
        };
        world.measure();
        world
    }

    fn taken(&self, card: usize) -> u64 {
        self.live.values().filter(|l| l.card == card).map(|l| l.taken).sum()
    }

    fn measure(&mut self) {
        self.others_read = self.others;
        let read = |index: usize| {
            let used = self.others[index] + self.taken(index);
            let user = |live: &Live| CardUser {
                pid: 1,
                bytes: Some(live.taken),
                call: Some(key(live.n).to_string()),
                ours: true,
            };
            let users = self.live.values().filter(|l| l.card == index && l.taken > 0).map(user).collect();
            let free = TOTALS[index].saturating_sub(used);
            Card {
                users: self.tells.then_some(users),
                ..card(&index.to_string(), TOTALS[index], Some((free, self.now)))
            }
        };
        self.resources.gpus = vec![read(0), read(1)];
    }

    fn nth(&self, which: usize) -> Option<LeaseId> {
        self.live.keys().nth(which % self.live.len().max(1)).copied()
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Run(_) => {}
                // Its tool does as it is told.
                Action::Stop(id, _) => {
                    let actions = self.state.finished(id, ok(), self.now);
                    self.perform(actions);
                }
                Action::End(id, _) => drop(self.live.remove(&id)),
            }
        }
    }

    fn reserve(&mut self, owner: u8, need: u64) {
        let lease = LeaseId(self.next);
        let n = self.next;
        self.next += 1;
        let mut ask = super::tests::ask(n, owner, lease);
        let needs = octomesh_protocol::card::Needs { gpu_vram: Some(need), ..Default::default() };
        ask.card = tool(Effect::Pure, needs);
        if self.state.reserve(ask, &self.resources, self.now).is_err() {
            return;
        }
        let card: usize = self.state.lease(lease).unwrap().card().unwrap().as_str().parse().unwrap();
        self.live.insert(lease, Live { n, owner, card, reserved: need, taken: 0 });
        let reserved: u64 = self.live.values().filter(|l| l.card == card).map(|l| l.reserved).sum();
        let (others, total) = (self.others_read[card], TOTALS[card]);
        assert!(
            others + reserved <= total,
            "card {card}: {others} of others and {reserved} reserved of {total}"
        );
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Reserve { owner, need } => self.reserve(owner, need),
            Op::Start(which) => {
                let Some(id) = self.nth(which) else { return };
                let owner = caller(self.live[&id].owner).node;
                let (_, actions) = self.state.start(id, 1, owner, self.now);
                self.perform(actions);
            }
            Op::Take(which, bytes) => {
                if let Some(live) = self.nth(which).and_then(|id| self.live.get_mut(&id)) {
                    live.taken = (live.taken + bytes).min(live.reserved);
                }
            }
            Op::Measure => self.measure(),
            Op::Others(card, bytes) => {
                if self.tells {
                    self.others[card] = bytes.min(TOTALS[card] - self.taken(card));
                }
            }
            Op::Finish(which) => {
                let Some(id) = self.nth(which) else { return };
                let actions = self.state.finished(id, ok(), self.now);
                self.perform(actions);
            }
            Op::Cancel(which) => {
                let Some(id) = self.nth(which) else { return };
                let live = self.live[&id].clone();
                let (_, actions) = self.state.cancel(&key(live.n), 1, &caller(live.owner), self.now);
                self.perform(actions);
            }
            Op::Crash(owner) => {
                let actions = self.state.evict(caller(owner).node, self.now);
                self.perform(actions);
            }
            Op::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                let actions = self.state.tick(self.now);
                self.perform(actions);
            }
        }
    }

    /// What the core says is held is what is held.
    fn check(&self) {
        for (index, state) in self.state.cards(&self.resources).iter().enumerate() {
            let reserved: u64 = self.live.values().filter(|l| l.card == index).map(|l| l.reserved).sum();
            assert_eq!(state.reserved, reserved, "card {index}");
            assert!(reserved <= TOTALS[index]);
        }
        assert_eq!(self.state.remaining(), self.live.len());
    }
}

proptest! {
    #[test]
    fn a_card_is_never_given_away_twice(
        tells in any::<bool>(),
        others in (0..20u64, 0..8u64),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(tells, [others.0, others.1]);
        for op in ops {
            world.step(op);
            world.check();
        }
        // Everybody goes silent.
        world.step(Op::Pass(20_000));
        for owner in 1..4 {
            world.step(Op::Crash(owner));
        }
        world.check();
        prop_assert!(world.live.is_empty() && world.state.remaining() == 0);
        world.measure();
        for (index, state) in world.state.cards(&world.resources).iter().enumerate() {
            prop_assert_eq!(state.reserved, 0);
            prop_assert_eq!(state.free, Some(TOTALS[index] - world.others[index]));
        }
    }
}

#[test]
fn a_partition_gives_the_card_back_within_30_seconds() {
    let mut world = World::new(true, [0, 0]);
    world.reserve(1, 20);
    world.step(Op::Start(0));
    world.step(Op::Take(0, 20));
    world.measure();
    world.reserve(2, 10);
    assert_eq!(world.live.len(), 1, "there is no room for another one");
    // Nobody renews the lease any more; the driver is read every two seconds.
    let cut = world.now;
    while !world.live.is_empty() {
        world.step(Op::Pass(500));
        world.measure();
        assert!(world.now - cut < Duration::from_secs(30));
    }
    world.reserve(2, 24);
    assert_eq!(world.live.len(), 1);
}
