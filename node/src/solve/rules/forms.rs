//! Explicit calls: `tool k=v k2="quoted text"`, `tool: {json}`, `tool {json}`, each with an optional `as name` at the end.
use std::sync::Arc;

use octomesh_protocol::{card::ToolCard, id::ToolName};
use serde_json::{Map, Value};

use crate::solve::plan::PlanError;

use super::{
    arguments,
    text::{Word, nearest, words},
};

/// A clause that has the form of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Form<'a> {
    /// The name as it is written.
    pub tool: &'a str,
    /// What follows.
    pub arguments: FormArguments<'a>,
    /// The name of the result.
    pub save_as: Option<&'a str>,
}

/// What follows the tool's name.
#[derive(Debug, Clone, PartialEq)]
pub enum FormArguments<'a> {
    /// Nothing.
    None,
    /// Text that begins with a brace.
    Json(&'a str),
    /// `k=v`.
    Pairs(Vec<(&'a str, &'a str)>),
    /// `k=v` that ends in something else: the word is given.
    Broken(&'a str),
}

/// Whether a text may name a result.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && text != "last"
}

/// Takes `as name` off the end of a clause.
#[must_use]
pub fn split_name(clause: &str) -> (&str, Option<&str>) {
    let mut list = words(clause);
    let (Some(name), Some(keyword)) = (list.pop(), list.pop()) else { return (clause, None) };
    if keyword.raw.eq_ignore_ascii_case("as") && is_name(name.raw) && !list.is_empty() {
        let without = clause.strip_suffix(name.raw).map(str::trim_end);
        if let Some(head) = without.and_then(|c| c.strip_suffix(keyword.raw)) {
            return (head.trim_end(), Some(name.raw));
        }
    }
    (clause, None)
}

/// Reads a clause as a call; `None` when it has no such form. Whether the tool exists is not looked at.
#[must_use]
pub fn parse(clause: &str) -> Option<Form<'_>> {
    let (body, save_as) = split_name(clause.trim());
    let end = body.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(body.len());
    let (tool, rest) = body.split_at_checked(end)?;
    ToolName::parse(tool).ok()?;
    let (rest, colon) = match rest.trim_start().strip_prefix(':') {
        Some(rest) => (rest.trim(), true),
        None => (rest.trim_start(), false),
    };
    let form = |arguments| Some(Form { tool, arguments, save_as });
    if rest.starts_with('{') {
        return form(FormArguments::Json(rest));
    }
    if rest.is_empty() {
        return if colon { None } else { form(FormArguments::None) };
    }
    // A name that ends in something else than white space (`notes/a.md`, `what's`) is no tool.
    if !colon && !body.get(end..)?.starts_with(char::is_whitespace) {
        return None;
    }
    let list = words(rest);
    pair(list.first()?)?;
    let mut pairs = Vec::new();
    for word in &list {
        match pair(word) {
            Some(found) => pairs.push(found),
            None => return form(FormArguments::Broken(word.raw)),
        }
    }
    form(FormArguments::Pairs(pairs))
}

fn pair<'a>(word: &Word<'a>) -> Option<(&'a str, &'a str)> {
    let (name, value) = word.raw.split_once('=')?;
    (is_name(name) && !value.starts_with('=')).then_some((name, value))
}

impl Form<'_> {
    /// The arguments with types.
    ///
    /// # Errors
    /// [`PlanError::InvalidArguments`]: not JSON, a name twice, a word without a name.
    pub fn to_arguments(&self, card: &Arc<ToolCard>, place: &str) -> Result<Map<String, Value>, PlanError> {
        let fail = |message: String| PlanError::InvalidArguments {
            place: place.to_owned(),
            tool: self.tool.to_owned(),
            message,
        };
        let mut map = Map::new();
        match &self.arguments {
            FormArguments::None => {}
            FormArguments::Json(text) => {
                map = serde_json::from_str(text).map_err(|e| fail(format!("not a JSON object: {e}")))?;
            }
            FormArguments::Broken(word) => {
                return Err(fail(format!(
                    "{word:?} has no name; write name=value, and quote values with spaces"
                )));
            }
            FormArguments::Pairs(pairs) => {
                for (name, raw) in pairs {
                    let value = arguments::typed(card, name, raw);
                    if map.insert((*name).to_owned(), value).is_some() {
                        return Err(fail(format!("argument {name:?} is given twice")));
                    }
                }
            }
        }
        arguments::validate(card, &map, place)?;
        Ok(map)
    }
}

/// The error of a form whose tool no node has.
#[must_use]
pub fn unknown_tool<'a>(tool: &str, names: impl Iterator<Item = &'a str>, place: &str) -> PlanError {
    PlanError::UnknownTool {
        place: place.to_owned(),
        tool: tool.to_owned(),
        suggestions: nearest(tool, names),
    }
}
