//! Decisions on small meshes: one table row per filter, and what must hold for all inputs.
mod explained;
mod filters;
mod laws;
mod placed;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use octomesh_protocol::{
    advert::{Advert, GpuAdvert, LoadState},
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{NodeId, NodeName, RunId, StepId, StepKey, ToolName, ToolSetHash},
    trust::{Grants, Role},
};
use tokio::time::Instant;

use super::*;
use crate::membership::view::{Member, MemberState, RemoteTool};

pub(super) const GIB: u64 = 1 << 30;

pub(super) fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

pub(super) fn tool_name() -> ToolName {
    ToolName::parse("image_render").unwrap()
}

/// A card that a test changes.
pub(super) fn card(change: impl FnOnce(&mut ToolCard)) -> Arc<RemoteTool> {
    let mut card = ToolCard {
        name: tool_name(),
        version: "1".into(),
        description: String::new(),
        keywords: vec![],
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect: Effect::Pure,
        needs: Needs::default(),
        typical_ms: 200,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Process,
    };
    change(&mut card);
    let hash = card.hash().unwrap();
    Arc::new(RemoteTool { card: Arc::new(card), hash })
}

pub(super) fn gpu(free: u64) -> GpuAdvert {
    GpuAdvert { name: "GPU".into(), vram_total: 24 * GIB, vram_free: free, age_ms: 0, declared: false }
}

/// A mesh at one moment, and all else that a decision looks at.
pub(super) struct Mesh {
    pub(super) view: MeshView,
    pub(super) ask: Ask,
    pub(super) history: History,
    pub(super) own: OwnReservations,
    pub(super) probes: BTreeMap<NodeId, ProbeResult>,
    pub(super) now: Instant,
}

impl Mesh {
    /// `pi` (this node, without the tool) and the names given, each with the tool, fresh, idle and 2 ms away.
    pub(super) fn new(tool: &Arc<RemoteTool>, names: &[&str]) -> Self {
        let now = Instant::now() + Duration::from_secs(3600);
        let mut view = MeshView::alone(member(1, "pi", now));
        for (byte, name) in (2..).zip(names) {
            let mut m = member(byte, name, now);
            m.rtt = Some(Duration::from_millis(2));
            m.tools = Arc::new(BTreeMap::from([(tool.card.name.clone(), Arc::clone(tool))]));
            view.members.insert(m.node, Arc::new(m));
        }
        let ask = Ask {
            decision: DecisionId::new([7; 8]),
            key: StepKey { run: RunId::run([1; 8]), step: StepId::parse("s001").unwrap() },
            tool: tool.card.name.clone(),
            card: None,
            argument_bytes: 0,
            there: BTreeSet::new(),
            pinned: None,
            exclude: BTreeMap::new(),
            deadline_ms: 60_000,
        };
        Self {
            view,
            ask,
            history: History::default(),
            own: OwnReservations::default(),
            probes: BTreeMap::new(),
            now,
        }
    }

    pub(super) fn id(&self, name: &str) -> NodeId {
        self.view.by_name(name).unwrap().node
    }

    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Member)) {
        let node = self.id(name);
        change(Arc::make_mut(self.view.members.get_mut(&node).unwrap()));
    }

    pub(super) fn advert(&mut self, name: &str, change: impl FnOnce(&mut Advert)) {
        self.change(name, |m| change(Arc::make_mut(m.advert.as_mut().unwrap())));
    }

    pub(super) fn decide(&self) -> Decision {
        decide(&self.view, &self.ask, &self.history, &self.own, &self.probes, self.now)
    }

    pub(super) fn chosen(&self) -> Option<String> {
        self.decide().chosen.map(|c| c.name.to_string())
    }

    /// Code and words for a node.
    pub(super) fn out(&self, name: &str) -> (FilterReason, String) {
        let decision = self.decide();
        match decision.filtered_for(self.id(name)) {
            Some(f) => (f.reason, f.detail.clone()),
            None => panic!("{name} is a candidate: {}", decision.sentence()),
        }
    }
}

fn member(byte: u8, name: &str, now: Instant) -> Member {
    let mut m = Member::new(id(byte), NodeName::parse(name).unwrap(), Role::Worker, Grants::default());
    m.state = MemberState::Alive;
    m.tools_complete = true;
    m.connected = true;
    m.advert_at = Some(now);
    m.last_contact = Some(now);
    m.advert = Some(Arc::new(Advert {
        node: id(byte),
        incarnation: 1,
        seq: 1,
        load: LoadState { slots: 2, memory_free: 4 * GIB, ready: true, ..LoadState::default() },
        memory_total: 8 * GIB,
        gpus: vec![],
        models: vec![],
        tool_set: ToolSetHash::from_bytes([0; 32]),
        speed_percent: 100,
        sandbox: SandboxLevel::Rlimits,
        region: String::new(),
        tags: vec![],
        version: "0.1.0".into(),
        circumstances: Default::default(),
    }));
    m
}
