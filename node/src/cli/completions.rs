//! `octomesh completions`.
use clap::{Args, Command};
use clap_complete::Shell;

use super::{CliError, Context, Exit};

/// Prints a completion script.
#[derive(Debug, Args)]
pub(super) struct CompletionsCommand {
    /// The shell
    shell: Shell,
}

impl CompletionsCommand {
    pub(super) fn run(&self, context: &Context, command: &mut Command) -> Result<Exit, CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "octomesh", &mut script);
        let script = String::from_utf8(script).map_err(|e| CliError::failed(e.to_string()))?;
        if context.screen.json {
            context.screen.object(&serde_json::json!({ "shell": self.shell.to_string(), "script": script }));
        } else {
            context.screen.raw(&script);
        }
        Ok(Exit::Ok)
    }
}
