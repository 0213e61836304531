//! References from arguments to earlier results: `$1.field`, `$last`, `${name.field[0].x}`.
//!
//! A text that is exactly one reference becomes the value itself, with its JSON type; inside a longer text the value is written
//! out. `$$` is a dollar sign. Anything else with a dollar sign (`$HOME`, `${}`) is text.
use std::fmt;

use serde_json::{Map, Value};

/// Which result is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultKey {
    /// The step with this number: `$3` is `s003`.
    Number(usize),
    /// The step that saved its result under this name.
    Name(String),
    /// The step before.
    Last,
}

impl fmt::Display for ResultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "${n}"),
            Self::Name(name) => write!(f, "${{{name}}}"),
            Self::Last => f.write_str("$last"),
        }
    }
}

/// One step into a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// A field of an object.
    Field(String),
    /// An element of an array.
    Index(usize),
}

/// A reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Which result.
    pub key: ResultKey,
    /// Where in it.
    pub path: Vec<Segment>,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("${")?;
        match &self.key {
            ResultKey::Number(n) => write!(f, "{n}")?,
            ResultKey::Name(name) => f.write_str(name)?,
            ResultKey::Last => f.write_str("last")?,
        }
        for segment in &self.path {
            match segment {
                Segment::Field(name) => write!(f, ".{name}")?,
                Segment::Index(i) => write!(f, "[{i}]")?,
            }
        }
        f.write_str("}")
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is; `$$` is already one dollar sign.
    Text(String),
    /// A reference.
    Reference(Reference),
}

/// Why a reference has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// No completed step has this number or name.
    #[error("there is no result {0} here")]
    Unknown(ResultKey),
    /// The result has no such part.
    #[error("{reference} is not there: {detail}")]
    Path {
        /// The reference.
        reference: String,
        /// What is there instead.
        detail: String,
    },
}

/// Takes a text apart. Linear in its length; never fails.
#[must_use]
pub fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let after = from.get(1..).unwrap_or_default();
        if let Some(tail) = after.strip_prefix('$') {
            plain.push('$');
            rest = tail;
        } else if let Some((reference, tail)) = braced(after).or_else(|| bare(after)) {
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Reference(reference));
            rest = tail;
        } else {
            plain.push('$');
            rest = after;
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    pieces
}

/// `{name.field[0]}`, behind the dollar sign.
fn braced(text: &str) -> Option<(Reference, &str)> {
    let inner = text.strip_prefix('{')?;
    let (key, rest) = word(inner, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')?;
    let (path, rest) = path(rest, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let rest = rest.strip_prefix('}')?;
    Some((Reference { key: key_of(key)?, path }, rest))
}

/// `1.field` or `last.field`, behind the dollar sign.
fn bare(text: &str) -> Option<(Reference, &str)> {
    let (key, rest) = word(text, |c| c.is_ascii_alphanumeric() || c == '_')?;
    if key != "last" && !key.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (path, rest) = path(rest, |c| c.is_ascii_alphanumeric() || c == '_');
    Some((Reference { key: key_of(key)?, path }, rest))
}

fn key_of(word: &str) -> Option<ResultKey> {
    if word == "last" {
        Some(ResultKey::Last)
    } else if word.bytes().all(|b| b.is_ascii_digit()) {
        word.parse().ok().map(ResultKey::Number)
    } else {
        Some(ResultKey::Name(word.to_owned()))
    }
}

/// The longest non-empty beginning of `text` out of `allowed` (all ASCII), and the rest.
fn word(text: &str, allowed: fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !allowed(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn path(mut text: &str, allowed: fn(char) -> bool) -> (Vec<Segment>, &str) {
    let mut path = Vec::new();
    loop {
        let field = text
            .strip_prefix('.')
            .and_then(|t| word(t, allowed))
            .filter(|(name, _)| !name.starts_with(|c: char| c.is_ascii_digit()));
        if let Some((name, rest)) = field {
            path.push(Segment::Field(name.to_owned()));
            text = rest;
            continue;
        }
        let index = text
            .strip_prefix('[')
            .and_then(|t| word(t, |c| c.is_ascii_digit()))
            .and_then(|(digits, rest)| Some((digits.parse().ok()?, rest.strip_prefix(']')?)));
        let Some((index, rest)) = index else { return (path, text) };
        path.push(Segment::Index(index));
        text = rest;
    }
}

/// Every reference in a value, keys of objects excluded.
#[must_use]
pub fn references(value: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    collect(value, &mut found);
    found
}

/// Every reference in the arguments of a call.
#[must_use]
pub fn references_in(arguments: &Map<String, Value>) -> Vec<Reference> {
    let mut found = Vec::new();
    arguments.values().for_each(|v| collect(v, &mut found));
    found
}

fn collect(value: &Value, found: &mut Vec<Reference>) {
    match value {
        Value::String(text) if text.contains('$') => {
            found.extend(pieces(text).into_iter().filter_map(|p| match p {
                Piece::Reference(r) => Some(r),
                Piece::Text(_) => None,
            }));
        }
        Value::Array(list) => list.iter().for_each(|v| collect(v, found)),
        Value::Object(map) => map.values().for_each(|v| collect(v, found)),
        _ => {}
    }
}

/// Writes every reference anew with the key that `change` gives, so that a plan names steps by their numbers only.
///
/// # Errors
/// The first error of `change`.
pub fn rewrite<E>(
    arguments: &mut Map<String, Value>,
    change: &mut dyn FnMut(&ResultKey) -> Result<ResultKey, E>,
) -> Result<(), E> {
    arguments.values_mut().try_for_each(|v| rewrite_value(v, change))
}

fn rewrite_value<E>(
    value: &mut Value,
    change: &mut dyn FnMut(&ResultKey) -> Result<ResultKey, E>,
) -> Result<(), E> {
    match value {
        Value::String(text) if text.contains('$') => {
            let mut out = String::new();
            for piece in pieces(text) {
                match piece {
                    Piece::Text(t) => out.push_str(&t.replace('$', "$$")),
                    Piece::Reference(Reference { key, path }) => {
                        out.push_str(&Reference { key: change(&key)?, path }.to_string());
                    }
                }
            }
            *text = out;
            Ok(())
        }
        Value::Array(list) => list.iter_mut().try_for_each(|v| rewrite_value(v, change)),
        Value::Object(map) => map.values_mut().try_for_each(|v| rewrite_value(v, change)),
        _ => Ok(()),
    }
}

/// The arguments with every reference replaced by what it stands for.
///
/// # Errors
/// [`ReferenceError`] of the first reference that has no value.
pub fn resolve(
    arguments: &Map<String, Value>,
    lookup: &dyn Fn(&ResultKey) -> Option<Value>,
) -> Result<Map<String, Value>, ReferenceError> {
    arguments.iter().map(|(name, value)| Ok((name.clone(), resolve_value(value, lookup)?))).collect()
}

fn resolve_value(
    value: &Value,
    lookup: &dyn Fn(&ResultKey) -> Option<Value>,
) -> Result<Value, ReferenceError> {
    Ok(match value {
        Value::String(text) if text.contains('$') => {
            let parts = pieces(text);
            if let [Piece::Reference(only)] = parts.as_slice() {
                return fetch(only, lookup);
            }
            let mut out = String::new();
            for piece in &parts {
                match piece {
                    Piece::Text(t) => out.push_str(t),
                    Piece::Reference(r) => match fetch(r, lookup)? {
                        Value::String(s) => out.push_str(&s),
                        other => out.push_str(&other.to_string()),
                    },
                }
            }
            Value::String(out)
        }
        Value::Array(list) => {
            Value::Array(list.iter().map(|v| resolve_value(v, lookup)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(resolve(map, lookup)?),
        other => other.clone(),
    })
}

fn fetch(
    reference: &Reference,
    lookup: &dyn Fn(&ResultKey) -> Option<Value>,
) -> Result<Value, ReferenceError> {
    let root = lookup(&reference.key).ok_or_else(|| ReferenceError::Unknown(reference.key.clone()))?;
    let mut value = &root;
    for segment in &reference.path {
        let next = match segment {
            Segment::Field(name) => value.get(name),
            Segment::Index(i) => value.get(i),
        };
        value = next.ok_or_else(|| ReferenceError::Path {
            reference: reference.to_string(),
            detail: match value {
                Value::Object(map) => {
                    let names: Vec<_> = map.keys().take(12).map(String::as_str).collect();
                    format!("the fields are {}", names.join(", "))
                }
                Value::Array(list) => format!("the list has {} elements", list.len()),
                other => format!("the value is {}", other.to_string().chars().take(80).collect::<String>()),
            },
        })?;
    }
    Ok(value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lookup(key: &ResultKey) -> Option<Value> {
        match key {
            ResultKey::Number(1) => Some(json!({"lines": 120, "list": [{"x": "y"}], "name": "a"})),
            ResultKey::Name(n) if n == "stats" => Some(json!("text")),
            _ => None,
        }
    }

    fn resolved(value: Value) -> Result<Value, ReferenceError> {
        let map = Map::from_iter([("v".to_owned(), value)]);
        resolve(&map, &lookup).map(|mut m| m.remove("v").unwrap())
    }

    #[test]
    fn one_reference_keeps_its_type() {
        assert_eq!(resolved(json!("$1.lines")).unwrap(), json!(120));
        assert_eq!(resolved(json!("${1.list[0].x}")).unwrap(), json!("y"));
        assert_eq!(resolved(json!("$1.list")).unwrap(), json!([{"x": "y"}]));
        assert_eq!(resolved(json!(["${stats}", {"k": "$1.name"}])).unwrap(), json!(["text", {"k": "a"}]));
    }

    #[test]
    fn inside_text_it_is_written_out() {
        assert_eq!(resolved(json!("12 * $1.lines.")).unwrap(), json!("12 * 120."));
        assert_eq!(resolved(json!("${stats}${1.list}")).unwrap(), json!(r#"text[{"x":"y"}]"#));
    }

    #[test]
    fn what_is_only_text() {
        for text in ["$HOME", "${}", "${a b}", "$", "a$", "${1.}", "${1[}"] {
            assert_eq!(resolved(json!(text)).unwrap(), json!(text), "{text}");
        }
        assert_eq!(resolved(json!("$$1 and $$")).unwrap(), json!("$1 and $"));
    }

    #[test]
    fn errors_say_what_is_there() {
        assert_eq!(resolved(json!("$7")), Err(ReferenceError::Unknown(ResultKey::Number(7))));
        let text = resolved(json!("$1.rows")).unwrap_err().to_string();
        assert_eq!(text, "${1.rows} is not there: the fields are lines, list, name");
        assert!(resolved(json!("${1.list[4]}")).unwrap_err().to_string().contains("1 elements"));
    }

    #[test]
    fn rewriting_keeps_text_as_it_is() {
        let mut map = Map::from_iter([("v".to_owned(), json!(["$last.x[2] costs $$5 in $HOME", "$2"]))]);
        rewrite::<()>(&mut map, &mut |key| {
            Ok(if *key == ResultKey::Last { ResultKey::Number(4) } else { key.clone() })
        })
        .unwrap();
        assert_eq!(map["v"], json!(["${4.x[2]} costs $$5 in $$HOME", "${2}"]));
        assert_eq!(references(&map["v"]).len(), 2);
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_taken_apart(text in ".{0,200}") {
            let _ = pieces(&text);
        }

        #[test]
        fn a_reference_reads_as_it_is_written(name in "[a-z][a-z0-9_]{0,8}", field in "[a-z_]{1,6}", index in 0usize..99) {
            proptest::prop_assume!(name != "last");
            let reference = Reference { key: ResultKey::Name(name), path: vec![Segment::Field(field), Segment::Index(index)] };
            proptest::prop_assert_eq!(pieces(&reference.to_string()), vec![Piece::Reference(reference)]);
        }
    }
}
