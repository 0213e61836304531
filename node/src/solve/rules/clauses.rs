//! Plain English: rank the cards, fill the arguments, and act alone only where nothing can go wrong. Ranking words without a model
//! is right two times in three, so everything else is a suggestion.
use std::sync::Arc;

use octomesh_protocol::card::{Effect, ToolCard};

use crate::solve::plan::{Guess, NeedsConfirmation};

use super::{
    arguments::{command, validate},
    slots::{self, Filled},
    text::words,
};

/// Guesses that are shown.
const GUESSES: usize = 3;
/// The best guess must be so much better than the second.
const MARGIN: f64 = 0.30;

/// Ranks cards by how well they fit words.
pub trait Ranker: Send + Sync {
    /// The best `max` cards with scores over 0, the best first.
    fn rank(&self, cards: &[Arc<ToolCard>], query: &str, max: usize) -> Vec<(Arc<ToolCard>, f64)>;
}

/// What a clause in plain English means.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    /// This call, without asking.
    Call(Arc<ToolCard>, Filled),
    /// Not sure enough.
    Ask(Box<NeedsConfirmation>),
}

/// Reads a clause.
#[must_use]
pub fn read(clause: &str, cards: &[Arc<ToolCard>], ranker: &dyn Ranker) -> Reading {
    let list = words(clause.trim_end_matches(['?', '!', '.']));
    let hits = ranker.rank(cards, clause, GUESSES);
    let filled: Vec<_> = hits.iter().map(|(card, _)| slots::fill(card, &list)).collect();
    if let (Some((card, score)), Some(found)) = (hits.first(), filled.first()) {
        let second = hits.get(1).map_or(0.0, |(_, s)| *s);
        let clear = *score > 0.0 && (score - second) / score >= MARGIN;
        let complete = found.missing.is_empty() && validate(card, &found.arguments, clause).is_ok();
        // A tool that reads something and needs no argument by its schema still needs to be told what to read.
        let grounded = card.data.is_empty() || !found.arguments.is_empty();
        if card.effect == Effect::Pure && clear && complete && grounded {
            return Reading::Call(Arc::clone(card), found.clone());
        }
    }
    let guesses: Vec<_> =
        hits.iter().zip(filled).take(GUESSES).map(|((card, score), f)| guess(card, *score, f)).collect();
    let hint = match guesses.first() {
        Some(first) => format!("if this is what you mean, write: {}", first.command),
        None => "no tool fits these words; write a call such as calc expression=\"2 + 2\", or look at octomesh tools --all"
            .to_owned(),
    };
    Reading::Ask(Box::new(NeedsConfirmation { clause: clause.to_owned(), guesses, hint }))
}

fn guess(card: &ToolCard, score: f64, filled: Filled) -> Guess {
    Guess {
        tool: card.name.clone(),
        effect: card.effect,
        score,
        command: command(card.name.as_str(), &filled.arguments, &filled.missing),
        arguments: filled.arguments,
        missing: filled.missing,
    }
}
