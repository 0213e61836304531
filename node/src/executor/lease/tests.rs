//! The lease table step by step, with the time as a number.
use std::sync::Arc;

use octomesh_protocol::{
    card::{Needs, Source, ToolCard},
    id::{CardHash, NodeName, RunId, StepId},
    step::{RefuseReason, Reserve},
    trust::Grants,
};

use super::*;
use crate::executor::{ports::Absent, vram::tests::declared};

const GIB: u64 = 1 << 30;

pub(super) fn caller(byte: u8) -> Caller {
    Caller {
        node: NodeId::from_bytes([byte; 32]),
        name: NodeName::parse(&format!("node{byte}")).unwrap(),
        role: Role::Worker,
        grants: Grants::default(),
        local: byte == 0,
    }
}

pub(super) fn card(effect: Effect, needs: Needs) -> Result<(CardHash, Arc<ToolCard>), Absent> {
    let card = ToolCard {
        name: ToolName::parse("work").unwrap(),
        version: "1".into(),
        description: String::new(),
        keywords: vec![],
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect,
        needs,
        typical_ms: 100,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Builtin,
    };
    Ok((CardHash::from_bytes([5; 32]), Arc::new(card)))
}

pub(super) fn key(n: u64) -> StepKey {
    StepKey { run: RunId::run([1; 8]), step: StepId::parse(&format!("s{n:03}")).unwrap() }
}

pub(super) fn ok() -> Outcome {
    Outcome::new(StepStatus::Ok, b"1".to_vec(), 1, SandboxLevel::None)
}

/// A request of a node for a tool that needs nothing.
pub(super) fn ask(n: u64, who: u8, lease: LeaseId) -> Reservation {
    let request = Reserve {
        key: key(n),
        tool: ToolName::parse("work").unwrap(),
        card: CardHash::from_bytes([5; 32]),
        effect: Effect::Pure,
        est_ms: 100,
        vram: 0,
        memory: 0,
        argument_bytes: 2,
        deadline_ms: 60_000,
        epoch: 1,
        longest_wait_ms: u32::MAX,
    };
    let (card, sandbox) = (card(Effect::Pure, Needs::default()), SandboxLevel::Rlimits);
    Reservation { request, caller: caller(who), card, sandbox, lease, proof: false }
}

/// A lease table with two slots and hence eight queue places; time in milliseconds.
struct Table {
    state: LeaseState,
    resources: Resources,
    begin: Instant,
    next: u64,
}

impl Table {
    fn new() -> Self {
        let begin = Instant::now();
        let config = ExecutorConfig { slots: 2, offers_tools: true };
        Self { state: LeaseState::new(config), resources: Resources::default(), begin, next: 1 }
    }

    fn at(&self, ms: u64) -> Instant {
        self.begin + Duration::from_millis(ms)
    }

    fn ask(&mut self, n: u64, who: u8) -> Reservation {
        let lease = LeaseId(self.next);
        self.next += 1;
        ask(n, who, lease)
    }

    fn try_reserve(&mut self, ask: Reservation, ms: u64) -> Result<LeaseId, RefuseReason> {
        let now = self.at(ms);
        self.state.reserve(ask, &self.resources, now).map(|g| g.lease).map_err(|r| {
            assert!(!r.detail.is_empty());
            r.reason
        })
    }

    fn reserved(&self) -> Vec<u64> {
        self.state.cards(&self.resources).iter().map(|card| card.reserved).collect()
    }

    fn reserve(&mut self, n: u64, who: u8, ms: u64) -> LeaseId {
        let ask = self.ask(n, who);
        self.try_reserve(ask, ms).unwrap()
    }

    fn refuse(&mut self, n: u64, who: u8, change: impl FnOnce(&mut Reservation)) -> RefuseReason {
        let mut ask = self.ask(n, who);
        change(&mut ask);
        self.try_reserve(ask, 0).unwrap_err()
    }

    fn start(&mut self, lease: LeaseId, who: u8, ms: u64) -> (StartAnswer, Vec<Action>) {
        let now = self.at(ms);
        self.state.start(lease, 1, caller(who).node, now)
    }

    /// Reserves and starts; it runs at once.
    fn run(&mut self, n: u64, who: u8, effect: Effect, ms: u64) -> LeaseId {
        let mut ask = self.ask(n, who);
        ask.card = card(effect, Needs::default());
        let lease = self.try_reserve(ask, ms).unwrap();
        assert_eq!(self.start(lease, who, ms).1, [Action::Run(lease)]);
        lease
    }

    fn load(&self, ms: u64) -> LoadState {
        self.state.load(&self.resources, self.at(ms))
    }

    fn tick(&mut self, ms: u64) -> Vec<Action> {
        let now = self.at(ms);
        self.state.tick(now)
    }
}

#[test]
fn a_step_from_reservation_to_result() {
    let mut t = Table::new();
    let lease = t.reserve(1, 1, 0);
    assert_eq!((t.load(0).running, t.load(0).queued, t.load(0).work_ms), (1, 0, 100));
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Granted);
    assert_eq!(t.start(lease, 1, 10), (StartAnswer::Accepted { first: true }, vec![Action::Run(lease)]));
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Running);
    assert_eq!(t.load(70).work_ms, 40);
    let now = t.at(90);
    assert_eq!(t.state.finished(lease, ok(), now), [Action::End(lease, Some(ok()))]);
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Done(ok()));
    assert_eq!((t.load(90).running, t.state.remaining(), t.load(90).work_ms), (0, 0, 0));
}

#[test]
fn the_same_start_twice_runs_once() {
    let mut t = Table::new();
    let lease = t.run(1, 1, Effect::Once, 0);
    assert_eq!(t.start(lease, 1, 5), (StartAnswer::Accepted { first: false }, vec![]));
    let now = t.at(10);
    t.state.finished(lease, ok(), now);
    assert_eq!(t.start(lease, 1, 20), (StartAnswer::Ended(ok()), vec![]));
    assert_eq!(t.reserve(1, 1, 30), lease, "the key still has its lease");
    assert_eq!(t.state.remaining(), 0, "and takes no place");
}

#[test]
fn the_same_reservation_twice_is_one_lease() {
    let mut t = Table::new();
    let lease = t.reserve(1, 1, 0);
    assert_eq!(t.reserve(1, 1, 10), lease);
    assert_eq!(t.state.remaining(), 1);
    assert_ne!(t.reserve(1, 2, 10), lease, "another node's key of that name is another key");
    assert_eq!(t.reserve(1, 1, 20), lease);
}

#[test]
fn a_lease_that_is_not_started_lapses() {
    let mut t = Table::new();
    let lease = t.reserve(1, 1, 0);
    assert_eq!(t.state.next_tick(), Some(t.at(LEASE_TTL_MS)));
    assert_eq!(t.tick(LEASE_TTL_MS - 1), []);
    let now = t.at(LEASE_TTL_MS - 1);
    t.state.renew(&[lease], caller(1).node, now);
    assert_eq!(t.tick(LEASE_TTL_MS), [Action::End(lease, None)], "a renewal does not keep it");
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Unseen);
    let (StartAnswer::Ended(outcome), actions) = t.start(lease, 1, LEASE_TTL_MS) else {
        panic!("it is gone")
    };
    assert_eq!((outcome.status, actions.len()), (StepStatus::Refused, 0));
    assert!(String::from_utf8(outcome.output).unwrap().contains("lease_lapsed"));
}

#[test]
fn only_the_holder_can_start() {
    let mut t = Table::new();
    let lease = t.reserve(1, 1, 0);
    let (answer, actions) = t.start(lease, 2, 1);
    assert!(matches!(answer, StartAnswer::Ended(o) if o.status == StepStatus::Refused));
    assert!(actions.is_empty());
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Granted);
}

#[test]
fn slots_then_queue_then_busy() {
    let mut t = Table::new();
    let leases: Vec<LeaseId> = (1..=10).map(|n| t.reserve(n, u8::try_from(n % 3 + 1).unwrap(), 0)).collect();
    assert_eq!((t.load(0).running, t.load(0).queued), (2, 8));
    assert_eq!(t.refuse(11, 4, |_| ()), RefuseReason::Busy);
    for (n, lease) in (1..).zip(&leases) {
        let (answer, actions) = t.start(*lease, u8::try_from(n % 3 + 1).unwrap(), 1);
        assert_eq!(answer, StartAnswer::Accepted { first: true });
        assert_eq!(actions.len(), usize::from(n <= 2), "lease {n}");
    }
    let now = t.at(2);
    let actions = t.state.finished(leases[0], ok(), now);
    assert!(matches!(actions[..], [Action::End(_, Some(_)), Action::Run(_)]), "{actions:?}");
    assert_eq!((t.load(2).running, t.load(2).queued), (2, 7));
    t.reserve(11, 4, 3);
}

#[test]
fn a_lapsed_slot_goes_to_a_waiting_step() {
    let mut t = Table::new();
    let idle = t.reserve(1, 1, 0);
    t.run(2, 1, Effect::Once, 0);
    let waiting = t.reserve(3, 0, 0);
    assert_eq!(t.start(waiting, 0, 0).1, []);
    assert_eq!(t.tick(LEASE_TTL_MS), [Action::End(idle, None), Action::Run(waiting)]);
}

#[test]
fn a_lost_lease_stops_what_may_repeat_and_nothing_else() {
    for (effect, stops) in [(Effect::Pure, true), (Effect::Idempotent, true), (Effect::Once, false)] {
        let mut t = Table::new();
        let lease = t.run(1, 1, effect, 0);
        let now = t.at(1000);
        t.state.renew(&[lease, LeaseId(99)], caller(1).node, now);
        assert_eq!(t.tick(1000 + RENEW_LOST_MS - 1), []);
        let wanted = if stops { vec![Action::Stop(lease, StopReason::LeaseLost)] } else { vec![] };
        assert_eq!(t.tick(1000 + RENEW_LOST_MS), wanted, "{effect}");
        assert_eq!(t.tick(1000 + RENEW_LOST_MS), [], "once is enough");
        let now = t.at(5000);
        t.state.finished(lease, ok(), now);
        assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Done(ok()), "the result is kept");
    }
}

#[test]
fn a_stopped_step_that_may_repeat_gets_a_new_lease_and_a_once_step_does_not() {
    for effect in [Effect::Pure, Effect::Idempotent, Effect::Once] {
        let mut t = Table::new();
        let first = t.run(1, 1, effect, 0);
        let now = t.at(10);
        let stopped = Outcome::new(StepStatus::Cancelled, b"{}".to_vec(), 1, SandboxLevel::None);
        t.state.finished(first, stopped, now);
        let mut again = t.ask(1, 1);
        again.card = card(effect, Needs::default());
        let lease = t.try_reserve(again, 20).unwrap();
        assert_eq!(lease != first, effect.may_repeat(), "{effect}");
        assert_ne!(t.reserve(1, 2, 20), lease, "another node's key of that name is another key");
    }
}

#[test]
fn nobody_else_can_renew_and_this_node_need_not() {
    let mut t = Table::new();
    let remote = t.run(1, 1, Effect::Pure, 0);
    t.run(2, 0, Effect::Pure, 0);
    let now = t.at(1000);
    t.state.renew(&[remote], caller(2).node, now);
    assert_eq!(t.tick(RENEW_LOST_MS), [Action::Stop(remote, StopReason::LeaseLost)]);
}

#[test]
fn a_waiting_step_of_a_lost_coordinator_never_runs() {
    let mut t = Table::new();
    let running = [1, 2].map(|n| t.run(n, 0, Effect::Once, 0));
    let mut ask = t.ask(3, 1);
    ask.card = card(Effect::Once, Needs::default());
    let waiting = t.try_reserve(ask, 0).unwrap();
    t.start(waiting, 1, 0);
    let actions = t.tick(RENEW_LOST_MS);
    assert!(
        matches!(&actions[..], [Action::End(l, Some(o))] if *l == waiting && o.status == StepStatus::Cancelled)
    );
    let now = t.at(RENEW_LOST_MS);
    assert_eq!(t.state.finished(running[0], ok(), now).len(), 1, "nothing is left to run");
    // It never began, so that its coordinator, which came back, may have it begin.
    let mut again = t.ask(3, 1);
    again.card = card(Effect::Once, Needs::default());
    let lease = t.try_reserve(again, RENEW_LOST_MS).unwrap();
    assert_ne!(lease, waiting);
    assert!(matches!(t.start(lease, 1, RENEW_LOST_MS).0, StartAnswer::Accepted { first: true }));
}

#[test]
fn deadlines_end_running_and_waiting_steps() {
    let mut t = Table::new();
    let mut leases = Vec::new();
    for n in 1..=3 {
        let mut ask = t.ask(n, 0);
        ask.card = card(Effect::Once, Needs::default());
        ask.request.deadline_ms = 1000;
        let lease = t.try_reserve(ask, 0).unwrap();
        t.start(lease, 0, 0);
        leases.push(lease);
    }
    let actions = t.tick(1000);
    assert_eq!(actions[..2], [leases[0], leases[1]].map(|l| Action::Stop(l, StopReason::Deadline)));
    assert!(matches!(&actions[2], Action::End(_, Some(o)) if o.status == StepStatus::Timeout));
    assert_eq!(t.state.next_tick(), None, "there is nothing left to wait for");
}

#[test]
fn a_huge_deadline_is_cut_not_overflowed() {
    let mut t = Table::new();
    let mut ask = t.ask(1, 0);
    ask.request.deadline_ms = u64::MAX;
    let lease = t.try_reserve(ask, 0).unwrap();
    assert!(t.state.lease(lease).unwrap().deadline <= t.at(24 * 3600 * 1000));
}

#[test]
fn cancel() {
    let mut t = Table::new();
    let running = t.run(1, 1, Effect::Once, 0);
    t.run(2, 1, Effect::Once, 0);
    let waiting = t.reserve(3, 1, 0);
    t.start(waiting, 1, 0);
    let now = t.at(1);
    assert_eq!(t.state.cancel(&key(1), 1, &caller(2), now), (StatusReply::Unseen, vec![]), "somebody else's");
    let stop = vec![Action::Stop(running, StopReason::Cancelled)];
    assert_eq!(t.state.cancel(&key(1), 1, &caller(1), now), (StatusReply::Running, stop));
    assert_eq!(t.state.cancel(&key(1), 1, &caller(1), now), (StatusReply::Running, vec![]), "it is stopping");
    let (reply, actions) = t.state.cancel(&key(3), 1, &caller(1), now);
    assert!(matches!(reply, StatusReply::Done(o) if o.status == StepStatus::Cancelled));
    assert_eq!(actions.len(), 1);
    assert_eq!(t.state.cancel(&key(9), 1, &caller(1), now), (StatusReply::Unseen, vec![]));
    let admin = Caller { role: Role::Admin, ..caller(7) };
    assert_eq!(t.state.cancel(&key(2), 0, &admin, now).1.len(), 1, "an admin may");
}

#[test]
fn a_cancelled_reservation_can_not_be_started() {
    let mut t = Table::new();
    let lease = t.reserve(1, 1, 0);
    let now = t.at(1);
    t.state.cancel(&key(1), 1, &caller(1), now);
    let (answer, _) = t.start(lease, 1, 2);
    assert!(matches!(answer, StartAnswer::Ended(o) if o.status == StepStatus::Cancelled));
}

#[test]
fn an_older_coordinator_is_fenced_off() {
    let mut t = Table::new();
    let old = t.reserve(1, 1, 0);
    let mut ask = t.ask(2, 1);
    ask.request.epoch = 2;
    t.try_reserve(ask, 0).unwrap();
    assert_eq!(t.refuse(3, 1, |_| ()), RefuseReason::Fenced);
    let (answer, _) = t.start(old, 1, 1);
    assert!(matches!(answer, StartAnswer::Ended(o) if String::from_utf8_lossy(&o.output).contains("fenced")));
    let now = t.at(1);
    assert_eq!(t.state.cancel(&key(2), 1, &caller(1), now), (StatusReply::Granted, vec![]));
    t.reserve(4, 2, 0);
}

#[test]
fn status_is_for_the_owner() {
    let mut t = Table::new();
    t.reserve(1, 1, 0);
    assert_eq!(t.state.status(&key(1), &caller(1)), StatusReply::Granted);
    // An admin or this node itself may have a step with the same key, and would take this for its own.
    for asker in [caller(2), caller(0), Caller { role: Role::Admin, ..caller(9) }] {
        assert_eq!(t.state.status(&key(1), &asker), StatusReply::Unseen);
    }
}

#[test]
fn refusals() {
    let mut t = Table::new();
    assert_eq!(t.refuse(1, 1, |a| a.card = Err(Absent::NoTool)), RefuseReason::NoTool);
    let broken = |a: &mut Reservation| a.card = Err(Absent::Unavailable("its demo call failed".into()));
    assert_eq!(t.refuse(1, 1, broken), RefuseReason::Unavailable);
    let other = |a: &mut Reservation| a.request.card = CardHash::from_bytes([6; 32]);
    assert_eq!(t.refuse(1, 1, other), RefuseReason::ToolVersion);
    let ungranted =
        |a: &mut Reservation| a.caller.grants.tools = Some(vec![ToolName::parse("echo").unwrap()]);
    assert_eq!(t.refuse(1, 1, ungranted), RefuseReason::Policy);
    let strict = |a: &mut Reservation| a.caller.grants.min_sandbox = Some(SandboxLevel::LandlockSeccomp);
    assert_eq!(t.refuse(1, 1, strict), RefuseReason::Policy);
    let picky = Needs { min_sandbox: Some(SandboxLevel::LandlockSeccomp), ..Needs::default() };
    assert_eq!(t.refuse(1, 0, |a| a.card = card(Effect::Pure, picky.clone())), RefuseReason::Policy);
    // A new self-test has found a better level, and one later a worse one.
    let mut better = t.ask(9, 0);
    (better.card, better.sandbox) = (card(Effect::Pure, picky.clone()), SandboxLevel::LandlockSeccomp);
    assert!(t.try_reserve(better, 0).is_ok());
    assert_eq!(t.refuse(10, 0, |a| a.card = card(Effect::Pure, picky)), RefuseReason::Policy);
    assert_eq!(t.refuse(1, 1, |a| a.request.deadline_ms = 0), RefuseReason::Deadline);
    let slow = |a: &mut Reservation| (a.request.est_ms, a.request.deadline_ms) = (10_000, 4000);
    assert_eq!(t.refuse(1, 1, slow), RefuseReason::Deadline);
    t.state.set_draining(true);
    assert_eq!(t.refuse(1, 0, |_| ()), RefuseReason::Draining);
    t.state.set_draining(false);
    t.state.config.offers_tools = false;
    assert_eq!(t.refuse(1, 1, |_| ()), RefuseReason::Policy, "a client offers no tools");
    t.reserve(1, 0, 0);
}

#[test]
fn a_machine_that_its_owner_keeps_takes_only_the_owner_s_own() {
    let mut t = Table::new();
    t.resources.yields = Some(octomesh_protocol::advert::YieldReason::Battery);
    assert_eq!(t.refuse(1, 1, |_| ()), RefuseReason::Yields);
    t.reserve(2, 0, 0);
    t.resources.yields = None;
    t.reserve(1, 1, 0);
    t.resources.yields = Some(octomesh_protocol::advert::YieldReason::QuietHours);
    t.reserve(1, 1, 1);
}

#[test]
fn a_client_may_place_steps() {
    let mut t = Table::new();
    let mut ask = t.ask(1, 1);
    ask.caller.role = Role::Client;
    assert!(t.try_reserve(ask, 0).is_ok());
}

#[test]
fn one_node_can_not_take_all_places() {
    let mut t = Table::new();
    for n in 1..=8 {
        t.reserve(n, 1, 0);
    }
    assert_eq!(t.refuse(9, 1, |_| ()), RefuseReason::Quota);
    t.reserve(9, 2, 0);
}

#[test]
fn memory_and_vram_are_reserved_with_the_lease() {
    let mut t = Table::new();
    t.resources = Resources {
        memory_free: Some((4 * GIB, t.begin)),
        gpus: vec![declared("a", 24 * GIB)],
        yields: None,
    };
    let hungry = || card(Effect::Pure, Needs { gpu_vram: Some(16 * GIB), ..Needs::default() });
    let mut ask = t.ask(1, 1);
    ask.card = hungry();
    let lease = t.try_reserve(ask, 0).unwrap();
    assert_eq!(t.reserved(), [16 * GIB]);
    assert_eq!(
        t.refuse(2, 1, |a| a.card = hungry()),
        RefuseReason::Vram,
        "the card decides, not the request"
    );
    assert_eq!(t.refuse(2, 1, |a| a.request.memory = 5 * GIB), RefuseReason::Memory);
    let mut ask = t.ask(2, 1);
    ask.request.memory = 3 * GIB;
    t.try_reserve(ask, 0).unwrap();
    assert_eq!(t.load(0).memory_free, GIB);
    assert_eq!(t.refuse(3, 1, |a| a.request.memory = 2 * GIB), RefuseReason::Memory);
    let now = t.at(1);
    t.state.cancel(&key(1), 1, &caller(1), now);
    assert_eq!(t.reserved(), [0], "a lease gives back what it held");
    let mut ask = t.ask(4, 1);
    ask.card = hungry();
    assert_ne!(t.try_reserve(ask, 2).unwrap(), lease);
    t.resources = Resources::default();
    assert_eq!(t.refuse(5, 1, |a| a.request.memory = 1), RefuseReason::Memory, "never read is not free");
    assert_eq!(t.refuse(5, 1, |a| a.card = hungry()), RefuseReason::Vram);
}

#[test]
fn the_end_of_the_node_stops_everything_and_starts_nothing() {
    let mut t = Table::new();
    let running = [1, 2].map(|n| t.run(n, 1, Effect::Once, 0));
    let waiting = t.reserve(3, 1, 0);
    t.start(waiting, 1, 0);
    let now = t.at(1);
    let actions = t.state.stop_all(now);
    assert!(!actions.iter().any(|a| matches!(a, Action::Run(_))), "{actions:?}");
    assert_eq!(actions[1..], running.map(|l| Action::Stop(l, StopReason::Cancelled)));
    assert_eq!(t.refuse(4, 1, |_| ()), RefuseReason::Draining);
}

/// What a mesh of badly behaved coordinators may do.
#[derive(Debug, Clone)]
enum Move {
    Reserve { n: u64, who: u8 },
    Start { lease: u64, who: u8 },
    Finish { lease: u64 },
    Cancel { n: u64, who: u8 },
    Renew { lease: u64, who: u8 },
    Wait { ms: u64 },
}

fn moves() -> impl proptest::strategy::Strategy<Value = Vec<Move>> {
    use proptest::prelude::*;
    let one = prop_oneof![
        (0u64..20, 0u8..4).prop_map(|(n, who)| Move::Reserve { n, who }),
        (1u64..40, 0u8..4).prop_map(|(lease, who)| Move::Start { lease, who }),
        (1u64..40).prop_map(|lease| Move::Finish { lease }),
        (0u64..20, 0u8..4).prop_map(|(n, who)| Move::Cancel { n, who }),
        (1u64..40, 0u8..4).prop_map(|(lease, who)| Move::Renew { lease, who }),
        (0u64..3000).prop_map(|ms| Move::Wait { ms }),
    ];
    prop::collection::vec(one, 0..120)
}

proptest::proptest! {
    #[test]
    fn the_invariants_hold_whatever_callers_do(moves in moves()) {
        let mut t = Table::new();
        let mut now = 0;
        let mut runs = std::collections::BTreeMap::<LeaseId, u32>::new();
        for m in moves {
            let at = t.at(now);
            let actions = match m {
                Move::Reserve { n, who } => {
                    let mut ask = t.ask(n, who);
                    ask.card = card([Effect::Pure, Effect::Once][n as usize % 2], Needs::default());
                    // silent-ok: refusals are part of the game
                    let _ = t.try_reserve(ask, now);
                    vec![]
                }
                Move::Start { lease, who } => t.start(LeaseId(lease), who, now).1,
                // Only running steps finish.
                Move::Finish { lease } if runs.contains_key(&LeaseId(lease)) => t.state.finished(LeaseId(lease), ok(), at),
                Move::Finish { .. } => vec![],
                Move::Cancel { n, who } => t.state.cancel(&key(n), 1, &caller(who), at).1,
                Move::Renew { lease, who } => {
                    t.state.renew(&[LeaseId(lease)], caller(who).node, at);
                    vec![]
                }
                Move::Wait { ms } => {
                    now += ms;
                    t.tick(now)
                }
            };
            for action in actions {
                if let Action::Run(lease) = action {
                    *runs.entry(lease).or_default() += 1;
                }
            }
            let load = t.load(now);
            proptest::prop_assert!(load.running <= 2 && load.queued <= 8, "{:?}", load);
            proptest::prop_assert!(runs.values().all(|n| *n == 1), "a lease ran twice");
            proptest::prop_assert_eq!(t.state.by_key.len(), t.state.leases.len());
            proptest::prop_assert!(t.state.queue.is_empty() || load.running == 2, "a slot is idle while a step waits");
            let due = t.state.next_tick();
            proptest::prop_assert!(due.is_none_or(|d| d > t.at(now)) || !t.tick(now).is_empty(), "a tick that does nothing");
        }
    }
}

/// A revoked node: also the step that would run on without its coordinator is stopped, and nobody else's.
#[test]
fn everything_of_an_evicted_owner_is_stopped() {
    let mut t = Table::new();
    let (theirs, other) = (t.run(1, 1, Effect::Once, 0), t.run(2, 2, Effect::Once, 0));
    let waiting = t.reserve(3, 1, 0);
    t.start(waiting, 1, 0);
    let granted = t.reserve(4, 1, 0);
    let now = t.at(10);
    let actions = t.state.evict(caller(1).node, now);
    assert!(actions.contains(&Action::Stop(theirs, StopReason::Cancelled)));
    for gone in [waiting, granted] {
        assert!(
            actions.iter().any(|a| matches!(a, Action::End(lease, Some(_)) if *lease == gone)),
            "{actions:?}"
        );
    }
    assert!(!actions.iter().any(|a| matches!(a, Action::Stop(lease, _) if *lease == other)));
    assert_eq!(t.state.remaining(), 2);
    assert!(t.state.evict(caller(0).node, now).is_empty(), "this node's own steps stay");
}

#[test]
fn a_step_that_would_wait_longer_than_expected_is_told_so() {
    let mut t = Table::new();
    for n in 1..=2 {
        t.run(n, 1, Effect::Pure, 0);
    }
    // Two slots, two running steps with 100 ms each left: the next one waits 50 ms.
    let mut ask = t.ask(3, 2);
    ask.request.longest_wait_ms = 49;
    let now = t.at(0);
    let refused = t.state.reserve(ask, &t.resources, now).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::Wait);
    assert_eq!(refused.state.wait_ms(0, 0), 50.0, "with the state that it refuses for");
    for longest in [50, u32::MAX] {
        let mut ask = t.ask(3, 2);
        ask.request.longest_wait_ms = longest;
        t.try_reserve(ask, 0).unwrap();
    }
    let mut again = t.ask(3, 2);
    again.request.longest_wait_ms = 0;
    t.try_reserve(again, 0).unwrap();
}
