//! `shell`: a command in the sandbox.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::card::{SandboxLevel, ToolCard};

use super::code::{Bench, Job};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

/// Seconds when the call does not say.
const TIMEOUT_S: u64 = 60;

/// The tool.
#[derive(Debug)]
pub struct Shell {
    card: Arc<ToolCard>,
    bench: Bench,
}

impl Shell {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub(super) fn new(bench: Bench) -> Result<Self, RegistryError> {
        let card = super::card(include_str!("cards/shell.toml"), "shell.toml")?;
        Ok(Self { card, bench })
    }
}

#[async_trait]
impl Tool for Shell {
    fn card(&self) -> &Arc<ToolCard> {
        &self.card
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let command = super::text(&arguments, "command")?.to_owned();
        if command.contains('\0') {
            return Err(ToolError::InvalidArguments("the command contains a zero byte".into()));
        }
        let stdin = super::optional_text(&arguments, "stdin").unwrap_or_default();
        let job = Job {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), command],
            env: Vec::new(),
            input: stdin.as_bytes().to_vec(),
            timeout_s: super::optional_number(&arguments, "timeout_s").unwrap_or(TIMEOUT_S),
        };
        let finished = self.bench.run(&self.card, context, job).await?;
        Ok(self.bench.output(&finished, Arguments::new()))
    }

    fn sandbox(&self) -> SandboxLevel {
        self.bench.sandbox.level()
    }

    fn stops_itself(&self) -> bool {
        true
    }
}
