//! A question in clauses becomes a plan: one block per clause. A clause that names an earlier result depends on its block; a
//! clause that changes something waits for everything before it, and everything after waits for it; all others are independent.
use std::{collections::BTreeMap, sync::Arc};

use octomesh_protocol::card::{Effect, ToolCard};
use serde_json::{Map, Value};

use crate::solve::{
    block::BlockId,
    limits,
    plan::{Plan, PlanError, PlanOutcome, PlannedBlock, PlannedCall},
    references::{self, ResultKey},
};

use super::{
    Tools, arguments,
    clauses::{self, Ranker, Reading},
    forms::{self, Form, FormArguments},
    recipes::{Recipes, local_name},
    text,
};

/// A clause as calls.
#[derive(Debug)]
struct Read {
    calls: Vec<(Arc<ToolCard>, Map<String, Value>)>,
    save_as: Option<String>,
}

/// What earlier clauses have left.
#[derive(Debug, Default)]
struct Before {
    blocks: Vec<PlannedBlock>,
    /// The number of each block's last step.
    last_steps: Vec<usize>,
    /// The block of each name.
    names: BTreeMap<String, usize>,
    steps: usize,
    /// The last block that changes something.
    barrier: Option<usize>,
}

/// Plans a question.
///
/// # Errors
/// [`PlanError`] of the first clause that is wrong.
pub fn plan(
    question: &str,
    tools: &Tools,
    recipes: &Recipes,
    ranker: &dyn Ranker,
) -> Result<PlanOutcome, PlanError> {
    if question.len() > limits::QUESTION_BYTES {
        return Err(PlanError::TooLarge { what: "the question".into(), limit: "64 KiB".into() });
    }
    let clauses = text::clauses(question);
    if clauses.is_empty() {
        return Err(PlanError::EmptyQuestion);
    }
    if clauses.len() > limits::BLOCKS {
        return Err(PlanError::TooLarge {
            what: format!("a question of {} clauses", clauses.len()),
            limit: format!("{} clauses", limits::BLOCKS),
        });
    }
    let mut before = Before::default();
    for (index, clause) in clauses.iter().enumerate() {
        let short: String = clause.chars().take(80).collect();
        let place = format!("clause {} ({short:?})", index + 1);
        match read(clause, tools, recipes, ranker, &place)? {
            Ok(read) => before.add(clause, read, &place)?,
            Err(question) => return Ok(PlanOutcome::NeedsConfirmation(question)),
        }
    }
    Ok(PlanOutcome::Plan(Plan { engine: super::ENGINE.to_owned(), blocks: before.blocks }))
}

type Asked = Box<crate::solve::plan::NeedsConfirmation>;

/// Reads one clause: a call of a known tool, then recipes, then a call of an unknown tool (an error), then English.
fn read(
    clause: &str,
    tools: &Tools,
    recipes: &Recipes,
    ranker: &dyn Ranker,
    place: &str,
) -> Result<Result<Read, Asked>, PlanError> {
    let form = forms::parse(clause);
    let known = form.as_ref().and_then(|f| Some((f, tools.get(f.tool)?)));
    if let Some((form, card)) = known
        && form.arguments != FormArguments::None
    {
        return explicit(form, card, place).map(Ok);
    }
    let (without_name, name) = forms::split_name(clause);
    let mut lacking = None;
    for (text, save_as) in [(clause, None), (without_name, name)] {
        match recipes.expand(text, &|tool| tools.get(tool).is_some()) {
            Ok(Some(steps)) => {
                let mut calls = Vec::new();
                for step in steps {
                    // `expand` gives only tools that exist.
                    let Some(card) = tools.get(&step.tool) else { continue };
                    arguments::validate(card, &step.arguments, place)?;
                    calls.push((Arc::clone(card), step.arguments));
                }
                return Ok(Ok(Read { calls, save_as: save_as.map(str::to_owned) }));
            }
            Ok(None) => {}
            Err(tool) => lacking = Some(tool),
        }
    }
    if let Some((form, card)) = known {
        // Only the name: right for a tool that needs nothing, and an error that says what it needs for any other.
        return explicit(form, card, place).map(Ok);
    }
    if let Some(tool) = lacking {
        return Err(forms::unknown_tool(&tool, tools.names(), place));
    }
    match form {
        Some(form) if form.arguments != FormArguments::None => {
            Err(forms::unknown_tool(form.tool, tools.names(), place))
        }
        _ => Ok(english(without_name, name, tools, ranker)),
    }
}

fn explicit(form: &Form<'_>, card: &Arc<ToolCard>, place: &str) -> Result<Read, PlanError> {
    let arguments = form.to_arguments(card, place)?;
    Ok(Read { calls: vec![(Arc::clone(card), arguments)], save_as: form.save_as.map(str::to_owned) })
}

fn english(clause: &str, name: Option<&str>, tools: &Tools, ranker: &dyn Ranker) -> Result<Read, Asked> {
    match clauses::read(clause, tools.cards(), ranker) {
        Reading::Call(card, filled) => {
            Ok(Read { calls: vec![(card, filled.arguments)], save_as: name.map(str::to_owned) })
        }
        Reading::Ask(question) => Err(question),
    }
}

impl Before {
    fn add(&mut self, clause: &str, read: Read, place: &str) -> Result<(), PlanError> {
        let block = self.blocks.len();
        let changes = read.calls.iter().any(|(card, _)| card.effect != Effect::Pure);
        let mut depends = match (changes, self.barrier) {
            (true, _) => (0..block).collect(),
            (false, Some(barrier)) => vec![barrier],
            (false, None) => Vec::new(),
        };
        let mut outline = Vec::new();
        let first = self.steps + 1;
        let count = read.calls.len();
        for (index, (card, mut arguments)) in read.calls.into_iter().enumerate() {
            references::rewrite(&mut arguments, &mut |key| {
                let local = (0..index).find(|i| *key == ResultKey::Name(local_name(*i)));
                if let Some(local) = local {
                    return Ok(ResultKey::Number(first + local));
                }
                let (from, step) = self.find(key, place)?;
                depends.push(from);
                Ok(ResultKey::Number(step))
            })?;
            outline.push(PlannedCall {
                plan: describe(clause, count, &card, &arguments),
                tool: card.name.clone(),
                arguments,
                save_as: read.save_as.clone().filter(|_| index + 1 == count),
                node: None,
            });
        }
        if let Some(name) = read.save_as
            && self.names.insert(name.clone(), block).is_some()
        {
            let message = format!("the name {name:?} is used twice");
            return Err(PlanError::InvalidReference { place: place.to_owned(), message });
        }
        if changes {
            self.barrier = Some(block);
        }
        depends.sort_unstable();
        depends.dedup();
        self.steps += count;
        self.last_steps.push(self.steps);
        self.blocks.push(PlannedBlock {
            name: None,
            goal: clause.to_owned(),
            depends_on: depends.into_iter().map(BlockId::at).collect(),
            outline,
        });
        Ok(())
    }

    /// The block and the step that a reference in a clause means: `$2` is the second clause's result.
    fn find(&self, key: &ResultKey, place: &str) -> Result<(usize, usize), PlanError> {
        let block = match key {
            ResultKey::Number(n) => n.checked_sub(1),
            ResultKey::Last => self.blocks.len().checked_sub(1),
            ResultKey::Name(name) => self.names.get(name).copied(),
        };
        block.and_then(|b| Some((b, *self.last_steps.get(b)?))).ok_or_else(|| {
            let names: Vec<_> = self.names.keys().map(|n| format!("${{{n}}}")).collect();
            let known = match (self.blocks.len(), names.is_empty()) {
                (0, _) => "nothing ran before it".to_owned(),
                (n, true) => format!("$1 to ${n} exist here"),
                (n, false) => format!("$1 to ${n} and {} exist here", names.join(", ")),
            };
            PlanError::InvalidReference {
                place: place.to_owned(),
                message: format!("there is no earlier result {key}; {known}"),
            }
        })
    }
}

fn describe(clause: &str, calls: usize, card: &ToolCard, call: &Map<String, Value>) -> String {
    if calls == 1 { clause.to_owned() } else { arguments::command(card.name.as_str(), call, &[]) }
}
