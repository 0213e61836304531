//! From words to arguments: types by the card's schema, and everything that the schema says is wrong.
use std::sync::Arc;

use octomesh_protocol::card::ToolCard;
use serde_json::{Map, Value};

use crate::solve::{check::violations, plan::PlanError, references};

use super::text::{nearest, unquote};

/// The schema of one argument.
#[must_use]
pub fn property<'a>(card: &'a ToolCard, name: &str) -> Option<&'a Value> {
    card.input_schema.get("properties")?.get(name)
}

/// The names of all arguments, in the schema's order.
pub fn names(card: &ToolCard) -> impl Iterator<Item = &str> {
    let map = card.input_schema.get("properties").and_then(Value::as_object);
    map.into_iter().flat_map(|m| m.keys().map(String::as_str))
}

/// The names of the required arguments.
pub fn required(card: &ToolCard) -> impl Iterator<Item = &str> {
    let list = card.input_schema.get("required").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Whether the schema allows this type; a schema without a type allows all.
#[must_use]
pub fn allows(schema: &Value, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == kind || (only == "number" && kind == "integer"),
        Some(Value::Array(list)) => list.iter().any(|t| t == kind),
        _ => true,
    }
}

/// The value of `name=raw`, with the type that the schema asks for. What does not fit stays text, for the schema to complain.
#[must_use]
pub fn typed(card: &ToolCard, name: &str, raw: &str) -> Value {
    let text = || Value::String(raw.to_owned());
    if let Some(quoted) = unquote(raw) {
        return Value::String(quoted);
    }
    let any = Value::Null;
    let schema = property(card, name).unwrap_or(&any);
    let only_text = schema.get("type").is_some_and(|t| t == "string");
    if only_text || !references::references(&text()).is_empty() && !raw.starts_with(['{', '[']) {
        return text();
    }
    match serde_json::from_str::<Value>(raw) {
        Ok(value) if allows(schema, kind(&value)) => value,
        _ => text(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks arguments against the card. Where there are references, types are only known when the step runs; names are checked
/// in every case.
///
/// # Errors
/// [`PlanError::InvalidArguments`] that names what is wrong and what would be right.
pub fn validate(card: &Arc<ToolCard>, arguments: &Map<String, Value>, place: &str) -> Result<(), PlanError> {
    let fail = |message: String| {
        Err(PlanError::InvalidArguments { place: place.to_owned(), tool: card.name.to_string(), message })
    };
    let size: usize = serde_json::to_string(arguments).map_or(usize::MAX, |t| t.len());
    if size > octomesh_protocol::limits::ARGUMENT_BYTES {
        return fail("the arguments are over 256 KiB; put large inputs into a file of the workspace".into());
    }
    let known: Vec<_> = names(card).collect();
    if card.input_schema.get("properties").is_some()
        && card.input_schema.get("additionalProperties") == Some(&Value::Bool(false))
        && let Some(strange) = arguments.keys().find(|k| !known.contains(&k.as_str()))
    {
        let near = nearest(strange, known.iter().copied());
        let near = if near.is_empty() { known.join(", ") } else { near.join(", ") };
        return fail(format!("there is no argument {strange:?}; there are: {near}"));
    }
    let missing: Vec<_> = required(card).filter(|r| !arguments.contains_key(*r)).collect();
    if !missing.is_empty() {
        return fail(format!(
            "{} missing: {}",
            if missing.len() == 1 { "argument" } else { "arguments" },
            missing.join(", ")
        ));
    }
    if references::references_in(arguments).is_empty() {
        // `$$` is a dollar sign by the time the schema sees it.
        let plain = references::resolve(arguments, &|_| None).unwrap_or_else(|_| arguments.clone());
        let wrong = violations(&card.input_schema, &Value::Object(plain));
        if !wrong.is_empty() {
            return fail(wrong.join("; "));
        }
    }
    Ok(())
}

/// A call as a line that can be given back: `calc expression="2 + 2"`.
#[must_use]
pub fn command(tool: &str, arguments: &Map<String, Value>, missing: &[String]) -> String {
    let mut line = tool.to_owned();
    for (name, value) in arguments {
        let value = match value {
            Value::String(s) => {
                let escaped = s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("\"{escaped}\"")
            }
            other => other.to_string(),
        };
        line.push_str(&format!(" {name}={value}"));
    }
    for name in missing {
        line.push_str(&format!(" {name}=\u{2026}"));
    }
    line
}
