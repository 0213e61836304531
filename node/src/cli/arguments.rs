//! Arguments of a tool on the command line: one JSON object, or `key=value` read the way the tool's card wants it.
use std::io::Read;

use clap::Args;
use octomesh_protocol::limits;
use serde_json::{Map, Value};

use super::{client::Client, exit::CliError};
use crate::api::{
    body::{self, JsonError},
    types::ToolDetail,
};

/// `TOOL [JSON | k=v …]`.
#[derive(Debug, Args)]
pub(super) struct ToolArguments {
    /// The tool
    pub(super) tool: String,
    /// Its arguments: one JSON object, key=value pairs, or - for a JSON object on stdin
    #[arg(value_name = "JSON | KEY=VALUE")]
    pub(super) arguments: Vec<String>,
}

impl ToolArguments {
    /// The arguments as JSON; asks the node for the tool's card when there are pairs.
    ///
    /// # Errors
    /// A usage error before anything is sent, or the node's.
    pub(super) async fn resolve(&self, client: &Client) -> Result<Map<String, Value>, CliError> {
        let map = match self.arguments.as_slice() {
            [] => Map::new(),
            [one] if one == "-" => object(&stdin()?)?,
            [one] if one.trim_start().starts_with(['{', '[']) => object(one.as_bytes())?,
            pairs => {
                let split = split_pairs(pairs)?;
                let detail: ToolDetail = client.get(&["api", "tools", &self.tool]).await?;
                typed(split, &detail.card.input_schema)?
            }
        };
        let size = serde_json::to_vec(&map).map_err(|e| CliError::failed(e.to_string()))?.len();
        if size > limits::INPUT_BYTES {
            return Err(usage(&JsonError::TooLarge { bytes: size, limit: limits::INPUT_BYTES }));
        }
        Ok(map)
    }
}

fn usage(error: &JsonError) -> CliError {
    let code: &'static str = error.into();
    let mut wrong = CliError::usage(format!("the arguments are not what a call can have: {error}"));
    if let JsonError::TooLarge { .. } = error {
        wrong = wrong.hint("put large inputs into a file of the workspace and pass its path");
    }
    wrong.body.code = code.to_owned();
    wrong
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, CliError> {
    match body::parse_json(bytes, limits::INPUT_BYTES).map_err(|e| usage(&e))? {
        Value::Object(map) => Ok(map),
        other => Err(usage(&JsonError::Malformed(format!("a JSON object is needed, not {}", kind(&other))))),
    }
}

/// One byte over the limit is enough to know that it is over.
fn stdin() -> Result<Vec<u8>, CliError> {
    let (mut bytes, limit) = (Vec::new(), limits::INPUT_BYTES as u64 + 1);
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| CliError::failed(format!("stdin can't be read: {e}")))?;
    Ok(bytes)
}

fn split_pairs(words: &[String]) -> Result<Vec<(&str, &str)>, CliError> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for word in words {
        let shown: String = word.chars().take(60).collect();
        let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(CliError::usage(format!("{shown:?} is neither key=value nor the only JSON object")));
        };
        if pairs.iter().any(|(known, _)| *known == key) {
            return Err(CliError::usage(format!("the argument {key:?} is given twice")));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn typed(pairs: Vec<(&str, &str)>, schema: &Value) -> Result<Map<String, Value>, CliError> {
    pairs
        .into_iter()
        .map(|(key, text)| {
            let wanted = schema.get("properties").and_then(|properties| properties.get(key));
            Ok((key.to_owned(), value_of(text, wanted)?))
        })
        .collect()
}

/// Text stays text unless it is JSON of another type that the schema allows.
fn value_of(text: &str, schema: Option<&Value>) -> Result<Value, CliError> {
    let as_text = || Ok(Value::String(text.to_owned()));
    let mut wanted = Vec::new();
    if let Some(schema) = schema {
        types_of(schema, &mut wanted, 0);
    }
    let any = wanted.is_empty();
    if !any && wanted.iter().all(|t| *t == "string") {
        return as_text();
    }
    let parsed: Value = match body::parse_json(text.as_bytes(), limits::INPUT_BYTES) {
        Ok(value) => value,
        // Brackets that are too deep are not meant as text.
        Err(error @ JsonError::TooDeep) => return Err(usage(&error)),
        Err(_) => return as_text(),
    };
    let fits = wanted.iter().any(|t| *t == kind(&parsed) || (*t == "number" && kind(&parsed) == "integer"));
    if parsed.is_string() || !(any || fits) { as_text() } else { Ok(parsed) }
}

/// A schema inside a schema inside a schema says no more about one word of a command line.
const SCHEMA_DEPTH: usize = 4;

fn types_of<'a>(schema: &'a Value, found: &mut Vec<&'a str>, depth: usize) {
    match schema.get("type") {
        Some(Value::String(one)) => found.push(one),
        Some(Value::Array(several)) => found.extend(several.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if found.is_empty() {
        let values =
            schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
        found.extend(values.map(|value| -> &'a str { kind(value) }));
    }
    if depth < SCHEMA_DEPTH {
        for word in ["anyOf", "oneOf"] {
            for inner in schema.get(word).and_then(Value::as_array).into_iter().flatten() {
                types_of(inner, found, depth + 1);
            }
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::exit::Exit;

    #[test]
    fn values_are_what_the_schema_wants() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "12", json!("12")),
            (json!({"type": "string"}), "true", json!("true")),
            (json!({"type": "string"}), "{\"a\":1}", json!("{\"a\":1}")),
            (json!({"type": "integer"}), "12", json!(12)),
            (json!({"type": "integer"}), "1.5", json!("1.5")),
            (json!({"type": "integer"}), "twelve", json!("twelve")),
            (json!({"type": "number"}), "12", json!(12)),
            (json!({"type": "number"}), "-1.5e3", json!(-1500.0)),
            (json!({"type": "boolean"}), "true", json!(true)),
            (json!({"type": "boolean"}), "1", json!("1")),
            (json!({"type": "array"}), "[1,2]", json!([1, 2])),
            (json!({"type": ["array", "null"]}), "null", json!(null)),
            (json!({"type": ["string", "number"]}), "7", json!(7)),
            (json!({"type": ["string", "null"]}), "7", json!("7")),
            (json!({"enum": ["1", "2"]}), "1", json!("1")),
            (json!({"enum": [1, 2]}), "1", json!(1)),
            (json!({"anyOf": [{"type": "string"}, {"type": "object"}]}), "{\"a\":1}", json!({"a": 1})),
            (json!({}), "7", json!(7)),
            (json!({}), "{\"a\":1}", json!({"a": 1})),
            (json!({}), "\"quoted\"", json!("\"quoted\"")),
            (json!({}), "plain text", json!("plain text")),
            (json!({"type": "string"}), "", json!("")),
            (json!({"type": "string"}), "a=b", json!("a=b")),
        ] {
            assert_eq!(value_of(text, Some(&schema)).unwrap(), expected, "{text} for {schema}");
        }
        assert_eq!(value_of("5", None).unwrap(), json!(5));
        let deep = "[".repeat(1000);
        assert_eq!(value_of(&deep, None).unwrap_err().body.code, "too_deep");
        assert_eq!(value_of(&deep, Some(&json!({"type": "string"}))).unwrap(), json!(deep));
    }

    #[test]
    fn pairs() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            split_pairs(&words(&["a=1", "b=x=y", "c="])).unwrap(),
            [("a", "1"), ("b", "x=y"), ("c", "")]
        );
        for bad in [&["a"][..], &["=1"], &["a=1", "a=2"], &["{}", "a=1"]] {
            assert_eq!(split_pairs(&words(bad)).unwrap_err().exit, Exit::Usage, "{bad:?}");
        }
    }

    #[test]
    fn wrong_json_is_a_usage_error() {
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(9 << 20));
        let deep = format!("{{\"a\":{}", "[".repeat(10_000));
        for (text, code) in
            [("{", "malformed"), ("[1]", "malformed"), (&large, "too_large"), (&deep, "too_deep")]
        {
            let error = object(text.as_bytes()).unwrap_err();
            assert_eq!((error.exit, error.body.code.as_str()), (Exit::Usage, code));
        }
        assert_eq!(object(b" {\"a\": 1} ").unwrap(), *json!({"a": 1}).as_object().unwrap());
    }
}
