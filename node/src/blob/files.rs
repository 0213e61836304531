//! Files of the workspace for transfers, by the rules of the tools that read and write files.
use std::sync::Arc;

use octomesh_protocol::{blob::BlobRefusal, id::ToolName, limits};
use octomesh_tools::{
    builtin::copy,
    policy,
    registry::Registry,
    sandbox::Sandbox,
    tool::{Caller, ToolError, Workspace},
};

use super::{BlobError, blocking, feed::Outgoing, incoming::Whole};

/// What is to be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// The workspace and who may do what in it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) registry: Registry,
    pub(crate) sandbox: Sandbox,
    pub(crate) workspace: Arc<Workspace>,
    /// Whether others may call tools here; a client offers none.
    pub(crate) offers_tools: bool,
}

impl From<ToolError> for BlobError {
    fn from(error: ToolError) -> Self {
        let reason = match error {
            ToolError::NotFound(_) => BlobRefusal::NotFound,
            ToolError::Forbidden(_) => BlobRefusal::Policy,
            ToolError::InvalidArguments(_) => BlobRefusal::Invalid,
            ToolError::TooLarge(_) => BlobRefusal::TooLarge,
            ToolError::Quota(_) => BlobRefusal::Full,
            _ => BlobRefusal::Failed,
        };
        Self::refused(reason, error.to_string())
    }
}

impl Files {
    /// Whoever may not call `file_read` here may not have the file in another way either; the same for `file_write`.
    pub(super) fn allow(&self, caller: &Caller, access: Access) -> Result<(), BlobError> {
        let tool = match access {
            Access::Read => "file_read",
            Access::Write => "file_write",
        };
        let deny = |why: String| Err(BlobError::refused(BlobRefusal::Policy, why));
        if !caller.local && !self.offers_tools {
            return deny("this node is a client: it offers nothing to others".to_owned());
        }
        let snapshot = self.registry.snapshot();
        let name = ToolName::parse(tool).map_err(|e| BlobError::Io(e.to_string()))?;
        match snapshot.get(&name) {
            Some(entry) if entry.state.is_available() => {
                policy::decide(caller, &entry.card, self.sandbox.level())
                    .or_else(|denied| deny(denied.reason))
            }
            _ => deny(format!("{tool} does not work on this node")),
        }
    }

    /// Opens a file that `caller` may read.
    pub(crate) async fn open(&self, caller: &Caller, path: String) -> Result<Outgoing, BlobError> {
        self.allow(caller, Access::Read)?;
        let (workspace, local) = (Arc::clone(&self.workspace), caller.local);
        blocking(move || {
            let (file, bytes) = copy::open(&workspace, &path, local)?;
            if bytes > limits::FILE_BYTES {
                let detail = format!("`{path}` has {bytes} bytes; {} can be copied", limits::FILE_BYTES);
                return Err(BlobError::refused(BlobRefusal::TooLarge, detail));
            }
            Outgoing::of_file(file)
        })
        .await
    }

    /// Whether `caller` may put a file there; asked before its bytes come.
    pub(crate) async fn may_put(&self, caller: &Caller, path: String) -> Result<(), BlobError> {
        self.allow(caller, Access::Write)?;
        let workspace = Arc::clone(&self.workspace);
        blocking(move || Ok(copy::check(&workspace, &path)?)).await
    }

    /// Puts what has come into its place.
    pub(crate) async fn put(&self, whole: Whole, path: String) -> Result<(), BlobError> {
        let workspace = Arc::clone(&self.workspace);
        blocking(move || {
            let placed = copy::place(&workspace, whole.path(), &path);
            drop(whole);
            Ok(placed.map(drop)?)
        })
        .await
    }
}
