//! What the executor is told at its start, and what is measured while it runs.
use octomesh_protocol::advert::YieldReason;
use tokio::time::Instant;

use crate::load::gpu::Card;

/// Queue places per slot: work for a few typical calls, short enough that going elsewhere is better than waiting longer.
const QUEUE_PER_SLOT: u16 = 4;

/// Settings of the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Steps that run at once; 0 is taken as 1.
    pub slots: u16,
    /// Whether other nodes may run tools here; false on a `client`.
    pub offers_tools: bool,
}

impl ExecutorConfig {
    /// Slots, at least one.
    pub(super) fn slots(&self) -> usize {
        usize::from(self.slots.max(1))
    }

    /// Steps that may wait.
    pub(super) fn queue(&self) -> usize {
        self.slots() * usize::from(QUEUE_PER_SLOT)
    }

    /// Leases of one other node: all but one slot's share of the places, so that no single coordinator can take them all.
    pub(super) fn per_peer(&self) -> usize {
        self.queue()
    }
}

/// Memory of this machine at the last measurement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// Free main memory, in bytes, and when it was read; `None` before the first reading.
    pub memory_free: Option<(u64, Instant)>,
    /// GPUs, in the order of the advert.
    pub gpus: Vec<Card>,
    /// Why the machine takes nothing of other nodes for now.
    pub yields: Option<YieldReason>,
}
