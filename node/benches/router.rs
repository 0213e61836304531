//! What a decision costs: `cargo bench -p octomesh --bench router`. Fails when it costs more than it may.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking, prints, and reads the clock"
)]
use std::{
    collections::BTreeMap,
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use criterion::Criterion;
use octomesh::{
    membership::{Member, MemberState, MeshView, RemoteTool},
    router::{
        Ask, Decision, DecisionId, History, Observation, OwnReservation, OwnReservations, Tries, decide,
    },
};
use octomesh_protocol::{
    advert::{Advert, LoadState},
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{NodeId, NodeName, RunId, StepId, StepKey, ToolName, ToolSetHash},
    trust::{Grants, Role},
};
use tokio::time::Instant;

/// Nodes, tools of the whole mesh, tools of one node, and the time that a decision may take there.
const SIZES: [(usize, usize, usize, Duration); 2] =
    [(10, 200, 200, Duration::from_micros(40)), (1000, 5000, 1000, Duration::from_millis(1))];
/// Own steps under way: as many as are remembered in a large mesh.
const UNDER_WAY: usize = 2000;

struct Mesh {
    view: Arc<MeshView>,
    ask: Ask,
    history: History,
    own: OwnReservations,
    now: Instant,
}

fn tool(n: usize) -> ToolName {
    ToolName::parse(&format!("tool_{n}")).unwrap()
}

fn node(n: usize) -> NodeId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    NodeId::from_bytes(bytes)
}

fn card(n: usize) -> Arc<RemoteTool> {
    let card = ToolCard {
        name: tool(n),
        version: "1".into(),
        description: "A tool.".into(),
        keywords: vec![],
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect: Effect::Pure,
        needs: Needs::default(),
        typical_ms: 100,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Process,
    };
    Arc::new(RemoteTool { hash: card.hash().unwrap(), card: Arc::new(card) })
}

impl Mesh {
    fn new(nodes: usize, tools: usize, each: usize) -> Self {
        let now = Instant::now() + Duration::from_secs(3600);
        let cards: Vec<_> = (0..tools).map(card).collect();
        // Every fifth node of the large mesh has the tool that is asked for.
        let groups = (tools / each).max(1);
        let sets: Vec<Arc<BTreeMap<_, _>>> = (0..groups)
            .map(|g| {
                let of_group = cards.iter().skip(g).step_by(groups);
                Arc::new(of_group.map(|c| (c.card.name.clone(), Arc::clone(c))).collect())
            })
            .collect();
        let member = |n: usize| {
            let name = NodeName::parse(&format!("n{n}")).unwrap();
            let mut m = Member::new(node(n), name, Role::Worker, Grants::default());
            (m.state, m.connected, m.tools_complete) = (MemberState::Alive, true, true);
            (m.advert_at, m.last_contact) = (Some(now), Some(now));
            m.rtt = Some(Duration::from_millis(2));
            m.tools = Arc::clone(&sets[n % groups]);
            m.advert = Some(Arc::new(Advert {
                node: node(n),
                incarnation: 1,
                seq: 1,
                load: LoadState {
                    slots: 4,
                    running: (n % 7) as u16,
                    work_ms: 100,
                    ready: true,
                    ..LoadState::default()
                },
                memory_total: 8 << 30,
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
        };
        let mut view = MeshView::alone(member(0));
        view.members = (0..nodes).map(|n| (node(n), Arc::new(member(n)))).collect();
        let (mut history, mut own) = (History::default(), OwnReservations::default());
        for n in 0..nodes {
            for t in 0..8 {
                let call = Observation {
                    node: node(n),
                    tool: &tool(t * groups),
                    work_bytes: 100,
                    prior_ms: 100.0,
                    elapsed_ms: 90,
                };
                history.record(call, now);
            }
        }
        let key = |n: usize| StepKey {
            run: RunId::run((n as u64).to_be_bytes()),
            step: StepId::parse("s001").unwrap(),
        };
        for n in 0..UNDER_WAY {
            let reservation =
                OwnReservation { node: node(n % nodes), est_ms: 100, vram: 0, memory: 0, at: now };
            own.insert(key(n), reservation);
        }
        let ask = Ask {
            decision: DecisionId::new([0; 8]),
            key: key(UNDER_WAY),
            tool: tool(0),
            card: None,
            argument_bytes: 100,
            there: std::collections::BTreeSet::new(),
            pinned: None,
            exclude: Tries::default().exclude().clone(),
            deadline_ms: 60_000,
        };
        Self { view: Arc::new(view), ask, history, own, now }
    }

    /// As a call has it: a snapshot of the view is taken, and the decision dropped at the end.
    fn decide(&self) -> Decision {
        let view = Arc::clone(&self.view);
        decide(&view, &self.ask, &self.history, &self.own, &BTreeMap::new(), self.now)
    }
}

/// The median of many decisions; the best of five such, since a busy machine only adds.
fn best_median(mesh: &Mesh) -> Duration {
    let median = || {
        let mut took: Vec<Duration> = (0..101)
            .map(|_| {
                let begun = Clock::now();
                black_box(mesh.decide());
                begun.elapsed()
            })
            .collect();
        took.sort_unstable();
        took[took.len() / 2]
    };
    (0..5).map(|_| median()).min().unwrap()
}

fn main() -> ExitCode {
    let mut criterion = Criterion::default().configure_from_args();
    let mut slow = false;
    for (nodes, tools, each, most) in SIZES {
        let mesh = Mesh::new(nodes, tools, each);
        assert!(mesh.decide().chosen.is_some());
        criterion.bench_function(&format!("decision/{nodes}x{tools}"), |b| b.iter(|| mesh.decide()));
        let took = best_median(&mesh);
        println!("a decision among {nodes} nodes with {tools} tools: {took:?}, at most {most:?}");
        slow |= took > most;
    }
    criterion.final_summary();
    if slow { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
