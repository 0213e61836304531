//! Ranking by the tools' own search.
use std::sync::Arc;

use octomesh_protocol::card::ToolCard;
use octomesh_tools::search::SearchIndex;

use super::clauses::Ranker;

/// BM25 over the fields of the cards.
#[derive(Debug, Clone, Copy, Default)]
pub struct CardRanker;

impl Ranker for CardRanker {
    fn rank(&self, cards: &[Arc<ToolCard>], query: &str, max: usize) -> Vec<(Arc<ToolCard>, f64)> {
        let hits = SearchIndex::new(cards.iter().cloned()).search(query, max);
        hits.into_iter().map(|hit| (hit.card, hit.score)).collect()
    }
}
