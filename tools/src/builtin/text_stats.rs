//! `text_stats`: counts lines, words, characters, bytes and sentences, and the most frequent words.
use std::{collections::BTreeMap, io::Read, sync::Arc};

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};

use super::files::{self, Input, Wanted};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// Largest file: it is counted as a whole.
const FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Words in `top_words`.
const TOP_WORDS: usize = 10;
/// Shorter words ("the", "and") say nothing about a text.
const TOP_WORD_CHARS: usize = 4;
/// Characters of a word in `top_words`; a longer one is not a word.
const TOP_WORD_MAX: usize = 40;

/// The tool.
#[derive(Debug)]
pub struct TextStats(Arc<ToolCard>);

impl TextStats {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/text_stats.toml"), "text_stats.toml").map(Self)
    }
}

#[async_trait]
impl Tool for TextStats {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let (workspace, local) = (Arc::clone(&context.workspace), context.caller.local);
        files::work(context, move |_| match files::path_or_text(&arguments)? {
            Input::Text(text) => Ok(count(text.as_bytes())),
            Input::Path(path) => {
                let mut value = count(&read(&workspace, &path, local)?);
                if let Value::Object(fields) = &mut value {
                    fields.insert("path".into(), json!(path));
                }
                Ok(value)
            }
        })
        .await
        .map(Into::into)
    }

    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        files::probe(workspace, arguments, Wanted::File)
    }
}

fn read(workspace: &Workspace, path: &str, local: bool) -> Result<Vec<u8>, ToolError> {
    let (file, about) = files::open(workspace, path, local)?;
    if about.len() > FILE_BYTES {
        return Err(ToolError::TooLarge(format!(
            "`{path}` has {} bytes; the limit is {FILE_BYTES}",
            about.len()
        )));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(|e| files::error(path, &e))?;
    Ok(bytes)
}

fn count(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    let mut frequency: BTreeMap<String, u64> = BTreeMap::new();
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '\'') {
        let length = word.chars().count();
        if (TOP_WORD_CHARS..=TOP_WORD_MAX).contains(&length) {
            *frequency.entry(word.to_lowercase()).or_default() += 1;
        }
    }
    let mut top: Vec<(String, u64)> = frequency.into_iter().collect();
    top.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    top.truncate(TOP_WORDS);
    let top: Vec<Value> =
        top.into_iter().map(|(word, count)| json!({ "word": word, "count": count })).collect();
    json!({
        "lines": text.lines().count(),
        "words": text.split_whitespace().count(),
        "characters": text.chars().count(),
        "bytes": bytes.len(),
        "sentences": sentences(&text),
        "longest_line": text.lines().map(|l| l.chars().count()).max().unwrap_or(0),
        "top_words": top,
    })
}

/// Runs of `.`, `!` and `?` before white space or the end, after at least one letter or digit.
fn sentences(text: &str) -> usize {
    let mut count = 0;
    let mut words = false;
    let mut ended = false;
    for c in text.chars().chain([' ']) {
        if matches!(c, '.' | '!' | '?' | '…') {
            ended = words;
        } else if c.is_whitespace() {
            if ended {
                count += 1;
                words = false;
            }
            ended = false;
        } else if c.is_alphanumeric() {
            words = true;
            ended = false;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let value = count("Old maps. New roads!\nMaps, maps and 3.5 km… Done?\n".as_bytes());
        assert_eq!(value["lines"], 2);
        assert_eq!(value["words"], 10);
        assert_eq!(value["sentences"], 4);
        assert_eq!(value["longest_line"], 28);
        assert_eq!(value["top_words"][0], json!({"word": "maps", "count": 3}));
        assert_eq!((&value["characters"], &value["bytes"]), (&json!(50), &json!(52)));
        let empty = count(b"");
        assert_eq!(
            (&empty["lines"], &empty["words"], &empty["sentences"]),
            (&json!(0), &json!(0), &json!(0))
        );
    }
}
