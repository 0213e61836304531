//! The nodes of a schedule and what carries their bytes.
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use async_trait::async_trait;
use octomesh_protocol::{
    advert::{Advert, LoadState},
    blob::BlobRef,
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{CardHash, NodeId, NodeName, RunId, StepId, StepKey, ToolName, ToolSetHash},
    step::{Message, Reserve, Start, StepStatus},
    trust::{Grants, Role},
};
use octomesh_tools::tool::{Caller, DataProbe};
use serde_json::{Map, json};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Choices, Counts};
use crate::{
    app::clock::TestClock,
    blob,
    dispatch::{CallAsk, DispatchParts, Dispatcher},
    executor::{
        Absent, CallReport, ExecutorConfig, ExecutorHandle, ExecutorParts, Resources, RunContext, ToolRunner,
        executor, serve_stream,
    },
    journal::JournalHandle,
    membership::{Member, MemberState, MeshView, RemoteTool},
    metrics::NodeMetrics,
    net::{
        NetError,
        linked::{self, ByteStream},
    },
    trust::{TrustReader, fixtures},
};

pub(super) const COORDINATOR: usize = 0;
const NODES: usize = 3;
const NAMES: [&str; NODES] = ["pi", "attic", "shed"];
/// How long a step may take; no schedule comes near.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A coordinator notices that a way is cut after this long.
const NOTICED: Duration = Duration::from_millis(1_500);

/// Signatures take their time; one will do.
static TRUST: LazyLock<TrustReader> =
    LazyLock::new(|| watch::channel(Arc::new(fixtures::trust(1, Role::Worker))).1);

/// What the world does that no node may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lie {
    /// An executor has lost its journal when it starts again.
    Forgets,
    /// Everybody takes steps with a side effect for pure ones.
    Repeats,
}

/// Of a hundred messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    /// Answers that are lost, with their stream.
    pub(super) drop: u64,
    /// Starts that come again later.
    pub(super) duplicate: u64,
    /// Messages that take seconds.
    pub(super) slow: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Weather {
    pub(super) cut: [bool; NODES],
    pub(super) frozen: [bool; NODES],
}

impl Weather {
    fn passes(&self, to: usize) -> bool {
        !self.cut[COORDINATOR] && !self.cut[to] && !self.frozen[COORDINATOR] && !self.frozen[to]
    }
}

/// A process.
struct Life {
    executor: ExecutorHandle,
    journal: JournalHandle,
    view: watch::Sender<Arc<MeshView>>,
    tasks: Mutex<JoinSet<()>>,
    _resources: watch::Sender<Resources>,
}

struct State {
    choices: Choices,
    rates: Rates,
    lives: [Option<Arc<Life>>; NODES],
    journals: [JournalHandle; NODES],
    /// Since when the way to a node is not open.
    away: [Option<Instant>; NODES],
    epoch: u64,
    effects: BTreeMap<StepKey, u32>,
    ends: BTreeMap<StepKey, StepStatus>,
    /// The coordinator's rows when it died.
    stored: BTreeMap<StepKey, StepStatus>,
    story: Vec<String>,
    counts: Counts,
}

pub(super) struct World {
    seed: u64,
    begun: Instant,
    lie: Option<Lie>,
    steps: Vec<(Effect, Duration)>,
    weather: watch::Sender<Weather>,
    state: Mutex<State>,
    /// Bytes on their way; nobody's death ends them.
    carried: Mutex<JoinSet<()>>,
}

fn id(node: usize) -> NodeId {
    NodeId::from_bytes([u8::try_from(node).unwrap() + 1; 32])
}

fn journal() -> JournalHandle {
    JournalHandle::open_in_memory(Arc::new(|| UNIX_EPOCH + Duration::from_secs(1_800_000_000))).unwrap()
}

fn tool_of(effect: Effect) -> ToolName {
    ToolName::parse(&format!("count_{}", <&str>::from(effect))).unwrap()
}

fn caller(node: usize, local: bool) -> Caller {
    let name = NodeName::parse(NAMES[node]).unwrap();
    Caller { node: id(node), name, role: Role::Worker, grants: Grants::default(), local }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(
        seed: u64,
        choices: Choices,
        rates: Rates,
        lie: Option<Lie>,
        steps: &[(Effect, Duration)],
    ) -> Arc<Self> {
        let state = State {
            choices,
            rates,
            lives: [None, None, None],
            journals: [journal(), journal(), journal()],
            away: [None; NODES],
            epoch: 0,
            effects: BTreeMap::new(),
            ends: BTreeMap::new(),
            stored: BTreeMap::new(),
            story: Vec::new(),
            counts: Counts::new(),
        };
        Arc::new(Self {
            seed,
            begun: Instant::now(),
            lie,
            steps: steps.to_vec(),
            weather: watch::Sender::new(Weather::default()),
            state: Mutex::new(state),
            carried: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn note(&self, text: String) {
        let at = self.begun.elapsed().as_millis();
        self.state().story.push(format!("{at:>6} {text}"));
    }

    fn count(&self, what: &str) {
        *self.state().counts.entry(what.to_owned()).or_default() += 1;
    }

    fn chance(&self, rate: impl Fn(&Rates) -> u64) -> bool {
        let mut state = self.state();
        let rate = rate(&state.rates);
        state.choices.below(100) < rate
    }

    fn ms(&self, end: u64) -> Duration {
        self.state().choices.ms(end)
    }

    fn key(&self, step: usize) -> StepKey {
        let step = StepId::parse(&format!("s{:03}", step + 1)).unwrap();
        StepKey { run: RunId::run(self.seed.to_be_bytes()), step }
    }

    pub(super) fn weather(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(change);
    }

    /// No more faults but those that were on their way.
    pub(super) fn calm(&self) {
        self.note("calm".to_owned());
        let mut state = self.state();
        state.rates = Rates::default();
        for life in state.lives.iter().flatten() {
            life.journal.cut_at(u32::MAX, true, || ());
        }
    }

    pub(super) fn is_alive(&self, node: usize) -> bool {
        self.state().lives[node].is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().ends.len() == self.steps.len()
    }

    /// Effects, the end, and what was in the coordinator's journal when it died.
    pub(super) fn verdict(&self, step: usize) -> (u32, Option<StepStatus>, Option<StepStatus>) {
        let (key, state) = (self.key(step), self.state());
        let times = state.effects.get(&key).copied().unwrap_or_default();
        (times, state.ends.get(&key).copied(), state.stored.get(&key).copied())
    }

    pub(super) fn story(&self) -> String {
        self.state().story.join("\n")
    }

    pub(super) fn add_counts(&self, counts: &mut Counts) {
        for (what, count) in &self.state().counts {
            *counts.entry(what.clone()).or_default() += count;
        }
    }

    /// Ends all that goes on, so that nothing holds the world.
    pub(super) fn end(&self) {
        let lives = std::mem::take(&mut self.state().lives);
        for life in lives.iter().flatten() {
            lock(&life.tasks).abort_all();
        }
        lock(&self.carried).abort_all();
    }

    /// `kill -9`: nothing of it is polled again.
    pub(super) fn kill(&self, node: usize) {
        let Some(life) = self.state().lives[node].take() else { return };
        self.note(format!("{} is dead", NAMES[node]));
        lock(&life.tasks).abort_all();
    }

    pub(super) fn kill_at_write(self: &Arc<Self>, node: usize, writes: u32, before: bool) {
        let Some(life) = self.state().lives[node].clone() else { return };
        let world = Arc::downgrade(self);
        life.journal.cut_at(writes, before, move || {
            if let Some(world) = world.upgrade() {
                world.count("deaths at a write");
                world.kill(node);
            }
        });
    }

    /// The executor of a node stands still until the result is dropped.
    pub(super) async fn hold(&self, node: usize) -> Option<oneshot::Sender<()>> {
        let life = self.state().lives[node].clone()?;
        Some(life.executor.hold().await)
    }

    fn card(&self, effect: Effect) -> Arc<RemoteTool> {
        let card = ToolCard {
            name: tool_of(effect),
            version: "1".into(),
            description: String::new(),
            keywords: vec![],
            input_schema: json!({"type": "object"}),
            output_schema: None,
            examples: vec![],
            effect: if self.lie == Some(Lie::Repeats) { Effect::Pure } else { effect },
            needs: Needs::default(),
            typical_ms: 1000,
            data: vec![],
            demo_calls: vec![],
            limitations: vec![],
            best_practice: vec![],
            requires_llm: false,
            source: Source::Builtin,
        };
        Arc::new(RemoteTool { hash: card.hash().unwrap(), card: Arc::new(card) })
    }

    fn member(&self, node: usize, connected: bool, load: LoadState) -> Member {
        let name = NodeName::parse(NAMES[node]).unwrap();
        let mut m = Member::new(id(node), name, Role::Worker, Grants::default());
        (m.state, m.connected, m.tools_complete, m.exchanged) = (MemberState::Alive, connected, true, true);
        m.rtt = Some(Duration::from_millis(1));
        let advert = Advert {
            node: id(node),
            incarnation: 1,
            seq: 1,
            load: LoadState { ready: true, ..load },
            memory_total: 1,
            gpus: vec![],
            models: vec![],
            tool_set: ToolSetHash::from_bytes([0; 32]),
            speed_percent: 100,
            sandbox: SandboxLevel::None,
            region: String::new(),
            tags: vec![],
            version: String::new(),
            circumstances: octomesh_protocol::advert::Circumstances::default(),
        };
        (m.advert, m.advert_at) = (Some(Arc::new(advert)), Some(Instant::now()));
        if node != COORDINATOR {
            let tools = super::EFFECTS.iter().map(|effect| (tool_of(*effect), self.card(*effect)));
            m.tools = Arc::new(tools.collect());
        }
        m
    }

    /// What a node sees. The coordinator sees the ends of others and cuts, late.
    fn view_of(&self, node: usize) -> MeshView {
        let weather = self.weather.borrow().clone();
        let mut view = MeshView::alone(self.member(node, true, LoadState::default()));
        for other in (0..NODES).filter(|other| *other != node) {
            let mut state = self.state();
            let life = state.lives[other].clone();
            let open = node != COORDINATOR || (life.is_some() && weather.passes(other));
            let since = *state.away[other].get_or_insert_with(Instant::now);
            if open {
                state.away[other] = None;
            }
            let gone = !open && (life.is_none() || since.elapsed() >= NOTICED);
            drop(state);
            let load = life.map_or_else(LoadState::default, |life| *life.executor.load().borrow());
            view.members.insert(id(other), Arc::new(self.member(other, !gone, load)));
        }
        view
    }

    pub(super) fn look_around(&self) {
        let lives = self.state().lives.clone();
        // Executors see everybody, always.
        if let Some(life) = &lives[COORDINATOR] {
            life.view.send_replace(Arc::new(self.view_of(COORDINATOR)));
        }
    }

    /// A process begins with what the last one left in its journal.
    pub(super) async fn start(self: &Arc<Self>, node: usize) {
        let journal = if self.lie == Some(Lie::Forgets) && node != COORDINATOR {
            journal()
        } else {
            self.state().journals[node].reopened().unwrap()
        };
        let (resources_out, resources) = watch::channel(Resources::default());
        let drawn = Arc::downgrade(self);
        let (handle, task) = executor(ExecutorParts {
            config: ExecutorConfig { slots: 2, offers_tools: true },
            runner: Arc::new(Tools { world: Arc::downgrade(self), node }),
            journal: journal.clone(),
            resources,
            random: Box::new(move || drawn.upgrade().map_or(0, |world| world.state().choices.next())),
            queue_wait: None,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(CancellationToken::new()));
        let (view_out, view) = watch::channel(Arc::new(self.view_of(node)));
        if node == COORDINATOR {
            self.coordinate(&mut tasks, &journal, view, handle.clone()).await;
        }
        let life = Life {
            executor: handle,
            journal: journal.clone(),
            view: view_out,
            tasks: Mutex::new(tasks),
            _resources: resources_out,
        };
        self.note(format!("{} is up", NAMES[node]));
        let mut state = self.state();
        state.journals[node] = journal;
        state.lives[node] = Some(Arc::new(life));
    }

    async fn coordinate(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        journal: &JournalHandle,
        view: watch::Receiver<Arc<MeshView>>,
        executor: ExecutorHandle,
    ) {
        let epoch = journal.next_epoch().await.unwrap();
        let again = epoch > 1;
        self.state().epoch = epoch;
        for step in 0..self.steps.len() {
            let row = journal.attempt(&self.key(step)).await.unwrap();
            let status = row.and_then(|row| row.status);
            if status.as_deref() == Some("ok") {
                self.state().stored.insert(self.key(step), StepStatus::Ok);
            }
        }
        let world = Arc::downgrade(self);
        let links = move |node| {
            let world = world.upgrade();
            Box::pin(async move {
                let world = world.ok_or(NetError::Stopped)?;
                world.open(node).await
            }) as futures::future::BoxFuture<'static, _>
        };
        let net = linked::handle(Arc::new(links));
        // Nothing here is as large as a blob.
        let folder = tempfile::tempdir().unwrap();
        let store = blob::Store::open(folder.path(), 1 << 20, Arc::new(|| UNIX_EPOCH)).unwrap();
        let blobs = blob::BlobClient { me: id(COORDINATOR), net: net.clone(), view: view.clone(), store };
        let dispatcher = Dispatcher::new(DispatchParts {
            me: caller(COORDINATOR, true),
            view,
            net,
            trust: TRUST.clone(),
            executor,
            journal: journal.clone(),
            clock: Arc::new(TestClock::new(1_800_000_000, self.seed << 8 | epoch)),
            metrics: NodeMetrics::new("test").unwrap(),
            epoch,
            blobs,
        });
        for (step, (effect, at)) in self.steps.iter().enumerate() {
            let key = self.key(step);
            if self.state().ends.contains_key(&key) {
                continue;
            }
            let ask = CallAsk {
                key: key.clone(),
                tool: tool_of(*effect),
                card: None,
                arguments: Map::new(),
                pinned: None,
                timeout: TIMEOUT,
                placed: None,
                resumed: again,
            };
            let (world, dispatcher) = (Arc::downgrade(self), dispatcher.clone());
            let at = if again { Duration::ZERO } else { *at };
            tasks.spawn(async move {
                tokio::time::sleep(at).await;
                let (events, mut said) = mpsc::channel(16);
                let cancel = CancellationToken::new();
                let done = tokio::select! {
                    done = dispatcher.call(ask, &cancel, &events) => done,
                    () = async { while said.recv().await.is_some() {} } => unreachable!("events are open"),
                };
                let Some(world) = world.upgrade() else { return };
                // It may die before the record has it.
                let record = world.ms(20);
                tokio::time::sleep(record).await;
                world.note(format!("{key} is {:?}, {} starts: {}", done.status, done.attempts, done.output));
                world.state().ends.insert(key, done.status);
            });
        }
    }

    /// A stream of the coordinator to `node`.
    async fn open(self: Arc<Self>, node: NodeId) -> Result<ByteStream, NetError> {
        let to = (0..NODES).find(|to| id(*to) == node).ok_or(NetError::Unknown)?;
        self.travel(to).await;
        let far = self.serve(to).ok_or_else(|| NetError::Open("no session".to_owned()))?;
        let (near, carried) = linked::pair();
        let world = Arc::clone(&self);
        lock(&self.carried).spawn(async move { world.carry(to, carried, far).await });
        Ok(near)
    }

    /// A stream that the process which runs there now serves.
    fn serve(&self, to: usize) -> Option<ByteStream> {
        let life = self.state().lives[to].clone()?;
        let (served, far) = linked::pair();
        let serving = serve_stream(
            served,
            id(COORDINATOR),
            life.executor.clone(),
            life.view.subscribe(),
            TRUST.clone(),
        );
        lock(&life.tasks).spawn(serving);
        Some(far)
    }

    /// The way of one message.
    async fn travel(&self, to: usize) {
        let time = if self.chance(|rates| rates.slow) { self.ms(5_000) } else { self.ms(20) };
        tokio::time::sleep(time).await;
        // silent-ok: its sender is this world's
        let _ = self.weather.subscribe().wait_for(|weather| weather.passes(to)).await;
    }

    async fn carry(self: &Arc<Self>, to: usize, near: ByteStream, far: ByteStream) {
        let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.split(), far.split());
        // What was sent arrives, also when its sender has died meanwhile.
        let up = async {
            let mut reserved: Option<Reserve> = None;
            while let Ok(message) = from_near.receive().await {
                match (&message, &reserved) {
                    (Message::Reserve(reserve), _) => reserved = Some(reserve.clone()),
                    (Message::Start(start), Some(reserve)) if self.chance(|rates| rates.duplicate) => {
                        let (world, reserve, start) = (Arc::clone(self), reserve.clone(), start.clone());
                        lock(&self.carried).spawn(async move { world.again(to, reserve, start).await });
                    }
                    _ => {}
                }
                self.travel(to).await;
                if let Message::Start(start) = &message
                    && start.epoch < self.state().epoch
                {
                    self.count("starts of an older epoch");
                }
                if to_far.send(message).await.is_err() {
                    return;
                }
            }
        };
        let down = async {
            while let Ok(message) = from_far.receive().await {
                if self.chance(|rates| rates.drop) {
                    self.count("dropped replies");
                    self.note(format!("{} of {} is lost", message.name(), NAMES[to]));
                    return;
                }
                self.travel(to).await;
                if to_near.send(message).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = up => {}
            () = down => {}
        }
    }

    /// The same start once more, later, on a stream of its own.
    async fn again(self: &Arc<Self>, to: usize, reserve: Reserve, start: Start) {
        tokio::time::sleep(self.ms(8_000)).await;
        self.travel(to).await;
        let Some(far) = self.serve(to) else { return };
        let (mut reader, mut writer) = far.split();
        let epoch = start.epoch;
        // silent-ok, for the rest: nobody waits for it
        if writer.send(reserve).await.is_err() || reader.receive().await.is_err() {
            return;
        }
        if writer.send(start).await.is_ok() {
            self.count("duplicated starts");
            if epoch < self.state().epoch {
                self.count("starts of an older epoch");
            }
            while reader.receive().await.is_ok() {}
        }
    }
}

/// Tools that take a while and count.
struct Tools {
    world: std::sync::Weak<World>,
    node: usize,
}

#[async_trait]
impl ToolRunner for Tools {
    fn card(&self, tool: &ToolName) -> Result<(CardHash, Arc<ToolCard>), Absent> {
        let world = self.world.upgrade().filter(|_| self.node != COORDINATOR).ok_or(Absent::NoTool)?;
        let effect = super::EFFECTS.into_iter().find(|effect| tool_of(*effect) == *tool);
        let tool = world.card(effect.ok_or(Absent::NoTool)?);
        Ok((tool.hash, Arc::clone(&tool.card)))
    }

    fn sandbox(&self) -> SandboxLevel {
        SandboxLevel::None
    }

    async fn run(&self, _: &ToolName, context: RunContext, _: Vec<u8>) -> CallReport {
        let report = |status| CallReport { status, output: b"1".to_vec(), sandbox: SandboxLevel::None };
        let Some(world) = self.world.upgrade() else { return report(StepStatus::Error) };
        for effect in [true, false] {
            let time = world.ms(1_500);
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = context.cancel.cancelled() => return report(StepStatus::Cancelled),
            }
            if effect {
                *world.state().effects.entry(context.key.clone()).or_default() += 1;
                world.note(format!("{} takes effect on {}", context.key, NAMES[self.node]));
            }
        }
        report(StepStatus::Ok)
    }

    async fn probe(&self, _: &ToolName, _: &Caller, _: &[u8]) -> DataProbe {
        DataProbe::Missing(String::new())
    }

    async fn keep(&self, _: NodeId, output: Vec<u8>, _: Duration) -> Result<BlobRef, String> {
        Err(format!("{} bytes are no blob here", output.len()))
    }

    async fn input(&self, _: NodeId, blob: BlobRef) -> Result<Vec<u8>, String> {
        Err(format!("{} is not here", blob.hash))
    }
}
