//! `octomesh config`.
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, Context, Exit, render::Table};
use crate::config;

/// Checks or shows the configuration.
#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say everything that is wrong
    Check,
    /// Show each value and where it stands
    Show,
    /// Show where the file is
    Path,
}

impl ConfigCommand {
    pub(super) fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let path = config::path(&context.home);
        if matches!(self.what, What::Path) {
            context
                .screen
                .show(&json!({ "path": path, "exists": path.exists() }), |_| path.display().to_string())?;
            return Ok(Exit::Ok);
        }
        let loaded = match config::load(&context.sources(Vec::new())) {
            Ok(loaded) => loaded,
            Err(errors) => {
                if context.screen.json {
                    let error = CliError::from(errors.clone());
                    let mut document = error.document();
                    if let Some(Value::Object(body)) = document.get_mut("error") {
                        // Each on its own, for editors.
                        body.insert("errors".to_owned(), json!(errors.0));
                    }
                    context.screen.object(&document);
                    return Ok(Exit::Config);
                }
                return Err(errors.into());
            }
        };
        for warning in &loaded.warnings {
            context.screen.warn(&format!("warning: {warning}"));
        }
        match self.what {
            What::Show => context.screen.show(&json!({ "values": loaded.values }), |_| {
                let mut table = Table::new(&["key", "value", "from"]);
                for v in &loaded.values {
                    table.row([v.key.to_owned(), v.value.clone(), v.origin.to_string()]);
                }
                table.to_string()
            })?,
            _ => context
                .screen
                .show(&json!({ "ok": true, "path": path, "warnings": loaded.warnings }), |_| {
                    "The configuration is fine.".to_owned()
                })?,
        }
        Ok(Exit::Ok)
    }
}
