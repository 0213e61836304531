//! The registry as the executor sees it.
use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use octomesh_protocol::{
    blob::BlobRef,
    card::{SandboxLevel, ToolCard},
    id::{CardHash, NodeId, ToolName},
    step::StepStatus,
};
use octomesh_tools::{
    builtin::{Catalogue, Listed},
    call,
    registry::{EntryState, Registry},
    sandbox::Sandbox,
    tool::{CallContext, Caller, DataProbe, WallClock, Workspace},
};
use tokio::{
    sync::{OnceCell, watch},
    time::Instant,
};

use crate::{
    blob::Store,
    executor::{Absent, CallReport, RunContext, ToolRunner},
    membership::{MeshView, view::CatalogueView},
    metrics::ExecutorMetrics,
};

pub(crate) struct RegistryRunner {
    pub(crate) registry: Registry,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) wall: WallClock,
    pub(crate) metrics: ExecutorMetrics,
    pub(crate) sandbox: Sandbox,
    pub(crate) blobs: Store,
}

#[async_trait]
impl ToolRunner for RegistryRunner {
    fn card(&self, tool: &ToolName) -> Result<(CardHash, Arc<ToolCard>), Absent> {
        let snapshot = self.registry.snapshot();
        let entry = snapshot.get(tool).ok_or(Absent::NoTool)?;
        match &entry.state {
            EntryState::Available => Ok((entry.hash, Arc::clone(&entry.card))),
            EntryState::Unavailable { reason } | EntryState::Quarantined { reason } => {
                Err(Absent::Unavailable(reason.clone()))
            }
        }
    }

    fn sandbox(&self) -> SandboxLevel {
        self.sandbox.level()
    }

    async fn run(&self, tool: &ToolName, context: RunContext, arguments: Vec<u8>) -> CallReport {
        let proof = context.proof;
        let context = CallContext {
            key: context.key,
            caller: context.caller,
            cancel: context.cancel,
            deadline: context.deadline,
            workspace: Arc::clone(&self.workspace),
            events: context.events,
            wall: Arc::clone(&self.wall),
            gpu: context.gpu,
        };
        let source = self.registry.snapshot().get(tool).map(|e| e.card.source);
        let begun = Instant::now();
        let report = call::call(&self.registry, tool, &context, &arguments).await;
        if !proof {
            self.metrics.step_over(tool.as_str(), report.status, begun.elapsed());
        }
        if let Some(source) = source.filter(|_| !proof) {
            self.metrics.tool_called(tool.as_str(), source, report.status == StepStatus::Ok);
        }
        CallReport { status: report.status, output: report.output, sandbox: report.sandbox }
    }

    async fn keep(&self, owner: NodeId, output: Vec<u8>, lasts: Duration) -> Result<BlobRef, String> {
        self.blobs.keep(output, owner, lasts).await.map_err(|e| e.to_string())
    }

    async fn input(&self, owner: NodeId, blob: BlobRef) -> Result<Vec<u8>, String> {
        if !self.blobs.may_read(blob.hash, owner) {
            return Err(format!(
                "the arguments {} were not brought here before the step was started",
                blob.hash
            ));
        }
        self.blobs.read(blob.hash).await.map_err(|e| e.to_string())
    }

    async fn probe(&self, tool: &ToolName, _: &Caller, arguments: &[u8]) -> DataProbe {
        call::probe(&self.registry, tool, &self.workspace, arguments).await
    }
}

/// The tools of the mesh, for `tool_info`. Before the mesh is known: those of this node.
pub(crate) struct MeshCatalogue {
    pub(crate) registry: Registry,
    pub(crate) view: Arc<OnceCell<watch::Receiver<Arc<MeshView>>>>,
}

impl Catalogue for MeshCatalogue {
    fn cards(&self) -> Vec<Listed> {
        let Some(view) = self.view.get() else { return self.registry.catalogue().cards() };
        let view = view.borrow().clone();
        let names = |nodes: &[octomesh_protocol::id::NodeId]| {
            nodes.iter().filter_map(|n| view.get(*n).map(|m| m.name.clone())).collect()
        };
        let catalogue = CatalogueView::new(&view);
        catalogue
            .tools
            .values()
            .flatten()
            .map(|entry| Listed {
                card: Arc::clone(&entry.card),
                hash: entry.hash,
                nodes: names(&entry.nodes),
            })
            .collect()
    }
}
