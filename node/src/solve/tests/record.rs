use std::{path::Path, time::Duration};

use octomesh_protocol::{id::StepId, step::StepStatus};
use serde_json::{Value, json};

use super::fixtures::*;
use crate::solve::{
    block::{BlockId, step_id},
    doubt::OnUncertain,
    event::RunStatus,
    memory::{ANSWER_FILE, BlockRecord, LoopProgress, MEMORY_FILE, MemoryError, SolveMemory, StepRecord},
    outcome::RunOutcome,
    plan::PlannedCall,
    ports::StepRequest,
};

fn step(number: usize) -> StepRecord {
    let call = PlannedCall {
        plan: format!("say {number}"),
        tool: octomesh_protocol::id::ToolName::parse("echo").unwrap(),
        arguments: json!({"text": "x"}).as_object().unwrap().clone(),
        save_as: None,
        node: None,
    };
    StepRecord::pending(step_id(number).unwrap(), call)
}

fn memory() -> SolveMemory {
    let mut memory = SolveMemory::new("What is linear convolution?");
    memory.plan.blocks.push(BlockRecord {
        block_id: BlockId::at(0),
        goal: "Understand it".into(),
        steps: vec![step(1), step(2)],
        name: None,
        depends_on: vec![],
        outline: vec![],
        first_step: None,
        managed: true,
        cut_steps: 0,
    });
    memory
}

fn id(number: usize) -> StepId {
    step_id(number).unwrap()
}

#[test]
fn f67_golden_file() {
    let mut m = memory();
    m.advance(LoopProgress::InProgress).unwrap();
    m.begin_step(&id(1)).unwrap();
    m.complete_step(&id(1), "Linear convolution is\u{2026}".into(), vec!["[rag-1]".into()], vec![]).unwrap();
    let got: Value = serde_json::from_str(&m.to_json()).unwrap();
    let pending = json!({
        "step_id": "s002", "plan": "say 2", "status": "pending", "content": "", "citations": [], "tool_logs": [],
        "tool": "echo", "arguments": {"text": "x"}, "attempts": [], "unresolved": false
    });
    let done = json!({
        "step_id": "s001", "plan": "say 1", "status": "completed", "content": "Linear convolution is\u{2026}",
        "citations": ["[rag-1]"], "tool_logs": [],
        "tool": "echo", "arguments": {"text": "x"}, "attempts": [], "unresolved": false
    });
    assert_eq!(
        got,
        json!({
            "user_question": "What is linear convolution?",
            "plan": {"blocks": [{
                "block_id": "b001", "goal": "Understand it", "steps": [done, pending], "depends_on": [], "managed": true
            }]},
            "progress": {
                "status": "in_progress", "current_block": "b001", "current_step": "s001",
                "completed_blocks": [], "completed_steps": ["s001"]
            },
            "metadata": {"total_blocks": 1, "total_steps": 2, "completed_steps": 1},
            "citations": []
        })
    );
}

#[test]
fn f68_only_legal_transitions() {
    let mut m = memory();
    assert!(matches!(
        m.complete_step(&id(1), String::new(), vec![], vec![]),
        Err(MemoryError::Transition { .. })
    ));
    m.begin_step(&id(1)).unwrap();
    m.begin_step(&id(1)).unwrap();
    m.complete_step(&id(1), String::new(), vec![], vec![]).unwrap();
    assert!(matches!(m.begin_step(&id(1)), Err(MemoryError::Transition { .. })));
    assert!(matches!(
        m.complete_step(&id(1), String::new(), vec![], vec![]),
        Err(MemoryError::Transition { .. })
    ));
    assert!(matches!(m.begin_step(&id(9)), Err(MemoryError::UnknownStep(_))));
    assert!(m.advance(LoopProgress::Completed).is_err());
    m.advance(LoopProgress::InProgress).unwrap();
    m.advance(LoopProgress::Completed).unwrap();
    assert!(m.advance(LoopProgress::InProgress).is_err());
    assert!(m.advance(LoopProgress::NotStarted).is_err());
}

#[test]
fn f69_round_trip_and_current_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut m = SolveMemory::load_or_create(dir.path(), "What is linear convolution?").unwrap();
    assert_eq!(m.get_current_step(), None);
    m = memory();
    assert_eq!(m.get_current_step().unwrap().step_id, id(1));
    m.begin_step(&id(2)).unwrap();
    assert_eq!(m.get_current_step().unwrap().step_id, id(2));
    m.save(dir.path(), Some("Answer: 1\n")).unwrap();
    assert_eq!(SolveMemory::load_or_create(dir.path(), "What is linear convolution?").unwrap(), m);
    assert_eq!(std::fs::read_to_string(dir.path().join(ANSWER_FILE)).unwrap(), "Answer: 1\n");
    assert!(matches!(
        SolveMemory::load_or_create(dir.path(), "Something else"),
        Err(MemoryError::OtherQuestion { .. })
    ));
}

#[test]
fn what_a_kill_leaves_behind_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    memory().save(dir.path(), None).unwrap();
    // Killed in the middle of the next save: half a file beside the whole one.
    std::fs::write(dir.path().join(format!(".{MEMORY_FILE}.new")), b"{\"user_qu").unwrap();
    assert!(SolveMemory::load(dir.path()).unwrap().is_some());
    memory().save(dir.path(), None).unwrap();
    assert!(!dir.path().join(format!(".{MEMORY_FILE}.new")).exists());
    std::fs::write(dir.path().join(MEMORY_FILE), b"{\"user_question\": 1}").unwrap();
    let error = SolveMemory::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains(MEMORY_FILE) && error.contains("line 1"), "{error}");
    assert!(memory().save(Path::new("/nonexistent-octomesh"), None).is_err());
}

#[tokio::test(start_paused = true)]
async fn f70_a_resumed_run_repeats_no_completed_step() {
    let dir = tempfile::tempdir().unwrap();
    let question = "text_stats path=a.md; echo text=\"$1.lines lines\"";
    // The node dies while the second step runs: the run's task is dropped.
    let mesh = Mesh::new(|r| {
        let wait = if r.tool.as_str() == "echo" { 3600 } else { 1 };
        (Duration::from_secs(wait), ok(plausible(r)))
    });
    let first = Setup::new(mesh);
    let cut = tokio::time::timeout(Duration::from_secs(60), first.solve_in(dir.path(), question)).await;
    assert!(cut.is_err());
    assert_eq!(first.mesh.asked().len(), 2);
    let second = Setup::new(Mesh::quick());
    let outcome = second.solve_in(dir.path(), question).await;
    assert_eq!(outcome.status, RunStatus::Completed, "{:?}", outcome.reason);
    // The same key as before, so whoever ran it can tell that it is the same call.
    assert_eq!(second.mesh.asked(), [("s002".to_owned(), json!({"text": "120 lines"}))]);
    let fresh = Setup::new(Mesh::quick()).solve(question).await;
    assert_eq!(outcome.answer, fresh.answer);
    // A run that is over does nothing again.
    let third = Setup::new(Mesh::quick());
    let outcome = third.solve_in(dir.path(), question).await;
    assert_eq!((outcome.status, third.mesh.asked().len()), (RunStatus::Completed, 0));
    let stored = RunOutcome::load(outcome.run_id, dir.path()).unwrap().unwrap();
    assert_eq!((stored.status, stored.answer), (RunStatus::Completed, fresh.answer));
}

#[tokio::test(start_paused = true)]
async fn f75_f76_counts_logs_and_verdicts_are_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = Mesh::new(|r| {
        let failed = r.tool.as_str() == "hash";
        (Duration::ZERO, if failed { ended(StepStatus::Error, "no such file") } else { ok(plausible(r)) })
    });
    let outcome = Setup::new(mesh).solve_in(dir.path(), "echo text=hi as a; hash path=${a.text}").await;
    assert_eq!(outcome.status, RunStatus::Failed);
    let text = std::fs::read_to_string(dir.path().join(MEMORY_FILE)).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file["metadata"], json!({"total_blocks": 2, "total_steps": 2, "completed_steps": 1}));
    assert_eq!(file["progress"]["completed_blocks"], json!(["b001"]));
    assert_eq!(file["ending"]["status"], "failed");
    let steps: Vec<_> = [0, 1].iter().map(|b| &file["plan"]["blocks"][b]["steps"][0]).collect();
    assert_eq!(steps[0]["attempts"][0]["verdict"], "pass");
    assert_eq!(steps[0]["tool_logs"][0]["status"], "success");
    assert_eq!(steps[0]["decision_id"], "dec-1");
    let log = &steps[1]["tool_logs"][0];
    assert_eq!(
        (&log["tool"], &log["status"], &log["elapsed_ms"]),
        (&json!("hash"), &json!("error"), &json!(5))
    );
    let answer = std::fs::read_to_string(dir.path().join(ANSWER_FILE)).unwrap();
    assert!(answer.starts_with("Not answered: step s002 (hash) failed on attic: no such file\n"), "{answer}");
}

/// A run whose second step ended uncertain goes on with what was decided; the first is not done again.
#[tokio::test(start_paused = true)]
async fn an_uncertain_run_goes_on_as_decided() {
    let question = "hash path=b.md; file_write path=a.md content=x; echo text=\"$1.sha256\"";
    for (decision, nodes_know) in [
        (OnUncertain::Retry, false),
        (OnUncertain::Retry, true),
        (OnUncertain::Skip, false),
        (OnUncertain::Skip, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let lost = |r: &StepRequest| match r.tool.as_str() {
            "file_write" => (Duration::ZERO, ended(StepStatus::Uncertain, "lost")),
            _ => (Duration::ZERO, ok(plausible(r))),
        };
        let first = Setup::new(Mesh::new(lost)).solve_in(dir.path(), question).await;
        assert_eq!(first.status, RunStatus::Uncertain);
        // The node still does not know of the first start, or it does by now.
        let mesh = Mesh::new(move |r| match r.step.as_str() {
            "s002" if !nodes_know => (Duration::ZERO, ended(StepStatus::Uncertain, "lost")),
            _ => (Duration::ZERO, ok(plausible(r))),
        });
        let second = Setup { decision: Some(decision), ..Setup::new(mesh) };
        let outcome = second.solve_in(dir.path(), question).await;
        assert_eq!(outcome.status, RunStatus::Completed, "{decision} {:?}", outcome.reason);
        let asked: Vec<_> = second.mesh.asked().into_iter().map(|(step, _)| step).collect();
        let again = decision == OnUncertain::Retry && !nodes_know;
        let wanted = if again { vec!["s002", "s002.2", "s003"] } else { vec!["s002", "s003"] };
        assert_eq!(asked, wanted, "{decision}");
        let left_out = decision == OnUncertain::Skip && !nodes_know;
        assert_eq!(
            outcome.unresolved.iter().any(|line| line.contains("s002")),
            left_out,
            "{:?}",
            outcome.unresolved
        );
        assert_eq!(outcome.answer.as_deref().unwrap().contains("left out"), left_out, "{:?}", outcome.answer);
    }
}

/// The node dies while the step that was run again by decision is on its way: that decision is not taken again either.
#[tokio::test(start_paused = true)]
async fn a_second_attempt_survives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let question = "file_write path=a.md content=x";
    let lost = |_: &StepRequest| (Duration::ZERO, ended(StepStatus::Uncertain, "lost"));
    Setup::new(Mesh::new(lost)).solve_in(dir.path(), question).await;
    let slow = Mesh::new(|r| match r.step.as_str() {
        "s001" => (Duration::ZERO, ended(StepStatus::Uncertain, "lost")),
        _ => (Duration::from_secs(3600), ok(plausible(r))),
    });
    let second = Setup { decision: Some(OnUncertain::Retry), ..Setup::new(slow) };
    let cut = tokio::time::timeout(Duration::from_secs(60), second.solve_in(dir.path(), question)).await;
    assert!(cut.is_err());
    let third = Setup::new(Mesh::quick());
    let outcome = third.solve_in(dir.path(), question).await;
    assert_eq!(outcome.status, RunStatus::Completed, "{:?}", outcome.reason);
    let asked: Vec<_> = third.mesh.asked().into_iter().map(|(step, _)| step).collect();
    assert_eq!(asked, ["s001.2"]);
}
