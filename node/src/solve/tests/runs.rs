use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use octomesh_protocol::step::StepStatus;
use serde_json::json;
use tokio::time::Instant;

use super::fixtures::*;
use crate::solve::{
    event::{RunEvent, RunStatus},
    limits::SolveLimits,
    memory::{BlockRecord, SolveMemory},
    plan::{PlanError, PlanOutcome, PlannedCall},
    roles::{Act, ActInput, CheckInput, PlanInput, RoleError, Roles, Verdict},
};

#[tokio::test(start_paused = true)]
async fn a_question_is_answered() {
    let setup = Setup::new(Mesh::quick());
    let outcome = setup.solve("count the lines in notes/x.md; calc expression=\"$1.lines / 10 * 3\"").await;
    assert_eq!(outcome.status, RunStatus::Completed, "{:?}", outcome.reason);
    assert_eq!(outcome.exit_code(), 0);
    assert_eq!(
        setup.mesh.asked(),
        [
            ("s001".to_owned(), json!({"path": "notes/x.md"})),
            ("s002".to_owned(), json!({"expression": "120 / 10 * 3"}))
        ]
    );
    let answer = outcome.answer.as_ref().unwrap();
    assert!(answer.starts_with("Answer: 120 / 10 * 3 = 36 [code-1]\n"), "{answer}");
    assert!(answer.contains("notes/x.md has 120 lines, 900 words [rag-1]"), "{answer}");
    assert!(answer.contains("- [rag-1] text_stats(path=notes/x.md) on attic \u{2014} "), "{answer}");
    let json = outcome.to_json();
    for key in ["run_id", "status", "answer", "citations", "blocks", "unresolved", "usage", "elapsed_ms"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    let step = &json["blocks"][1]["steps"][0];
    assert_eq!(
        (
            &step["step_id"],
            &step["block_id"],
            &step["tool"],
            &step["node"],
            &step["status"],
            &step["elapsed_ms"]
        ),
        (&json!("s002"), &json!("b002"), &json!("calc"), &json!("attic"), &json!("ok"), &json!(5))
    );
    assert_eq!(step["why"]["chosen"], "attic");
    let records = setup.log.records.lock().unwrap();
    let last = records.last().unwrap();
    assert_eq!((last.status, last.steps_done, last.steps_total), (RunStatus::Completed, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn independent_blocks_run_at_the_same_time() {
    let setup = Setup::new(Mesh::new(|r| (Duration::from_secs(10), ok(plausible(r)))));
    let start = Instant::now();
    let outcome = setup
        .solve("hash path=a.md\nhash path=b.md\nhash path=c.md\necho text=\"$1.sha256 ${3.sha256}\"")
        .await;
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(setup.mesh.most_at_once.load(Ordering::SeqCst), 3);
    assert_eq!(start.elapsed().as_secs(), 20);
    let depends: Vec<_> = outcome.blocks.iter().map(|b| b.depends_on.len()).collect();
    assert_eq!(depends, [0, 0, 0, 2]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_blocks_at_once_is_bounded() {
    let mut setup = Setup::new(Mesh::new(|r| (Duration::from_secs(1), ok(plausible(r)))));
    setup.limits.max_parallel = 2;
    let outcome = setup.solve(&"hash path=a.md\n".repeat(7)).await;
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(setup.mesh.most_at_once.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn f72_steps_of_a_block_run_in_order_and_see_earlier_results() {
    let mut setup = Setup::new(Mesh::new(|r| (Duration::from_secs(1), ok(plausible(r)))));
    setup.plan = Some(
        "blocks:\n- id: one\n  steps:\n  - {tool: text_stats, args: {path: a.md}, save_as: stats}\n  - {tool: echo, args: {text: '${stats.lines} lines'}}\n  - {tool: echo, args: {text: 'again: $last.text'}}\n",
    );
    let outcome = setup.solve("q").await;
    assert_eq!(outcome.status, RunStatus::Completed, "{:?}", outcome.reason);
    assert_eq!(setup.mesh.most_at_once.load(Ordering::SeqCst), 1);
    let asked = setup.mesh.asked();
    assert_eq!(asked[1], ("s002".into(), json!({"text": "120 lines"})));
    assert_eq!(asked[2], ("s003".into(), json!({"text": "again: 120 lines"})));
}

#[tokio::test(start_paused = true)]
async fn a_clause_that_changes_something_keeps_its_place() {
    let setup = Setup::new(Mesh::new(|r| (Duration::from_secs(1), ok(plausible(r)))));
    let outcome =
        setup.solve("hash path=a.md; file_write path=b.md content=x; hash path=b.md; hash path=c.md").await;
    assert_eq!(outcome.status, RunStatus::Completed);
    let order: Vec<_> = setup.mesh.asked().into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, ["s001", "s002", "s003", "s004"]);
    assert_eq!(setup.mesh.most_at_once.load(Ordering::SeqCst), 2);
}

/// Plans one block of `calls` echo steps; its checker is never satisfied with the steps in `bad`.
struct Scripted {
    calls: usize,
    bad: &'static str,
    revises: bool,
    comments: Mutex<Vec<String>>,
    formatted: Mutex<usize>,
}

impl Scripted {
    fn new(calls: usize, bad: &'static str) -> Self {
        Self { calls, bad, revises: false, comments: Mutex::default(), formatted: Mutex::default() }
    }
}

#[async_trait]
impl Roles for Scripted {
    fn engine(&self) -> &str {
        "scripted"
    }

    fn revises_errors(&self) -> bool {
        self.revises
    }

    async fn plan(&self, _input: PlanInput) -> Result<PlanOutcome, PlanError> {
        let block = crate::solve::plan::PlannedBlock {
            name: None,
            goal: "scripted".into(),
            depends_on: vec![],
            outline: vec![],
        };
        Ok(PlanOutcome::Plan(crate::solve::plan::Plan { engine: "scripted".into(), blocks: vec![block] }))
    }

    async fn manage(
        &self,
        _block: &BlockRecord,
        _memory: &SolveMemory,
    ) -> Result<Vec<PlannedCall>, RoleError> {
        let call = |i: usize| PlannedCall {
            plan: format!("say {i}"),
            tool: octomesh_protocol::id::ToolName::parse("echo").unwrap(),
            arguments: json!({"text": i.to_string()}).as_object().unwrap().clone(),
            save_as: None,
            node: None,
        };
        Ok((0..self.calls).map(call).collect())
    }

    async fn act(&self, input: ActInput) -> Result<Act, RoleError> {
        self.comments.lock().unwrap().extend(input.step.attempts.last().map(|a| a.comment.clone()));
        let mut arguments = input.step.arguments;
        arguments.insert("text".into(), json!(format!("{} try {}", input.step.step_id, input.attempt)));
        Ok(Act::Call(arguments))
    }

    async fn check(&self, input: CheckInput) -> Result<Verdict, RoleError> {
        if input.step.as_str() == self.bad && (!self.revises || input.attempt == 1) {
            return Ok(Verdict::needs_revision(format!("comment {}", input.attempt)));
        }
        Ok(Verdict { integrated_content: Some(format!("better {}", input.step)), ..Verdict::pass() })
    }

    async fn format(&self, memory: &SolveMemory) -> Result<String, RoleError> {
        *self.formatted.lock().unwrap() += 1;
        Ok(crate::solve::format::answer(memory))
    }
}

#[tokio::test(start_paused = true)]
async fn f62_three_attempts_then_unresolved_and_on_with_the_next_step() {
    let roles = Arc::new(Scripted::new(2, "s001"));
    let setup = Setup { roles: roles.clone(), ..Setup::new(Mesh::quick()) };
    let outcome = setup.solve("q").await;
    assert_eq!(outcome.status, RunStatus::Completed);
    let asked: Vec<_> = setup.mesh.asked();
    assert_eq!(
        asked,
        [
            ("s001".to_owned(), json!({"text": "s001 try 1"})),
            ("s001.2".to_owned(), json!({"text": "s001 try 2"})),
            ("s001.3".to_owned(), json!({"text": "s001 try 3"})),
            ("s002".to_owned(), json!({"text": "s002 try 1"})),
        ]
    );
    // F63: the comment reaches the next attempt.
    assert_eq!(*roles.comments.lock().unwrap(), ["comment 1", "comment 2"]);
    let step = &outcome.blocks[0].steps[0];
    assert!(step.unresolved);
    assert_eq!(step.attempts.len(), 3);
    assert_eq!(outcome.unresolved, ["s001 (echo) after 3 attempts: comment 3"]);
    let answer = outcome.answer.unwrap();
    assert!(answer.contains("Unresolved:\n- s001 (echo) after 3 attempts: comment 3"), "{answer}");
    // F64: the checker's better text is the content.
    assert_eq!(outcome.blocks[0].steps[1].content, "better s002");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_revises_gets_the_tools_error() {
    let roles = Arc::new(Scripted { revises: true, ..Scripted::new(1, "s001") });
    let mesh = Mesh::new(|r| {
        let first = r.step.as_str() == "s001";
        (Duration::ZERO, if first { ended(StepStatus::Error, "bad text") } else { ok(plausible(r)) })
    });
    let outcome = Setup { roles, ..Setup::new(mesh) }.solve("q").await;
    assert_eq!(outcome.status, RunStatus::Completed, "{:?}", outcome.reason);
    assert_eq!(outcome.blocks[0].steps[0].attempts.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn f34_a_block_ends_at_max_steps_with_an_answer() {
    let roles = Arc::new(Scripted::new(25, ""));
    let setup = Setup { roles: roles.clone(), ..Setup::new(Mesh::quick()) };
    let outcome = setup.solve("q").await;
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(setup.mesh.asked().len(), 10);
    assert_eq!(*roles.formatted.lock().unwrap(), 1);
    assert_eq!(outcome.unresolved, ["b001 was cut: 15 steps over the limit of the block did not run"]);
}

#[tokio::test(start_paused = true)]
async fn f35_max_time_cuts_a_running_step() {
    let mesh = Mesh::new(|r| {
        (Duration::from_secs(if r.tool.as_str() == "hash" { 1 } else { 3600 }), ok(plausible(r)))
    });
    let mut setup = Setup::new(mesh);
    setup.limits = SolveLimits { max_time: Duration::from_secs(30), ..SolveLimits::default() };
    let start = Instant::now();
    let outcome = setup.solve("hash path=a.md; echo text=$1.sha256").await;
    assert!(start.elapsed() < Duration::from_secs(31), "{:?}", start.elapsed());
    assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Failed, 1));
    assert_eq!(outcome.reason.as_deref(), Some("the time limit of 30 s was reached at step s002 (echo)"));
    assert_eq!(setup.mesh.stopped.load(Ordering::SeqCst), 1);
    assert_eq!(setup.mesh.requests.lock().unwrap()[1].timeout, Duration::from_secs(29));
    let answer = outcome.answer.unwrap();
    assert!(answer.contains("Found until then:\n- sha256 of a.md is ab12 [rag-1]"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn cancel_stops_every_running_step() {
    let setup = Setup::new(Mesh::new(|r| (Duration::from_secs(60), ok(plausible(r)))));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        setup.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(setup.solve("hash path=a.md; hash path=b.md"), stop);
    assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Cancelled, 130));
    assert_eq!(setup.mesh.stopped.load(Ordering::SeqCst), 2);
    assert_eq!(outcome.elapsed_ms, 5_000);
    let events = setup.log.events.lock().unwrap();
    assert!(matches!(events.last(), Some(RunEvent::Failed { status: RunStatus::Cancelled, .. })));
    assert!(statuses(&outcome).values().all(|s| s == "cancelled"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_stop_is_uncertain_after_two_seconds() {
    let mut mesh = Mesh::build(|r| (Duration::from_secs(60), ok(plausible(r))));
    mesh.stubborn = Duration::from_secs(3600);
    let setup = Setup::new(Arc::new(mesh));
    setup.cancel.cancel();
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    // Cancelled before it began: nothing is asked of the mesh at all.
    let (outcome, ()) = tokio::join!(setup.solve("hash path=a.md"), stop);
    assert_eq!((outcome.status, setup.mesh.asked().len()), (RunStatus::Cancelled, 0));

    let mut mesh = Mesh::build(|r| (Duration::from_secs(60), ok(plausible(r))));
    mesh.stubborn = Duration::from_secs(3600);
    let setup = Setup::new(Arc::new(mesh));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        setup.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(setup.solve("hash path=a.md"), stop);
    assert_eq!(outcome.elapsed_ms, 3_000);
    assert_eq!(statuses(&outcome)["s001"], "uncertain");
    assert!(outcome.reason.unwrap().contains("step s001 did not say in time"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_fails_the_run_and_names_step_and_node() {
    for (status, text) in [
        (StepStatus::Error, "step s001 (file_read) failed on attic: no such file"),
        (StepStatus::Refused, "step s001 (file_read) failed on attic (refused): no such file"),
        (StepStatus::Timeout, "step s001 (file_read) failed on attic (timeout): no such file"),
    ] {
        let mesh = Mesh::new(move |r| match r.tool.as_str() {
            "file_read" => (Duration::from_secs(1), ended(status, "no such file")),
            _ => (Duration::from_secs(60), ok(plausible(r))),
        });
        let setup = Setup::new(mesh);
        let outcome = setup.solve("file_read path=a.md; hash path=b.md").await;
        assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Failed, 1));
        assert_eq!(outcome.reason.as_deref(), Some(text));
        // One attempt: the same arguments would fail again. The other step was stopped.
        assert_eq!(setup.mesh.asked().len(), 2);
        assert_eq!(setup.mesh.stopped.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_uncertain_step_makes_the_run_uncertain() {
    let setup =
        Setup::new(Mesh::new(|_| (Duration::ZERO, ended(StepStatus::Uncertain, "the connection was lost"))));
    let outcome = setup.solve("file_write path=a.md content=x; hash path=a.md").await;
    assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Uncertain, 5));
    assert_eq!(
        outcome.reason.as_deref(),
        Some("step s001 (file_write) is uncertain on attic: the connection was lost")
    );
    assert_eq!(setup.mesh.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_side_effect_is_not_repeated_because_its_result_looks_bad() {
    let mut card = (*card("file_write", octomesh_protocol::card::Effect::Once, &[], &[], json!({}))).clone();
    card.output_schema = Some(json!({"type": "object", "required": ["bytes"]}));
    let input = |attempt| ActInput {
        step: crate::solve::memory::StepRecord::pending(
            crate::solve::block::step_id(1).unwrap(),
            PlannedCall {
                plan: String::new(),
                tool: card.name.clone(),
                arguments: serde_json::Map::new(),
                save_as: None,
                node: None,
            },
        ),
        attempt,
        card: Some(Arc::new(card.clone())),
        memory: Arc::new(SolveMemory::new("q")),
    };
    let roles = rules();
    assert_eq!(roles.act(input(1)).await, Ok(Act::Call(serde_json::Map::new())));
    assert_eq!(roles.act(input(2)).await, Ok(Act::Keep));
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_when_the_planner_asks_back_or_fails() {
    let setup = Setup::new(Mesh::quick());
    let outcome = setup.solve("hash path=a.md; write something nice into the guest book").await;
    assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Failed, 3));
    assert_eq!(outcome.to_json()["error"]["code"], "needs_confirmation");
    let outcome = setup.solve("hsh path=a.md").await;
    assert_eq!((outcome.status, outcome.exit_code()), (RunStatus::Failed, 2));
    assert_eq!(outcome.to_json()["error"]["code"], "unknown_tool");
    assert!(setup.mesh.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_can_not_write_fails_the_run_before_any_call() {
    let mut setup = Setup::new(Mesh::quick());
    setup.log = Arc::new(Log { fails: true, ..Log::default() });
    let outcome = setup.solve("hash path=a.md").await;
    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.reason.unwrap().contains("disk full"));
    assert!(setup.mesh.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reference_to_a_missing_field_says_which_fields_there_are() {
    let outcome = Setup::new(Mesh::quick()).solve("text_stats path=a.md; echo text=$1.rows").await;
    assert_eq!(outcome.status, RunStatus::Failed);
    let reason = outcome.reason.unwrap();
    assert!(
        reason.contains("step s002 (echo) could not begin") && reason.contains("lines, path, words"),
        "{reason}"
    );
}
