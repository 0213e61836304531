//! Who a member is to SWIM: a node, and which of its lives is meant.
use octomesh_protocol::id::NodeId;

/// A node can come back this often within one run of its process; nobody is wrongly declared down that often.
const MOST_BUMPS: u32 = 0x7fff_ffff;

/// A life of a node. Two lives of one node never exist side by side: the one with the greater version stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    /// Raised at every start and kept on the node's disk, so that a restarted process replaces the old one at once.
    pub(crate) incarnation: u64,
    /// Raised by the running process each time it was declared down and comes back.
    pub(crate) bump: u32,
    /// The last word of a life: it said good-bye. Only a new life comes after it.
    pub(crate) left: bool,
}

impl Identity {
    pub(crate) const fn new(node: NodeId, incarnation: u64) -> Self {
        Self { node, incarnation, bump: 0, left: false }
    }

    /// Somebody of whom only the node is known. An announcement to it is taken by every life of it.
    pub(crate) const fn of_any_life(node: NodeId) -> Self {
        Self::new(node, 0)
    }

    /// Orders the lives of one node.
    pub(crate) const fn version(&self) -> (u64, u32, bool) {
        (self.incarnation, self.bump, self.left)
    }

    /// The same life after its good-bye.
    pub(crate) const fn after_leaving(self) -> Self {
        Self { left: true, ..self }
    }

    /// The life that stands against `other` of the same node; `None` when there are no numbers left.
    pub(crate) fn beyond(&self, other: &Self) -> Option<Self> {
        let newest = if other.version() > self.version() { other } else { self };
        let bump = newest.bump.checked_add(1).filter(|b| *b <= MOST_BUMPS)?;
        Some(Self { node: self.node, incarnation: newest.incarnation, bump, left: false })
    }
}

impl foca::Identity for Identity {
    type Addr = NodeId;

    fn renew(&self) -> Option<Self> {
        self.beyond(self)
    }

    fn addr(&self) -> NodeId {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.version() > adversary.version()
    }
}

#[cfg(test)]
mod tests {
    use foca::Identity as _;

    use super::*;

    #[test]
    fn lives_are_ordered() {
        let node = NodeId::from_bytes([1; 32]);
        let first = Identity::new(node, 100);
        let back = first.renew().unwrap();
        let left = back.after_leaving();
        let restarted = Identity::new(node, 101);
        for (older, newer) in [(first, back), (back, left), (left, left.renew().unwrap()), (left, restarted)]
        {
            assert!(newer.win_addr_conflict(&older) && !older.win_addr_conflict(&newer));
        }
        assert!(!first.win_addr_conflict(&first));
        assert!(!left.renew().unwrap().left, "it is back");
    }

    #[test]
    fn a_life_can_step_beyond_what_is_told_of_it() {
        let node = NodeId::from_bytes([1; 32]);
        let me = Identity::new(node, 100);
        let told = Identity { bump: 7, ..Identity::new(node, 105) };
        let beyond = me.beyond(&told).unwrap();
        assert!(beyond.win_addr_conflict(&told) && beyond.win_addr_conflict(&me));
        assert_eq!(me.beyond(&Identity { bump: u32::MAX, ..told }), None);
    }
}
