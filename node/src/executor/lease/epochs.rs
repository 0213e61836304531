//! The highest epoch seen of each run: what fences off a coordinator that was away and came back.
use std::collections::{BTreeMap, VecDeque};

use octomesh_protocol::id::{NodeId, RunId};

/// Runs remembered. A coordinator that stayed away for longer than this many runs of others is not told apart any more; its
/// leases are long gone by then.
const RUNS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Epochs {
    highest: BTreeMap<(NodeId, RunId), u64>,
    order: VecDeque<(NodeId, RunId)>,
}

impl Epochs {
    pub(super) fn of(&self, owner: NodeId, run: &RunId) -> u64 {
        self.highest.get(&(owner, run.clone())).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, owner: NodeId, run: &RunId, epoch: u64) {
        let key = (owner, run.clone());
        if let Some(highest) = self.highest.get_mut(&key) {
            *highest = epoch.max(*highest);
            return;
        }
        if self.order.len() >= RUNS
            && let Some(oldest) = self.order.pop_front()
        {
            self.highest.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.highest.insert(key, epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_upwards_and_bounded() {
        let (node, run) = (NodeId::from_bytes([1; 32]), RunId::run([1; 8]));
        let mut e = Epochs::default();
        e.raise(node, &run, 5);
        e.raise(node, &run, 3);
        assert_eq!(e.of(node, &run), 5);
        assert_eq!(e.of(NodeId::from_bytes([2; 32]), &run), 0, "another node's run of the same name");
        for n in 0..RUNS as u64 {
            e.raise(node, &RunId::call(n.to_be_bytes()), 1);
        }
        assert_eq!((e.highest.len(), e.order.len()), (RUNS, RUNS));
        assert_eq!(e.of(node, &run), 0);
    }
}
