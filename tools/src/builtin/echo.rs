//! `echo`: returns its text. For trying out a mesh and for tests.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::json;

use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

/// The tool.
#[derive(Debug)]
pub struct Echo(Arc<ToolCard>);

impl Echo {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/echo.toml"), "echo.toml").map(Self)
    }
}

#[async_trait]
impl Tool for Echo {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, _context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let text = super::text(&arguments, "text")?;
        Ok(json!({ "text": text }).into())
    }
}
