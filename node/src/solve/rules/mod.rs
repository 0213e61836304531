//! The embedded engine: plans without a model, deterministic and honest.
//!
//! In this order: a plan file; explicit calls (`tool k=v`); recipes; plain English, which acts alone only on a pure tool with a
//! clear margin and all arguments found, and otherwise shows its three best guesses. It reads one language and no results: it
//! can't decide a next step from what an earlier one returned.
pub mod arguments;
pub mod clauses;
pub mod forms;
mod pattern;
pub mod plan_file;
pub mod question;
pub mod ranker;
pub mod recipes;
pub mod slots;
pub mod text;
mod zones;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::Value;

use self::{clauses::Ranker, recipes::Recipes};
use super::{
    check, format,
    memory::{BlockRecord, SolveMemory, StepProgress},
    plan::{PlanError, PlanOutcome, PlannedCall},
    ports::CatalogueEntry,
    references::{self, ResultKey},
    roles::{Act, ActInput, CheckInput, PlanInput, RoleError, Roles, Verdict},
};

/// The engine's name.
pub const ENGINE: &str = "rules";

/// The tools of the mesh by name.
#[derive(Debug)]
pub struct Tools {
    by_name: BTreeMap<String, Arc<ToolCard>>,
    cards: Vec<Arc<ToolCard>>,
}

impl Tools {
    /// Of a catalogue.
    #[must_use]
    pub fn new(catalogue: &[CatalogueEntry]) -> Self {
        let by_name: BTreeMap<_, _> =
            catalogue.iter().map(|e| (e.card.name.to_string(), Arc::clone(&e.card))).collect();
        let cards = by_name.values().cloned().collect();
        Self { by_name, cards }
    }

    /// The card of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<ToolCard>> {
        self.by_name.get(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// All cards, sorted by name.
    #[must_use]
    pub fn cards(&self) -> &[Arc<ToolCard>] {
        &self.cards
    }
}

/// The roles without a model.
pub struct RulesRoles {
    recipes: Recipes,
    ranker: Arc<dyn Ranker>,
}

impl fmt::Debug for RulesRoles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesRoles").finish_non_exhaustive()
    }
}

impl RulesRoles {
    /// With recipes, and with a ranking for plain English.
    #[must_use]
    pub fn new(recipes: Recipes, ranker: Arc<dyn Ranker>) -> Self {
        Self { recipes, ranker }
    }
}

#[async_trait]
impl Roles for RulesRoles {
    fn engine(&self) -> &str {
        ENGINE
    }

    async fn plan(&self, input: PlanInput) -> Result<PlanOutcome, PlanError> {
        let tools = Tools::new(&input.catalogue);
        match &input.plan_file {
            Some(file) => plan_file::plan(file, &tools, input.max_steps).map(PlanOutcome::Plan),
            None => question::plan(&input.question, &tools, &self.recipes, self.ranker.as_ref()),
        }
    }

    async fn manage(
        &self,
        block: &BlockRecord,
        _memory: &SolveMemory,
    ) -> Result<Vec<PlannedCall>, RoleError> {
        Ok(block.outline.clone())
    }

    /// The same call again is worth a try where it changes nothing (another node may answer better); a side effect is never
    /// repeated because of how its result looks.
    async fn act(&self, input: ActInput) -> Result<Act, RoleError> {
        let may_repeat = input.card.as_ref().is_some_and(|c| c.effect.may_repeat());
        if input.attempt > 1 && !may_repeat {
            return Ok(Act::Keep);
        }
        let lookup = |key: &ResultKey| result(&input.memory, key);
        references::resolve(&input.step.arguments, &lookup)
            .map(Act::Call)
            .map_err(|e| RoleError(e.to_string()))
    }

    async fn check(&self, input: CheckInput) -> Result<Verdict, RoleError> {
        Ok(check::check(&input))
    }

    async fn format(&self, memory: &SolveMemory) -> Result<String, RoleError> {
        Ok(format::answer(memory))
    }
}

/// The result of a completed step.
fn result(memory: &SolveMemory, key: &ResultKey) -> Option<Value> {
    let mut done = memory.steps().map(|(_, s)| s).filter(|s| s.status == StepProgress::Completed);
    match key {
        ResultKey::Number(n) => done.find(|s| s.number() == *n),
        ResultKey::Name(name) => done.find(|s| s.save_as.as_ref() == Some(name)),
        ResultKey::Last => done.last(),
    }
    .map(|s| s.output.clone())
}
