//! Plan files, YAML or JSON: `blocks: [{id, goal, depends_on, steps: [{tool, args, save_as, node}]}]`.
//!
//! A block without `depends_on` depends on nothing. A step may use results of earlier steps of its block and of all blocks that
//! its block depends on, directly or not.
use std::collections::{BTreeMap, BTreeSet};

use octomesh_protocol::id::NodeName;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::solve::{
    block::BlockId,
    limits,
    plan::{Plan, PlanError, PlannedBlock, PlannedCall},
    references::{self, ResultKey},
    roles::PlanFile,
};

use super::{Tools, arguments, forms};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    blocks: Vec<RawBlock>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBlock {
    id: String,
    #[serde(default)]
    goal: Option<String>,
    #[serde(default)]
    depends_on: Vec<String>,
    steps: Vec<RawStep>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    tool: String,
    #[serde(default)]
    args: Map<String, Value>,
    #[serde(default)]
    save_as: Option<String>,
    #[serde(default)]
    node: Option<NodeName>,
}

/// Reads and checks a plan file.
///
/// # Errors
/// [`PlanError`] that names line and column, or the key.
pub fn plan(file: &PlanFile, tools: &Tools, max_steps: usize) -> Result<Plan, PlanError> {
    if file.text.len() > limits::PLAN_FILE_BYTES {
        return Err(PlanError::TooLarge { what: file.name.clone(), limit: "1 MiB".into() });
    }
    let invalid = |place: String, message: String| PlanError::InvalidFile { place, message };
    if brackets(&file.text) > BRACKETS {
        return Err(invalid(file.name.clone(), format!("brackets nested deeper than {BRACKETS}")));
    }
    // JSON is YAML, but the JSON reader has the better messages for it.
    let raw: RawPlan = if file.text.trim_start().starts_with('{') && file.text.trim_end().ends_with('}') {
        serde_json::from_str(&file.text).map_err(|e| invalid(file.name.clone(), e.to_string()))
    } else {
        serde_norway::from_str(&file.text).map_err(|e| invalid(file.name.clone(), e.to_string()))
    }?;
    let reader = Reader::new(file, &raw, max_steps)?;
    let mut blocks = Vec::new();
    for (index, block) in raw.blocks.iter().enumerate() {
        let mut outline = Vec::new();
        for (at, step) in block.steps.iter().enumerate() {
            outline.push(reader.step(index, at, step, tools)?);
        }
        blocks.push(PlannedBlock {
            name: Some(block.id.clone()),
            goal: block.goal.clone().unwrap_or_else(|| block.id.clone()),
            depends_on: reader.direct(index).map(BlockId::at).collect(),
            outline,
        });
    }
    Ok(Plan { engine: super::ENGINE.to_owned(), blocks })
}

/// Brackets open at once, those in texts included: the time that a YAML reader takes grows with the square of it.
const BRACKETS: usize = 512;

/// The most brackets that are open at once, whatever they mean there.
fn brackets(text: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// Where a step is: block and place in it.
type Place = (usize, usize);

struct Reader<'a> {
    file: &'a str,
    ids: Vec<&'a str>,
    direct: Vec<BTreeSet<usize>>,
    /// All blocks that a block depends on, directly or not.
    all: Vec<BTreeSet<usize>>,
    /// Steps in the order of the file; the first is number 1.
    steps: Vec<Place>,
    names: BTreeMap<&'a str, Place>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a PlanFile, raw: &'a RawPlan, max_steps: usize) -> Result<Self, PlanError> {
        let fail = |key: String, message: String| {
            Err(PlanError::InvalidFile { place: format!("{}: {key}", file.name), message })
        };
        if raw.blocks.is_empty() || raw.blocks.len() > limits::BLOCKS {
            return fail("blocks".into(), format!("a plan has 1 to {} blocks", limits::BLOCKS));
        }
        let mut index: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut steps = Vec::new();
        for (b, block) in raw.blocks.iter().enumerate() {
            let key = format!("blocks[{b}]");
            if block.id.trim().is_empty() || block.id.len() > 64 {
                return fail(format!("{key}.id"), "an id has 1 to 64 bytes".into());
            }
            if let Some(first) = index.insert(&block.id, b) {
                return fail(
                    format!("{key}.id"),
                    format!("{:?} is the id of blocks[{first}] already", block.id),
                );
            }
            if block.steps.is_empty() || block.steps.len() > max_steps {
                return fail(
                    format!("{key}.steps"),
                    format!("{} steps; a block has 1 to {max_steps} (--max-steps)", block.steps.len()),
                );
            }
            for (s, step) in block.steps.iter().enumerate() {
                steps.push((b, s));
                let Some(name) = &step.save_as else { continue };
                let key = format!("{key}.steps[{s}].save_as");
                if !forms::is_name(name) {
                    return fail(key, format!("{name:?}: a name is a letter, then letters, digits, _ and -"));
                }
                if names.insert(name.as_str(), (b, s)).is_some() {
                    return fail(key, format!("the name {name:?} is used twice"));
                }
            }
        }
        if steps.len() > limits::STEPS {
            return fail(
                "blocks".into(),
                format!("{} steps; a plan has at most {}", steps.len(), limits::STEPS),
            );
        }
        let mut direct = Vec::new();
        for (b, block) in raw.blocks.iter().enumerate() {
            let mut set = BTreeSet::new();
            for name in &block.depends_on {
                match index.get(name.as_str()) {
                    Some(other) => set.insert(*other),
                    None => {
                        return fail(
                            format!("blocks[{b}].depends_on"),
                            format!("there is no block {name:?}"),
                        );
                    }
                };
            }
            direct.push(set);
        }
        let ids: Vec<&str> = raw.blocks.iter().map(|b| b.id.as_str()).collect();
        let all: Vec<_> = (0..direct.len()).map(|b| reachable(b, &direct)).collect();
        if let Some(b) = all.iter().enumerate().find_map(|(b, set)| set.contains(&b).then_some(b)) {
            let others =
                all.get(b).into_iter().flatten().filter(|o| all.get(**o).is_some_and(|s| s.contains(&b)));
            let circle: Vec<_> = others.filter_map(|o| ids.get(*o).copied()).collect();
            return fail(
                format!("blocks[{b}].depends_on"),
                format!("these blocks wait for each other: {}", circle.join(", ")),
            );
        }
        Ok(Self { file: &file.name, ids, direct, all, steps, names })
    }

    fn direct(&self, block: usize) -> impl Iterator<Item = usize> {
        self.direct.get(block).into_iter().flatten().copied()
    }

    fn step(&self, block: usize, at: usize, step: &RawStep, tools: &Tools) -> Result<PlannedCall, PlanError> {
        let id = self.ids.get(block).copied().unwrap_or_default();
        let place = format!("{}: blocks[{block}] ({id}).steps[{at}]", self.file);
        let Some(card) = tools.get(&step.tool) else {
            return Err(forms::unknown_tool(&step.tool, tools.names(), &format!("{place}.tool")));
        };
        arguments::validate(card, &step.args, &format!("{place}.args"))?;
        let mut args = step.args.clone();
        references::rewrite(&mut args, &mut |key| {
            self.find(key, (block, at))
                .map(ResultKey::Number)
                .map_err(|message| PlanError::InvalidReference { place: format!("{place}.args"), message })
        })?;
        Ok(PlannedCall {
            plan: arguments::command(&step.tool, &step.args, &[]),
            tool: card.name.clone(),
            arguments: args,
            save_as: step.save_as.clone(),
            node: step.node.clone(),
        })
    }

    /// The number of the step that a reference at `from` means.
    fn find(&self, key: &ResultKey, from: Place) -> Result<usize, String> {
        let target = match key {
            ResultKey::Number(n) => n.checked_sub(1).and_then(|i| self.steps.get(i)).copied(),
            ResultKey::Name(name) => self.names.get(name.as_str()).copied(),
            ResultKey::Last => from.1.checked_sub(1).map(|at| (from.0, at)),
        };
        let (block, at) = target.ok_or_else(|| match key {
            ResultKey::Last => "$last is the step before in the same block, and there is none".to_owned(),
            _ => format!("there is no result {key}"),
        })?;
        let earlier = block == from.0 && at < from.1;
        if !earlier && block == from.0 {
            return Err(format!("{key} is not an earlier step"));
        }
        if !earlier && !self.all.get(from.0).is_some_and(|set| set.contains(&block)) {
            let other = self.ids.get(block).copied().unwrap_or_default();
            return Err(format!("{key} is a result of block {other:?}, which is not in depends_on"));
        }
        let number = self.steps.iter().position(|s| *s == (block, at));
        number.map(|n| n + 1).ok_or_else(|| format!("there is no result {key}"))
    }
}

fn reachable(start: usize, direct: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next: Vec<usize> = direct.get(start).into_iter().flatten().copied().collect();
    while let Some(block) = next.pop() {
        if found.insert(block) {
            next.extend(direct.get(block).into_iter().flatten());
        }
    }
    found
}
