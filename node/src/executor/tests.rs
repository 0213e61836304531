//! The executor with real tasks and a paused clock: a scripted runner in place of the tools.
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use octomesh_protocol::{
    blob::BlobRef,
    card::{Effect, Needs, SandboxLevel, Source, ToolCard},
    id::{BlobHash, CardHash, LeaseId, NodeId, NodeName, RunId, StepId, StepKey, ToolName},
    limits,
    step::{
        Event, EventKind, Granted, Have, LEASE_TTL_MS, Outcome, Probe, RENEW_LOST_MS, RefuseReason, Reserve,
        Start, StatusReply, StepStatus,
    },
    trust::{Grants, Role},
};
use octomesh_tools::tool::{Caller, DataProbe};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::journal::JournalHandle;

/// What the tools of the tests do, by name; all count their runs.
#[derive(Debug, Default)]
pub(super) struct Script {
    runs: Mutex<BTreeMap<String, u32>>,
    /// Lets `wait_*` tools end.
    gate: Gate,
    stopped: AtomicU32,
    /// `echo` does not come back.
    pub(super) stuck: AtomicBool,
    kept: AtomicU32,
}

#[derive(Debug)]
struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Script {
    /// Lets one waiting tool end.
    pub(super) fn open_gate(&self) {
        self.gate.0.add_permits(1);
    }

    pub(super) fn runs(&self, tool: &str) -> u32 {
        self.runs.lock().unwrap().get(tool).copied().unwrap_or(0)
    }
}

fn effect(tool: &str) -> Effect {
    match tool.rsplit_once('_').map(|(_, effect)| effect) {
        Some("once") => Effect::Once,
        Some("idem") => Effect::Idempotent,
        _ => Effect::Pure,
    }
}

#[async_trait]
impl ToolRunner for Script {
    fn card(&self, tool: &ToolName) -> Result<(CardHash, Arc<ToolCard>), Absent> {
        if tool.as_str().starts_with("no") {
            return Err(Absent::NoTool);
        }
        let card = ToolCard {
            name: tool.clone(),
            version: "1".into(),
            description: String::new(),
            keywords: vec![],
            input_schema: serde_json::json!({"type": "object"}),
            output_schema: None,
            examples: vec![],
            effect: effect(tool.as_str()),
            needs: Needs::default(),
            typical_ms: 1,
            data: vec![],
            demo_calls: vec![],
            limitations: vec![],
            best_practice: vec![],
            requires_llm: false,
            source: Source::Builtin,
        };
        Ok((CardHash::from_bytes([5; 32]), Arc::new(card)))
    }

    fn sandbox(&self) -> SandboxLevel {
        SandboxLevel::Rlimits
    }

    async fn keep(&self, _: NodeId, output: Vec<u8>, _: Duration) -> Result<BlobRef, String> {
        use sha2::Digest as _;
        self.kept.fetch_add(1, Ordering::SeqCst);
        let hash = BlobHash::from_bytes(sha2::Sha256::digest(&output).into());
        Ok(BlobRef { hash, bytes: output.len() as u64 })
    }

    async fn input(&self, _: NodeId, blob: BlobRef) -> Result<Vec<u8>, String> {
        Err(format!("{} is not here", blob.hash))
    }

    async fn run(&self, tool: &ToolName, context: RunContext, arguments: Vec<u8>) -> CallReport {
        *self.runs.lock().unwrap().entry(tool.to_string()).or_default() += 1;
        let report = |status, output: &[u8]| CallReport {
            status,
            output: output.into(),
            sandbox: SandboxLevel::Rlimits,
        };
        match tool.as_str().split('_').next().unwrap_or_default() {
            "echo" if self.stuck.load(Ordering::SeqCst) => std::future::pending().await,
            "echo" => report(StepStatus::Ok, &arguments),
            "talk" => {
                for n in 0..10 {
                    context.events.send(EventKind::Progress, format!("line {n}"));
                    tokio::task::yield_now().await;
                }
                context.events.send(EventKind::Log, "é".repeat(limits::EVENT_BYTES));
                report(StepStatus::Ok, b"1")
            }
            "wait" => tokio::select! {
                permit = self.gate.0.acquire() => {
                    permit.unwrap().forget();
                    report(StepStatus::Ok, b"\"waited\"")
                }
                () = context.cancel.cancelled() => {
                    self.stopped.fetch_add(1, Ordering::SeqCst);
                    report(StepStatus::Cancelled, b"{}")
                }
            },
            "chat" => {
                while !context.cancel.is_cancelled() {
                    context.events.send(EventKind::Output, "x".repeat(limits::EVENT_BYTES));
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                report(StepStatus::Cancelled, b"{}")
            }
            "deaf" => std::future::pending().await,
            "huge" => report(StepStatus::Ok, &vec![b'1'; limits::RESULT_BYTES + 1]),
            "large" => report(StepStatus::Ok, &vec![b'1'; limits::OUTPUT_BYTES + 1]),
            "panic" => panic!("the tool of the test panics"),
            other => panic!("no script for {other}"),
        }
    }

    async fn probe(&self, tool: &ToolName, _caller: &Caller, arguments: &[u8]) -> DataProbe {
        match tool.as_str() {
            "deaf" => std::future::pending().await,
            _ if arguments == b"{}" => DataProbe::Have(7),
            _ => DataProbe::Missing("no such file".into()),
        }
    }
}

pub(super) struct House {
    pub(super) handle: ExecutorHandle,
    pub(super) script: Arc<Script>,
    pub(super) journal: JournalHandle,
    pub(super) shutdown: CancellationToken,
    tasks: JoinSet<()>,
    _resources: watch::Sender<Resources>,
}

fn journal() -> JournalHandle {
    JournalHandle::open_in_memory(Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)))
        .unwrap()
}

impl House {
    pub(super) fn new(slots: u16) -> Self {
        Self::with(slots, journal())
    }

    fn with(slots: u16, journal: JournalHandle) -> Self {
        let script = Arc::new(Script::default());
        let (resources_out, resources) = watch::channel(Resources::default());
        let mut next = 0;
        let (handle, task) = executor(ExecutorParts {
            config: ExecutorConfig { slots, offers_tools: true },
            runner: Arc::clone(&script) as Arc<dyn ToolRunner>,
            journal: journal.clone(),
            resources,
            queue_wait: None,
            random: Box::new(move || {
                next += 1;
                next
            }),
        });
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(shutdown.clone()));
        Self { handle, script, journal, shutdown, tasks, _resources: resources_out }
    }

    pub(super) async fn reserve(&self, tool: &str, n: u64, who: u8) -> Result<Granted, RefuseReason> {
        let request = Reserve {
            key: key(n),
            tool: ToolName::parse(tool).unwrap(),
            card: CardHash::from_bytes([5; 32]),
            effect: Effect::Pure,
            est_ms: 10,
            vram: 0,
            memory: 0,
            argument_bytes: 2,
            deadline_ms: 20_000,
            epoch: 1,
            longest_wait_ms: u32::MAX,
        };
        self.handle.reserve(request, caller(who)).await.unwrap().map_err(|r| r.reason)
    }

    async fn start(&self, lease: LeaseId, who: u8) -> (oneshot::Receiver<Outcome>, mpsc::Receiver<Event>) {
        let (sender, events) = mpsc::channel(64);
        let start = Start::new(lease, 1, b"{}".to_vec());
        (self.handle.start(start, caller(who), sender).await.unwrap(), events)
    }

    pub(super) async fn begin(&self, tool: &str, n: u64, who: u8) -> oneshot::Receiver<Outcome> {
        let lease = self.reserve(tool, n, who).await.unwrap().lease;
        self.start(lease, who).await.0
    }

    async fn status(&self, n: u64, who: u8) -> StatusReply {
        self.handle.status(key(n), caller(who)).await.unwrap()
    }

    /// Lets everything that can happen now happen.
    pub(super) async fn settle(&self) {
        for _ in 0..5 {
            tokio::task::yield_now().await;
            self.handle.ping().await.unwrap();
        }
    }
}

pub(super) fn key(n: u64) -> StepKey {
    StepKey { run: RunId::run([1; 8]), step: StepId::parse(&format!("s{n:03}")).unwrap() }
}

/// 0 is this node itself.
pub(super) fn caller(who: u8) -> Caller {
    Caller {
        node: NodeId::from_bytes([who; 32]),
        name: NodeName::parse(&format!("node{who}")).unwrap(),
        role: Role::Worker,
        grants: Grants::default(),
        local: who == 0,
    }
}

fn text(outcome: &Outcome) -> String {
    String::from_utf8(outcome.output.clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_and_its_outcome_comes_back() {
    let house = House::new(2);
    let outcome = house.begin("echo", 1, 1).await.await.unwrap();
    assert_eq!((outcome.status, text(&outcome).as_str()), (StepStatus::Ok, "{}"));
    assert_eq!(outcome.sandbox, SandboxLevel::Rlimits);
    assert_eq!(house.status(1, 1).await, StatusReply::Done(outcome));
    assert_eq!(house.status(1, 2).await, StatusReply::Unseen, "somebody else's");
    assert_eq!(house.reserve("nothing", 2, 1).await, Err(RefuseReason::NoTool));
}

#[tokio::test(start_paused = true)]
async fn events_are_numbered_and_cut() {
    let house = House::new(2);
    let lease = house.reserve("talk", 1, 1).await.unwrap().lease;
    let (outcome, mut events) = house.start(lease, 1).await;
    outcome.await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = events.recv().await {
        seen.push(event);
    }
    assert_eq!(seen.iter().map(|e| e.seq).collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
    assert_eq!(seen[3].text, "line 3");
    assert_eq!(seen[10].text.len(), limits::EVENT_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_does_not_stop_the_step() {
    let house = House::new(2);
    drop(house.begin("wait_once", 1, 1).await);
    house.settle().await;
    assert_eq!(house.status(1, 1).await, StatusReply::Running);
    house.script.gate.0.add_permits(1);
    house.settle().await;
    assert!(matches!(house.status(1, 1).await, StatusReply::Done(o) if o.status == StepStatus::Ok));
}

#[tokio::test(start_paused = true)]
async fn the_same_start_attaches_and_runs_once() {
    let house = House::new(2);
    let lease = house.reserve("wait_once", 1, 1).await.unwrap().lease;
    let (first, mut old_events) = house.start(lease, 1).await;
    let (second, _events) = house.start(lease, 1).await;
    house.settle().await;
    house.script.gate.0.add_permits(1);
    assert_eq!(first.await.unwrap(), second.await.unwrap());
    assert_eq!(old_events.recv().await, None, "events go to the newest listener");
    let (third, _events) = house.start(lease, 1).await;
    assert_eq!(third.await.unwrap().status, StepStatus::Ok);
    assert_eq!(house.script.runs("wait_once"), 1);
}

#[tokio::test(start_paused = true)]
async fn cancel_stops_the_tool() {
    let house = House::new(2);
    let outcome = house.begin("wait_once", 1, 1).await;
    house.settle().await;
    assert_eq!(house.handle.cancel(key(1), 1, caller(2)).await.unwrap(), StatusReply::Unseen);
    assert_eq!(house.handle.cancel(key(1), 1, caller(1)).await.unwrap(), StatusReply::Running);
    let outcome = outcome.await.unwrap();
    assert_eq!(outcome.status, StepStatus::Cancelled);
    assert!(text(&outcome).contains("\"cancelled\""));
    assert_eq!(house.script.stopped.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deaf_tool_is_dropped_at_its_deadline() {
    let house = House::new(1);
    let outcome = house.begin("deaf", 1, 0).await.await.unwrap();
    assert_eq!(outcome.status, StepStatus::Timeout);
    assert!((20_000..=22_100).contains(&outcome.elapsed_ms), "{}", outcome.elapsed_ms);
    assert_eq!(
        house.begin("echo", 2, 0).await.await.unwrap().status,
        StepStatus::Ok,
        "the slot is free again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_pure_steps_and_lets_once_finish() {
    let house = House::new(2);
    let pure = house.begin("wait", 1, 1).await;
    let once = house.begin("wait_once", 2, 1).await;
    let pure = pure.await.unwrap();
    assert!(text(&pure).contains("lease_lost"), "{}", text(&pure));
    tokio::time::sleep(Duration::from_millis(2 * RENEW_LOST_MS)).await;
    assert_eq!(house.status(2, 1).await, StatusReply::Running);
    house.script.gate.0.add_permits(1);
    assert_eq!(once.await.unwrap().status, StepStatus::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_lives() {
    let house = House::new(1);
    let lease = house.reserve("wait", 1, 1).await.unwrap().lease;
    let (outcome, _events) = house.start(lease, 1).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(RENEW_LOST_MS - 100)).await;
        house.handle.renew(vec![lease], caller(1).node).await.unwrap();
    }
    assert_eq!(house.status(1, 1).await, StatusReply::Running);
    house.script.gate.0.add_permits(1);
    assert_eq!(outcome.await.unwrap().status, StepStatus::Ok);
}

#[tokio::test(start_paused = true)]
async fn an_unused_lease_gives_its_slot_back() {
    let house = House::new(1);
    let lease = house.reserve("echo", 1, 1).await.unwrap().lease;
    let mut load = house.handle.load();
    load.wait_for(|l| l.running == 1).await.unwrap();
    assert_eq!(house.handle.remaining(), 1);
    tokio::time::timeout(Duration::from_millis(LEASE_TTL_MS + 10), load.wait_for(|l| l.running == 0))
        .await
        .unwrap()
        .unwrap();
    let (outcome, _events) = house.start(lease, 1).await;
    assert_eq!(outcome.await.unwrap().status, StepStatus::Refused);
}

#[tokio::test(start_paused = true)]
async fn steps_wait_for_a_slot() {
    let house = House::new(1);
    let first = house.begin("wait_once", 1, 0).await;
    let second = house.begin("echo", 2, 0).await;
    house.settle().await;
    assert_eq!(house.script.runs("echo"), 0);
    assert_eq!((house.handle.load().borrow().running, house.handle.load().borrow().queued), (1, 1));
    house.script.gate.0.add_permits(1);
    first.await.unwrap();
    assert_eq!(second.await.unwrap().status, StepStatus::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_crash_or_a_flood_of_a_tool_is_an_error_of_the_step() {
    let house = House::new(1);
    for (n, tool, code) in [(1, "panic_once", "panicked"), (2, "huge", "too_large")] {
        let outcome = house.begin(tool, n, 0).await.await.unwrap();
        assert_eq!(outcome.status, StepStatus::Error);
        assert!(text(&outcome).contains(code), "{}", text(&outcome));
    }
    assert_eq!(house.begin("echo", 3, 0).await.await.unwrap().status, StepStatus::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_large_result_is_a_blob_also_in_the_journal() {
    let house = House::new(1);
    for (n, tool) in [(1, "large"), (2, "large_once")] {
        let outcome = house.begin(tool, n, 0).await.await.unwrap();
        let blob = outcome.blob().unwrap();
        assert_eq!((outcome.status, blob.bytes), (StepStatus::Ok, limits::OUTPUT_BYTES as u64 + 1));
        assert!(outcome.is_intact() && outcome.output.is_empty());
        if n == 2 {
            let known = house.journal.executor_status(&key(n), None).await.unwrap();
            assert_eq!(known, crate::journal::ExecutorStatus::Done(outcome));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn drain() {
    let house = House::new(2);
    let running = house.begin("wait_once", 1, 1).await;
    assert_eq!(house.handle.drain(true).await.unwrap(), 1);
    assert_eq!(house.reserve("echo", 2, 1).await, Err(RefuseReason::Draining));
    house.settle().await;
    assert!(house.handle.load().borrow().draining);
    house.script.gate.0.add_permits(1);
    assert_eq!(running.await.unwrap().status, StepStatus::Ok, "running steps finish");
    house.handle.watch_remaining().wait_for(|n| *n == 0).await.unwrap();
    house.handle.drain(false).await.unwrap();
    assert!(house.reserve("echo", 2, 1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_once_step_never_runs_again_after_a_restart() {
    let first = House::new(1);
    let done = first.begin("echo_once", 1, 1).await.await.unwrap();
    let journal = first.journal.clone();
    drop(first);
    let second = House::with(1, journal);
    assert_eq!(second.status(1, 1).await, StatusReply::Done(done.clone()), "from the journal");
    assert_eq!(second.status(1, 2).await, StatusReply::Unseen);
    assert_eq!(second.begin("echo_once", 1, 1).await.await.unwrap(), done);
    assert_eq!(second.script.runs("echo_once"), 0);
}

/// One tool of each effect.
const OF_EACH_EFFECT: [&str; 3] = ["echo", "echo_idem", "echo_once"];

#[tokio::test(start_paused = true)]
async fn a_duplicate_start_runs_nothing_of_any_effect() {
    let house = House::new(2);
    for (n, tool) in (1..).zip(OF_EACH_EFFECT) {
        let lease = house.reserve(tool, n, 1).await.unwrap().lease;
        let (first, _events) = house.start(lease, 1).await;
        // One that overtakes the first's outcome, and one long after it.
        let (second, _events) = house.start(lease, 1).await;
        let outcome = first.await.unwrap();
        assert_eq!(second.await.unwrap(), outcome, "{tool}");
        tokio::time::sleep(Duration::from_millis(3 * LEASE_TTL_MS)).await;
        let (late, _events) = house.start(lease, 1).await;
        assert_eq!((late.await.unwrap(), house.script.runs(tool)), (outcome, 1), "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_of_an_older_epoch_runs_nothing_of_any_effect() {
    for tool in OF_EACH_EFFECT {
        let house = House::new(2);
        let lease = house.reserve(tool, 1, 1).await.unwrap().lease;
        // The coordinator was restarted, takes the step up, and the start of its earlier life arrives first.
        let request = Reserve {
            key: key(1),
            tool: ToolName::parse(tool).unwrap(),
            card: CardHash::from_bytes([5; 32]),
            effect: Effect::Pure,
            est_ms: 10,
            vram: 0,
            memory: 0,
            argument_bytes: 2,
            deadline_ms: 20_000,
            epoch: 2,
            longest_wait_ms: u32::MAX,
        };
        let again = house.handle.reserve(request, caller(1)).await.unwrap().unwrap();
        assert_eq!(again.lease, lease, "{tool}");
        let (old, _events) = house.start(lease, 1).await;
        let old = old.await.unwrap();
        assert_eq!(old.status, StepStatus::Refused, "{tool}");
        assert!(text(&old).contains("fenced"), "{}", text(&old));
        assert_eq!(house.script.runs(tool), 0, "{tool}");
        let (events, _said) = mpsc::channel(64);
        let start = Start::new(lease, 2, b"{}".to_vec());
        let outcome = house.handle.start(start, caller(1), events).await.unwrap().await.unwrap();
        assert_eq!((outcome.status, house.script.runs(tool)), (StepStatus::Ok, 1), "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_began_and_was_cut_off_is_uncertain_unless_it_may_repeat() {
    let house = House::new(1);
    for (n, effect) in [(1, Effect::Once), (2, Effect::Idempotent)] {
        house.journal.executor_started(&key(n), 1, effect, caller(1).node).await.unwrap();
        assert_eq!(house.status(n, 1).await, StatusReply::Interrupted);
    }
    let once = house.begin("echo_once", 1, 1).await.await.unwrap();
    assert_eq!(once.status, StepStatus::Uncertain);
    assert_eq!(house.script.runs("echo_once"), 0);
    assert_eq!(house.begin("echo_idem", 2, 1).await.await.unwrap().status, StepStatus::Ok);
}

#[tokio::test(start_paused = true)]
async fn probes() {
    let house = House::new(1);
    let probe = |tool: &str, arguments: &[u8]| Probe {
        tool: ToolName::parse(tool).unwrap(),
        arguments: arguments.into(),
    };
    let ask = async |tool: &str, arguments: &[u8], who: &Caller| {
        house.handle.probe(&probe(tool, arguments), who).await.map_err(|m| m.detail)
    };
    assert_eq!(ask("echo", b"{}", &caller(1)).await, Ok(Have { bytes: 7 }));
    assert_eq!(ask("echo", b"", &caller(1)).await, Err("no such file".into()));
    assert_eq!(ask("nothing", b"{}", &caller(1)).await, Err("the tool is not here".into()));
    assert_eq!(ask("deaf", b"{}", &caller(1)).await, Err("no answer in time".into()));
    let grants = Grants { tools: Some(vec![]), ..Grants::default() };
    let limited = Caller { grants, ..caller(1) };
    assert_eq!(ask("echo", b"{}", &limited).await, Err("this caller may not use the tool here".into()));
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_steps_and_answers_whoever_waits() {
    let mut house = House::new(2);
    let polite = house.begin("wait_once", 1, 1).await;
    let deaf = house.begin("deaf", 2, 0).await;
    house.settle().await;
    house.shutdown.cancel();
    assert_eq!(polite.await.unwrap().status, StepStatus::Cancelled);
    assert_eq!(deaf.await.unwrap().status, StepStatus::Cancelled);
    house.tasks.join_next().await.unwrap().unwrap();
    assert_eq!(house.handle.ping().await, Err(ExecutorGone));
    assert!(house.handle.status(key(1), caller(1)).await.is_err());
}
