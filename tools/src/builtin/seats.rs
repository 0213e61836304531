//! How many programs of callers run at once: few for each node, so that one can't take them all.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use octomesh_protocol::id::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::tool::{CallContext, ToolError};

/// At once on this node.
const ALL: usize = 4;
/// At once for one other node.
const EACH: usize = 2;

/// The seats of one node.
#[derive(Debug)]
pub(super) struct Seats {
    all: Arc<Semaphore>,
    /// Of nodes that have one or wait for one.
    each: Mutex<BTreeMap<NodeId, Weak<Semaphore>>>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ALL)), each: Mutex::default() }
    }
}

/// A seat, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    _own: Option<OwnedSemaphorePermit>,
    _all: OwnedSemaphorePermit,
}

impl Seats {
    /// Waits for a seat, as long as the call may last. The own seat comes first: who waits for it keeps nobody else waiting.
    pub(super) async fn take(&self, context: &CallContext) -> Result<Seat, ToolError> {
        let closed = |_| ToolError::Unavailable("no programs are started any more".into());
        let seat = async {
            let own = if context.caller.local {
                None
            } else {
                Some(self.of(context.caller.node).acquire_owned().await.map_err(closed)?)
            };
            let all = Arc::clone(&self.all).acquire_owned().await.map_err(closed)?;
            Ok(Seat { _own: own, _all: all })
        };
        tokio::select! {
            seat = seat => seat,
            () = context.cancel.cancelled() => Err(ToolError::Cancelled),
            () = tokio::time::sleep_until(context.deadline) => Err(ToolError::Timeout),
        }
    }

    fn of(&self, node: NodeId) -> Arc<Semaphore> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.retain(|_, seats| seats.strong_count() > 0);
        if let Some(seats) = each.get(&node).and_then(Weak::upgrade) {
            return seats;
        }
        let seats = Arc::new(Semaphore::new(EACH));
        each.insert(node, Arc::downgrade(&seats));
        seats
    }
}
