//! What happens to the simulated nodes, and the way of a step under a policy that asks nobody before it sends.
use std::{cmp::Reverse, collections::BinaryHeap};

use super::{CRASH, Choice, DRAIN, GIVEN_UP, NOTICED, Own, Policy, SLOW, Seen, Simulation, Us, What, us};
use crate::bench::router::ours::Mesh;

impl Simulation<'_> {
    pub(super) fn place_baseline(&mut self, step: usize) {
        let origin = self.world.work[step].origin;
        let mut own = self.own[origin].take().unwrap_or_else(|| Own::new(self.nodes.len()));
        let mut random = self.random.clone();
        let seen = |node: usize| {
            let own_eyes = node == origin || self.policy == Policy::Oracle;
            if own_eyes { self.truth(node) } else { self.nodes[node].seen }
        };
        let ends = |node: usize| self.end_on(step, node);
        let lost = self.steps[step].lost_on.clone();
        let choice = Choice { world: self.world, step, seen: &seen, ends: &ends, lost: &lost };
        let picked = choice.pick(self.policy, &mut own, &mut random);
        (self.own[origin], self.random) = (Some(own), random);
        let Some(node) = picked else { return self.again(step) };
        let work = self.world.work[step];
        if !self.world.machines[node].tools[work.tool] {
            // It says so at once, which is kinder than the 5 s of silence that the document waits for.
            self.out.refusals += 1;
            return self.after_refusal(step, node);
        }
        self.send(step, node);
    }

    /// Home when the tool is there, else anywhere.
    fn after_refusal(&mut self, step: usize, refused_by: usize) {
        let work = self.world.work[step];
        let able = |n: &usize| self.world.machines[*n].tools[work.tool] && !self.nodes[*n].seen.down;
        let node = if able(&work.origin) {
            Some(work.origin)
        } else {
            let all: Vec<usize> = (0..self.nodes.len()).filter(able).collect();
            (!all.is_empty()).then(|| self.random.pick(&all))
        };
        let Some(node) = node else { return self.again(step) };
        let rtt = self.world.rtt(work.origin, refused_by);
        self.send_after(step, node, rtt);
    }

    fn send(&mut self, step: usize, node: usize) {
        self.send_after(step, node, 0.0);
    }

    fn send_after(&mut self, step: usize, node: usize, seconds: f64) {
        let work = self.world.work[step];
        self.steps[step].node = node;
        if let Some(own) = &mut self.own[work.origin] {
            own.sent(node);
        }
        let attempt = self.steps[step].attempt;
        let on_the_way = self.rtt(step) / 2.0 + self.world.transfer(work.origin, node, work.bytes);
        self.push_in(seconds + on_the_way, What::Reach, step, attempt);
    }

    pub(super) fn reach(&mut self, step: usize) {
        let (node, attempt) = (self.steps[step].node, self.steps[step].attempt);
        if self.nodes[node].down {
            return self.push(self.now + GIVEN_UP, What::Lost, step, attempt);
        }
        self.nodes[node].queue.push_back(step);
        self.fill(node);
    }

    pub(super) fn fill(&mut self, node: usize) {
        while self.nodes[node].running.len() < usize::from(self.world.machines[node].slots) {
            let Some(step) = self.nodes[node].queue.pop_front() else { break };
            let end = self.begin(step, node);
            self.nodes[node].running.insert(step, end);
        }
    }

    /// When a step would end on a node, if nothing else came: what only the oracle knows.
    fn end_on(&self, step: usize, node: usize) -> Us {
        let (work, state) = (self.world.work[step], &self.nodes[node]);
        let there = self.now
            + us(self.world.rtt(work.origin, node) / 2.0 + self.world.transfer(work.origin, node, work.bytes));
        let duration = |s: usize| us(self.world.duration(s, node, state.slow));
        let mut free: BinaryHeap<Reverse<Us>> = state.running.values().copied().map(Reverse).collect();
        let slots = usize::from(self.world.machines[node].slots);
        while free.len() < slots {
            free.push(Reverse(self.now));
        }
        for waiting in &state.queue {
            let begin = free.pop().map_or(self.now, |Reverse(at)| at);
            free.push(Reverse(begin + duration(*waiting)));
        }
        let begin = free.pop().map_or(self.now, |Reverse(at)| at).max(there);
        begin + duration(step) + us(self.world.rtt(work.origin, node) / 2.0)
    }

    fn truth(&self, number: usize) -> Seen {
        let node = &self.nodes[number];
        #[expect(clippy::cast_precision_loss, reason = "steps of one node")]
        let jobs = (node.running.len() + node.queue.len()) as f64;
        Seen { jobs, draining: node.draining, down: node.down }
    }

    pub(super) fn gossip(&mut self, node: usize) {
        self.tell(node);
        let every = self.setting.gossip_s * (0.9 + 0.2 * self.nodes[node].random.unit());
        self.push_in(every, What::Gossip, node, 0);
    }

    fn tell(&mut self, node: usize) {
        if self.nodes[node].down {
            return;
        }
        self.nodes[node].seen = self.truth(node);
        if let Some(mesh) = &mut self.mesh {
            mesh.gossip(node, self.now);
        }
    }

    pub(super) fn slow(&mut self, node: usize) {
        let (factor, lasts, every) = SLOW;
        let life = self.nodes[node].life;
        if self.nodes[node].slow > 1.0 {
            self.nodes[node].slow = 1.0;
            self.later(every, What::Slow, node);
        } else {
            self.nodes[node].slow = factor;
            self.push_in(lasts, What::Slow, node, life);
        }
    }

    pub(super) fn crash(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        (state.down, state.draining) = (true, false);
        state.life += 1;
        let life = state.life;
        let there: Vec<usize> = if self.mesh.is_some() {
            std::mem::take(&mut state.leases).into_values().collect()
        } else {
            let running = std::mem::take(&mut state.running).into_keys();
            running.chain(std::mem::take(&mut state.queue)).collect()
        };
        for step in there {
            let attempt = self.steps[step].attempt;
            if self.steps[step].node == node && !self.steps[step].done {
                self.push(self.now + GIVEN_UP, What::Lost, step, attempt);
            }
        }
        if let Some(mesh) = &mut self.mesh {
            Mesh::restart(mesh, self.world, node);
        }
        self.push(self.now + NOTICED, What::Noticed, node, life);
        self.later(CRASH.1, What::Back, node);
    }

    pub(super) fn noticed(&mut self, node: usize, life: u32) {
        if self.nodes[node].down && self.nodes[node].life == life {
            self.nodes[node].seen.down = true;
            if let Some(mesh) = &mut self.mesh {
                mesh.down(node);
            }
        }
    }

    pub(super) fn back(&mut self, node: usize) {
        self.nodes[node].down = false;
        self.tell(node);
        self.later(CRASH.0, What::Crash, node);
    }

    /// A drained node says so at once; so does one that takes steps again.
    pub(super) fn drain(&mut self, node: usize, on: bool) {
        if !self.nodes[node].down {
            self.nodes[node].draining = on;
            if let Some(mesh) = &mut self.mesh {
                mesh.drain(node, on);
            }
            self.tell(node);
        }
        let life = self.nodes[node].life;
        if on {
            self.push_in(DRAIN.1, What::Undrain, node, life);
        } else {
            self.later(DRAIN.0, What::Drain, node);
        }
    }
}
