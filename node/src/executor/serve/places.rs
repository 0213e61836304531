//! How many streams are served at once, in all and of one node, and how many may rest between two exchanges.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use octomesh_protocol::id::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Streams served at once; more than a node can run, and each is a task.
const STREAMS: usize = 1024;
/// Of these for one node: the leases of a large machine and the questions in between, never all places.
const STREAMS_PER_NODE: usize = 256;
/// Streams of one node that rest. A node keeps fewer; each is a task that waits.
const RESTING_PER_NODE: usize = 128;

#[derive(Debug, Default, Clone, Copy)]
struct Of {
    served: usize,
    resting: usize,
}

/// Places of streams that are served: so many in all, and so many of one node.
#[derive(Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    by_node: Arc<Mutex<BTreeMap<NodeId, Of>>>,
}

/// One place; dropping it gives it back.
pub(super) struct Place {
    places: Places,
    node: NodeId,
    _one_of_all: OwnedSemaphorePermit,
}

/// A stream between two exchanges.
pub(super) struct Resting {
    places: Places,
    node: NodeId,
}

impl Places {
    pub(super) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(STREAMS)), by_node: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<NodeId, Of>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, node: NodeId) -> Option<Place> {
        let one_of_all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut by_node = self.table();
        let of = by_node.entry(node).or_default();
        if of.served >= STREAMS_PER_NODE {
            return None;
        }
        of.served += 1;
        drop(by_node);
        Some(Place { places: self.clone(), node, _one_of_all: one_of_all })
    }

    fn give_back(&self, node: NodeId, what: impl FnOnce(&mut Of) -> &mut usize) {
        let mut by_node = self.table();
        if let Some(of) = by_node.get_mut(&node) {
            let count = what(of);
            *count = count.saturating_sub(1);
            if of.served == 0 && of.resting == 0 {
                by_node.remove(&node);
            }
        }
    }
}

impl Place {
    /// The exchange is over and the stream may have another; `None` when too many of this node's rest already.
    pub(super) fn rest(self) -> Option<Resting> {
        let mut by_node = self.places.table();
        let of = by_node.entry(self.node).or_default();
        if of.resting >= RESTING_PER_NODE {
            return None;
        }
        of.resting += 1;
        drop(by_node);
        Some(Resting { places: self.places.clone(), node: self.node })
    }
}

impl Resting {
    /// Another exchange begins; `None` when all places are taken.
    pub(super) fn wake(self) -> Option<Place> {
        self.places.take(self.node)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.give_back(self.node, |of| &mut of.served);
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.places.give_back(self.node, |of| &mut of.resting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId::from_bytes([1; 32]);

    #[test]
    fn a_stream_that_rests_takes_no_place_and_finds_one_again() {
        let places = Places::new();
        let mut taken: Vec<Place> = (0..STREAMS_PER_NODE).filter_map(|_| places.take(NODE)).collect();
        assert_eq!((taken.len(), places.take(NODE).is_none()), (STREAMS_PER_NODE, true));
        assert!(places.take(NodeId::from_bytes([2; 32])).is_some(), "there is room for others");
        let resting = taken.pop().and_then(Place::rest).unwrap();
        let other = places.take(NODE).unwrap();
        assert!(places.take(NODE).is_none(), "the place of the one that rests is taken");
        let late = taken.pop().and_then(Place::rest).unwrap();
        assert!(late.wake().is_some());
        taken.push(other);
        assert!(resting.wake().is_some());
        drop(taken);
        assert!(places.table().is_empty());
        assert_eq!(places.all.available_permits(), STREAMS);
    }

    #[test]
    fn so_many_of_one_node_rest_and_no_more() {
        let places = Places::new();
        let resting: Vec<Resting> =
            (0..=RESTING_PER_NODE).filter_map(|_| places.take(NODE).and_then(Place::rest)).collect();
        assert_eq!(resting.len(), RESTING_PER_NODE);
        assert_eq!(places.all.available_permits(), STREAMS, "the one that may not rest gave its place back");
        drop(resting);
        assert!(places.table().is_empty());
    }
}
