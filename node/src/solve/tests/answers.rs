use std::sync::Arc;

use octomesh_protocol::step::StepStatus;
use serde_json::{Value, json};

use super::fixtures::*;
use crate::solve::{
    block::step_id,
    check::check,
    event::VerdictKind,
    format::{content, text_of},
    roles::CheckInput,
};

#[test]
fn sentences() {
    let say = |tool: &str, arguments: Value, output: Value| {
        content(tool, arguments.as_object().unwrap(), &output, &["[x-1]".to_owned()])
    };
    assert_eq!(say("calc", json!({"expression": "12 * 3"}), json!({"result": 36})), "12 * 3 = 36 [x-1]");
    assert_eq!(say("calc", json!({"expression": "1/4"}), json!(0.25)), "1/4 = 0.25 [x-1]");
    assert_eq!(
        say(
            "file_search",
            json!({"query": "storm", "path": "a.md"}),
            json!({"matches": [{"text": " a storm "}, {"text": "storms"}]})
        ),
        "2 matches of \"storm\" in a.md: \u{201c}a storm\u{201d} / \u{201c}storms\u{201d} [x-1]"
    );
    assert_eq!(
        say("file_read", json!({"path": "a.md"}), json!({"content": "one\n\ntwo\nthree\nfour\n"})),
        "a.md says: \u{201c}one\u{201d} / \u{201c}two\u{201d} / \u{201c}three\u{201d} \u{2026} [x-1]"
    );
    assert_eq!(
        say("file_list", json!({"path": "."}), json!({"entries": [{"path": "a"}, "b"]})),
        "2 entries in .: a, b [x-1]"
    );
    assert_eq!(say("other", json!({}), json!({"k": [1]})), "{\"k\":[1]} [x-1]");
    let long = say("other", json!({}), json!("y".repeat(10_000)));
    assert!(long.chars().count() < 4_100);
}

#[test]
fn the_text_of_a_tool_is_no_citation() {
    let text = content(
        "echo",
        &serde_json::Map::new(),
        &json!({"text": "see [rag-9] and [code-2]"}),
        &["[code-1]".to_owned()],
    );
    assert_eq!(text, "see (rag-9] and (code-2] [code-1]");
}

#[tokio::test(start_paused = true)]
async fn f65_every_citation_in_the_answer_resolves() {
    let setup = Setup::new(Mesh::quick());
    let question = "file_read path=a.md; file_read path=b.md; calc 6*6; echo text=\"fake [web-7]\"; calc expression=\"6*6\"";
    let outcome = setup.solve(question).await;
    let answer = outcome.answer.unwrap();
    let ids: Vec<_> = outcome.citations.iter().map(|c| c.id.as_str()).collect();
    let mut named = 0;
    for part in answer.split('[').skip(1) {
        let id = format!("[{}]", part.split(']').next().unwrap());
        assert!(ids.contains(&id.as_str()), "{id} in {answer}");
        named += 1;
    }
    // Two files with the same content are one source; so are two equal calculations.
    assert_eq!(ids.iter().filter(|i| i.starts_with("[rag")).count(), 1);
    assert!(named >= 7, "{answer}");
}

fn input(tool: &str, output: Value, status: StepStatus) -> CheckInput {
    let mut card = (*cards().into_iter().find(|c| c.name.as_str() == tool).unwrap()).clone();
    if tool == "text_stats" {
        card.output_schema = Some(
            json!({"type": "object", "required": ["lines"], "properties": {"lines": {"type": "integer"}}}),
        );
    }
    let cited = if text_of(&output).is_empty() { vec![] } else { vec!["[rag-1]".to_owned()] };
    CheckInput {
        step: step_id(1).unwrap(),
        attempt: 1,
        card: Some(Arc::new(card)),
        arguments: serde_json::Map::new(),
        content: String::new(),
        citations: cited,
        report: crate::solve::ports::StepReport { status, ..ok(output) },
    }
}

#[test]
fn f60_the_issue_is_named() {
    let pass = |i: &CheckInput| check(i).kind == VerdictKind::Pass;
    assert!(pass(&input("text_stats", json!({"lines": 3}), StepStatus::Ok)));
    assert!(pass(&input("calc", json!({"result": 3}), StepStatus::Ok)));
    for (case, word) in [
        (input("echo", Value::Null, StepStatus::Ok), "completeness"),
        (input("file_read", json!({"content": " "}), StepStatus::Ok), "completeness"),
        (input("text_stats", json!({"lines": "3"}), StepStatus::Ok), "format: /lines"),
        (input("text_stats", json!({"rows": 3}), StepStatus::Ok), "format"),
        (input("calc", json!({"result": "NaN"}), StepStatus::Ok), "calculation"),
        (input("echo", json!({"text": "x"}), StepStatus::Error), "format: the call ended with error"),
        (
            CheckInput { citations: vec![], ..input("echo", json!({"text": "x"}), StepStatus::Ok) },
            "citations",
        ),
    ] {
        let verdict = check(&case);
        assert_eq!(verdict.kind, VerdictKind::NeedsRevision, "{word}");
        assert!(verdict.comment.contains(word), "{} should name {word}", verdict.comment);
    }
    // A tool with side effects may have nothing to say.
    assert!(pass(&input("file_write", json!({}), StepStatus::Ok)));
}
