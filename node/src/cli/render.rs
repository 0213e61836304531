//! What a command shows: results on stdout, progress and errors on stderr, or one JSON object on stdout.
use std::{
    fmt,
    io::Write,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use serde_json::Value;

use super::exit::CliError;

type Sink = Mutex<Box<dyn Write + Send>>;

/// Where a command writes.
pub struct Screen {
    /// One JSON object instead of text.
    pub json: bool,
    /// No progress.
    pub quiet: bool,
    out: Sink,
    err: Sink,
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").field("json", &self.json).field("quiet", &self.quiet).finish_non_exhaustive()
    }
}

impl Screen {
    /// The process's own stdout and stderr.
    #[must_use]
    pub fn new(json: bool, quiet: bool) -> Self {
        Self::to(json, quiet, Box::new(std::io::stdout()), Box::new(std::io::stderr()))
    }

    /// Any two writers.
    #[must_use]
    pub fn to(json: bool, quiet: bool, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self { json, quiet, out: Mutex::new(out), err: Mutex::new(err) }
    }

    /// The JSON object, or what `text` makes of it.
    ///
    /// # Errors
    /// When the value has no JSON form.
    pub fn show<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        if self.json {
            self.object(&serde_json::to_value(value).map_err(|e| CliError::failed(e.to_string()))?);
        } else {
            self.print(&text(value));
        }
        Ok(())
    }

    /// A JSON object on a line of its own.
    pub fn object(&self, value: &Value) {
        write(&self.out, &value.to_string());
    }

    /// Lines on stdout.
    pub fn print(&self, text: &str) {
        let text = printable(text);
        let text = text.trim_end();
        if !text.is_empty() {
            write(&self.out, text);
        }
    }

    /// Text on stdout as it is: a script for a shell.
    pub fn raw(&self, text: &str) {
        write(&self.out, text.trim_end());
    }

    /// Whether a program reads the results.
    #[must_use]
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// A line about how far it is, on stderr.
    pub fn progress(&self, text: &str) {
        if !self.quiet {
            write(&self.err, &printable(text));
        }
    }

    /// A line that also `-q` shows, on stderr.
    pub fn warn(&self, text: &str) {
        write(&self.err, &printable(text));
    }

    /// Why there is no result.
    pub fn fail(&self, error: &CliError) {
        if self.json {
            self.object(&error.document());
            return;
        }
        self.warn(&format!("error: {}", error.body.message));
        if let Some(hint) = &error.body.hint {
            self.warn(&format!("hint: {hint}"));
        }
    }
}

fn write(sink: &Sink, text: &str) {
    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
    // silent-ok: a reader that closed its end of the pipe wants no more
    let _ = writeln!(sink, "{text}").and_then(|()| sink.flush());
}

/// Text of other machines must not command this terminal: control characters other than line breaks and tabs are shown as `�`.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Rows under headings, columns as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    most: usize,
}

/// A cell over this many characters is cut: a table that wraps is no table.
const CELL: usize = 72;

impl Table {
    /// Only headings.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|h| h.to_uppercase()).collect()], most: CELL }
    }

    /// With whole cells where stdout is no terminal: a file or a program takes lines of any length.
    #[must_use]
    pub fn whole_in_a_file(mut self) -> Self {
        if terminal_width() == usize::MAX {
            self.most = usize::MAX;
        }
        self
    }

    /// One more row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell, self.most)).collect());
    }

    /// Whether there is nothing under the headings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|i| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(i))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let room = terminal_width();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let padding = width.saturating_sub(cell.chars().count());
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', padding + 2));
            }
            writeln!(f, "{}", cut(line.trim_end(), room))?;
        }
        Ok(())
    }
}

/// Columns of the terminal that stdout is; a pipe or a file takes lines of any length.
fn terminal_width() -> usize {
    terminal_size::terminal_size_of(std::io::stdout())
        .map_or(usize::MAX, |(width, _)| usize::from(width.0).max(40))
}

/// The first `most` characters, with a mark when there were more.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

fn one_line(cell: &str, most: usize) -> String {
    let flat: String = cell.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    cut(&flat, most)
}

/// How a member is reached that can't be dialled.
pub(crate) fn via(relay: &str) -> String {
    format!("relayed via {relay}")
}

/// `-` for what is not known.
#[must_use]
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

/// Bytes for people: `24.0 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in UNITS {
        if bytes >= scale {
            let tenths = u128::from(bytes) * 10 / u128::from(scale);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// A duration for people: `3 s`, `5 min`, `2 h`, `4 d`.
#[must_use]
pub fn seconds(s: u64) -> String {
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// A JSON value for people: text as it is, anything else indented.
#[must_use]
pub fn value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_cells_stay_on_their_line() {
        let mut table = Table::new(&["name", "why"]);
        table.row(["attic".into(), "a\nb".into()]);
        table.row(["é".into(), "x".repeat(200)]);
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "NAME   WHY");
        assert_eq!(lines[1], "attic  a b");
        assert!(lines[2].starts_with("é      xxx") && lines[2].ends_with('…'), "{}", lines[2]);
    }

    #[test]
    fn other_machines_do_not_command_this_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\u{9b}c\n\td"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\n\td");
    }

    #[test]
    fn quantities() {
        assert_eq!(size(24 << 30), "24.0 GiB");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(u64::MAX), "16777215.9 TiB");
        assert_eq!(seconds(119), "119 s");
        assert_eq!(seconds(7199), "119 min");
    }
}
