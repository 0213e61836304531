//! From results to text: one sentence per step, and the final answer with its sources.
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{
    citations::Citation,
    limits::CONTENT_CHARS,
    memory::{BlockRecord, SolveMemory, StepProgress, StepRecord},
};

/// Characters of an excerpt in the list of sources and of a quoted line.
const EXCERPT_CHARS: usize = 160;
/// Lines of a file or matches of a search that a sentence quotes.
const QUOTED_LINES: usize = 3;

/// The text of a result: what is cited.
#[must_use]
pub fn text_of(output: &Value) -> String {
    match output {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(map) => match ["content", "text"].iter().find_map(|k| map.get(*k)?.as_str()) {
            Some(text) => text.to_owned(),
            None if map.is_empty() => String::new(),
            None => output.to_string(),
        },
        Value::Array(list) if list.is_empty() => String::new(),
        other => other.to_string(),
    }
}

/// What a step contributes to the answer: a sentence made from its result, with its citations at the end.
#[must_use]
pub fn content(tool: &str, arguments: &Map<String, Value>, output: &Value, citations: &[String]) -> String {
    let sentence = known(tool, arguments, output).unwrap_or_else(|| generic(output));
    let mut text = quiet(&cap(&sentence, CONTENT_CHARS));
    for id in citations {
        text.push(' ');
        text.push_str(id);
    }
    text
}

/// Sentences for the tools of every node; `None` when the result does not have the expected form.
fn known(tool: &str, arguments: &Map<String, Value>, output: &Value) -> Option<String> {
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str);
    let path = || argument("path").or_else(|| output.get("path")?.as_str());
    match tool {
        "calc" => {
            let value = output.get("result").or_else(|| output.get("value")).unwrap_or(output);
            let value = plain(value)?;
            Some(format!("{} = {value}", argument("expression")?))
        }
        "text_stats" => {
            let counts: Vec<_> = ["lines", "words", "characters", "chars", "bytes"]
                .iter()
                .filter_map(|k| {
                    Some(format!(
                        "{} {}",
                        output.get(*k)?.as_u64()?,
                        if *k == "chars" { "characters" } else { k }
                    ))
                })
                .collect();
            (!counts.is_empty())
                .then(|| format!("{} has {}", path().unwrap_or("the text"), counts.join(", ")))
        }
        "file_search" => search(arguments, output),
        "file_read" => {
            let text = output.as_str().or_else(|| output.get("content")?.as_str())?;
            Some(format!("{} says: {}", path()?, quoted(text.lines())))
        }
        "file_list" => {
            let list = list_of(output, &["entries", "files", "items"])?;
            let names = list
                .iter()
                .take(20)
                .filter_map(|e| e.as_str().or_else(|| e.get("path").or_else(|| e.get("name"))?.as_str()));
            let names: Vec<_> = names.collect();
            let more = if list.len() > names.len() { ", \u{2026}" } else { "" };
            let place = path().map_or_else(String::new, |p| format!(" in {p}"));
            Some(format!("{} entries{place}: {}{more}", list.len(), names.join(", ")))
        }
        "hash" => {
            let digest = ["hash", "sha256", "digest"].iter().find_map(|k| output.get(*k)?.as_str());
            let digest = digest.or_else(|| output.as_str())?;
            let algorithm = output.get("algorithm").and_then(Value::as_str).unwrap_or("sha256");
            Some(format!("{algorithm} of {} is {digest}", path().unwrap_or("the text")))
        }
        "time" => {
            let text = ["text", "iso", "result"].iter().find_map(|k| plain(output.get(*k)?));
            Some(match (text.or_else(|| plain(output))?, argument("tz")) {
                (text, Some(tz)) => format!("the time in {tz}: {text}"),
                (text, None) => format!("the time: {text}"),
            })
        }
        "echo" => plain(output.get("text").unwrap_or(output)),
        "file_write" => {
            let bytes = output.get("bytes_written").or_else(|| output.get("bytes")).and_then(Value::as_u64);
            let bytes = bytes.map_or_else(String::new, |b| format!(" ({b} bytes)"));
            Some(format!("wrote {}{bytes}", path()?))
        }
        _ => None,
    }
}

fn search(arguments: &Map<String, Value>, output: &Value) -> Option<String> {
    let list = list_of(output, &["matches", "results", "hits"])?;
    let total = ["total", "count"].iter().find_map(|k| output.get(*k)?.as_u64());
    let total = total.unwrap_or(list.len() as u64);
    let what =
        ["text", "query", "pattern"].iter().find_map(|k| arguments.get(*k)?.as_str()).unwrap_or_default();
    let place =
        arguments.get("path").and_then(Value::as_str).map_or_else(String::new, |p| format!(" in {p}"));
    let noun = if total == 1 { "match" } else { "matches" };
    let mut text = format!("{total} {noun} of {what:?}{place}");
    let lines: Vec<_> = list
        .iter()
        .filter_map(|m| m.as_str().or_else(|| m.get("text").or_else(|| m.get("line"))?.as_str()))
        .collect();
    if !lines.is_empty() {
        let _ = write!(text, ": {}", quoted(lines.into_iter()));
    }
    Some(text)
}

fn list_of<'a>(output: &'a Value, names: &[&str]) -> Option<&'a Vec<Value>> {
    output.as_array().or_else(|| names.iter().find_map(|k| output.get(*k)?.as_array()))
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        _ => None,
    }
}

fn generic(output: &Value) -> String {
    plain(output).unwrap_or_else(|| output.to_string())
}

/// The first lines that are not empty, in quotation marks.
fn quoted<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut lines = lines.map(str::trim).filter(|l| !l.is_empty());
    let first: Vec<_> = lines
        .by_ref()
        .take(QUOTED_LINES)
        .map(|l| format!("\u{201c}{}\u{201d}", cap(l, EXCERPT_CHARS)))
        .collect();
    let more = if lines.next().is_some() { " \u{2026}" } else { "" };
    format!("{}{more}", first.join(" / "))
}

/// At most so many characters.
fn cap(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}\u{2026}", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Text of a tool must not look like a citation of this run.
fn quiet(text: &str) -> String {
    ["rag", "web", "code"]
        .iter()
        .fold(text.to_owned(), |t, p| t.replace(&format!("[{p}-"), &format!("({p}-")))
}

/// The final answer in Markdown: the last block's result first, then every block, what is unresolved, and the sources.
#[must_use]
pub fn answer(memory: &SolveMemory) -> String {
    let mut text = String::new();
    if let Some(last) = memory.plan.blocks.last() {
        let _ = writeln!(text, "Answer: {}", block_text(last));
    }
    if memory.plan.blocks.len() > 1 {
        text.push('\n');
        for block in &memory.plan.blocks {
            let _ = writeln!(text, "- {}: {}", quiet(&one_line(&block.goal)), block_text(block));
        }
    }
    finish(&mut text, memory);
    text
}

/// What a run found that did not complete.
#[must_use]
pub fn unfinished(memory: &SolveMemory, reason: &str) -> String {
    let mut text = format!("Not answered: {}\n", quiet(&one_line(reason)));
    let found: Vec<_> = memory.steps().filter(|(_, s)| s.status == StepProgress::Completed).collect();
    if !found.is_empty() {
        text.push_str("\nFound until then:\n");
        for (_, step) in found {
            let _ = writeln!(text, "- {}", step_text(step));
        }
    }
    finish(&mut text, memory);
    text
}

fn finish(text: &mut String, memory: &SolveMemory) {
    let open = unresolved(memory);
    if !open.is_empty() {
        text.push_str("\nUnresolved:\n");
        for line in open {
            let _ = writeln!(text, "- {}", quiet(&line));
        }
    }
    let used = used(memory);
    if !used.is_empty() {
        text.push_str("\nSources:\n");
        for c in used {
            let excerpt = quiet(&cap(&one_line(&c.content), EXCERPT_CHARS));
            let _ = writeln!(text, "- {} {} \u{2014} {excerpt}", c.id, quiet(&c.source));
        }
    }
}

/// The sources that completed steps name.
#[must_use]
pub fn used(memory: &SolveMemory) -> Vec<&Citation> {
    let done = || memory.steps().filter(|(_, s)| s.status == StepProgress::Completed);
    memory.citations.get_all().iter().filter(|c| done().any(|(_, s)| s.citations.contains(&c.id))).collect()
}

/// What the answer can't vouch for, one sentence each.
#[must_use]
pub fn unresolved(memory: &SolveMemory) -> Vec<String> {
    let mut lines: Vec<String> = memory
        .steps()
        .filter(|(_, s)| s.unresolved)
        .map(|(_, s)| {
            let comment = s.attempts.iter().rev().map(|a| a.comment.as_str()).find(|c| !c.is_empty());
            format!(
                "{} ({}) after {} attempts: {}",
                s.step_id,
                s.tool,
                s.attempts.len(),
                comment.unwrap_or("the checker was not satisfied")
            )
        })
        .collect();
    lines.extend(memory.plan.blocks.iter().filter(|b| b.cut_steps > 0).map(|b| {
        format!("{} was cut: {} steps over the limit of the block did not run", b.block_id, b.cut_steps)
    }));
    lines
}

/// The result of a block is that of its last step; the steps before it have lines of their own only where there are several.
fn block_text(block: &BlockRecord) -> String {
    match block.steps.as_slice() {
        [] => "nothing to do".to_owned(),
        [only] => step_text(only),
        steps => steps.iter().map(step_text).collect::<Vec<_>>().join("; "),
    }
}

fn step_text(step: &StepRecord) -> String {
    let text = one_line(&step.content);
    match (text.is_empty(), step.unresolved) {
        (true, _) => format!("{} returned nothing", step.tool),
        (false, true) => format!("{text} (unresolved)"),
        (false, false) => text,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
