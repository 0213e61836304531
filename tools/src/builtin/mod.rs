//! The tools that every node has. One file per tool; its card is the TOML file of the same name in `cards/`.
use std::sync::Arc;

use octomesh_protocol::{
    card::ToolCard,
    id::{CardHash, NodeName},
};
use serde_json::Value;

use crate::{
    registry::{Registry, RegistryError},
    sandbox::Sandbox,
    tool::{Arguments, Tool, ToolError},
};

pub mod calc;
mod code;
pub mod copy;
pub mod echo;
pub mod file_list;
pub mod file_read;
pub mod file_search;
pub mod file_write;
pub(crate) mod files;
pub mod hash;
pub mod json;
pub mod run_python_code;
mod seats;
pub mod shell;
pub mod text_stats;
pub mod time;
pub mod tool_info;

/// What `tool_info` searches: every tool of the mesh with the nodes that have it. The node gives it.
pub trait Catalogue: Send + Sync {
    /// All available tools, each card once.
    fn cards(&self) -> Vec<Listed>;
}

/// A tool that `tool_info` may find.
#[derive(Debug, Clone)]
pub struct Listed {
    /// What it is.
    pub card: Arc<ToolCard>,
    /// The hash of that.
    pub hash: CardHash,
    /// The nodes that offer it; none: only this node.
    pub nodes: Vec<NodeName>,
}

/// Registers the built-in tools that run in the node's own process.
///
/// # Errors
/// [`RegistryError`]: a name is taken, or one of our own cards is bad.
pub fn register_all(registry: &Registry, catalogue: Arc<dyn Catalogue>) -> Result<(), RegistryError> {
    let tools: [Arc<dyn Tool>; 11] = [
        Arc::new(echo::Echo::new()?),
        Arc::new(time::Time::new()?),
        Arc::new(json::Json::new()?),
        Arc::new(calc::Calc::new()?),
        Arc::new(file_read::FileRead::new()?),
        Arc::new(file_write::FileWrite::new()?),
        Arc::new(file_list::FileList::new()?),
        Arc::new(file_search::FileSearch::new()?),
        Arc::new(text_stats::TextStats::new()?),
        Arc::new(hash::Hash::new()?),
        Arc::new(tool_info::ToolInfo::new(catalogue)?),
    ];
    for tool in tools {
        registry.register(tool)?;
    }
    Ok(())
}

/// Registers the tools that run code of their callers. They share the places that such programs have.
///
/// # Errors
/// As [`register_all`].
pub fn register_code(registry: &Registry, sandbox: &Sandbox) -> Result<(), RegistryError> {
    let bench = code::Bench::new(sandbox);
    registry.register(Arc::new(shell::Shell::new(bench.clone())?))?;
    registry.register(Arc::new(run_python_code::RunPythonCode::new(bench)?))
}

/// The card in `text`.
fn card(text: &str, file: &str) -> Result<Arc<ToolCard>, RegistryError> {
    Ok(Arc::new(crate::manifest::builtin_card(text, file)?))
}

/// A text argument that the schema requires.
fn text<'a>(arguments: &'a Arguments, name: &str) -> Result<&'a str, ToolError> {
    optional_text(arguments, name)
        .ok_or_else(|| ToolError::InvalidArguments(format!("argument `{name}` is missing")))
}

/// A text argument that may be absent.
fn optional_text<'a>(arguments: &'a Arguments, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

/// A whole number that may be absent. The schema has checked its range.
fn optional_number(arguments: &Arguments, name: &str) -> Option<u64> {
    arguments.get(name).and_then(|v| v.as_u64().or_else(|| whole(v)))
}

/// `2.0` is an integer to JSON Schema.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole and in range"
)]
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_f64()?;
    (number.fract() == 0.0 && (0.0..=9.0e15).contains(&number)).then_some(number as u64)
}

/// A yes or no that may be absent.
fn flag(arguments: &Arguments, name: &str, default: bool) -> bool {
    arguments.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// Runs work that may block on a thread for that.
async fn blocking<T, F>(work: F) -> Result<T, ToolError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, ToolError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ToolError::Failed("the tool panicked".into())),
    }
}
