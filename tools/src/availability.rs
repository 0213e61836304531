//! Whether tools really work: their demo calls are run, and a tool that fails is neither offered, gossiped nor routed to.
use octomesh_protocol::{id::ToolName, step::StepStatus};

use crate::{call, registry::Registry, tool::CallContext};

/// Characters of a failed demo call's output that the reason repeats.
const SHOWN_CHARS: usize = 300;

/// Runs the demo calls of a tool, one after the other, each with a context of its own, and sets the tool's state by them.
/// A tool without demo calls is left as it is, and so is one that is gone or quarantined.
///
/// # Errors
/// The reason for which the tool is now unavailable.
pub async fn check(
    registry: &Registry,
    name: &ToolName,
    context: impl Fn() -> CallContext + Send,
) -> Result<(), String> {
    let Some(entry) = registry.snapshot().get(name).cloned() else { return Ok(()) };
    for demo in &entry.card.demo_calls {
        let arguments = demo.arguments.to_string();
        let report = call::call_checked(registry, name, &context(), arguments.as_bytes(), true).await;
        if report.status != StepStatus::Ok {
            let text = String::from_utf8_lossy(&report.output);
            let reason: String = format!("demo call {arguments}: {}: {text}", report.status)
                .chars()
                .take(SHOWN_CHARS)
                .collect();
            registry.set_unavailable(name, reason.as_str());
            return Err(reason);
        }
    }
    if !entry.card.demo_calls.is_empty() {
        registry.set_available(name);
    }
    Ok(())
}

/// Checks every tool of the registry; returns those that are now unavailable.
pub async fn check_all(
    registry: &Registry,
    context: impl Fn() -> CallContext + Send + Sync,
) -> Vec<(ToolName, String)> {
    let names: Vec<ToolName> = registry.snapshot().entries.keys().cloned().collect();
    let mut failed = Vec::new();
    for name in names {
        if let Err(reason) = check(registry, &name, &context).await {
            failed.push((name, reason));
        }
    }
    failed
}
