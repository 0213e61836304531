//! The rules checker: what can be said about a result without understanding it.
use octomesh_protocol::{card::ToolCard, step::StepStatus};
use serde_json::Value;

use super::{
    format::text_of,
    roles::{CheckInput, Verdict},
};

/// Violations that a comment names: more would not be read.
const NAMED: usize = 3;

/// Judges a result: is there one, is it complete, does it have the form that the card promises, are its numbers numbers, does
/// it name its source.
#[must_use]
pub fn check(input: &CheckInput) -> Verdict {
    let mut issues = Vec::new();
    let output = &input.report.output;
    if input.report.status != StepStatus::Ok {
        issues.push(format!("format: the call ended with {}", input.report.status));
    } else if text_of(output).trim().is_empty() && !may_be_empty(input.card.as_deref()) {
        issues.push("completeness: the result is empty".to_owned());
    } else if input.citations.is_empty() && !text_of(output).is_empty() {
        issues.push("citations: the result names no source".to_owned());
    }
    if let Some(schema) = input.card.as_ref().and_then(|c| c.output_schema.as_ref()) {
        issues.extend(violations(schema, output).into_iter().map(|v| format!("format: {v}")));
    }
    if input.card.as_ref().is_some_and(|c| c.name.as_str() == "calc") && !has_number(output) {
        issues.push("calculation: the result has no finite number".to_owned());
    }
    if issues.is_empty() { Verdict::pass() } else { Verdict::needs_revision(issues.join("; ")) }
}

/// A tool that changes something may have nothing to say; a search or a read that returns nothing is worth a second look.
fn may_be_empty(card: Option<&ToolCard>) -> bool {
    card.is_some_and(|c| !c.effect.may_repeat())
}

/// What the schema says about the value, at most three sentences. A schema that is none says nothing: the card's owner answers
/// for it, not this result.
#[must_use]
pub fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let Ok(validator) = jsonschema::validator_for(schema) else { return Vec::new() };
    validator
        .iter_errors(value)
        .take(NAMED)
        .map(|e| {
            let place = e.instance_path().to_string();
            let message: String = e.to_string().chars().take(200).collect();
            if place.is_empty() { message } else { format!("{place}: {message}") }
        })
        .collect()
}

/// Whether there is a number in the result, and no "NaN" or "inf" where one should be.
fn has_number(output: &Value) -> bool {
    match output {
        Value::Number(n) => n.as_f64().is_some_and(f64::is_finite),
        Value::String(s) => s.trim().parse::<f64>().is_ok_and(f64::is_finite),
        Value::Object(map) => match ["result", "value"].iter().find_map(|k| map.get(*k)) {
            Some(value) => has_number(value),
            None => map.values().any(has_number),
        },
        _ => false,
    }
}
