//! A node whose executor does not work says so, and one that is only busy does not.
use std::sync::atomic::Ordering;

use octomesh_protocol::step::{RefuseReason, StatusReply};
use tokio::task::JoinSet;

use super::*;
use crate::executor::tests::{House, caller};

/// From a fault to `not_ready`, and from its end to `ready`: the next self-call begins, and so many fail; timers are a little late.
const BOUND: Duration = Duration::from_secs(22);

fn prover(house: &House) -> Prover {
    Prover::new(house.handle.clone(), caller(0))
}

/// A house that proves itself now and then.
async fn proving(house: &House) -> JoinSet<()> {
    let mut prover = prover(house);
    prover.turn().await;
    assert_eq!(house.handle.health(), Health::Proven);
    let mut tasks = JoinSet::new();
    tasks.spawn(prover.run(house.shutdown.clone()));
    tasks
}

/// Waits until its load says so; gives how long that took.
async fn until(house: &House, ready: bool) -> Duration {
    let (begin, mut load) = (Instant::now(), house.handle.load());
    let seen = load.wait_for(|load| load.ready == ready);
    drop(tokio::time::timeout(BOUND, seen).await.expect("in time").unwrap());
    assert_eq!(house.handle.health().is_ready(), ready);
    begin.elapsed()
}

#[tokio::test(start_paused = true)]
async fn ready_is_what_has_proved_itself() {
    let house = House::new(1);
    assert!(!house.handle.load().borrow().ready);
    assert!(house.handle.health().reason().unwrap().contains("yet"));
    prover(&house).turn().await;
    assert!(house.handle.load().borrow().ready);
    assert_eq!(house.script.runs("echo"), 1, "through the tool, not past it");
    assert_eq!(house.handle.health().reason(), None);
    // What is told with a place says the same.
    assert!(house.reserve("echo", 1, 1).await.unwrap().state.ready);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_stands_still_is_not_ready_and_comes_back() {
    let house = House::new(1);
    let _tasks = proving(&house).await;
    let fault = house.handle.hold().await;
    let took = until(&house, false).await;
    assert!(took > DEADLINE, "{took:?}: one failure is no fault");
    let why = house.handle.health().reason().unwrap();
    assert!(why.contains("self-call") && why.contains("within 5 s"), "{why}");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!house.handle.health().is_ready());
    drop(fault);
    until(&house, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_that_never_ends_is_a_fault_when_it_is_the_nodes_own() {
    let house = House::new(1);
    let _tasks = proving(&house).await;
    house.script.stuck.store(true, Ordering::SeqCst);
    until(&house, false).await;
    house.handle.ping().await.expect("its task turns, which is why a ping proves nothing");
    assert!(!house.reserve("wait", 1, 1).await.unwrap().state.ready);
    house.script.stuck.store(false, Ordering::SeqCst);
    until(&house, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_node_is_ready() {
    let house = House::new(1);
    let _tasks = proving(&house).await;
    let mut steps = Vec::new();
    for n in 0.. {
        match house.reserve("wait_once", n, 0).await {
            Ok(_) => steps.push(house.begin("wait_once", n, 0).await),
            Err(reason) => {
                assert_eq!(reason, RefuseReason::Busy);
                break;
            }
        }
    }
    let load = *house.handle.load().borrow();
    assert_eq!((load.running, load.queued), (1, 4));
    let runs = house.script.runs("echo");
    let mut seen = house.handle.load();
    // Shorter than the deadline of the steps.
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = *seen.borrow_and_update();
        assert_eq!((now.running, now.queued, now.ready), (1, 4, true), "and nobody sees the self-calls");
        assert_eq!(house.handle.remaining(), 5);
    }
    assert!(house.script.runs("echo") > runs, "they went on all the same");
}

#[tokio::test(start_paused = true)]
async fn a_draining_node_is_ready_and_empty() {
    let house = House::new(1);
    assert_eq!(house.handle.drain(true).await, Ok(0));
    prover(&house).turn().await;
    assert!(house.handle.health().is_ready());
    assert_eq!(house.handle.remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_takes_nothing_is_a_fault_and_its_end_is_noticed() {
    let house = House::new(1);
    let _tasks = proving(&house).await;
    house.journal.break_off(true).await;
    let mut load = house.handle.load();
    let seen = load.wait_for(|load| !load.ready);
    drop(tokio::time::timeout(JOURNAL_EVERY + BOUND, seen).await.expect("in time").unwrap());
    let why = house.handle.health().reason().unwrap();
    assert!(why.contains("journal") && why.contains("is the disk full?"), "{why}");
    house.journal.break_off(false).await;
    until(&house, true).await;
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_has_gone_is_not_ready() {
    let house = House::new(1);
    let mut prover = prover(&house);
    prover.turn().await;
    house.shutdown.cancel();
    while house.handle.ping().await.is_ok() {
        tokio::task::yield_now().await;
    }
    for _ in 0..FAILURES {
        prover.turn().await;
    }
    assert_eq!(house.handle.health(), Health::Failing(Arc::new(Unproven::Gone(ExecutorGone))));
    assert!(!house.handle.load().borrow().ready);
}

#[tokio::test(start_paused = true)]
async fn one_failure_is_forgiven() {
    let house = House::new(1);
    let mut prover = prover(&house);
    prover.turn().await;
    for _ in 0..3 {
        let fault = house.handle.hold().await;
        prover.turn().await;
        drop(fault);
        house.settle().await;
        prover.turn().await;
        assert!(house.handle.health().is_ready());
    }
}

/// The key of self-calls is no secret: a peer that takes it takes nothing.
#[tokio::test(start_paused = true)]
async fn a_peer_can_not_stand_in_the_way() {
    let house = House::new(2);
    let key = StepKey { run: RunId::call([0; 8]), step: StepId::parse("s001").unwrap() };
    let request = Reserve {
        key: key.clone(),
        tool: ToolName::parse("wait").unwrap(),
        card: CardHash::from_bytes([5; 32]),
        effect: Effect::Pure,
        est_ms: 10,
        vram: 0,
        memory: 0,
        argument_bytes: 2,
        deadline_ms: 20_000,
        epoch: 9,
        longest_wait_ms: u32::MAX,
    };
    house.handle.reserve(request, caller(1)).await.unwrap().unwrap();
    let mut prover = prover(&house);
    prover.turn().await;
    assert!(house.handle.health().is_ready());
    assert_eq!(house.handle.status(key.clone(), caller(1)).await.unwrap(), StatusReply::Granted);
    assert_eq!(house.handle.status(key, caller(2)).await.unwrap(), StatusReply::Unseen);
}
