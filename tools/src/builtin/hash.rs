//! `hash`: the fingerprint of a file or a text.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::card::ToolCard;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};
use tokio_util::sync::CancellationToken;

use super::files::{self, Input, Wanted};
use crate::{
    registry::RegistryError,
    tool::{Arguments, CallContext, DataProbe, Tool, ToolError, ToolOutput, Workspace},
};

/// The tool.
#[derive(Debug)]
pub struct Hash(Arc<ToolCard>);

impl Hash {
    /// With its card.
    ///
    /// # Errors
    /// Never with the card that is built in.
    pub fn new() -> Result<Self, RegistryError> {
        super::card(include_str!("cards/hash.toml"), "hash.toml").map(Self)
    }
}

#[async_trait]
impl Tool for Hash {
    fn card(&self) -> &Arc<ToolCard> {
        &self.0
    }

    async fn call(&self, context: &CallContext, arguments: Arguments) -> Result<ToolOutput, ToolError> {
        let (workspace, local) = (Arc::clone(&context.workspace), context.caller.local);
        files::work(context, move |stop| {
            let algorithm = super::optional_text(&arguments, "algorithm").unwrap_or("sha256").to_owned();
            let input = files::path_or_text(&arguments)?;
            let (hash, bytes) = match algorithm.as_str() {
                "sha512" => digest::<Sha512>(&workspace, &input, local, stop)?,
                _ => digest::<Sha256>(&workspace, &input, local, stop)?,
            };
            let mut value = json!({ "algorithm": algorithm, "hash": hash, "bytes": bytes });
            if let (Input::Path(path), Value::Object(fields)) = (input, &mut value) {
                fields.insert("path".into(), json!(path));
            }
            Ok(value)
        })
        .await
        .map(Into::into)
    }

    async fn probe(&self, workspace: &Workspace, arguments: &Arguments) -> DataProbe {
        files::probe(workspace, arguments, Wanted::File)
    }
}

fn digest<D: Digest>(
    workspace: &Workspace,
    input: &Input,
    local: bool,
    stop: &CancellationToken,
) -> Result<(String, u64), ToolError> {
    let mut hash = D::new();
    let bytes = match input {
        Input::Text(text) => {
            hash.update(text.as_bytes());
            text.len() as u64
        }
        Input::Path(path) => {
            let (file, _) = files::open(workspace, path, local)?;
            files::read_pieces(path, file, stop, |piece| hash.update(piece))?
        }
    };
    Ok((files::hex(&hash.finalize()), bytes))
}
