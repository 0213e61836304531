//! `octomesh doctor`: each thing that can be wrong, and what to do. Works with the node stopped.
mod discovery;
mod local;
mod refused;
mod remote;

use serde::Serialize;
use serde_json::json;

use super::{CliError, Context, Exit, render::Table};

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(super) enum CheckStatus {
    /// Nothing to do.
    Ok,
    /// Works, but its owner should know.
    Warn,
    /// Does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    name: &'static str,
    status: CheckStatus,
    detail: String,
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, detail: detail.into(), fix: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warn, detail: detail.into(), fix: Some(fix.into()) }
    }

    fn fail(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Fail, detail: detail.into(), fix: Some(fix.into()) }
    }
}

pub(super) async fn run(context: &Context) -> Result<Exit, CliError> {
    let loaded = crate::config::load(&context.sources(Vec::new()));
    let mut checks = vec![
        local::home(&context.home),
        local::permissions(&context.home),
        local::configuration(&loaded),
        local::identity(&context.home),
        local::disk(&context.home),
    ];
    checks.extend(local::certificate(&context.home, crate::app::entry::unix_seconds()));
    checks.extend(local::root(&context.home));
    let seen = remote::look(context).await;
    checks.extend(local::ports(loaded.as_ref().ok().map(|l| &l.config), seen.is_alive));
    checks.push(local::clock(crate::app::entry::unix_seconds(), seen.nodes.as_ref().ok()));
    if let Some(revoked) = seen.status.as_ref().ok().and_then(remote::revoked) {
        // The files of the home are well; the mesh does not want them any more.
        checks.retain(|check| check.name != revoked.name);
        checks.push(revoked);
    }
    checks.extend(remote::checks(&seen));
    if let Ok(reply) = &seen.refusals {
        checks.extend(refused::checks(reply, crate::app::entry::unix_seconds()));
    }
    let failed = checks.iter().any(|check| check.status == CheckStatus::Fail);
    context.screen.show(&json!({ "checks": checks }), |_| text(&checks))?;
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}

fn text(checks: &[Check]) -> String {
    let mut table = Table::new(&["check", "status", "detail"]).whole_in_a_file();
    for check in checks {
        table.row([check.name.to_owned(), check.status.to_string(), check.detail.clone()]);
    }
    let fixes = checks.iter().filter_map(|check| Some(format!("{}: {}\n", check.name, check.fix.as_ref()?)));
    let fixes: String = fixes.collect();
    if fixes.is_empty() { table.to_string() } else { format!("{table}\nWhat to do:\n{fixes}") }
}

#[cfg(test)]
mod tests;
