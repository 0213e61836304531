//! A placement decision for people. The document is the router's; what is not in it is not shown.
use serde_json::Value;

use super::render::Table;

/// The terms of a cost, in the order in which they happen.
const TERMS: [&str; 6] = ["rtt", "wait", "transfer", "exec", "cold", "risk"];

pub(super) fn text(decision: &Value) -> String {
    let mut parts = Vec::new();
    parts.push(match decision.get("sentence").and_then(Value::as_str) {
        Some(sentence) => sentence.to_owned(),
        None => decision
            .get("chosen")
            .and_then(Value::as_str)
            .map_or_else(|| "No node can take it.".to_owned(), |node| format!("Chosen: {node}")),
    });
    if let Some(node) = decision.get("ran_on").and_then(Value::as_str) {
        let ms =
            |name| decision.get(name).and_then(Value::as_f64).map_or("?".to_owned(), |ms| format!("{ms:.0}"));
        parts.push(format!("Ran on {node}: predicted {} ms, took {} ms", ms("predicted_ms"), ms("took_ms")));
    }
    let mut candidates = Table::new(&["node", "cost ms", "rtt", "wait", "transfer", "exec", "cold", "risk"]);
    for candidate in rows(decision, "candidates") {
        let terms = candidate.get("terms");
        let [rtt, wait, transfer, exec, cold, risk] =
            TERMS.map(|term| number(terms.and_then(|t| t.get(term))));
        candidates.row([
            word(candidate, "node"),
            number(candidate.get("cost_ms")),
            rtt,
            wait,
            transfer,
            exec,
            cold,
            risk,
        ]);
    }
    parts.extend((!candidates.is_empty()).then(|| format!("\n{candidates}")));
    for (title, key) in [("not possible", "filtered"), ("refused", "refusals")] {
        let mut table = Table::new(&[title, "reason", "detail"]);
        for row in rows(decision, key) {
            table.row([word(row, "node"), word(row, "reason"), word(row, "detail")]);
        }
        parts.extend((!table.is_empty()).then(|| format!("\n{table}")));
    }
    parts.join("\n")
}

fn rows<'a>(decision: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    decision.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn word(row: &Value, key: &str) -> String {
    row.get(key).and_then(Value::as_str).unwrap_or("-").to_owned()
}

fn number(value: Option<&Value>) -> String {
    value.and_then(Value::as_f64).map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_that_is_known_is_shown_and_nothing_else() {
        let text = text(&json!({
            "chosen": "tower",
            "sentence": "tower: the only one with a GPU",
            "candidates": [{ "node": "tower", "cost_ms": 12.34, "terms": { "rtt": 1.0, "exec": 11.34 } }],
            "filtered": [{ "node": "pi", "reason": "no_tool", "detail": "has no image_render" }],
            "refusals": [{ "node": "attic", "reason": "busy", "detail": "2 of 2" }],
            "ran_on": "tower", "predicted_ms": 12.3, "took_ms": 20
        }));
        for part in ["the only one", "Ran on tower: predicted 12 ms, took 20 ms", "12.3", "no_tool", "busy"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert_eq!(super::text(&json!({ "candidates": 7 })), "No node can take it.");
    }
}
