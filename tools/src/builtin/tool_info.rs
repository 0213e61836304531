//! `tool_info`: finds tools of the whole mesh, by exact name or by words, and returns their schemas.
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use octomesh_protocol::{card::ToolCard, id::ToolName, limits::OUTPUT_BYTES};
use serde_json::{Value, json};

use super::{Catalogue, Listed};
use crate::{
    names::ModelNames,
    registry::RegistryError,
    search::SearchIndex,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

/// Tools returned when the call does not say.
const RESULTS: u64 = 5;
/// Most tools returned; whoever asks for more gets this many.
const MAX_RESULTS: u64 = 50;

/// The tool.
pub struct ToolInfo {
    card: Arc<ToolCard>,
    catalogue: Arc<dyn Catalogue>,
    /// The index of the last query; made again when the cards are others.
    index: Mutex<Option<Arc<SearchIndex>>>,
}

impl std::fmt::Debug for ToolInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolInfo").finish_non_exhaustive()
    }
}

impl ToolInfo {
    /// With its card and what it searches.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new(catalogue: Arc<dyn Catalogue>) -> Result<Self, RegistryError> {
        let card = super::card(include_str!("cards/tool_info.toml"), "tool_info.toml")?;
        Ok(Self { card, catalogue, index: Mutex::new(None) })
    }

    fn index(&self, cards: &[Listed]) -> Arc<SearchIndex> {
        let mut kept = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = &*kept {
            let same = index.cards().len() == cards.len()
                && index.cards().iter().zip(cards).all(|(a, b)| Arc::ptr_eq(a, &b.card));
            if same {
                return Arc::clone(index);
            }
        }
        let index = Arc::new(SearchIndex::new(cards.iter().map(|tool| Arc::clone(&tool.card))));
        *kept = Some(Arc::clone(&index));
        index
    }

    fn find(&self, query: &str, max: usize) -> Vec<Value> {
        let cards = self.catalogue.cards();
        let names = ModelNames::new(cards.iter().map(|tool| (tool.card.name.as_str(), tool.hash)));
        let name = |tool: &Listed| names.name(tool.card.name.as_str(), tool.hash).map(str::to_owned);
        let shown = |tool: &Listed| describe(tool, name(tool));
        // The tool's own name means all of its variants.
        let exact = |tool: &&Listed| tool.card.name.as_str() == query || name(tool).as_deref() == Some(query);
        let named: Vec<_> = cards.iter().filter(exact).take(max).map(shown).collect();
        if !named.is_empty() {
            return named;
        }
        let hits = self.index(&cards).search(query, max);
        hits.iter()
            .filter_map(|hit| cards.iter().find(|tool| Arc::ptr_eq(&tool.card, &hit.card)))
            .map(shown)
            .collect()
    }
}

#[async_trait]
impl Tool for ToolInfo {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, _context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let query = super::text(&arguments, "query")?.trim();
        let max = super::optional_number(&arguments, "max_results").unwrap_or(RESULTS).clamp(1, MAX_RESULTS);
        let tools = self.find(query, usize::try_from(max).unwrap_or(1));
        Ok(fit(query, tools).into())
    }
}

/// The result; tools at the end give way when the cards are too large for one output.
fn fit(query: &str, mut tools: Vec<Value>) -> Value {
    if tools.is_empty() {
        let hint = match ToolName::parse(query) {
            Ok(name) => format!(
                "no tool is named {name} and none matches that word; describe the task in other words"
            ),
            Err(_) => "no tool matches; describe the task in other words".to_owned(),
        };
        return json!({ "tools": [], "hint": hint });
    }
    let mut cut = false;
    loop {
        let mut value = json!({ "tools": tools });
        if let (true, Value::Object(fields)) = (cut, &mut value) {
            fields.insert(
                "hint".into(),
                json!("more tools match than fit; ask with a smaller max_results or by name"),
            );
        }
        if value.to_string().len() <= OUTPUT_BYTES || tools.pop().is_none() {
            return value;
        }
        cut = true;
    }
}

/// `name`: what a model calls it by.
fn describe(tool: &Listed, name: Option<String>) -> Value {
    let Listed { card, nodes, .. } = tool;
    let examples: Vec<Value> = card
        .examples
        .iter()
        .map(|e| json!({ "description": e.description, "arguments": e.arguments }))
        .collect();
    let mut value = json!({
        "name": name.unwrap_or_else(|| card.name.to_string()),
        "description": card.description,
        "parameters": card.input_schema,
        "examples": examples,
        "effect": card.effect,
    });
    if let (false, Value::Object(fields)) = (nodes.is_empty(), &mut value) {
        fields.insert("nodes".into(), json!(nodes));
    }
    value
}
