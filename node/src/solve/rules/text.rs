//! Reading commands: what belongs together (quotes, brackets), where clauses end, what the words are.

/// A word of a clause; a quoted text or a group in brackets is one word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word<'a> {
    /// As it is written.
    pub raw: &'a str,
}

impl Word<'_> {
    /// The text inside the quotes, when the whole word is quoted.
    #[must_use]
    pub fn quoted(&self) -> Option<String> {
        unquote(self.raw)
    }

    /// The text without quotes.
    #[must_use]
    pub fn text(&self) -> String {
        unquote(self.raw).unwrap_or_else(|| self.raw.to_owned())
    }
}

/// The inside of `"…"` or `'…'`; a backslash takes the next character as it is, `\n` and `\t` are what they always are.
#[must_use]
pub fn unquote(raw: &str) -> Option<String> {
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = raw.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other => text.push(other),
            },
            c if c == quote => return None,
            c => text.push(c),
        }
    }
    Some(text)
}

/// For every byte whether it is inside quotes or brackets. A quote or bracket that is never closed is only a character. Linear.
fn protected(text: &str) -> Vec<bool> {
    // Groups begin and end here; their sum up to a byte is how many groups it is in.
    let mut change = vec![0_i32; text.len() + 1];
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut before = ' ';
    let mut skip_to = 0;
    // A quote character whose closing was once not found has none further on either.
    let mut hopeless = [false; 2];
    for (at, c) in text.char_indices() {
        if at < skip_to {
            before = c;
            continue;
        }
        match c {
            '"' | '\'' if before.is_whitespace() || "=:,([{".contains(before) => {
                let which = usize::from(c == '\'');
                let known = hopeless.get(which).copied().unwrap_or(true);
                match (!known).then(|| closing(text, at, c)).flatten() {
                    Some(end) => {
                        mark(&mut change, at, end);
                        skip_to = end;
                    }
                    None => hopeless.iter_mut().skip(which).take(1).for_each(|h| *h = true),
                }
            }
            '{' | '[' | '(' => open.push((c, at)),
            '}' | ']' | ')' => close(&mut open, &mut change, c, at),
            _ => {}
        }
        before = c;
    }
    let mut depth = 0;
    let inside = change.iter().map(|c| {
        depth += c;
        depth > 0
    });
    inside.collect()
}

/// Where the quote that opens at `at` ends, exclusive.
fn closing(text: &str, at: usize, quote: char) -> Option<usize> {
    let mut escaped = false;
    let rest = text.get(at + 1..)?;
    let mut chars = rest.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        let next = chars.peek().map(|(_, c)| *c);
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            // An apostrophe inside a word (`'it's here'`) does not close.
            c if c == quote && !(quote == '\'' && next.is_some_and(char::is_alphanumeric)) => {
                return Some(at + 1 + i + 1);
            }
            _ => {}
        }
    }
    None
}

/// Closes the innermost bracket of the same kind; what was opened in between stays a character.
fn close(open: &mut Vec<(char, usize)>, change: &mut [i32], c: char, at: usize) {
    let wanted = match c {
        '}' => '{',
        ']' => '[',
        _ => '(',
    };
    // 64 deep is deeper than any command; a longer search would make a hostile text quadratic.
    let Some(back) = open.iter().rev().take(64).position(|(k, _)| *k == wanted) else { return };
    let place = open.len() - back - 1;
    if let Some((_, start)) = open.get(place).copied() {
        mark(change, start, at + 1);
    }
    open.truncate(place);
}

fn mark(change: &mut [i32], start: usize, end: usize) {
    for (at, by) in [(start, 1), (end, -1)] {
        if let Some(c) = change.get_mut(at) {
            *c += by;
        }
    }
}

/// The words of a clause, split at white space outside of quotes and brackets.
#[must_use]
pub fn words(clause: &str) -> Vec<Word<'_>> {
    let inside = protected(clause);
    let mut words = Vec::new();
    let mut start = None;
    for (at, c) in clause.char_indices() {
        let splits = c.is_whitespace() && !inside.get(at).copied().unwrap_or_default();
        match (splits, start) {
            (true, Some(s)) => {
                words.extend(clause.get(s..at).map(|raw| Word { raw }));
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    words.extend(start.and_then(|s| clause.get(s..)).map(|raw| Word { raw }));
    words
}

/// Splits a question into clauses at line breaks, `;`, `&&` and ` then `, outside of quotes and brackets. Numbers and bullets at
/// the beginning of a line go away, and so do `and` and commas around `then`.
#[must_use]
pub fn clauses(question: &str) -> Vec<String> {
    let inside = protected(question);
    let mut parts = Vec::new();
    let mut start = 0;
    let mut at = 0;
    while let Some(rest) = question.get(at..).filter(|r| !r.is_empty()) {
        let width = rest.chars().next().map_or(1, char::len_utf8);
        let free = !inside.get(at).copied().unwrap_or_default();
        match free.then(|| separator(rest, question.get(..at).unwrap_or_default())).flatten() {
            Some(long) => {
                parts.extend(question.get(start..at));
                at += long;
                start = at;
            }
            None => at += width,
        }
    }
    parts.extend(question.get(start..));
    parts.into_iter().map(tidy).filter(|c| !c.is_empty()).collect()
}

/// The length of the separator at the beginning of `rest`.
fn separator(rest: &str, before: &str) -> Option<usize> {
    if rest.starts_with(['\n', ';']) {
        return Some(1);
    }
    if rest.starts_with("&&") {
        return Some(2);
    }
    let word = rest.get(..4)?;
    let alone = before.ends_with(char::is_whitespace) && rest.get(4..)?.starts_with(char::is_whitespace);
    (alone && word.eq_ignore_ascii_case("then")).then_some(4)
}

fn tidy(part: &str) -> String {
    let mut text = part.trim();
    // 1.  1)  -  *
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = text.get(digits..).unwrap_or_default();
    let bullet =
        if (1..=3).contains(&digits) { rest.strip_prefix(['.', ')']) } else { text.strip_prefix(['-', '*']) };
    if let Some(rest) = bullet.filter(|r| r.starts_with(char::is_whitespace) || r.is_empty()) {
        text = rest.trim();
    }
    for lead in ["and ", "then ", ", "] {
        text = text.strip_prefix(lead).unwrap_or(text).trim();
    }
    text = text.strip_suffix(" and").unwrap_or(text).trim();
    text.trim_end_matches([',', ';']).trim().to_owned()
}

/// Names that are near to `name`, the nearest first, at most three.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let name = name.to_lowercase();
    let close = |n: &str| {
        let d = distance(&name, n);
        let inner = name.len() >= 3 && (n.contains(&name) || name.contains(n));
        (d <= 1 + name.len() / 3 || inner).then_some(d)
    };
    let mut found: Vec<_> = names.filter_map(|n| Some((close(n)?, n))).collect();
    found.sort_unstable();
    found.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}

/// Edits (insert, delete, replace) between two names; names are at most 64 characters where they are real.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(128).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = *cell;
            left = replace.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators() {
        assert_eq!(clauses("a x=1; b && c\n d then e"), ["a x=1", "b", "c", "d", "e"]);
        assert_eq!(
            clauses("1. read a.md\n2) hash b\n- count c\n* d"),
            ["read a.md", "hash b", "count c", "d"]
        );
        assert_eq!(clauses("read a.md, and then hash b, then c"), ["read a.md", "hash b", "c"]);
        assert_eq!(clauses("authentication; strengthen thenar"), ["authentication", "strengthen thenar"]);
        assert_eq!(clauses("  ;;\n && "), Vec::<String>::new());
        assert_eq!(clauses("calc 1.5 + 2"), ["calc 1.5 + 2"]);
    }

    #[test]
    fn what_is_quoted_stays_whole() {
        for whole in [
            r#"echo text="a; b && c then d""#,
            "echo text='a; b'",
            r#"echo {"text": "a; b", "list": [1; 2]}"#,
            "calc (1; 2)",
            r#"echo text="he said \"a; b\" twice""#,
            "echo text=\"two\nlines\"",
        ] {
            assert_eq!(clauses(whole), [whole], "{whole}");
        }
    }

    #[test]
    fn what_is_never_closed_is_a_character() {
        assert_eq!(clauses("what's this; don't {x; it's"), ["what's this", "don't {x", "it's"]);
        assert_eq!(clauses("echo text=\"a; b"), ["echo text=\"a", "b"]);
        assert_eq!(clauses("a ) ; b ]"), ["a )", "b ]"]);
    }

    #[test]
    fn words_and_quotes() {
        let raw: Vec<_> = words(r#"find "a b" in  x='c d' {"k": 1} $1.x"#).iter().map(|w| w.raw).collect();
        assert_eq!(raw, ["find", "\"a b\"", "in", "x='c d'", "{\"k\": 1}", "$1.x"]);
        assert_eq!(unquote(r#""a \"b\" \n""#).unwrap(), "a \"b\" \n");
        assert_eq!(unquote("'it\\'s'").unwrap(), "it's");
        for no in ["a", "\"", "\"a", "'a\"", "", "\"a\"b\""] {
            assert_eq!(unquote(no), None, "{no}");
        }
    }

    #[test]
    fn near_names() {
        let names = ["file_read", "file_write", "calc", "text_stats"];
        assert_eq!(nearest("file_raed", names.into_iter()), ["file_read", "file_write"]);
        assert_eq!(nearest("stats", names.into_iter()), ["text_stats"]);
        assert!(nearest("zzzzzz", names.into_iter()).is_empty());
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn hostile_text_is_split_quickly() {
        // Each of these would take minutes if the scan were quadratic in the worst way; the assertion is the right result.
        let open = "{".repeat(60_000);
        assert_eq!(clauses(&open).len(), 1);
        assert_eq!(clauses(&format!("{open}; b")).len(), 2);
        let quotes = " \"".repeat(30_001);
        assert_eq!(clauses(&quotes).len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_split(text in "[ -~\\n\"'{}\\[\\]();&é\\\\]{0,300}") {
            let parts = clauses(&text);
            for part in &parts {
                proptest::prop_assert_eq!(part.trim(), part.as_str());
                let _ = words(part);
            }
        }

        #[test]
        fn what_was_quoted_comes_back(text in "[ -~]{0,60}") {
            let raw = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            proptest::prop_assert_eq!(unquote(&raw), Some(text));
        }
    }
}
