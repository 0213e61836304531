//! `calc`: arithmetic. The parser is in `expression`.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::json;

use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, Tool, ToolError, ToolOutput},
};

mod expression;

/// The tool.
#[derive(Debug)]
pub struct Calc(Arc<ToolCard>);

impl Calc {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/calc.toml"), "calc.toml").map(Self)
    }
}

#[async_trait]
impl Tool for Calc {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, _context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let text = super::text(&arguments, "expression")?;
        let number = expression::evaluate(text).map_err(|e| ToolError::InvalidArguments(e.to_string()))?;
        Ok(json!({ "expression": text, "result": number.to_json() }).into())
    }
}
