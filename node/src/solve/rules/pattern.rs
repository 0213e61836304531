//! Patterns of recipes: `read [the] [file] {path}`, `count the (words|lines) in {path}`.
use std::collections::BTreeMap;

use serde_json::Value;

use crate::solve::references::{self, Piece};

use super::{
    slots::{is_path, is_reference, number},
    text::Word,
    zones,
};

/// What the slots of a pattern have caught.
pub(super) type Captures = BTreeMap<String, Value>;

/// Attempts at fitting one clause; enough for four slots in a long sentence, and a bound for an unlucky pattern.
const ATTEMPTS: usize = 20_000;
/// Slots of one pattern.
const SLOTS: usize = 4;
/// Functions and constants that may stand in an expression.
const MATH_WORDS: [&str; 22] = [
    "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "ln", "log", "log2", "log10", "exp", "abs", "floor",
    "ceil", "round", "min", "max", "pow", "pi", "e", "mod",
];

/// What a slot takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotKind {
    /// A path.
    Path,
    /// One or more words.
    Text,
    /// A number.
    Number,
    /// Arithmetic.
    Expression,
    /// A time zone, or one of the cities that are known.
    Tz,
    /// One word.
    Word,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Word(String),
    Slot(String, SlotKind),
    Optional(Vec<String>),
    OneOf(Vec<Vec<String>>),
}

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Part>);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let close = match first {
                '[' => ']',
                '(' => ')',
                '{' => '}',
                _ => {
                    let end =
                        rest.find(|c: char| c.is_whitespace() || "[({".contains(c)).unwrap_or(rest.len());
                    let (word, tail) = rest.split_at(end);
                    parts.push(Part::Word(word.to_lowercase()));
                    rest = tail.trim_start();
                    continue;
                }
            };
            let (inner, tail) = rest
                .get(1..)
                .and_then(|r| r.split_once(close))
                .ok_or_else(|| format!("{first} is not closed"))?;
            parts.push(group(first, inner)?);
            rest = tail.trim_start();
        }
        let slots: Vec<_> =
            parts.iter().filter_map(|p| if let Part::Slot(n, _) = p { Some(n) } else { None }).collect();
        let distinct: std::collections::BTreeSet<_> = slots.iter().collect();
        if slots.len() > SLOTS || distinct.len() != slots.len() {
            return Err(format!("at most {SLOTS} slots, each with a name of its own"));
        }
        if !parts.iter().any(|p| !matches!(p, Part::Optional(_))) {
            return Err("nothing in it must be there".into());
        }
        Ok(Self(parts))
    }

    /// What the slots catch when the whole clause fits.
    #[must_use]
    pub(super) fn fit(&self, words: &[Word<'_>]) -> Option<Captures> {
        let mut captures = Captures::new();
        let mut attempts = ATTEMPTS;
        fit(&self.0, words, &mut captures, &mut attempts).then_some(captures)
    }
}

fn group(kind: char, inner: &str) -> Result<Part, String> {
    let phrase = |t: &str| t.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>();
    match kind {
        '[' => Ok(Part::Optional(phrase(inner))),
        '(' => Ok(Part::OneOf(inner.split('|').map(phrase).filter(|p| !p.is_empty()).collect())),
        _ => {
            let (name, kind) = inner.split_once(':').unwrap_or((inner, inner));
            let kind = match kind.trim() {
                "path" => SlotKind::Path,
                "text" => SlotKind::Text,
                "number" => SlotKind::Number,
                "expression" => SlotKind::Expression,
                "tz" => SlotKind::Tz,
                "word" => SlotKind::Word,
                other => return Err(format!("there is no slot {other:?}")),
            };
            Ok(Part::Slot(name.trim().to_owned(), kind))
        }
    }
}

fn fit(parts: &[Part], words: &[Word<'_>], captures: &mut Captures, attempts: &mut usize) -> bool {
    let Some(left) = attempts.checked_sub(1) else { return false };
    *attempts = left;
    let Some((part, parts)) = parts.split_first() else { return words.is_empty() };
    match part {
        Part::Word(word) => {
            phrase(std::slice::from_ref(word), words).is_some_and(|rest| fit(parts, rest, captures, attempts))
        }
        Part::Optional(list) => {
            phrase(list, words).is_some_and(|rest| fit(parts, rest, captures, attempts))
                || fit(parts, words, captures, attempts)
        }
        Part::OneOf(list) => {
            list.iter().any(|p| phrase(p, words).is_some_and(|rest| fit(parts, rest, captures, attempts)))
        }
        Part::Slot(name, kind) => {
            let most = match kind {
                SlotKind::Path | SlotKind::Number | SlotKind::Word => 1,
                SlotKind::Tz => 3,
                SlotKind::Text | SlotKind::Expression => words.len(),
            };
            (1..=most).any(|length| {
                let Some((taken, rest)) = words.split_at_checked(length) else { return false };
                let Some(value) = accept(*kind, taken) else { return false };
                captures.insert(name.clone(), value);
                fit(parts, rest, captures, attempts) || {
                    captures.remove(name);
                    false
                }
            })
        }
    }
}

/// The rest behind these words.
fn phrase<'a, 'b>(phrase: &[String], words: &'a [Word<'b>]) -> Option<&'a [Word<'b>]> {
    let (head, rest) = words.split_at_checked(phrase.len())?;
    let same = |(p, w): (&String, &Word<'_>)| {
        w.quoted().is_none() && w.raw.trim_end_matches(',').to_lowercase() == *p
    };
    phrase.iter().zip(head).all(same).then_some(rest)
}

fn accept(kind: SlotKind, taken: &[Word<'_>]) -> Option<Value> {
    let text = match taken {
        [only] => only.text(),
        many => many.iter().map(|w| w.raw).collect::<Vec<_>>().join(" "),
    };
    let quoted = matches!(taken, [only] if only.quoted().is_some());
    let fits = match kind {
        SlotKind::Path => quoted || is_path(&text) || is_reference(&text),
        SlotKind::Text => true,
        SlotKind::Word => !text.is_empty(),
        SlotKind::Number => {
            return if quoted {
                None
            } else {
                number(&text).or_else(|| is_reference(&text).then_some(Value::String(text)))
            };
        }
        SlotKind::Expression => quoted || is_expression(&text),
        SlotKind::Tz => return zones::zone(&text).map(|z| Value::String(z.to_owned())),
    };
    (fits && !text.is_empty()).then_some(Value::String(text))
}

/// Digits, operators, known functions and references; at least one number or reference, so that no word is arithmetic.
fn is_expression(text: &str) -> bool {
    let mut has_value = false;
    for piece in references::pieces(text) {
        match piece {
            Piece::Reference(_) => has_value = true,
            Piece::Text(plain) => {
                has_value |= plain.contains(|c: char| c.is_ascii_digit());
                let allowed = |c: char| {
                    c.is_ascii_alphanumeric() || c.is_whitespace() || "+-*/^%().,_\u{d7}\u{f7}!".contains(c)
                };
                let words = plain
                    .split(|c: char| !c.is_ascii_alphanumeric())
                    .filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic()));
                if !plain.chars().all(allowed) || !words.into_iter().all(|w| MATH_WORDS.contains(&w)) {
                    return false;
                }
            }
        }
    }
    has_value
}
