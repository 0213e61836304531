//! Recipes: sentences with typed slots that stand for one or more calls. Some are embedded; more come from the owner's folder.
use std::{collections::BTreeMap, fs, path::Path};

use octomesh_tools::regular;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::solve::{
    limits,
    plan::PlanError,
    references::{self, ResultKey},
};

use super::{
    pattern::{Captures, Pattern},
    text::words,
};

/// Recipes of one node: more would make the order in which they win unreadable.
const RECIPES: usize = 512;
/// One file of recipes.
const FILE_BYTES: u64 = 256 * 1024;
/// Files in the owner's folder.
const FILES: usize = 64;

/// The name under which a recipe's step `index` is referred to inside of the recipe.
#[must_use]
pub fn local_name(index: usize) -> String {
    format!("__step{index}")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    recipes: Vec<RawRecipe>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRecipe {
    r#match: Vec<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    args: Map<String, Value>,
    #[serde(default)]
    steps: Vec<RawStep>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    tool: String,
    #[serde(default)]
    args: Map<String, Value>,
    #[serde(default)]
    save_as: Option<String>,
}

/// A recipe.
#[derive(Debug, Clone)]
pub struct Recipe {
    patterns: Vec<Pattern>,
    steps: Vec<RawStep>,
}

/// A step of a recipe with its slots filled.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipeStep {
    /// The tool.
    pub tool: String,
    /// Its arguments; `${__step0}` is the recipe's first step.
    pub arguments: Map<String, Value>,
}

/// All recipes of a node, the owner's before the embedded ones.
#[derive(Debug, Clone, Default)]
pub struct Recipes(Vec<Recipe>);

impl Recipes {
    /// The embedded recipes.
    ///
    /// # Errors
    /// Never with the file that is built in; a test holds it.
    pub fn embedded() -> Result<Self, PlanError> {
        parse(include_str!("recipes.yaml"), "recipes.yaml").map(Self)
    }

    /// The recipes of every `*.yaml` and `*.yml` in `dir`, by file name, before the embedded ones. A folder that does not exist
    /// has none.
    ///
    /// # Errors
    /// [`PlanError::InvalidFile`] that names file and line.
    pub fn with_folder(dir: &Path) -> Result<Self, PlanError> {
        let fail = |path: &Path, message: String| PlanError::InvalidFile {
            place: path.display().to_string(),
            message,
        };
        let mut files = Vec::new();
        match fs::read_dir(dir) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|e| fail(dir, e.to_string()))?.path();
                    if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
                        files.push(path);
                    }
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail(dir, e.to_string())),
        }
        if files.len() > FILES {
            return Err(fail(dir, format!("more than {FILES} files of recipes")));
        }
        files.sort();
        let mut all = Vec::new();
        for path in files {
            let text = regular::read_text(&path, FILE_BYTES).map_err(|e| fail(&path, e.to_string()))?;
            all.extend(parse(&text, &path.display().to_string())?);
        }
        all.extend(Self::embedded()?.0);
        if all.len() > RECIPES {
            return Err(fail(dir, format!("more than {RECIPES} recipes")));
        }
        Ok(Self(all))
    }

    /// The steps of the first recipe that fits and whose tools exist. The error is a tool that a fitting recipe needs and no
    /// node has.
    ///
    /// # Errors
    /// The name of that tool.
    pub fn expand(
        &self,
        clause: &str,
        exists: &dyn Fn(&str) -> bool,
    ) -> Result<Option<Vec<RecipeStep>>, String> {
        let clause = without_end(clause);
        let list = words(clause);
        if list.is_empty() || list.len() > limits::CLAUSE_WORDS {
            return Ok(None);
        }
        let mut lacking = None;
        for recipe in &self.0 {
            let Some(captures) = recipe.patterns.iter().find_map(|p| p.fit(&list)) else { continue };
            match recipe.steps.iter().find(|s| !exists(&s.tool)) {
                None => return Ok(Some(recipe.steps.iter().map(|s| s.filled(&captures)).collect())),
                Some(step) => lacking = lacking.or_else(|| Some(step.tool.clone())),
            }
        }
        lacking.map_or(Ok(None), Err)
    }
}

/// A sentence's `?`, `!` or `.` at the end does not belong to its last word, unless it stands alone (the folder `.`).
fn without_end(clause: &str) -> &str {
    let cut = clause.trim_end_matches(['?', '!', '.']);
    if cut.is_empty() || cut.ends_with(char::is_whitespace) { clause } else { cut }
}

impl RawStep {
    fn filled(&self, captures: &Captures) -> RecipeStep {
        let arguments = self.args.iter().map(|(k, v)| (k.clone(), fill(v, captures))).collect();
        RecipeStep { tool: self.tool.clone(), arguments }
    }
}

fn fill(value: &Value, captures: &Captures) -> Value {
    match value {
        Value::String(text) => {
            let whole =
                text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).and_then(|n| captures.get(n));
            whole.cloned().unwrap_or_else(|| Value::String(fill_text(text, captures)))
        }
        Value::Array(list) => Value::Array(list.iter().map(|v| fill(v, captures)).collect()),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(k, v)| (k.clone(), fill(v, captures))).collect())
        }
        other => other.clone(),
    }
}

/// Replaces `{slot}`; `${reference}` stays. One pass: what is filled in is not looked at again.
fn fill_text(text: &str, captures: &Captures) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let slot = from.get(1..).and_then(|t| t.split_once('}')).filter(|_| !before.ends_with('$'));
        match slot.and_then(|(name, tail)| Some((captures.get(name)?, tail))) {
            Some((Value::String(s), tail)) => {
                out.push_str(s);
                rest = tail;
            }
            Some((other, tail)) => {
                out.push_str(&other.to_string());
                rest = tail;
            }
            None => {
                out.push('{');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

fn parse(text: &str, file: &str) -> Result<Vec<Recipe>, PlanError> {
    let fail = |place: String, message: String| PlanError::InvalidFile { place, message };
    let raw: RecipeFile = serde_norway::from_str(text).map_err(|e| fail(file.to_owned(), e.to_string()))?;
    let mut recipes = Vec::new();
    for (index, recipe) in raw.recipes.into_iter().enumerate() {
        let place = format!("{file}: recipes[{index}]");
        let mut patterns = Vec::new();
        for pattern in &recipe.r#match {
            patterns
                .push(Pattern::parse(pattern).map_err(|m| fail(place.clone(), format!("{pattern:?}: {m}")))?);
        }
        let steps = match (recipe.tool, recipe.steps) {
            (Some(tool), steps) if steps.is_empty() => {
                vec![RawStep { tool, args: recipe.args, save_as: None }]
            }
            (None, steps) if !steps.is_empty() && recipe.args.is_empty() => steps,
            _ => return Err(fail(place, "a recipe has either tool and args, or steps".into())),
        };
        if patterns.is_empty() {
            return Err(fail(place, "match is empty".into()));
        }
        recipes.push(Recipe { patterns, steps: localise(steps, &place)? });
    }
    Ok(recipes)
}

/// References inside a recipe are to its own steps; they get names that no clause can have.
fn localise(mut steps: Vec<RawStep>, place: &str) -> Result<Vec<RawStep>, PlanError> {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (index, step) in steps.iter_mut().enumerate() {
        references::rewrite(&mut step.args, &mut |key| match key {
            ResultKey::Last if index > 0 => Ok(ResultKey::Name(local_name(index - 1))),
            ResultKey::Name(name) if names.contains_key(name) => {
                Ok(ResultKey::Name(local_name(names.get(name).copied().unwrap_or_default())))
            }
            other => Err(PlanError::InvalidFile {
                place: format!("{place}.steps[{index}]"),
                message: format!("{other} is no earlier result of this recipe"),
            }),
        })?;
        if let Some(name) = &step.save_as {
            names.insert(name.clone(), index);
        }
    }
    Ok(steps)
}
