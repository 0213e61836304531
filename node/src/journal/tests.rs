//! The journal on real files: what is there after a process ended without saying so.
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use octomesh_protocol::{
    card::SandboxLevel,
    id::{LeaseId, NodeId, RunId, StepId, ToolName},
    step::{Outcome, StepStatus},
};
use serde_json::{Value, json};

use super::*;

const DAY_MS: u64 = 24 * 3600 * 1000;

/// A clock that the test moves.
#[derive(Clone)]
struct Wall(Arc<AtomicU64>);

impl Wall {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_700_000_000_000)))
    }

    fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    fn clock(&self) -> WallClock {
        let now = Arc::clone(&self.0);
        Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(now.load(Ordering::SeqCst)))
    }
}

struct Disk {
    _dir: tempfile::TempDir,
    path: PathBuf,
    wall: Wall,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.db");
        Self { _dir: dir, path, wall: Wall::new() }
    }

    fn open(&self) -> JournalHandle {
        JournalHandle::open(&self.path, self.wall.clock(), None).unwrap()
    }

    /// The files as a process that is killed now would leave them. They go with the value: keep it while the journal is open.
    fn killed(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["journal.db", "journal.db-wal"] {
            let from = self.path.with_file_name(name);
            if from.exists() {
                fs::copy(from, dir.path().join(name)).unwrap();
            }
        }
        let path = dir.path().join("journal.db");
        Self { _dir: dir, path, wall: self.wall.clone() }
    }
}

fn key(text: &str) -> StepKey {
    StepKey { run: RunId::run([1; 8]), step: StepId::parse(text).unwrap() }
}

fn call_key() -> StepKey {
    StepKey { run: RunId::call([2; 8]), step: StepId::parse("s001").unwrap() }
}

fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn outcome() -> Outcome {
    Outcome::new(StepStatus::Ok, vec![0, 159, 255], 12, SandboxLevel::UsernsLandlockSeccomp)
}

fn sent(key: StepKey, effect: Effect) -> StartSent {
    let tool = ToolName::parse("echo").unwrap();
    StartSent { key, tool, node: node(3), lease: LeaseId(u64::MAX), epoch: u64::MAX, effect }
}

#[tokio::test]
async fn a_once_step_is_on_the_disk_before_it_starts() {
    let disk = Disk::new();
    let journal = disk.open();
    let answer = journal.executor_started(&key("s001"), 1, Effect::Once, node(1)).await.unwrap();
    assert_eq!(answer, Started::Fresh);
    let copy = disk.killed();
    let after = copy.open();
    assert_eq!(
        after.executor_status(&key("s001"), Some(node(1))).await.unwrap(),
        ExecutorStatus::Interrupted
    );
    assert_eq!(after.executor_status(&key("s001"), Some(node(2))).await.unwrap(), ExecutorStatus::Unseen);
    let again = after.executor_started(&key("s001"), 2, Effect::Once, node(1)).await.unwrap();
    assert_eq!(again, Started::Interrupted);
    let other = after.executor_started(&key("s001"), 2, Effect::Once, node(2)).await.unwrap();
    assert_eq!(other, Started::Fresh, "the same key of another node is another step");
}

#[tokio::test]
async fn a_once_result_is_on_the_disk_before_it_is_answered() {
    let disk = Disk::new();
    let journal = disk.open();
    journal.executor_started(&key("s001"), 1, Effect::Once, node(1)).await.unwrap();
    let again = journal.executor_started(&key("s001"), 1, Effect::Once, node(1)).await.unwrap();
    assert_eq!(again, Started::Running);
    journal.executor_done(&key("s001"), Effect::Once, node(1), &outcome()).await.unwrap();
    let copy = disk.killed();
    let after = copy.open();
    assert_eq!(after.executor_status(&key("s001"), None).await.unwrap(), ExecutorStatus::Done(outcome()));
    let again = after.executor_started(&key("s001"), 2, Effect::Once, node(1)).await.unwrap();
    assert_eq!(again, Started::Done(outcome()));
    let late = Outcome::new(StepStatus::Error, vec![], 1, SandboxLevel::None);
    after.executor_done(&key("s001"), Effect::Once, node(1), &late).await.unwrap();
    let kept = after.executor_status(&key("s001"), None).await.unwrap();
    assert_eq!(kept, ExecutorStatus::Done(outcome()), "a result is recorded once");
}

#[tokio::test]
async fn an_interrupted_idempotent_step_may_run_again() {
    let disk = Disk::new();
    let journal = disk.open();
    journal.executor_started(&key("s001"), 1, Effect::Idempotent, node(1)).await.unwrap();
    journal.flush().await.unwrap();
    let copy = disk.killed();
    let after = copy.open();
    assert_eq!(after.executor_status(&key("s001"), None).await.unwrap(), ExecutorStatus::Interrupted);
    let again = after.executor_started(&key("s001"), 2, Effect::Idempotent, node(1)).await.unwrap();
    assert_eq!(again, Started::Fresh);
    after.executor_done(&key("s001"), Effect::Idempotent, node(1), &outcome()).await.unwrap();
    after.flush().await.unwrap();
    assert_eq!(after.executor_status(&key("s001"), None).await.unwrap(), ExecutorStatus::Done(outcome()));
}

#[tokio::test]
async fn a_pure_single_call_leaves_no_trace() {
    let disk = Disk::new();
    let journal = disk.open();
    journal.executor_started(&call_key(), 1, Effect::Pure, node(1)).await.unwrap();
    journal.coordinator_start_sent(sent(call_key(), Effect::Pure)).await.unwrap();
    journal.executor_done(&call_key(), Effect::Pure, node(1), &outcome()).await.unwrap();
    journal.flush().await.unwrap();
    assert_eq!(journal.executor_status(&call_key(), None).await.unwrap(), ExecutorStatus::Unseen);
    assert!(journal.open_attempts().await.unwrap().is_empty());
    for (effect, key, wanted) in [
        (Effect::Pure, call_key(), Persistence::None),
        (Effect::Pure, key("s001"), Persistence::Lazy),
        (Effect::Idempotent, call_key(), Persistence::Lazy),
        (Effect::Once, call_key(), Persistence::Durable),
    ] {
        assert_eq!(Persistence::of(effect, &key), wanted, "{effect} {key}");
    }
}

#[tokio::test]
async fn the_coordinators_side_survives_too() {
    let disk = Disk::new();
    let journal = disk.open();
    journal.coordinator_start_sent(sent(key("s001"), Effect::Once)).await.unwrap();
    let copy = disk.killed();
    let after = copy.open();
    let open = after.open_attempts().await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].lease, open[0].epoch, open[0].node), (LeaseId(u64::MAX), u64::MAX, node(3)));
    assert_eq!((open[0].state, open[0].effect), (AttemptState::StartSent, Effect::Once));
    after.coordinator_done(&key("s001"), Effect::Once, &outcome()).await.unwrap();
    after.coordinator_start_sent(sent(key("s001.2"), Effect::Once)).await.unwrap();
    after.coordinator_ended(&key("s001.2"), Effect::Once, StepStatus::Uncertain, 5).await.unwrap();
    assert!(after.open_attempts().await.unwrap().is_empty());
    let attempts = after.attempts(&key("s001").run).await.unwrap();
    let ended: Vec<_> = attempts.iter().map(|a| (a.step_id.as_str(), a.status.as_deref())).collect();
    assert_eq!(ended, [("s001", Some("ok")), ("s001.2", Some("uncertain"))]);
}

#[tokio::test]
async fn epochs_rise_across_restarts() {
    let disk = Disk::new();
    assert_eq!(disk.open().next_epoch().await.unwrap(), 1);
    let journal = disk.open();
    assert_eq!(journal.next_epoch().await.unwrap(), 2);
    let copy = disk.killed();
    assert_eq!(copy.open().next_epoch().await.unwrap(), 3);
}

#[tokio::test]
async fn runs() {
    let disk = Disk::new();
    let journal = disk.open();
    let ids: Vec<RunId> = (1..=3).map(|n| RunId::run([n; 8])).collect();
    for run in &ids {
        journal.run_started(run, "how many?", &json!({"question": "how many?"})).await.unwrap();
        disk.wall.pass(1000);
    }
    journal.run_progress(&ids[0], 2, 4).await.unwrap();
    let end = RunFinished { status: RunStatus::Completed, result: json!({"answer": "42"}) };
    journal.run_finished(&ids[1], end).await.unwrap();
    let copy = disk.killed();
    let after = copy.open();
    let list = after.list_runs(2).await.unwrap();
    assert_eq!(
        list.iter().map(|r| r.run_id.as_str()).collect::<Vec<_>>(),
        [ids[2].as_str(), ids[1].as_str()]
    );
    assert_eq!(after.unfinished_runs().await.unwrap().len(), 2);
    let (run, result) = after.show_run(ids[1].as_str()).await.unwrap().unwrap();
    assert_eq!((run.status, result), (RunStatus::Completed, Some(json!({"answer": "42"}))));
    assert!(run.finished_at.is_some() && run.status.is_final());
    let (run, result) = after.show_run("run-0101").await.unwrap().unwrap();
    assert_eq!((run.steps_done, run.steps_total, result), (2, 4, None));
    assert_eq!(after.show_run("run-ff").await.unwrap(), None);
    assert_eq!(after.show_run("%").await.unwrap(), None, "no pattern");
    let resumed = after.run_resumed(&ids[1]).await.unwrap();
    assert_eq!(resumed, (1, Some(json!({"question": "how many?"}))));
    assert_eq!(after.run_resumed(&ids[1]).await.unwrap().0, 2, "no step further");
    after.run_progress(&ids[1], 3, 9).await.unwrap();
    assert_eq!(after.run_resumed(&ids[1]).await.unwrap().0, 1, "a step further");
    assert!(after.run_resumed(&RunId::run([99; 8])).await.is_err());
    let (run, _) = after.show_run(ids[1].as_str()).await.unwrap().unwrap();
    assert_eq!((run.status, run.question.as_str()), (RunStatus::InProgress, "how many?"));
}

#[tokio::test]
async fn decisions_by_id_step_and_call() {
    let disk = Disk::new();
    let journal = disk.open();
    let put = async |id: &str, key: &StepKey, n: u32| {
        journal.put_decision(id.to_owned(), key, move || json!({"n": n})).await.unwrap();
        disk.wall.pass(1);
    };
    put("dec-0000000000000001", &key("s001"), 1).await;
    put("dec-0000000000000002", &key("s001.2"), 2).await;
    put("dec-0000000000000003", &key("s0011"), 3).await;
    put("dec-0000000000000004", &call_key(), 4).await;
    put("dec-0000000000000001", &key("s001"), 5).await;
    journal.flush().await.unwrap();
    let run = RunId::run([1; 8]);
    for (id, wanted) in [
        ("dec-0000000000000001".to_owned(), Some(5)),
        ("dec-0000000000000002".to_owned(), Some(2)),
        (format!("{run}/s001"), Some(5)),
        (format!("{run}/s001.2"), Some(2)),
        (format!("{run}/s0011"), Some(3)),
        (call_key().run.to_string(), Some(4)),
        ("s0011".to_owned(), Some(3)),
        (format!("{run}/s002"), None),
        ("' OR 1=1 --".to_owned(), None),
        (String::new(), None),
    ] {
        let got = journal.get_decision(&id).await.unwrap();
        assert_eq!(got, wanted.map(|n| json!({"n": n})), "{id}");
    }
}

#[tokio::test]
async fn old_rows_go() {
    let disk = Disk::new();
    let journal = disk.open();
    journal.executor_started(&key("s001"), 1, Effect::Once, node(1)).await.unwrap();
    journal.executor_done(&key("s001"), Effect::Once, node(1), &outcome()).await.unwrap();
    journal.executor_started(&key("s002"), 1, Effect::Once, node(1)).await.unwrap();
    journal.coordinator_start_sent(sent(key("s001"), Effect::Once)).await.unwrap();
    journal.put_decision("dec-0000000000000001".to_owned(), &key("s001"), || json!({})).await.unwrap();
    journal.run_started(&key("s001").run, "q", &Value::Null).await.unwrap();
    disk.wall.pass(7 * DAY_MS - 1000);
    journal.prune().await.unwrap();
    let kept = journal.executor_status(&key("s001"), Some(node(1))).await.unwrap();
    assert_eq!(kept, ExecutorStatus::Done(outcome()), "a result is kept for seven days");
    disk.wall.pass(DAY_MS);
    journal.prune().await.unwrap();
    assert_eq!(journal.executor_status(&key("s001"), None).await.unwrap(), ExecutorStatus::Unseen);
    assert_eq!(
        journal.executor_status(&key("s002"), None).await.unwrap(),
        ExecutorStatus::Started,
        "it still runs"
    );
    assert_eq!(journal.get_decision("dec-0000000000000001").await.unwrap(), None);
    assert!(journal.attempts(&key("s001").run).await.unwrap().is_empty());
    assert_eq!(journal.list_runs(10).await.unwrap().len(), 1, "runs are kept for longer");
}

#[tokio::test]
async fn a_write_that_fails_leaves_the_others_alone() {
    let disk = Disk::new();
    let journal = disk.open();
    let bad = journal.write(|c| c.execute("INSERT INTO nowhere VALUES (1)", []));
    let (bad, good) = tokio::join!(bad, journal.next_epoch());
    assert!(matches!(bad, Err(JournalError::Sql(_))), "{bad:?}");
    assert_eq!(good, Ok(1));
    let copy = disk.killed();
    assert_eq!(copy.open().next_epoch().await, Ok(2));
}

#[tokio::test]
async fn commits_reach_the_disk() {
    let disk = Disk::new();
    let pragma = |name: &'static str| {
        move |c: &Connection| c.pragma_query_value(None, name, |r| r.get::<_, rusqlite::types::Value>(0))
    };
    let journal = disk.open();
    assert_eq!(journal.write(pragma("synchronous")).await, Ok(2.into()), "FULL");
    assert_eq!(journal.write(pragma("journal_mode")).await, Ok("wal".to_owned().into()));
}

#[tokio::test]
async fn concurrent_writers_share_commits_and_lose_nothing() {
    let disk = Disk::new();
    let journal = disk.open();
    let writes = (0..200u32).map(|n| {
        let (journal, key) = (journal.clone(), key(&format!("s{n:03}")));
        async move { journal.executor_started(&key, 1, Effect::Once, node(1)).await.unwrap() }
    });
    let answers = futures::future::join_all(writes).await;
    assert!(answers.iter().all(|a| *a == Started::Fresh));
    let count = |c: &Connection| c.query_row("SELECT count(*) FROM executed", [], |r| r.get::<_, i64>(0));
    let copy = disk.killed();
    assert_eq!(copy.open().read(count).await, Ok(200));
}

#[test]
fn bad_files_name_the_path_and_the_next_step() {
    let wall = Wall::new();
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| JournalHandle::open(path, wall.clock(), None).unwrap_err();

    let garbage = dir.path().join("garbage.db");
    fs::write(&garbage, vec![b'x'; 8192]).unwrap();
    let error = open(&garbage);
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("garbage.db") && error.to_string().contains("move it away"));

    let missing = dir.path().join("no/such/folder/journal.db");
    let error = open(&missing);
    assert!(matches!(error, JournalError::Unwritable { .. }), "{error}");
    assert!(error.to_string().contains("no/such/folder") && error.to_string().contains("--home"));

    let newer = dir.path().join("newer.db");
    Connection::open(&newer).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    assert!(matches!(open(&newer), JournalError::Newer { found: 99, known: 1, .. }));
}

#[test]
fn the_files_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let disk = Disk::new();
    let _journal = disk.open();
    for name in ["journal.db", "journal.db-wal"] {
        let mode = fs::metadata(disk.path.with_file_name(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_file_damaged_in_the_middle_is_found_at_the_start() {
    let disk = Disk::new();
    drop(disk.open());
    {
        let c = Connection::open(&disk.path).unwrap();
        for n in 0..200 {
            let sql = "INSERT INTO runs (run_id, question, status, started_at) VALUES (?1, ?2, 'failed', 0)";
            c.execute(sql, (format!("run-{n}"), "q".repeat(200))).unwrap();
        }
    }
    let mut bytes = fs::read(&disk.path).unwrap();
    let from = bytes.len() / 2;
    bytes[from..].fill(0xa5);
    fs::write(&disk.path, bytes).unwrap();
    let error = JournalHandle::open(&disk.path, disk.wall.clock(), None).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn in_memory_has_no_threads_and_the_same_answers() {
    let journal = JournalHandle::open_in_memory(Wall::new().clock()).unwrap();
    assert_eq!(journal.next_epoch().await, Ok(1));
    journal.executor_started(&key("s001"), 1, Effect::Once, node(1)).await.unwrap();
    journal.executor_done(&key("s001"), Effect::Once, node(1), &outcome()).await.unwrap();
    assert_eq!(journal.executor_status(&key("s001"), None).await, Ok(ExecutorStatus::Done(outcome())));
}

/// A disk that is full or read-only is seen by the next question that is not answered from memory.
#[tokio::test(start_paused = true)]
async fn a_journal_that_can_not_be_written_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let wall: WallClock = Arc::new(|| std::time::SystemTime::UNIX_EPOCH);
    let journal = JournalHandle::open(&folder.path().join("journal.db"), wall, None).unwrap();
    assert_eq!(journal.probe().await, Ok(()));
    let protect = |on: bool| journal.write(move |c| c.pragma_update(None, "query_only", on));
    protect(true).await.unwrap();
    assert_eq!(journal.probe().await, Ok(()), "asked a moment ago");
    tokio::time::advance(PROBE_EVERY).await;
    assert!(matches!(journal.probe().await, Err(JournalError::Sql(_))));
    protect(false).await.ok();
    assert!(journal.probe().await.is_err());
    tokio::time::advance(PROBE_EVERY).await;
    assert_eq!(journal.probe().await, Ok(()));
}

#[tokio::test]
async fn what_calls_took_is_known_after_a_restart_and_bounded() {
    let disk = Disk::new();
    let kept = |n: u64| KeptEstimate {
        node: node(1),
        tool: ToolName::parse(&format!("tool{n}")).unwrap(),
        size_bucket: 3,
        log_ms: 4.5,
        miss: 0.25,
        prior_miss: 1.5,
        observations: 7,
        age: Duration::ZERO,
    };
    let journal = disk.open();
    journal.put_estimate(KeptEstimate { observations: 6, ..kept(1) }).await.unwrap();
    journal.put_estimate(kept(1)).await.unwrap();
    journal.flush().await.unwrap();
    disk.wall.pass(60_000);
    let dead = disk.killed();
    let journal = dead.open();
    let age = Duration::from_secs(60);
    assert_eq!(journal.estimates().await.unwrap(), [KeptEstimate { age, ..kept(1) }]);
    for n in 2..ESTIMATES as u64 + 10 {
        disk.wall.pass(1);
        journal.put_estimate(kept(n)).await.unwrap();
    }
    journal.prune().await.unwrap();
    let left = journal.estimates().await.unwrap();
    assert_eq!(left.len(), ESTIMATES);
    assert!(!left.iter().any(|e| e.tool.as_str() == "tool1"), "the oldest went");
    disk.wall.pass(100 * DAY_MS);
    journal.prune().await.unwrap();
    assert_eq!(journal.estimates().await, Ok(vec![]));
}
