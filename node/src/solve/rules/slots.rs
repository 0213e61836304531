//! Finding arguments in plain words: paths, URLs, quoted texts, numbers, members of an enum, yes or no. What is not there, or is
//! there twice, is missing: nothing is guessed.
use octomesh_protocol::card::ToolCard;
use serde_json::{Map, Number, Value, json};

use crate::solve::references;

use super::{
    arguments::{allows, names, property, required},
    text::Word,
};

/// What was found for a card.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filled {
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// Required arguments that are not there, or more than once.
    pub missing: Vec<String>,
}

/// What a string argument is for, by its name and schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Path,
    Url,
    Text,
    Number,
    Enum,
    Flag,
    Other,
}

/// Whether a word looks like a path: `notes/a.md`, `a.md`, `attic:a.md`.
#[must_use]
pub fn is_path(text: &str) -> bool {
    let letters = text.chars().any(char::is_alphanumeric);
    let shape = text.contains('/') || text.trim_matches('.').contains('.');
    letters
        && shape
        && !is_url(text)
        && text.parse::<f64>().is_err()
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "=()*+?<>|".contains(c))
}

/// Whether a word is a URL.
#[must_use]
pub fn is_url(text: &str) -> bool {
    ["http://", "https://"].iter().any(|p| text.strip_prefix(p).is_some_and(|r| !r.is_empty()))
}

/// A finite number.
#[must_use]
pub fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(json!(whole));
    }
    let looks = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'));
    looks.then(|| text.parse().ok().and_then(Number::from_f64).map(Value::Number)).flatten()
}

/// Whether a word is exactly one reference to an earlier result.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    matches!(references::pieces(text).as_slice(), [references::Piece::Reference(_)])
}

fn kind_of(card: &ToolCard, name: &str, schema: &Value) -> Kind {
    let lower = name.to_lowercase();
    if schema.get("enum").is_some() {
        Kind::Enum
    } else if !allows(schema, "string") {
        match (allows(schema, "number"), allows(schema, "integer"), allows(schema, "boolean")) {
            (true, _, _) | (_, true, _) => Kind::Number,
            (_, _, true) => Kind::Flag,
            _ => Kind::Other,
        }
    } else if lower.contains("url") || schema.get("format").is_some_and(|f| f == "uri") {
        Kind::Url
    } else if card.data.iter().any(|d| d == name)
        || ["path", "file", "dir", "folder"].iter().any(|w| lower.contains(w))
    {
        Kind::Path
    } else {
        Kind::Text
    }
}

/// Looks for the arguments of `card` among the words of a clause.
#[must_use]
pub fn fill(card: &ToolCard, words: &[Word<'_>]) -> Filled {
    let needed: Vec<&str> = required(card).collect();
    let mut filled = Filled::default();
    let mut open: Vec<(&str, Kind)> = Vec::new();
    for name in names(card) {
        let any = Value::Null;
        let schema = property(card, name).unwrap_or(&any);
        let is_needed = needed.contains(&name);
        match kind_of(card, name, schema) {
            Kind::Enum => put(&mut filled, name, only(members(schema, words))),
            Kind::Flag if words.iter().any(|w| w.raw.eq_ignore_ascii_case(name)) => {
                put(&mut filled, name, Some(Value::Bool(true)));
            }
            Kind::Number if !is_needed => put(&mut filled, name, after_name(name, words)),
            kind if is_needed => open.push((name, kind)),
            // An optional path or URL is as clear as a required one when nothing else asks for it.
            kind @ (Kind::Path | Kind::Url) => open.push((name, kind)),
            _ => {}
        }
    }
    for kind in [Kind::Path, Kind::Url, Kind::Text, Kind::Number] {
        let asking: Vec<&str> = open.iter().filter(|(_, k)| *k == kind).map(|(n, _)| *n).collect();
        let asking: Vec<&str> =
            match asking.iter().copied().filter(|n| needed.contains(n)).collect::<Vec<_>>() {
                list if list.is_empty() => asking,
                list => list,
            };
        let found = candidates(kind, words);
        // One value for one place. With two of either nobody can know which belongs where.
        if let ([name], [value]) = (asking.as_slice(), found.as_slice()) {
            put(&mut filled, name, Some(value.clone()));
        }
    }
    filled.missing =
        needed.iter().filter(|n| !filled.arguments.contains_key(**n)).map(|n| (*n).to_owned()).collect();
    filled
}

fn put(filled: &mut Filled, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        filled.arguments.insert(name.to_owned(), value);
    }
}

fn only(mut values: Vec<Value>) -> Option<Value> {
    let value = values.pop()?;
    values.is_empty().then_some(value)
}

fn members(schema: &Value, words: &[Word<'_>]) -> Vec<Value> {
    let list = schema.get("enum").and_then(Value::as_array);
    let said = |m: &str| words.iter().any(|w| w.text().eq_ignore_ascii_case(m));
    list.into_iter().flatten().filter(|m| m.as_str().is_some_and(said)).cloned().collect()
}

/// `limit 5`
fn after_name(name: &str, words: &[Word<'_>]) -> Option<Value> {
    let at = words.iter().position(|w| w.raw.eq_ignore_ascii_case(name))?;
    number(words.get(at + 1)?.raw)
}

fn candidates(kind: Kind, words: &[Word<'_>]) -> Vec<Value> {
    let text = |w: &Word<'_>| Value::String(w.text());
    let plain = |w: &&Word<'_>| w.quoted().is_none();
    match kind {
        Kind::Path => words.iter().filter(|w| is_path(&w.text()) || is_reference(w.raw)).map(text).collect(),
        Kind::Url => words.iter().filter(|w| is_url(&w.text())).map(text).collect(),
        Kind::Text => {
            words.iter().filter(|w| w.quoted().is_some() || is_reference(w.raw)).map(text).collect()
        }
        Kind::Number => words.iter().filter(plain).filter_map(|w| number(w.raw)).collect(),
        Kind::Enum | Kind::Flag | Kind::Other => Vec::new(),
    }
}
