//! One exchange at a time with a member that tells what it knows: one that tells without end, and never answers, must not make this
//! node remember more and more.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use octomesh_protocol::{id::NodeId, sync::Sync};

/// Members whose revocations are being fetched, each with the newest that it told meanwhile. As many as have sessions.
#[derive(Clone, Default)]
pub(super) struct Catching(Arc<Mutex<BTreeMap<NodeId, Option<Sync>>>>);

impl Catching {
    fn under_way(&self) -> MutexGuard<'_, BTreeMap<NodeId, Option<Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to begin with now; nothing while an exchange with `node` is under way, which then goes on with `theirs`.
    pub(super) fn begin(&self, node: NodeId, theirs: Sync) -> Option<Sync> {
        let mut under_way = self.under_way();
        if let Some(next) = under_way.get_mut(&node) {
            *next = Some(theirs);
            return None;
        }
        under_way.insert(node, None);
        Some(theirs)
    }

    /// What the exchange with `node` goes on with; with nothing more to do it has ended.
    pub(super) fn next(&self, node: NodeId) -> Option<Sync> {
        let mut under_way = self.under_way();
        let next = under_way.get_mut(&node).and_then(Option::take);
        if next.is_none() {
            under_way.remove(&node);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::trust::SecretStamp;

    use super::*;

    fn told(byte: u8) -> Sync {
        Sync { advert: vec![byte], members: Vec::new(), revocations: Vec::new(), secret: SecretStamp::FIRST }
    }

    #[test]
    fn one_exchange_for_each_member_and_only_the_newest_waits() {
        let (catching, node, other) =
            (Catching::default(), NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        assert_eq!(catching.begin(node, told(0)), Some(told(0)));
        for byte in 1..100 {
            assert_eq!(catching.begin(node, told(byte)), None);
        }
        assert_eq!(catching.begin(other, told(7)), Some(told(7)));
        assert_eq!(catching.next(node), Some(told(99)));
        assert_eq!(catching.begin(node, told(100)), None, "still under way");
        assert_eq!(catching.next(node), Some(told(100)));
        assert_eq!(catching.next(node), None);
        assert_eq!(catching.under_way().len(), 1, "only the other's");
        assert_eq!(catching.begin(node, told(1)), Some(told(1)));
    }
}
