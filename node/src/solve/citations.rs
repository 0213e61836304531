//! Sources of an answer, numbered per run: `[rag-1]` for what was read from files, `[web-1]` for what came over the network,
//! `[code-1]` for what was computed. The same content has one number.
use octomesh_protocol::{card::ToolCard, id::NodeName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::limits::CITATION_CHARS;

/// What kind of source it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum Prefix {
    /// Stored text.
    Rag,
    /// The network.
    Web,
    /// A computation.
    Code,
}

impl Prefix {
    /// The kind of what this tool returns.
    #[must_use]
    pub fn of(card: &ToolCard) -> Self {
        if !card.data.is_empty() {
            Self::Rag
        } else if card.needs.network {
            Self::Web
        } else {
            Self::Code
        }
    }
}

/// A source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    /// `[rag-1]`.
    pub id: String,
    /// What it says, at most 2,000 characters.
    pub content: String,
    /// Where it is from: `file_read(path=notes/a.md) on attic`.
    pub source: String,
    /// SHA-256 of the whole content: an excerpt may begin alike.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    digest: String,
}

/// The sources of one run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Citations(Vec<Citation>);

impl Citations {
    /// Numbers a source and returns its id; content that was numbered before under this prefix keeps its number.
    pub fn add(&mut self, prefix: Prefix, content: &str, source: &str) -> String {
        let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(content));
        let start = format!("[{prefix}-");
        let mut count = 0_usize;
        for known in self.0.iter().filter(|c| c.id.starts_with(&start)) {
            if known.digest == digest {
                return known.id.clone();
            }
            count += 1;
        }
        let id = format!("{start}{}]", count + 1);
        let content = content.chars().take(CITATION_CHARS).collect();
        self.0.push(Citation { id: id.clone(), content, source: source.to_owned(), digest });
        id
    }

    /// All sources, in the order in which they were added.
    #[must_use]
    pub fn get_all(&self) -> &[Citation] {
        &self.0
    }

    /// Forgets all sources; numbers begin at 1 again.
    pub fn reset(&mut self) {
        self.0.clear();
    }
}

/// A source in one line: the call with short arguments, and where it ran.
#[must_use]
pub fn source(tool: &str, arguments: &Map<String, Value>, node: Option<&NodeName>) -> String {
    let arguments: Vec<_> = arguments.iter().map(|(k, v)| format!("{k}={}", short(v))).collect();
    let node = node.map_or_else(String::new, |n| format!(" on {n}"));
    format!("{tool}({}){node}", arguments.join(", "))
}

fn short(value: &Value) -> String {
    const CHARS: usize = 60;
    let text = match value {
        Value::String(s) => s.replace('\n', " "),
        other => other.to_string(),
    };
    if text.chars().count() > CHARS {
        format!("{}\u{2026}", text.chars().take(CHARS).collect::<String>())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f71_numbers_per_prefix_and_content() {
        let mut c = Citations::default();
        assert_eq!(c.add(Prefix::Rag, "a", "k1"), "[rag-1]");
        assert_eq!(c.add(Prefix::Code, "a", "k2"), "[code-1]");
        assert_eq!(c.add(Prefix::Rag, "b", "k3"), "[rag-2]");
        assert_eq!(c.add(Prefix::Rag, "a", "k4"), "[rag-1]");
        assert_eq!(c.add(Prefix::Web, "x", "k5"), "[web-1]");
        let all: Vec<_> =
            c.get_all().iter().map(|c| (c.id.as_str(), c.content.as_str(), c.source.as_str())).collect();
        assert_eq!(
            all,
            [("[rag-1]", "a", "k1"), ("[code-1]", "a", "k2"), ("[rag-2]", "b", "k3"), ("[web-1]", "x", "k5")]
        );
        c.reset();
        assert_eq!(c.add(Prefix::Rag, "z", "k6"), "[rag-1]");
    }

    #[test]
    fn two_runs_share_nothing() {
        let (mut one, mut two) = (Citations::default(), Citations::default());
        one.add(Prefix::Rag, "a", "");
        assert_eq!(two.add(Prefix::Rag, "b", ""), "[rag-1]");
    }

    #[test]
    fn long_contents_with_the_same_beginning_differ() {
        let mut c = Citations::default();
        let long = "x".repeat(CITATION_CHARS);
        c.add(Prefix::Rag, &format!("{long}1"), "");
        assert_eq!(c.add(Prefix::Rag, &format!("{long}2"), ""), "[rag-2]");
        assert_eq!(c.get_all()[0].content.chars().count(), CITATION_CHARS);
    }

    #[test]
    fn sources_are_one_line() {
        let arguments = serde_json::json!({"path": "a\nb", "n": 3, "long": "y".repeat(100)});
        let text = source("t", arguments.as_object().unwrap(), NodeName::parse("attic").ok().as_ref());
        assert!(text.starts_with("t(long=yyy") && text.ends_with("path=a b) on attic"), "{text}");
        assert!(!text.contains('\n'));
    }
}
