//! `json`: parse, query with JSONPath, write as text, check against a schema.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};
use serde_json_path::JsonPath;

use super::blocking;
use crate::{
    registry::RegistryError,
    schema,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

/// The tool.
#[derive(Debug)]
pub struct Json(Arc<ToolCard>);

impl Json {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/json.toml"), "json.toml").map(Self)
    }
}

#[async_trait]
impl Tool for Json {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, _context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        // A query with nested filters over a large document can take seconds.
        blocking(move || answer(&arguments)).await.map(Into::into)
    }
}

fn answer(arguments: &Arguments) -> Result<Value, ToolError> {
    let data = arguments
        .get("data")
        .ok_or_else(|| ToolError::InvalidArguments("argument `data` is missing".into()))?;
    match super::text(arguments, "op")? {
        "parse" => Ok(json!({ "value": document(data)? })),
        "query" => {
            let path = super::text(arguments, "path")?;
            let path = JsonPath::parse(path)
                .map_err(|e| ToolError::InvalidArguments(format!("argument `path`: {e}")))?;
            let document = document(data)?;
            let matches = path.query(&document).all();
            Ok(json!({ "count": matches.len(), "matches": matches }))
        }
        "stringify" => {
            let text = serde_json::to_string_pretty(data).map_err(|e| ToolError::Failed(e.to_string()))?;
            Ok(json!({ "text": text }))
        }
        "validate" => {
            let wanted = arguments
                .get("schema")
                .ok_or_else(|| ToolError::InvalidArguments("argument `schema` is missing".into()))?;
            let checked = schema::validate(wanted, &document(data)?)
                .map_err(|e| ToolError::InvalidArguments(format!("argument `schema`: {e}")))?;
            Ok(match checked {
                Ok(()) => json!({ "valid": true }),
                Err(faults) => json!({ "valid": false, "error": faults }),
            })
        }
        other => Err(ToolError::InvalidArguments(format!("argument `op`: unknown operation {other:?}"))),
    }
}

/// A text is parsed; anything else is a document already.
fn document(data: &Value) -> Result<Value, ToolError> {
    match data {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|e| ToolError::InvalidArguments(format!("argument `data` is not JSON: {e}"))),
        other => Ok(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(arguments: Value) -> Result<Value, ToolError> {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        answer(&arguments)
    }

    #[test]
    fn operations() {
        assert_eq!(
            ask(json!({"op": "parse", "data": "{\"a\": [1]}"})).unwrap(),
            json!({"value": {"a": [1]}})
        );
        let store = json!({"books": [{"t": "A", "p": 5}, {"t": "B", "p": 15}]});
        assert_eq!(
            ask(json!({"op": "query", "data": store, "path": "$.books[?@.p > 10].t"})).unwrap(),
            json!({"count": 1, "matches": ["B"]})
        );
        assert_eq!(
            ask(json!({"op": "query", "data": store.to_string(), "path": "$..p"})).unwrap()["matches"],
            json!([5, 15])
        );
        assert_eq!(ask(json!({"op": "stringify", "data": {"a": 1}})).unwrap()["text"], "{\n  \"a\": 1\n}");
        let schema = json!({"type": "object", "required": ["a"]});
        assert_eq!(
            ask(json!({"op": "validate", "data": {"a": 1}, "schema": schema})).unwrap()["valid"],
            true
        );
        let bad = ask(json!({"op": "validate", "data": {}, "schema": schema})).unwrap();
        assert_eq!(bad, json!({"valid": false, "error": "argument `a` is missing"}));
    }

    #[test]
    fn bad_input_is_named() {
        for (arguments, word) in [
            (json!({"op": "parse", "data": "{"}), "`data` is not JSON"),
            (json!({"op": "parse", "data": "[".repeat(10_000)}), "`data` is not JSON"),
            (json!({"op": "query", "data": {}}), "`path` is missing"),
            (json!({"op": "query", "data": {}, "path": "$["}), "`path`"),
            (json!({"op": "validate", "data": {}}), "`schema` is missing"),
            (json!({"op": "validate", "data": {}, "schema": {"type": "x"}}), "`schema`"),
            (json!({"op": "validate", "data": {}, "schema": {"$ref": "http://127.0.0.1:1/"}}), "`schema`"),
        ] {
            let error = ask(arguments.clone()).unwrap_err().to_string();
            assert!(error.contains(word), "{arguments}: {error}");
        }
    }
}
