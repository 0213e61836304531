//! The coordinator against executors that fail in every way, over real sessions. The other nodes follow a script; what matters is
//! how often a step was started, and what the coordinator says of it.
mod wakes;

use std::{
    sync::atomic::AtomicU32,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use octomesh_protocol::{
    advert::{Advert, LoadState},
    card::{Effect, Needs, Source, ToolCard},
    id::{CardHash, LeaseId, RunId, StepId, ToolSetHash},
    step::{EventKind, Granted, Message, Outcome, Started, StatusReply},
    trust::{Grants, Role},
};
use octomesh_tools::tool::DataProbe;
use tokio::task::JoinSet;

use super::*;
use crate::{
    app::clock::SystemClock,
    executor::{
        Absent, CallReport, ExecutorConfig, ExecutorParts, Resources, RunContext, ToolRunner, executor,
    },
    membership::{Member, RemoteTool},
    net::{
        FrameReader, FrameWriter, StepListener,
        tests::{Peer, peer, trusting},
    },
};

/// What a scripted executor does with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    /// Runs it.
    Works,
    /// Reads the reservation and never answers.
    IgnoresReserve,
    /// Grants and drops the stream before it reads Start; knows nothing of the step afterwards.
    DropsBeforeStart,
    /// Runs it and drops the stream; says so when it is asked.
    DropsWhileRunning,
    /// Runs it to its end, drops the stream before the outcome; tells it when it is asked.
    DropsAfterDone,
    /// Grants, takes the start, and is never heard again.
    Vanishes,
    /// Grants, takes the start, and stands still: its connection stays, and nothing comes any more.
    Freezes,
    /// Was restarted while it ran.
    Restarted,
    /// Grants, starts, and only talks, for ever.
    Babbles,
    /// Grants and reads nothing more.
    Deaf,
    /// Sends an outcome whose digest does not fit, and nothing else.
    Garbles,
    /// Ends every step as if its lease were lost.
    Cancels,
    /// Reserved, but does not start.
    Refuses,
    /// The outcome, twice.
    Repeats,
}

impl Script {
    /// Whether the step took effect there.
    fn runs(self) -> bool {
        !matches!(self, Self::IgnoresReserve | Self::DropsBeforeStart | Self::Deaf | Self::Refuses)
    }
}

struct Scripted {
    script: Script,
    /// Nothing begins with its reservation.
    full: bool,
    started: Arc<AtomicU32>,
    killed: CancellationToken,
}

fn outcome(status: StepStatus) -> Outcome {
    Outcome::new(status, b"\"there\"".to_vec(), 1, SandboxLevel::None)
}

impl Scripted {
    async fn serve(self: Arc<Self>, mut steps: StepListener) {
        let mut streams = JoinSet::new();
        while let Some((_, stream)) = steps.accept().await {
            let this = Arc::clone(&self);
            streams.spawn(async move {
                let (reader, writer) = stream.split();
                // The stream ends with the task, which is what most scripts are about.
                this.stream(reader, writer).await.ok();
            });
        }
    }

    async fn stream(
        &self,
        mut reader: FrameReader,
        mut writer: FrameWriter,
    ) -> Result<(), crate::net::StreamError> {
        match reader.receive().await? {
            Message::Reserve(_) if self.script == Script::IgnoresReserve => std::future::pending().await,
            Message::Reserve(_) => {
                let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
                writer.send(Granted { lease: LeaseId(7), state }).await?;
                self.step(reader, writer).await
            }
            Message::StartIfFree(_) if self.script == Script::IgnoresReserve => std::future::pending().await,
            // There was no slot for it.
            Message::StartIfFree(_) if self.full => {
                let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
                writer.send(Granted { lease: LeaseId(7), state }).await?;
                self.step(reader, writer).await
            }
            Message::StartIfFree(_) => {
                let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
                writer.send(Started { lease: LeaseId(7), state }).await?;
                self.begun(reader, writer).await
            }
            Message::Status(_) if matches!(self.script, Script::Vanishes | Script::Freezes) => {
                std::future::pending().await
            }
            Message::Status(_) | Message::Cancel(_) => writer.send(self.status()).await,
            Message::Renew(_) => writer.send(StatusReply::Running).await,
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> StatusReply {
        match self.script {
            Script::DropsWhileRunning | Script::DropsAfterDone => StatusReply::Done(outcome(StepStatus::Ok)),
            Script::Restarted => StatusReply::Interrupted,
            Script::Babbles => StatusReply::Running,
            // One that sends rubbish does so everywhere.
            Script::Garbles => StatusReply::Done(Outcome { digest: [0; 32], ..outcome(StepStatus::Ok) }),
            _ => StatusReply::Unseen,
        }
    }

    async fn step(
        &self,
        mut reader: FrameReader,
        writer: FrameWriter,
    ) -> Result<(), crate::net::StreamError> {
        match self.script {
            Script::DropsBeforeStart => return Ok(()),
            Script::Deaf => return std::future::pending().await,
            _ => {}
        }
        let Message::Start(_) = reader.receive().await? else { panic!("no start") };
        self.begun(reader, writer).await
    }

    async fn begun(
        &self,
        mut reader: FrameReader,
        mut writer: FrameWriter,
    ) -> Result<(), crate::net::StreamError> {
        if self.script.runs() {
            self.started.fetch_add(1, Ordering::SeqCst);
        }
        match self.script {
            Script::Works => writer.send(outcome(StepStatus::Ok)).await?,
            Script::Repeats => {
                writer.send(outcome(StepStatus::Ok)).await?;
                writer.send(outcome(StepStatus::Error)).await?;
            }
            Script::Garbles => {
                writer.send(Outcome { digest: [0; 32], ..outcome(StepStatus::Ok) }).await?;
            }
            Script::Cancels => writer.send(outcome(StepStatus::Cancelled)).await?,
            Script::Refuses => writer.send(outcome(StepStatus::Refused)).await?,
            Script::Babbles => loop {
                let text = "x".repeat(100);
                writer.send(Event { seq: 1, kind: EventKind::Log, text }).await?;
            },
            Script::Freezes => std::future::pending().await,
            Script::Vanishes => {
                self.killed.cancel();
                std::future::pending().await
            }
            _ => return Ok(()),
        }
        // Not torn down before it was read.
        reader.receive().await.ok();
        Ok(())
    }
}

/// No tools here: everything goes to the others.
struct NoTools;

#[async_trait]
impl ToolRunner for NoTools {
    fn card(&self, _: &ToolName) -> Result<(CardHash, Arc<ToolCard>), Absent> {
        Err(Absent::NoTool)
    }
    fn sandbox(&self) -> SandboxLevel {
        SandboxLevel::None
    }
    async fn run(&self, _: &ToolName, _: RunContext, _: Vec<u8>) -> CallReport {
        unreachable!("there is no tool")
    }
    async fn keep(&self, _: NodeId, _: Vec<u8>, _: Duration) -> Result<BlobRef, String> {
        unreachable!("there is no tool")
    }
    async fn input(&self, _: NodeId, _: BlobRef) -> Result<Vec<u8>, String> {
        unreachable!("there is no tool")
    }
    async fn probe(&self, _: &ToolName, _: &Caller, _: &[u8]) -> DataProbe {
        DataProbe::Missing(String::new())
    }
}

fn tool(effect: Effect) -> Arc<RemoteTool> {
    let card = ToolCard {
        name: ToolName::parse("touch").unwrap(),
        version: "1".into(),
        description: String::new(),
        keywords: vec![],
        input_schema: json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect,
        needs: Needs::default(),
        typical_ms: 1,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Builtin,
    };
    Arc::new(RemoteTool { hash: card.hash().unwrap(), card: Arc::new(card) })
}

fn member(peer: &Peer, name: &str, rtt_ms: u64, tool: Option<Arc<RemoteTool>>) -> Member {
    let mut m = Member::new(peer.node, NodeName::parse(name).unwrap(), Role::Worker, Grants::default());
    (m.state, m.connected, m.tools_complete) = (MemberState::Alive, true, true);
    m.rtt = Some(Duration::from_millis(rtt_ms));
    let advert = Advert {
        node: peer.node,
        incarnation: 1,
        seq: 1,
        load: LoadState { slots: 4, ready: true, ..LoadState::default() },
        memory_total: 1,
        gpus: vec![],
        models: vec![],
        tool_set: ToolSetHash::from_bytes([0; 32]),
        speed_percent: 100,
        sandbox: SandboxLevel::None,
        region: String::new(),
        tags: vec![],
        version: String::new(),
        circumstances: Default::default(),
    };
    (m.advert, m.advert_at) = (Some(Arc::new(advert)), Some(Instant::now()));
    m.tools = Arc::new(tool.into_iter().map(|t| (t.card.name.clone(), t)).collect());
    m
}

/// This node without tools, `near` (cheap) with a script, `far` (dear) that works when there is one.
struct House {
    dispatcher: Dispatcher,
    key: StepKey,
    resumed: bool,
    near: Arc<AtomicU32>,
    far: Arc<AtomicU32>,
    journal: JournalHandle,
    _view: watch::Sender<Arc<MeshView>>,
    _resources: watch::Sender<Resources>,
    _own: Peer,
    _tasks: JoinSet<()>,
}

impl House {
    async fn new(effect: Effect, script: Script, with_far: bool) -> Self {
        Self::with(effect, script, with_far, false).await
    }

    /// `full`: nothing begins with its reservation.
    async fn with(effect: Effect, script: Script, with_far: bool, full: bool) -> Self {
        let (mut own, mut near, mut far) =
            (peer(2, "memory:0").await, peer(3, "memory:0").await, peer(4, "memory:0").await);
        own.connect(&mut near).await;
        own.connect(&mut far).await;
        let mut view = MeshView::alone(member(&own, "own", 1, None));
        view.members.insert(near.node, Arc::new(member(&near, "near", 1, Some(tool(effect)))));
        let far_tool = with_far.then(|| tool(effect));
        view.members.insert(far.node, Arc::new(member(&far, "far", 400, far_tool)));
        let mut tasks = JoinSet::new();
        let counts = [Arc::<AtomicU32>::default(), Arc::default()];
        for ((peer, script), started) in [(near, script), (far, Script::Works)].into_iter().zip(&counts) {
            let killed = CancellationToken::new();
            let scripted =
                Arc::new(Scripted { script, full, started: Arc::clone(started), killed: killed.clone() });
            tasks.spawn(async move {
                let mut peer = peer;
                let steps = std::mem::replace(&mut peer.steps, StepListener::closed());
                let drain = async { while peer.events.recv().await.is_some() {} };
                tokio::select! {
                    _ = async { tokio::join!(scripted.serve(steps), drain) } => {}
                    () = killed.cancelled() => {}
                }
                peer.kill();
            });
        }
        let wall = Arc::new(|| UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let journal =
            JournalHandle::open_in_memory(wall as Arc<dyn Fn() -> SystemTime + Send + Sync>).unwrap();
        let (resources_out, resources) = watch::channel(Resources::default());
        let (handle, task) = executor(ExecutorParts {
            config: ExecutorConfig { slots: 1, offers_tools: true },
            runner: Arc::new(NoTools),
            journal: journal.clone(),
            resources,
            random: Box::new(|| 1),
            queue_wait: None,
        });
        tasks.spawn(task.run(CancellationToken::new()));
        let (view_out, view) = watch::channel(Arc::new(view));
        let folder = tempfile::tempdir().unwrap();
        let wall: octomesh_tools::tool::WallClock =
            Arc::new(|| UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let store = crate::blob::Store::open(folder.path(), 64 << 20, wall).unwrap();
        let blob_view = view.clone();
        let dispatcher = Dispatcher::new(DispatchParts {
            me: Caller {
                node: own.node,
                name: NodeName::parse("own").unwrap(),
                role: Role::Worker,
                grants: Grants::default(),
                local: true,
            },
            view,
            net: own.handle.clone(),
            trust: trusting(&own),
            executor: handle,
            journal: journal.clone(),
            clock: Arc::new(SystemClock),
            metrics: NodeMetrics::new("test").unwrap(),
            epoch: 1,
            blobs: crate::blob::BlobClient { me: own.node, net: own.handle.clone(), view: blob_view, store },
        });
        let [near, far] = counts;
        Self {
            dispatcher,
            key: key(),
            resumed: false,
            near,
            far,
            journal,
            _view: view_out,
            _resources: resources_out,
            _own: own,
            _tasks: tasks,
        }
    }

    async fn call(&self, timeout: Duration, cancel: &CancellationToken) -> CallDone {
        self.call_with(timeout, cancel, serde_json::Map::new()).await
    }

    async fn call_with(
        &self,
        timeout: Duration,
        cancel: &CancellationToken,
        arguments: serde_json::Map<String, Value>,
    ) -> CallDone {
        let ask = CallAsk {
            key: self.key.clone(),
            tool: ToolName::parse("touch").unwrap(),
            card: None,
            arguments,
            pinned: None,
            timeout,
            placed: None,
            resumed: self.resumed,
        };
        let (events, mut said) = mpsc::channel(16);
        let drain = async { while said.recv().await.is_some() {} };
        let call = async {
            let done = self.dispatcher.call(ask, cancel, &events).await;
            drop(events);
            done
        };
        let both = async { tokio::join!(call, drain).0 };
        let done = tokio::time::timeout(timeout + Duration::from_secs(30), both).await;
        done.expect("a call ends soon after its deadline, whatever the others do")
    }

    fn counts(&self) -> (u32, u32) {
        (self.near.load(Ordering::SeqCst), self.far.load(Ordering::SeqCst))
    }
}

fn key() -> StepKey {
    StepKey { run: RunId::run([1; 8]), step: StepId::parse("s001").unwrap() }
}

const LONG: Duration = Duration::from_secs(20);

/// Scripts after which nobody can know whether the step ran.
const UNKNOWABLE: [Script; 5] =
    [Script::Vanishes, Script::Freezes, Script::Restarted, Script::Garbles, Script::Babbles];

/// A single call, whose reservation may be its start as well when it is pure.
fn call_key(n: u8) -> StepKey {
    StepKey { run: RunId::call([n; 8]), step: StepId::parse("s001").unwrap() }
}

async fn one_case(effect: Effect, script: Script) {
    case_with(effect, script, key()).await;
}

async fn case_with(effect: Effect, script: Script, key: StepKey) {
    // One that only talks is cut at the deadline.
    let timeout = if script == Script::Babbles { Duration::from_secs(2) } else { LONG };
    let mut house = House::new(effect, script, true).await;
    house.key = key;
    let done = house.call(timeout, &CancellationToken::new()).await;
    let (near, far) = house.counts();
    let case = format!("{effect:?} {script:?}: {done:?}, started {near} and {far} times");
    assert_eq!(near, u32::from(script.runs()), "{case}");
    let unknowable = UNKNOWABLE.contains(&script);
    if effect == Effect::Once {
        assert!(near + far <= 1, "never run twice: {case}");
        assert_eq!(done.status == StepStatus::Uncertain, unknowable, "{case}");
        if script == Script::Cancels {
            assert_eq!(done.status, StepStatus::Cancelled, "{case}");
        } else if !unknowable {
            assert_eq!((done.status, near + far), (StepStatus::Ok, 1), "{case}");
        }
    } else if script == Script::Babbles {
        assert_eq!((done.status, far), (StepStatus::Refused, 0), "no time is left for another: {case}");
    } else {
        assert_eq!(done.status, StepStatus::Ok, "{case}");
        assert!(near + far >= 1, "{case}");
    }
    // What is stored agrees with what happened.
    let why = house.journal.get_decision(&done.decision.id.to_string()).await.unwrap().unwrap();
    let ran_on = match (done.status, far) {
        (StepStatus::Refused, _) => Value::Null,
        (_, 0) => json!("near"),
        _ => json!("far"),
    };
    assert_eq!(why["ran_on"], ran_on, "{case}");
    let refused = why["refusals"].as_array().unwrap().iter().filter(|r| r["node"] == "near").count();
    assert_eq!(refused > 0, ran_on != json!("near"), "{case} {why}");
    if script == Script::Refuses {
        assert_eq!(why["refusals"][0]["reason"], "refused", "{why}");
    }
    assert!(house.dispatcher.memory(|m| m.reservations.is_empty()), "nothing stays reserved: {case}");
}

macro_rules! matrix {
    ($($name:ident: $script:ident),* $(,)?) => {
        mod pure { use super::*; $(#[tokio::test] async fn $name() { one_case(Effect::Pure, Script::$script).await; })* }
        mod single { use super::*; $(#[tokio::test] async fn $name() { case_with(Effect::Pure, Script::$script, call_key(1)).await; })* }
        mod idempotent { use super::*; $(#[tokio::test] async fn $name() { one_case(Effect::Idempotent, Script::$script).await; })* }
        mod once { use super::*; $(#[tokio::test] async fn $name() { one_case(Effect::Once, Script::$script).await; })* }
    };
}

matrix!(
    works: Works,
    ignores_reserve: IgnoresReserve,
    drops_before_start: DropsBeforeStart,
    drops_while_running: DropsWhileRunning,
    drops_after_done: DropsAfterDone,
    vanishes: Vanishes,
    freezes: Freezes,
    restarted: Restarted,
    babbles: Babbles,
    garbles: Garbles,
    cancels: Cancels,
    refuses: Refuses,
    repeats: Repeats,
);

#[tokio::test]
async fn a_start_that_found_no_slot_is_sent_again() {
    let mut house = House::with(Effect::Pure, Script::Works, false, true).await;
    house.key = call_key(1);
    let done = house.call(LONG, &CancellationToken::new()).await;
    assert_eq!((done.status, house.counts()), (StepStatus::Ok, (1, 0)), "{done:?}");
}

/// The second call finds a stream of the first one, which has ended or has something left on it; it is asked again on another.
#[tokio::test]
async fn a_stream_that_was_kept_and_is_of_no_use() {
    for script in [Script::Works, Script::Repeats] {
        let mut house = House::new(Effect::Pure, script, false).await;
        for n in 1..=5 {
            house.key = call_key(n);
            let done = house.call(LONG, &CancellationToken::new()).await;
            assert_eq!((done.status, done.attempts), (StepStatus::Ok, 1), "{script:?} {n}: {done:?}");
        }
        assert_eq!(house.counts().0, 5, "{script:?}");
    }
}

/// The largest arguments do not fit the window of a stream that nobody reads.
#[tokio::test]
async fn an_executor_that_does_not_read_the_start_is_left() {
    let house = House::new(Effect::Once, Script::Deaf, true).await;
    let text = Value::from("x".repeat(octomesh_protocol::limits::ARGUMENT_BYTES - 100));
    let arguments = serde_json::Map::from_iter([("text".to_owned(), text)]);
    let done = house.call_with(LONG, &CancellationToken::new(), arguments).await;
    assert_eq!((done.status, house.counts()), (StepStatus::Ok, (0, 1)), "{done:?}");
}

#[tokio::test]
async fn a_cancel_ends_a_call_whose_executor_runs_on() {
    for effect in [Effect::Pure, Effect::Once] {
        let house = House::new(effect, Script::Babbles, true).await;
        let cancel = CancellationToken::new();
        let begun = Instant::now();
        let stop = async {
            while house.counts().0 == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            cancel.cancel();
        };
        let (done, ()) = tokio::join!(house.call(Duration::from_secs(600), &cancel), stop);
        let wanted = if effect == Effect::Once { StepStatus::Uncertain } else { StepStatus::Cancelled };
        assert_eq!((done.status, house.counts()), (wanted, (1, 0)), "{done:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn without_another_node_a_lost_one_is_named() {
    let house = House::new(Effect::Pure, Script::Vanishes, false).await;
    let done = house.call(LONG, &CancellationToken::new()).await;
    assert!(done.no_capacity && done.output["error"]["message"].as_str().unwrap().contains("near was lost"));
    assert_eq!((done.attempts, house.counts()), (1, (1, 0)));
}

/// The row that an earlier process left behind when it died.
async fn left_behind(house: &House, key: &StepKey, effect: Effect, state: StepStatus) {
    let near = house.dispatcher.view().by_name("near").unwrap().node;
    let sent = StartSent {
        key: key.clone(),
        tool: ToolName::parse("touch").unwrap(),
        node: near,
        lease: LeaseId(7),
        epoch: 0,
        effect,
    };
    house.journal.coordinator_start_sent(sent).await.unwrap();
    if state != StepStatus::Ok {
        house.journal.coordinator_ended(key, effect, state, 0).await.unwrap();
    }
}

#[tokio::test]
async fn a_step_of_an_earlier_process_is_taken_up_where_it_is() {
    // What the node says of it, and: the outcome, starts there, starts elsewhere.
    let cases = [
        (Effect::Once, Script::DropsAfterDone, StepStatus::Ok, (0, 0)),
        (Effect::Pure, Script::DropsAfterDone, StepStatus::Ok, (0, 0)),
        (Effect::Once, Script::Restarted, StepStatus::Uncertain, (0, 0)),
        (Effect::Pure, Script::Restarted, StepStatus::Ok, (1, 1)),
        // It does not answer.
        (Effect::Once, Script::Vanishes, StepStatus::Uncertain, (0, 0)),
        // It does not know the step, so that it never began.
        (Effect::Once, Script::Works, StepStatus::Ok, (1, 0)),
        (Effect::Pure, Script::Works, StepStatus::Ok, (1, 0)),
    ];
    for (effect, script, wanted, starts) in cases {
        // Whatever the last process made of it: its node is asked.
        for state in [StepStatus::Ok, StepStatus::Uncertain] {
            let mut house = House::new(effect, script, true).await;
            house.resumed = true;
            left_behind(&house, &key(), effect, state).await;
            let done = house.call(LONG, &CancellationToken::new()).await;
            let case = format!("{effect:?} {script:?} {done:?}");
            assert_eq!((done.status, house.counts()), (wanted, starts), "{case}");
            let row = house.journal.attempt(&key()).await.unwrap().unwrap();
            assert_eq!(row.status.as_deref(), Some(<&str>::from(wanted)), "{case}");
            if starts == (0, 0) {
                let why = house.journal.get_decision(&done.decision.id.to_string()).await.unwrap().unwrap();
                assert_eq!(why["ran_on"], "near", "{why}");
                assert!(why["sentence"].as_str().unwrap().contains("near"), "{why}");
            }
        }
    }
}

/// Its row says that it is done, its node does not give the result, and no other can have it.
#[tokio::test]
async fn a_step_that_was_done_is_never_reported_as_one_that_no_node_can_run() {
    for effect in [Effect::Pure, Effect::Idempotent, Effect::Once] {
        for (stored, wanted) in
            [(StepStatus::Ok, StepStatus::Uncertain), (StepStatus::Cancelled, StepStatus::Refused)]
        {
            let mut house = House::new(effect, Script::IgnoresReserve, false).await;
            house.resumed = true;
            left_behind(&house, &key(), effect, StepStatus::Ok).await;
            house.journal.coordinator_done(&key(), effect, &outcome(stored)).await.unwrap();
            let done = house.call(LONG, &CancellationToken::new()).await;
            assert_eq!((done.status, house.counts()), (wanted, (0, 0)), "{effect:?} {done:?}");
            let said = done.output["error"]["message"].as_str().unwrap();
            assert_eq!(said.contains("was done on near"), stored == StepStatus::Ok, "{said}");
        }
    }
}

#[tokio::test]
async fn old_calls_get_their_end() {
    let cases =
        [(Script::DropsAfterDone, "ok"), (Script::Works, "cancelled"), (Script::Restarted, "uncertain")];
    for (script, wanted) in cases {
        let house = House::new(Effect::Once, script, false).await;
        let key = StepKey { run: RunId::call([2; 8]), ..key() };
        left_behind(&house, &key, Effect::Once, StepStatus::Ok).await;
        house.dispatcher.settle_old(house.journal.open_attempts().await.unwrap()).await.unwrap();
        let row = house.journal.attempt(&key).await.unwrap().unwrap();
        assert_eq!((row.status.as_deref(), house.counts()), (Some(wanted), (0, 0)), "{script:?}");
        assert!(house.journal.open_attempts().await.unwrap().is_empty());
    }
}
