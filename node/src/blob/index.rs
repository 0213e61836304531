//! Which blobs are here, who may have them, and which goes first when room is needed. Pure: the store does what it says.
use std::collections::{BTreeMap, BTreeSet};

use octomesh_protocol::id::{BlobHash, NodeId};

#[derive(Debug, Clone, Default)]
struct Entry {
    bytes: u64,
    /// Counts uses of all blobs; the lowest is the one that was used longest ago.
    used: u64,
    /// Who may have it. It is kept for each until that time, in unix milliseconds.
    readers: BTreeMap<NodeId, u64>,
    /// Transfers and calls that work with it now.
    pins: u32,
}

impl Entry {
    fn is_kept(&self, now: u64) -> bool {
        self.pins > 0 || self.readers.values().any(|until| *until > now)
    }
}

/// There is not enough room, whatever is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom {
    /// Bytes that may not be thrown away.
    pub(super) kept: u64,
}

#[derive(Debug)]
pub(super) struct Index {
    limit: u64,
    entries: BTreeMap<BlobHash, Entry>,
    bytes: u64,
    uses: u64,
}

impl Index {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, entries: BTreeMap::new(), bytes: 0, uses: 0 }
    }

    pub(super) fn contains(&self, hash: BlobHash) -> bool {
        self.entries.contains_key(&hash)
    }

    /// What has to go so that `bytes` more fit: the blobs that were used longest ago, and none that is kept.
    pub(super) fn make_room(&mut self, bytes: u64, now: u64) -> Result<BTreeSet<BlobHash>, NoRoom> {
        let mut over = self.bytes.saturating_add(bytes).saturating_sub(self.limit);
        let mut free: Vec<_> = self.entries.iter().filter(|(_, e)| !e.is_kept(now)).collect();
        free.sort_by_key(|(_, entry)| entry.used);
        let mut gone = BTreeSet::new();
        for (hash, entry) in free {
            if over == 0 {
                break;
            }
            over = over.saturating_sub(entry.bytes);
            gone.insert(*hash);
        }
        if over > 0 {
            let kept = self.entries.values().filter(|e| e.is_kept(now)).map(|e| e.bytes).sum();
            return Err(NoRoom { kept });
        }
        for hash in &gone {
            self.remove(*hash);
        }
        Ok(gone)
    }

    /// A blob is here now. Room was made before.
    pub(super) fn insert(&mut self, hash: BlobHash, bytes: u64) {
        let used = self.next_use();
        let entry = self.entries.entry(hash).or_default();
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
        entry.used = used;
    }

    pub(super) fn remove(&mut self, hash: BlobHash) {
        if let Some(entry) = self.entries.remove(&hash) {
            self.bytes -= entry.bytes;
        }
    }

    /// `node` may have it, and it is kept until then.
    pub(super) fn hold(&mut self, hash: BlobHash, node: NodeId, until: u64) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            let held = entry.readers.entry(node).or_default();
            *held = until.max(*held);
        }
    }

    /// `node` has it now: it may ask again, but nothing is kept for it.
    pub(super) fn release(&mut self, hash: BlobHash, node: NodeId) {
        if let Some(until) = self.entries.get_mut(&hash).and_then(|e| e.readers.get_mut(&node)) {
            *until = 0;
        }
    }

    /// Whether `node` may have it.
    pub(super) fn may_read(&self, hash: BlobHash, node: NodeId) -> bool {
        self.entries.get(&hash).is_some_and(|e| e.readers.contains_key(&node))
    }

    pub(super) fn readers(&self, hash: BlobHash) -> Vec<(NodeId, u64)> {
        let entry = self.entries.get(&hash);
        entry.map(|e| e.readers.iter().map(|(n, u)| (*n, *u)).collect()).unwrap_or_default()
    }

    /// Somebody works with it: it stays until [`Index::unpin`]. Gives its size.
    pub(super) fn pin(&mut self, hash: BlobHash) -> Option<u64> {
        let used = self.next_use();
        let entry = self.entries.get_mut(&hash)?;
        entry.used = used;
        entry.pins += 1;
        Some(entry.bytes)
    }

    pub(super) fn unpin(&mut self, hash: BlobHash) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            entry.pins = entry.pins.saturating_sub(1);
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(n: u8) -> BlobHash {
        BlobHash::from_bytes([n; 32])
    }

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_kept_never() {
        let mut index = Index::new(100);
        for n in 1..=4 {
            index.insert(hash(n), 25);
        }
        index.hold(hash(1), node(1), 50);
        assert_eq!(index.pin(hash(2)), Some(25));
        assert_eq!(index.make_room(25, 10), Ok([hash(3)].into()));
        assert_eq!(index.make_room(75, 10), Err(NoRoom { kept: 50 }));
        assert!(index.contains(hash(4)), "nothing goes for what can't come");
        index.release(hash(1), node(1));
        index.unpin(hash(2));
        // 2 was used after 4 came.
        assert_eq!(index.make_room(75, 10), Ok([hash(1), hash(4)].into()));
        assert!(!index.may_read(hash(1), node(1)));
    }

    #[test]
    fn only_who_was_named_may_read() {
        let mut index = Index::new(100);
        index.hold(hash(1), node(1), 50);
        assert!(!index.may_read(hash(1), node(1)), "it is not here");
        index.insert(hash(1), 10);
        index.hold(hash(1), node(1), 50);
        assert!(index.may_read(hash(1), node(1)) && !index.may_read(hash(1), node(2)));
        index.release(hash(1), node(1));
        assert!(index.may_read(hash(1), node(1)), "it may ask again while it is here");
    }

    #[derive(Debug, Clone)]
    enum Move {
        Add(u8, u64),
        Hold(u8, u8, u64),
        Release(u8, u8),
        Pin(u8),
        Unpin(u8),
        Drop(u8),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            (0u8..12, 1u64..60).prop_map(|(h, b)| Move::Add(h, b)),
            (0u8..12, 0u8..3, 0u64..100).prop_map(|(h, n, t)| Move::Hold(h, n, t)),
            (0u8..12, 0u8..3).prop_map(|(h, n)| Move::Release(h, n)),
            (0u8..12).prop_map(Move::Pin),
            (0u8..12).prop_map(Move::Unpin),
            (0u8..12).prop_map(Move::Drop),
        ];
        proptest::collection::vec(one, 0..120)
    }

    proptest! {
        #[test]
        fn never_over_the_limit_and_never_without_what_is_kept(moves in moves()) {
            let mut index = Index::new(200);
            for (now, step) in (0u64..).zip(moves) {
                let kept: Vec<BlobHash> =
                    index.entries.iter().filter(|(_, e)| e.is_kept(now)).map(|(h, _)| *h).collect();
                match step {
                    Move::Add(h, bytes) => if !index.contains(hash(h)) && index.make_room(bytes, now).is_ok() {
                        index.insert(hash(h), bytes);
                    },
                    Move::Hold(h, n, until) => index.hold(hash(h), node(n), until),
                    Move::Release(h, n) => index.release(hash(h), node(n)),
                    Move::Pin(h) => drop(index.pin(hash(h))),
                    Move::Unpin(h) => index.unpin(hash(h)),
                    Move::Drop(h) => if !kept.contains(&hash(h)) { index.remove(hash(h)) },
                }
                prop_assert!(index.bytes <= 200);
                prop_assert_eq!(index.bytes, index.entries.values().map(|e| e.bytes).sum::<u64>());
                for hash in kept {
                    prop_assert!(index.contains(hash));
                }
            }
        }
    }
}
