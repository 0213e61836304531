//! The router and the lease table of this program, in virtual time: what `dispatch` does with them, without streams.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use octomesh_protocol::{
    advert::{Advert, LoadState},
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{LeaseId, NodeId, NodeName, RunId, StepId, StepKey, ToolName, ToolSetHash},
    step::{Granted, Refused, Reserve},
    trust::{Grants, Role},
};
use octomesh_tools::tool::Caller;
use tokio::time::Instant;

use super::{
    BenchError,
    world::{TOOLS, Us, World, seconds},
};
use crate::{
    executor::Model,
    membership::{Member, MemberState, MeshView, RemoteTool},
    router::{
        Ask, Candidate, Decision, DecisionId, History, Observation, OwnReservation, OwnReservations, Tries,
        decide,
    },
};

/// No step of a simulation ends for want of time.
const DEADLINE_MS: u64 = 24 * 3600 * 1000;

/// What one coordinator remembers.
#[derive(Default)]
struct Coordinator {
    history: History,
    own: OwnReservations,
}

/// A step that asked for a place.
pub(super) struct Asked {
    pub(super) candidate: Candidate,
    pub(super) longest_wait_ms: u32,
}

/// All nodes of a simulated mesh.
pub(super) struct Mesh {
    begin: Instant,
    /// What the nodes of each region see; round trips are the only difference.
    views: [MeshView; 2],
    ids: Vec<NodeId>,
    by_id: BTreeMap<NodeId, usize>,
    callers: Vec<Caller>,
    coordinators: Vec<Coordinator>,
    models: Vec<Model>,
    names: Vec<ToolName>,
    step: StepId,
}

fn card(name: &ToolName, typical_s: f64) -> Result<Arc<RemoteTool>, BenchError> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds of a tool")]
    let typical_ms = (typical_s * 1000.0).round().max(1.0) as u32;
    let card = ToolCard {
        name: name.clone(),
        version: "1".into(),
        description: String::new(),
        keywords: vec![],
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect: Effect::Pure,
        needs: Needs::default(),
        typical_ms,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Builtin,
    };
    let hash = card.hash().map_err(|e| BenchError(format!("a card of the simulation: {e}")))?;
    Ok(Arc::new(RemoteTool { card: Arc::new(card), hash }))
}

fn wrong(error: impl std::fmt::Display) -> BenchError {
    BenchError(format!("a name of the simulation: {error}"))
}

impl Mesh {
    pub(super) fn new(world: &World) -> Result<Self, BenchError> {
        let names = (0..TOOLS.len()).map(|t| ToolName::parse(&format!("tool{t}")).map_err(wrong));
        let names: Vec<ToolName> = names.collect::<Result<_, _>>()?;
        let begin = Instant::now() + Duration::from_secs(3600);
        let mut members = Vec::new();
        for (n, machine) in world.machines.iter().enumerate() {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
            let name = NodeName::parse(&format!("n{n}")).map_err(wrong)?;
            let mut tools = BTreeMap::new();
            for (t, name) in names.iter().enumerate().filter(|(t, _)| machine.tools[*t]) {
                tools.insert(name.clone(), card(name, TOOLS[t].0 * machine.error[t])?);
            }
            members.push(member(NodeId::from_bytes(bytes), name, machine, tools, begin));
        }
        let first = members.first().ok_or_else(|| BenchError("a mesh has at least one node".into()))?;
        let view = MeshView::alone(first.clone());
        let mut views = [view.clone(), view];
        for (region, view) in views.iter_mut().enumerate() {
            for (n, member) in members.iter().enumerate() {
                let other = world.machines.iter().enumerate().find(|(o, m)| m.region == region && *o != n);
                let rtt = other.map(|(o, _)| Duration::from_micros(super::world::us(world.rtt(o, n))));
                view.members.insert(member.node, Arc::new(Member { rtt, ..member.clone() }));
            }
        }
        let caller = |m: &Member| Caller {
            node: m.node,
            name: m.name.clone(),
            role: m.role,
            grants: m.grants.clone(),
            local: false,
        };
        Ok(Self {
            begin,
            views,
            ids: members.iter().map(|m| m.node).collect(),
            by_id: members.iter().enumerate().map(|(n, m)| (m.node, n)).collect(),
            callers: members.iter().map(caller).collect(),
            coordinators: members.iter().map(|_| Coordinator::default()).collect(),
            models: world.machines.iter().map(|m| Model::new(m.slots)).collect(),
            names,
            step: StepId::parse("s001").map_err(wrong)?,
        })
    }

    fn at(&self, now: Us) -> Instant {
        self.begin + Duration::from_micros(now)
    }

    fn key(&self, step: usize) -> StepKey {
        StepKey { run: RunId::run((step as u64).to_be_bytes()), step: self.step.clone() }
    }

    /// The router's decision for a step; the reservation is noted as on its way. `None` when nobody can run it.
    pub(super) fn place(&mut self, world: &World, step: usize, tries: &Tries, now: Us) -> Option<Asked> {
        let (work, at, key) = (world.work[step], self.at(now), self.key(step));
        let origin = work.origin;
        let view = &mut self.views[world.machines[origin].region];
        view.me = self.ids[origin];
        let coordinator = &mut self.coordinators[origin];
        // A node's own entry in its view changes with its executor's load.
        coordinator.own.observe(view.me, self.models[origin].load(at), at);
        let ask = Ask {
            decision: DecisionId::new([0; 8]),
            key: key.clone(),
            tool: self.names[work.tool].clone(),
            card: None,
            argument_bytes: work.bytes,
            there: std::collections::BTreeSet::new(),
            pinned: None,
            exclude: tries.exclude().clone(),
            deadline_ms: DEADLINE_MS,
        };
        let decision: Decision =
            decide(view, &ask, &coordinator.history, &coordinator.own, &BTreeMap::new(), at);
        let longest_wait_ms = tries.longest_wait_ms(&decision);
        let candidate = decision.chosen?;
        coordinator.own.insert(
            key,
            OwnReservation { node: candidate.node, est_ms: candidate.est_ms(), vram: 0, memory: 0, at },
        );
        Some(Asked { candidate, longest_wait_ms })
    }

    pub(super) fn node(&self, asked: &Asked) -> Option<usize> {
        self.by_id.get(&asked.candidate.node).copied()
    }

    /// The reservation arrives.
    pub(super) fn reserve(
        &mut self,
        world: &World,
        step: usize,
        asked: &Asked,
        now: Us,
    ) -> Option<Result<Granted, Refused>> {
        let (work, at, key) = (world.work[step], self.at(now), self.key(step));
        let node = self.node(asked)?;
        let tool = self.views[0].get(self.ids[node])?.tool(&self.names[work.tool])?.clone();
        let request = Reserve {
            key,
            tool: self.names[work.tool].clone(),
            card: asked.candidate.card,
            effect: asked.candidate.effect,
            est_ms: asked.candidate.est_ms(),
            vram: 0,
            memory: 0,
            argument_bytes: work.bytes,
            deadline_ms: DEADLINE_MS,
            epoch: 1,
            longest_wait_ms: asked.longest_wait_ms,
        };
        let caller = Caller { local: node == work.origin, ..self.callers[work.origin].clone() };
        Some(self.models[node].reserve(request, &caller, (tool.hash, Arc::clone(&tool.card)), at))
    }

    /// The answer is back at the coordinator.
    pub(super) fn answered(
        &mut self,
        world: &World,
        step: usize,
        node: usize,
        granted: bool,
        state: LoadState,
        now: Us,
    ) {
        let (at, key) = (self.at(now), self.key(step));
        let own = &mut self.coordinators[world.work[step].origin].own;
        own.observe(self.ids[node], state, at);
        if granted {
            own.granted(&key, at);
        } else {
            own.remove(&key);
        }
    }

    /// Starts a lease; leases that run from now on. `None` when the node does not know it.
    pub(super) fn start(
        &mut self,
        world: &World,
        step: usize,
        node: usize,
        lease: LeaseId,
        now: Us,
    ) -> Option<Vec<LeaseId>> {
        let at = self.at(now);
        self.models[node].start(lease, 1, self.ids[world.work[step].origin], at)
    }

    pub(super) fn finished(&mut self, node: usize, lease: LeaseId, took_ms: u64, now: Us) -> Vec<LeaseId> {
        let at = self.at(now);
        self.models[node].finished(lease, took_ms, at)
    }

    /// The outcome is back at the coordinator.
    pub(super) fn ended(&mut self, world: &World, step: usize, asked: &Asked, took_ms: u64, now: Us) {
        let (work, at, key) = (world.work[step], self.at(now), self.key(step));
        let coordinator = &mut self.coordinators[work.origin];
        coordinator.own.ended(&key, at);
        let call = Observation {
            node: asked.candidate.node,
            tool: &self.names[work.tool],
            work_bytes: asked.candidate.work_bytes,
            prior_ms: asked.candidate.prior_ms,
            elapsed_ms: took_ms,
        };
        coordinator.history.record(call, at);
    }

    /// The node did not answer, or lost the step.
    pub(super) fn lost(&mut self, world: &World, step: usize, asked: &Asked, now: Us) {
        let (at, key) = (self.at(now), self.key(step));
        let coordinator = &mut self.coordinators[world.work[step].origin];
        coordinator.own.remove(&key);
        coordinator.history.record_failure(asked.candidate.node, at);
    }

    /// All nodes hear how a node is.
    pub(super) fn gossip(&mut self, node: usize, now: Us) {
        let (at, load, id) = (self.at(now), self.models[node].load(self.at(now)), self.ids[node]);
        for view in &mut self.views {
            let Some(member) = view.members.get_mut(&id) else { continue };
            let member = Arc::make_mut(member);
            if let Some(advert) = &mut member.advert {
                Arc::make_mut(advert).load = load;
            }
            (member.advert_at, member.last_contact) = (Some(at), Some(at));
            member.state = MemberState::Alive;
        }
    }

    /// All nodes hear that a node does not answer.
    pub(super) fn down(&mut self, node: usize) {
        for view in &mut self.views {
            if let Some(member) = view.members.get_mut(&self.ids[node]) {
                Arc::make_mut(member).state = MemberState::Down;
            }
        }
    }

    /// The executor of a node starts anew and knows nothing of before.
    pub(super) fn restart(&mut self, world: &World, node: usize) {
        self.models[node] = Model::new(world.machines[node].slots);
    }

    pub(super) fn drain(&mut self, node: usize, on: bool) {
        self.models[node].drain(on);
    }
}

fn member(
    node: NodeId,
    name: NodeName,
    machine: &super::world::Machine,
    tools: BTreeMap<ToolName, Arc<RemoteTool>>,
    at: Instant,
) -> Member {
    let mut member = Member::new(node, name, Role::Worker, Grants::default());
    member.state = MemberState::Alive;
    member.connected = true;
    member.tools_complete = true;
    member.tools = Arc::new(tools);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred percent")]
    let speed_percent = (machine.speed * 100.0) as u16;
    member.advert = Some(Arc::new(Advert {
        node,
        incarnation: 1,
        seq: 1,
        load: LoadState { slots: machine.slots, ready: true, ..LoadState::default() },
        memory_total: 0,
        gpus: vec![],
        models: vec![],
        tool_set: ToolSetHash::from_bytes([0; 32]),
        speed_percent,
        sandbox: SandboxLevel::Rlimits,
        region: String::new(),
        tags: vec![],
        version: String::new(),
        circumstances: Default::default(),
    }));
    (member.advert_at, member.last_contact) = (Some(at), Some(at));
    member
}

/// Milliseconds as outcomes carry them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds of a step")]
pub(super) fn millis(us: Us) -> u64 {
    (seconds(us) * 1000.0).round() as u64
}
