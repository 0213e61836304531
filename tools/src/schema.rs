//! Argument validation: a compiled schema, and errors that name the argument and what was expected.
//!
//! Nothing is ever fetched: a `$ref` that leaves the schema is an error at compile time. Patterns run on a linear engine, so a
//! schema from outside can't make a match take exponential time.
use std::fmt::Write as _;

use jsonschema::{
    Draft, PatternOptions, ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::{Map, Value};

/// Faults named in one message; more would bury the first.
const FAULTS: usize = 5;
/// Characters of a value or a message of the validator that are repeated in ours.
const SHOWN_CHARS: usize = 200;

/// Why a schema can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum SchemaError {
    /// Not a valid schema, or one that points outside of itself.
    #[error("schema: {0}")]
    Invalid(String),
    /// Arguments are an object; this schema describes something else.
    #[error("schema: its type must be \"object\"")]
    NotAnObject,
}

/// A compiled schema of arguments.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    names: Vec<String>,
}

impl Schema {
    /// Compiles a schema (2020-12 unless it says otherwise) whose type is `object`.
    ///
    /// # Errors
    /// [`SchemaError`].
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err(SchemaError::NotAnObject);
        }
        let validator = compile(schema)?;
        let names = match schema.get("properties") {
            Some(Value::Object(properties)) => properties.keys().cloned().collect(),
            _ => Vec::new(),
        };
        Ok(Self { validator, names })
    }

    /// Checks arguments.
    ///
    /// # Errors
    /// One line that names each wrong argument (at most five) and what was expected.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), String> {
        let value = Value::Object(arguments.clone());
        faults(&self.validator, &value, &self.names)
    }
}

/// Checks any JSON value against any schema; what the `json` tool offers.
///
/// # Errors
/// `Err` when the schema is unusable; `Ok(Err(faults))` when the value does not match.
pub fn validate(schema: &Value, value: &Value) -> Result<Result<(), String>, SchemaError> {
    Ok(faults(&compile(schema)?, value, &[]))
}

fn compile(schema: &Value) -> Result<Validator, SchemaError> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .offline()
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|e| SchemaError::Invalid(shorten(&e.to_string())))
}

fn faults(validator: &Validator, value: &Value, names: &[String]) -> Result<(), String> {
    let mut text = String::new();
    let mut errors = validator.iter_errors(value);
    for error in errors.by_ref().take(FAULTS) {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&describe(&error, names));
    }
    if errors.next().is_some() {
        text.push_str("; and more");
    }
    if text.is_empty() { Ok(()) } else { Err(text) }
}

fn describe(error: &ValidationError<'_>, names: &[String]) -> String {
    let place = error.instance_path().to_string();
    let place = place.trim_start_matches('/').replace('/', ".");
    let at = if place.is_empty() { String::new() } else { format!("argument `{}`: ", shorten(&place)) };
    let got = error.instance();
    let expected = match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            let within = if place.is_empty() { String::new() } else { format!(" in `{}`", shorten(&place)) };
            return format!("argument `{}` is missing{within}", shorten(name));
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            let unknown = unexpected.first().map_or("", String::as_str);
            let mut text = format!("{at}unknown argument `{}`", shorten(unknown));
            if place.is_empty() && !names.is_empty() {
                // silent-ok: writing to a String can't fail
                let _ = write!(text, "; known are {}", names.join(", "));
            }
            return text;
        }
        ValidationErrorKind::Type { kind } => format!("expected {}", type_names(kind)),
        ValidationErrorKind::Enum { options } => format!("expected one of {}", shorten(&options.to_string())),
        ValidationErrorKind::Constant { expected_value } => {
            format!("expected {}", shorten(&expected_value.to_string()))
        }
        ValidationErrorKind::Minimum { limit } => format!("expected at least {limit}"),
        ValidationErrorKind::Maximum { limit } => format!("expected at most {limit}"),
        ValidationErrorKind::ExclusiveMinimum { limit } => format!("expected more than {limit}"),
        ValidationErrorKind::ExclusiveMaximum { limit } => format!("expected less than {limit}"),
        ValidationErrorKind::MinLength { limit } => format!("expected at least {limit} characters"),
        ValidationErrorKind::MaxLength { limit } => format!("expected at most {limit} characters"),
        ValidationErrorKind::MinItems { limit } => format!("expected at least {limit} items"),
        ValidationErrorKind::MaxItems { limit } => format!("expected at most {limit} items"),
        ValidationErrorKind::Pattern { pattern } => format!("expected a match of {}", shorten(pattern)),
        _ => return format!("{at}{}", shorten(&error.masked().to_string())),
    };
    format!("{at}{expected}, got {}", shown(got))
}

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(set) => set.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(" or "),
    }
}

/// A value in a message: scalars as they are, large ones by their kind and size.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => format!("boolean {b}"),
        Value::Number(n) => format!("number {n}"),
        Value::String(s) if s.len() <= 60 => format!("string {s:?}"),
        Value::String(s) => format!("a string of {} bytes", s.len()),
        Value::Array(a) => format!("an array of {} items", a.len()),
        Value::Object(o) => format!("an object with {} keys", o.len()),
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, value: Value) -> Result<(), String> {
        let Value::Object(arguments) = value else { panic!("an object") };
        Schema::compile(&schema).unwrap().check(&arguments)
    }

    fn echo() -> Value {
        json!({"type": "object", "required": ["text"], "additionalProperties": false,
               "properties": {"text": {"type": "string", "maxLength": 5}, "op": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 1}}})
    }

    #[test]
    fn messages_name_the_argument_and_what_was_expected() {
        assert_eq!(check(echo(), json!({"text": "hi"})), Ok(()));
        assert_eq!(check(echo(), json!({})).unwrap_err(), "argument `text` is missing");
        assert_eq!(
            check(echo(), json!({"text": 5})).unwrap_err(),
            "argument `text`: expected string, got number 5"
        );
        assert_eq!(
            check(echo(), json!({"text": "a", "x": 1})).unwrap_err(),
            "unknown argument `x`; known are n, op, text"
        );
        assert_eq!(
            check(echo(), json!({"text": "a", "op": "c"})).unwrap_err(),
            "argument `op`: expected one of [\"a\",\"b\"], got string \"c\""
        );
        assert_eq!(
            check(echo(), json!({"text": "a", "n": 0})).unwrap_err(),
            "argument `n`: expected at least 1, got number 0"
        );
    }

    #[test]
    fn a_large_value_is_not_repeated() {
        let message = check(echo(), json!({"text": "x".repeat(10 << 20)})).unwrap_err();
        assert_eq!(message, "argument `text`: expected at most 5 characters, got a string of 10485760 bytes");
        let many: Map<String, Value> = (0..1000).map(|i| (format!("k{i}"), json!(1))).collect();
        assert!(check(echo(), Value::Object(many)).unwrap_err().len() < 1000);
    }

    #[test]
    fn bad_schemas_are_refused_and_nothing_is_fetched() {
        for bad in [
            json!({"type": "string"}),
            json!({"type": "object", "properties": {"a": {"type": "strung"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
            json!(true),
        ] {
            assert!(Schema::compile(&bad).is_err(), "{bad}");
        }
    }
}
