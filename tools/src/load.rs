//! Lazy loading: what is expensive about a tool is made at its first call, once, however many calls come at the same moment.
use std::sync::Arc;

use async_trait::async_trait;
use octomesh_protocol::{card::ToolCard, id::ToolName};
use tokio::sync::OnceCell;

use crate::{
    schema::Schema,
    tool::{Tool, ToolError},
};

/// Why there is no tool to call. The variant's name is the error code that people see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum LoadError {
    /// No tool of this name is on this node.
    #[error("no tool `{0}` on this node")]
    NoTool(ToolName),
    /// The tool is here and does not work.
    #[error("tool `{name}` is unavailable: {reason}")]
    Unavailable {
        /// Which.
        name: ToolName,
        /// Why.
        reason: String,
    },
    /// Its card or manifest is bad.
    #[error("tool `{name}` is quarantined: {reason}")]
    Quarantined {
        /// Which.
        name: ToolName,
        /// Why.
        reason: String,
    },
}

impl LoadError {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// Makes a tool at its first call.
#[async_trait]
pub(crate) trait Loader: Send + Sync {
    async fn load(&self, card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError>;
}

/// The loader of a tool that is cheap enough to be there from the start.
pub(crate) struct Ready(pub(crate) Arc<dyn Tool>);

#[async_trait]
impl Loader for Ready {
    async fn load(&self, _card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError> {
        Ok(Arc::clone(&self.0))
    }
}

/// A tool that can be called.
pub(crate) struct Loaded {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) schema: Schema,
}

/// The place of a loaded tool: filled by the first call, shared by all that come while it is being filled. A failed load leaves
/// it empty, so that the next call tries again.
pub(crate) struct LoadCell {
    loader: Box<dyn Loader>,
    loaded: OnceCell<Arc<Loaded>>,
}

impl LoadCell {
    pub(crate) fn new(loader: Box<dyn Loader>) -> Self {
        Self { loader, loaded: OnceCell::new() }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.initialized()
    }

    pub(crate) async fn get(&self, card: &Arc<ToolCard>) -> Result<Arc<Loaded>, String> {
        let loaded = self
            .loaded
            .get_or_try_init(|| async {
                let schema = Schema::compile(&card.input_schema).map_err(|e| e.to_string())?;
                let tool = self.loader.load(card).await.map_err(|e| e.to_string())?;
                Ok::<_, String>(Arc::new(Loaded { tool, schema }))
            })
            .await?;
        Ok(Arc::clone(loaded))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::builtin;

    struct Slow(Arc<AtomicU32>, u32);

    #[async_trait]
    impl Loader for Slow {
        async fn load(&self, _card: &Arc<ToolCard>) -> Result<Arc<dyn Tool>, ToolError> {
            let turn = self.0.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            if turn < self.1 {
                return Err(ToolError::Unavailable("not yet".into()));
            }
            Ok(Arc::new(builtin::echo::Echo::new().unwrap()))
        }
    }

    #[tokio::test]
    async fn many_first_calls_load_once() {
        let count = Arc::new(AtomicU32::new(0));
        let cell = LoadCell::new(Box::new(Slow(Arc::clone(&count), 0)));
        let card = Arc::clone(builtin::echo::Echo::new().unwrap().card());
        assert!(!cell.is_loaded());
        let all = futures::future::join_all((0..50).map(|_| cell.get(&card))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(cell.is_loaded());
    }

    #[tokio::test]
    async fn a_failed_load_is_tried_again() {
        let count = Arc::new(AtomicU32::new(0));
        let cell = LoadCell::new(Box::new(Slow(Arc::clone(&count), 1)));
        let card = Arc::clone(builtin::echo::Echo::new().unwrap().card());
        assert_eq!(cell.get(&card).await.err().as_deref(), Some("not yet"));
        assert!(cell.get(&card).await.is_ok());
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}
