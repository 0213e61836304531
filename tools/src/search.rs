//! Finding tools by words: BM25 over the fields of cards, with weights per field.
//!
//! It suggests; it does not decide. Words that no card knows are matched to the nearest known word (one letter off), which
//! helps with typing errors. Other languages than English only work through a card's keywords.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use octomesh_protocol::card::ToolCard;

/// BM25: how fast repeating a word stops to count.
const K1: f64 = 1.2;
/// BM25: how much long cards are held back.
const B: f64 = 0.5;
/// Words of a query that are looked at; the rest of a long text adds noise, not meaning.
const QUERY_TERMS: usize = 64;
/// Weight of a word that was only found through a typing error.
const NEAR: f64 = 0.7;

const NAME: f64 = 2.5;
const SUMMARY: f64 = 1.5;
const DESCRIPTION: f64 = 1.0;
const KEYWORDS: f64 = 2.0;
const PARAMETERS: f64 = 0.5;
const EXAMPLES: f64 = 0.5;

/// Words that say nothing about a tool.
const STOP_WORDS: &[&str] = &[
    "a", "about", "all", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can",
    "could", "d", "did", "do", "does", "for", "from", "get", "give", "got", "had", "has", "have", "he",
    "her", "here", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "let", "like",
    "ll", "m", "may", "me", "mine", "my", "need", "no", "not", "of", "on", "one", "or", "our", "out",
    "please", "re", "s", "see", "she", "should", "so", "some", "t", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "to", "us", "ve", "want", "was", "we", "were", "what", "when", "where",
    "which", "who", "will", "with", "would", "you", "your",
];

/// A card that matches.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The card.
    pub card: Arc<ToolCard>,
    /// How well; only comparable within one search.
    pub score: f64,
}

/// An index over cards. It does not change: cards change seldom, and a hundred of them are indexed in milliseconds.
#[derive(Debug)]
pub struct SearchIndex {
    cards: Vec<Arc<ToolCard>>,
    /// Weighted length of each card.
    lengths: Vec<f64>,
    mean_length: f64,
    /// Word -> (card, weighted count).
    words: BTreeMap<String, Vec<(usize, f64)>>,
}

impl SearchIndex {
    /// Indexes the cards.
    #[must_use]
    pub fn new(cards: impl IntoIterator<Item = Arc<ToolCard>>) -> Self {
        let cards: Vec<Arc<ToolCard>> = cards.into_iter().collect();
        let mut words: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
        let mut lengths = Vec::with_capacity(cards.len());
        for (number, card) in cards.iter().enumerate() {
            let counts = weigh(card);
            lengths.push(counts.values().sum());
            for (word, count) in counts {
                words.entry(word).or_default().push((number, count));
            }
        }
        let mean_length = lengths.iter().sum::<f64>() / as_f64(lengths.len().max(1));
        Self { cards, lengths, mean_length: mean_length.max(1.0), words }
    }

    /// The indexed cards.
    #[must_use]
    pub fn cards(&self) -> &[Arc<ToolCard>] {
        &self.cards
    }

    /// The best `max` matches, best first; equal scores in the order of names. Empty when no word matches.
    #[must_use]
    pub fn search(&self, query: &str, max: usize) -> Vec<Hit> {
        let mut scores: BTreeMap<usize, f64> = BTreeMap::new();
        for word in terms(query).into_iter().take(QUERY_TERMS).collect::<BTreeSet<_>>() {
            for (known, weight) in self.known(&word) {
                self.add(known, weight, &mut scores);
            }
        }
        let mut hits: Vec<Hit> = scores
            .into_iter()
            .filter_map(|(number, score)| Some(Hit { card: Arc::clone(self.cards.get(number)?), score }))
            .collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.card.name.cmp(&b.card.name)));
        hits.truncate(max);
        hits
    }

    fn add(&self, word: &str, weight: f64, scores: &mut BTreeMap<usize, f64>) {
        let Some(postings) = self.words.get(word) else { return };
        let (all, with) = (as_f64(self.cards.len()), as_f64(postings.len()));
        let rarity = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
        for (number, count) in postings {
            let length = self.lengths.get(*number).copied().unwrap_or(self.mean_length);
            let norm = K1 * (1.0 - B + B * length / self.mean_length);
            *scores.entry(*number).or_default() += weight * rarity * count * (K1 + 1.0) / (count + norm);
        }
    }

    /// The word itself, or the known words one letter off.
    fn known<'a>(&'a self, word: &'a str) -> Vec<(&'a str, f64)> {
        if self.words.contains_key(word) {
            return vec![(word, 1.0)];
        }
        if word.len() < 4 {
            return Vec::new();
        }
        let near: Vec<&str> =
            self.words.keys().map(String::as_str).filter(|known| one_off(word, known)).collect();
        let weight = NEAR / as_f64(near.len().max(1));
        near.into_iter().map(|known| (known, weight)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of cards and words are far below 2^52")]
const fn as_f64(count: usize) -> f64 {
    count as f64
}

/// Words of a card with their weights.
fn weigh(card: &ToolCard) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    let mut add = |text: &str, weight: f64| {
        for word in terms(text) {
            *counts.entry(word).or_insert(0.0) += weight;
        }
    };
    add(card.name.as_str(), NAME);
    add(card.summary(), SUMMARY);
    add(&card.description, DESCRIPTION);
    for keyword in &card.keywords {
        add(keyword, KEYWORDS);
    }
    if let Some(serde_json::Value::Object(parameters)) = card.input_schema.get("properties") {
        for (name, schema) in parameters {
            add(name, PARAMETERS);
            add(schema.get("description").and_then(|d| d.as_str()).unwrap_or_default(), PARAMETERS);
        }
    }
    for example in &card.examples {
        add(&example.description, EXAMPLES);
    }
    counts
}

/// Lower-case word stems without stop words.
fn terms(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|w| !w.is_empty() && w.len() <= 64)
        .map(str::to_lowercase)
        .filter(|w| STOP_WORDS.binary_search(&w.as_str()).is_err())
        .map(|w| stem(&w))
        .collect()
}

/// A very small stemmer: plural, -ing, -ed, -er, final -e. Both sides go through it, so it only has to be consistent.
fn stem(word: &str) -> String {
    let mut stem = word;
    if stem.len() > 4 && stem.ends_with("ies") {
        return format!("{}y", stem.trim_end_matches("ies"));
    }
    if stem.len() > 3
        && stem.ends_with('s')
        && !stem.ends_with("ss")
        && !stem.ends_with("us")
        && !stem.ends_with("is")
    {
        stem = stem.strip_suffix('s').unwrap_or(stem);
    }
    for suffix in ["ing", "ed"] {
        if let Some(short) = stem.strip_suffix(suffix)
            && short.len() >= 3
            && short.contains(['a', 'e', 'i', 'o', 'u', 'y'])
        {
            stem = undouble(short);
            break;
        }
    }
    if stem.len() > 4 {
        stem = stem.strip_suffix('e').unwrap_or(stem);
    }
    stem.to_owned()
}

/// `runn` -> `run`, but `fill` stays.
fn undouble(word: &str) -> &str {
    let mut tail = word.chars().rev();
    match (tail.next(), tail.next()) {
        (Some(a), Some(b)) if a == b && a.is_ascii() && !matches!(a, 'l' | 's' | 'z') => {
            word.get(..word.len() - 1).unwrap_or(word)
        }
        _ => word,
    }
}

/// Whether one insertion, deletion, replacement or swap of neighbours makes `a` into `b`.
fn one_off(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 1 || b.len() < 4 {
        return false;
    }
    let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let rest = |s: &[char], skip: usize| s.get(same + skip..).unwrap_or_default().to_vec();
    if a.len() != b.len() {
        return if a.len() > b.len() { rest(&a, 1) == rest(&b, 0) } else { rest(&a, 0) == rest(&b, 1) };
    }
    let swapped =
        a.get(same) == b.get(same + 1) && a.get(same + 1) == b.get(same) && rest(&a, 2) == rest(&b, 2);
    rest(&a, 1) == rest(&b, 1) || swapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{builtin, registry::Registry};

    fn index() -> SearchIndex {
        let registry = Registry::new();
        builtin::register_all(&registry, registry.catalogue()).unwrap();
        SearchIndex::new(registry.snapshot().available().map(|e| Arc::clone(&e.card)))
    }

    #[test]
    fn the_stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn everyday_requests_find_the_built_in_tools() {
        let index = index();
        for (query, expected) in [
            ("what time is it in Tokyo", "time"),
            ("how many days between two dates", "time"),
            ("add up these numbers: 3 + 4 * 5", "calc"),
            ("square root of 2", "calc"),
            ("pick a field out of this JSON document", "json"),
            ("show me the contents of notes.txt", "file_read"),
            ("save this text to a file", "file_write"),
            ("which files are in the folder", "file_list"),
            ("find the word invoice in all files", "file_search"),
            ("grep for error", "file_search"),
            ("count the words of a document", "text_stats"),
            ("sha256 checksum of a file", "hash"),
            ("repeat what I say", "echo"),
            ("which tool can do this", "tool_info"),
            ("chekcsum of a file", "hash"),
        ] {
            let hits = index.search(query, 3);
            assert!(
                hits.iter().any(|h| h.card.name.as_str() == expected),
                "{query}: {:?}",
                hits.iter().map(|h| h.card.name.as_str()).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn nothing_matches_nonsense() {
        assert!(index().search("qqq zzz xkcdfoo", 5).is_empty());
        assert!(index().search("", 5).is_empty());
        assert!(index().search("the of and", 5).is_empty());
        assert_eq!(index().search("file", 2).len(), 2);
        assert!(SearchIndex::new([]).search("file", 5).is_empty());
    }

    #[test]
    fn stems_and_typing_errors() {
        assert_eq!(stem("running"), stem("run"));
        assert_eq!(stem("files"), stem("file"));
        assert_eq!(stem("entries"), stem("entry"));
        for (a, b) in [("chekcsum", "checksum"), ("fold", "folds"), ("fild", "fold"), ("timezon", "timezone")]
        {
            assert!(one_off(a, b), "{a} {b}");
        }
        assert!(!one_off("file", "pilot") && !one_off("abcd", "wxyz") && !one_off("abcd", "badc"));
    }
}
