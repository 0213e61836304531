//! The demo's result for people.
use serde_json::Value;

use crate::cli::render::{Table, or_dash, size};

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// Answer with citations, placements with their reasons, suites, picture.
pub(super) fn text(document: &Value) -> String {
    let mut parts = vec![String::new()];
    match text_of(document, "answer") {
        Some(answer) => parts.push(answer.trim_end().to_owned()),
        None => {
            let reason = text_of(document, "reason")
                .or_else(|| document.pointer("/error/message").and_then(Value::as_str))
                .unwrap_or("no answer");
            parts.push(reason.to_owned());
            for guess in document.pointer("/error/guesses").and_then(Value::as_array).into_iter().flatten() {
                parts.push(format!("  perhaps: {}", or_dash(text_of(guess, "command"))));
            }
        }
    }
    parts.push(placements(document));
    for step in list(document, "steps") {
        if let Some(sentence) = step.pointer("/why/sentence").and_then(Value::as_str) {
            parts.push(format!("  {} {}", or_dash(text_of(step, "step_id")), sentence));
        }
    }
    parts.push(nodes(document));
    parts.push("Sessions".to_owned());
    for session in list(document, "sessions") {
        let [from, to, suite] = ["from", "to", "suite"].map(|key| or_dash(text_of(session, key)));
        parts.push(format!("  {from} -> {to}  {suite}"));
    }
    if let Some(picture) = text_of(document, "picture") {
        parts.push(format!("\nPicture: {picture}"));
    }
    if let Some(ms) = document.get("elapsed_ms").and_then(Value::as_u64) {
        parts.push(format!("{:.1} s in all, the start of the nodes included", ms as f64 / 1000.0));
    }
    parts.join("\n")
}

fn placements(document: &Value) -> String {
    let mut table = Table::new(&["step", "tool", "node", "status", "ms"]);
    for step in list(document, "steps") {
        let [id, tool, node, status] =
            ["step_id", "tool", "node", "status"].map(|key| or_dash(text_of(step, key)));
        let ms = or_dash(step.get("elapsed_ms").and_then(Value::as_u64));
        table.row([id, tool, node, status, ms]);
    }
    format!("\nWhere the steps ran, and why\n{table}")
}

fn nodes(document: &Value) -> String {
    let mut table = Table::new(&["node", "tools", "sandbox", "gpu"]);
    for node in list(document, "nodes") {
        let gpus: Vec<String> = list(node, "gpus")
            .map(|gpu| {
                let total = gpu.get("vram_total").and_then(Value::as_u64).map_or_else(String::new, size);
                let declared =
                    if gpu.get("declared") == Some(&Value::Bool(true)) { ", declared" } else { "" };
                format!("{} ({total}{declared})", or_dash(text_of(gpu, "name")))
            })
            .collect();
        let gpus = if gpus.is_empty() { "-".to_owned() } else { gpus.join(", ") };
        let tools = list(node, "tools").count().to_string();
        table.row([or_dash(text_of(node, "name")), tools, or_dash(text_of(node, "sandbox")), gpus]);
    }
    format!("\nNodes\n{table}")
}
