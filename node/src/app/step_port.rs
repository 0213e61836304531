//! Dispatch as the solve loop sees it.
use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use octomesh_protocol::{
    id::{StepKey, ToolName},
    step::{Event, StepStatus},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    dispatch::{CallAsk, Dispatcher, Placed},
    membership::{MeshView, view::CatalogueView},
    router::Decision,
    solve::ports::{CatalogueEntry, StepPort, StepReport, StepRequest},
};

/// Events of one step on their way to whoever watches the run.
const EVENTS: usize = 64;

/// Told when a step is started somewhere, and what it says while it runs.
pub(crate) trait StepWatch: Send + Sync {
    fn placed(&self, step: &StepKey, decision: &Decision);
    fn said(&self, step: &StepKey, event: &Event);
}

pub(crate) struct MeshSteps {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) watch: Arc<dyn StepWatch>,
    /// An earlier process may have started steps of this run.
    pub(crate) resumed: bool,
}

#[async_trait]
impl StepPort for MeshSteps {
    fn catalogue(&self) -> Vec<CatalogueEntry> {
        let view = self.view.borrow().clone();
        let mut names: BTreeMap<ToolName, CatalogueEntry> = BTreeMap::new();
        for (name, variants) in CatalogueView::new(&view).tools {
            for variant in variants {
                let nodes = variant.nodes.iter().filter_map(|n| view.get(*n)).map(|m| m.name.clone());
                // The variant that most nodes have comes first and gives the card; a variant's nodes count all the same.
                names
                    .entry(name.clone())
                    .or_insert_with(|| CatalogueEntry { card: Arc::clone(&variant.card), nodes: Vec::new() })
                    .nodes
                    .extend(nodes);
            }
        }
        names.into_values().collect()
    }

    async fn run(&self, request: StepRequest, cancel: CancellationToken) -> StepReport {
        let view = self.view.borrow().clone();
        let pinned = match &request.node {
            None => None,
            Some(name) => match view.by_name(name.as_str()) {
                Some(member) => Some(member.node),
                None => return unknown_node(&request),
            },
        };
        let key = StepKey { run: request.run, step: request.step };
        let (watch, watched) = (Arc::clone(&self.watch), key.clone());
        let ask = CallAsk {
            key: key.clone(),
            tool: request.tool,
            card: None,
            arguments: request.arguments,
            pinned,
            timeout: request.timeout,
            placed: Some(Placed(Arc::new(move |decision| watch.placed(&watched, decision)))),
            resumed: self.resumed,
        };
        let (events, mut said) = mpsc::channel(EVENTS);
        let call = async {
            let done = self.dispatcher.call(ask, &cancel, &events).await;
            drop(events);
            done
        };
        let listen = async {
            while let Some(event) = said.recv().await {
                self.watch.said(&key, &event);
            }
        };
        let (done, ()) = tokio::join!(call, listen);
        let message = done.output.pointer("/error/message").and_then(|m| m.as_str()).map(str::to_owned);
        StepReport {
            status: done.status,
            // Where it was last tried, when it has no place in the end: people look for the node that failed.
            node: done.node.or_else(|| done.decision.ran_on.clone()),
            output: done.output,
            elapsed_ms: done.elapsed_ms,
            sandbox: done.sandbox,
            decision_id: Some(done.decision.id.to_string()),
            why: Some(done.decision.to_why_json()),
            reason: if done.status == StepStatus::Ok { None } else { message },
            attempts: done.attempts,
        }
    }
}

fn unknown_node(request: &StepRequest) -> StepReport {
    let name = request.node.as_ref().map(ToString::to_string).unwrap_or_default();
    let message = format!("no node {name} in this mesh");
    StepReport {
        status: StepStatus::Refused,
        output: serde_json::json!({"error": {"code": "unknown_node", "message": message}}),
        node: None,
        elapsed_ms: 0,
        sandbox: octomesh_protocol::card::SandboxLevel::None,
        decision_id: None,
        why: None,
        reason: Some(message),
        attempts: 0,
    }
}
