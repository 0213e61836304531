//! Links of chains that were found good: two nodes that meet again need not check each other's certificates again.
use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::{Mutex, PoisonError},
};

/// Links remembered: two for each member of the largest mesh that a sync message describes.
pub const REMEMBERED_LINKS: usize = 2 * crate::limits::SYNC_MEMBERS;

/// The hashes of good links, each over the issuer's keys, the certificate's bytes and both signatures. Only who has the issuer's
/// keys can add one. Times, roles and revocations are not part of it: they are checked anew each time.
pub struct VerifiedLinks(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    known: HashSet<[u8; 32]>,
    by_age: VecDeque<[u8; 32]>,
}

impl VerifiedLinks {
    /// Knows none.
    #[must_use]
    pub fn new() -> Self {
        Self(Mutex::default())
    }

    /// Whether `check` held for the link `hash`, now or earlier. A check that fails is not remembered.
    pub(super) fn check(&self, hash: [u8; 32], check: impl FnOnce() -> bool) -> bool {
        // The lock is not held while signatures are checked; two that check the same link at once both add it, which is once.
        if self.remembered().known.contains(&hash) {
            return true;
        }
        let good = check();
        if good {
            self.remembered().add(hash);
        }
        good
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, Remembered> {
        // Nothing in here can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    fn add(&mut self, hash: [u8; 32]) {
        if !self.known.insert(hash) {
            return;
        }
        self.by_age.push_back(hash);
        if self.by_age.len() > REMEMBERED_LINKS
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

impl Default for VerifiedLinks {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for VerifiedLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedLinks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_links_are_checked_once_and_bad_ones_each_time() {
        let links = VerifiedLinks::new();
        assert!(!links.check([1; 32], || false));
        assert!(links.check([1; 32], || true));
        assert!(links.check([1; 32], || panic!("checked again")));
        assert!(!links.check([2; 32], || false));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let links = VerifiedLinks::new();
        let hash = |n: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&n.to_le_bytes());
            hash
        };
        for n in 0..=REMEMBERED_LINKS {
            assert!(links.check(hash(n), || true));
        }
        assert_eq!(links.remembered().known.len(), REMEMBERED_LINKS);
        assert_eq!(links.remembered().by_age.len(), REMEMBERED_LINKS);
        assert!(links.check(hash(1), || panic!("forgotten")));
        assert!(!links.check(hash(0), || false));
    }
}
