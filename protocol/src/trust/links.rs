//! Links of chains that were found good: two nodes that meet again need not check each other's certificates again, nor decode each
//! other's keys.
use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::{Mutex, PoisonError},
};

use super::keys::{DecodedKey, Domain, MlDsaKey, PublicKeys, Signature};

/// Links remembered: two for each member of the largest mesh that a sync message describes.
pub const REMEMBERED_LINKS: usize = 2 * crate::limits::SYNC_MEMBERS;
/// Decoded keys kept: 1.5 MB at most. A larger mesh decodes some keys again, which is a seventh of a millisecond each.
const DECODED_KEYS: usize = 32;

/// The hashes of good links, each over the issuer's keys, the certificate's bytes and both signatures. Only who has the issuer's
/// keys can add one. Times, roles and revocations are not part of it: they are checked anew each time.
///
/// Beside them, the decoded keys of members whose signature held lately. Only who has the secret key can add one.
pub struct VerifiedLinks(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    known: HashSet<[u8; 32]>,
    by_age: VecDeque<[u8; 32]>,
    /// The one used last is the last.
    decoded: VecDeque<(MlDsaKey, DecodedKey)>,
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

    /// As [`Signature::verifies`], for the keys of a chain that was found good.
    pub(super) fn verifies(
        &self,
        signature: &Signature,
        keys: &PublicKeys,
        domain: Domain,
        message: &[u8],
    ) -> bool {
        let mut decoded = self.remembered().decoded(keys.ml_dsa());
        let decode = || decoded.get_or_insert_with(|| DecodedKey::of(keys.ml_dsa())).clone();
        let holds = signature.verifies_with(keys, decode, domain, message);
        if let Some(decoded) = decoded.filter(|_| holds) {
            self.remembered().keep(keys.ml_dsa(), decoded);
        }
        holds
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

    fn decoded(&self, key: &MlDsaKey) -> Option<DecodedKey> {
        self.decoded.iter().find(|(known, _)| known == key).map(|(_, decoded)| decoded.clone())
    }

    fn keep(&mut self, key: &MlDsaKey, decoded: DecodedKey) {
        self.decoded.retain(|(known, _)| known != key);
        self.decoded.push_back((key.clone(), decoded));
        if self.decoded.len() > DECODED_KEYS {
            self.decoded.pop_front();
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
    use crate::trust::{NodeIdentity, keys::ML_DSA_KEY_BYTES};

    #[test]
    fn good_links_are_checked_once_and_bad_ones_each_time() {
        let links = VerifiedLinks::new();
        assert!(!links.check([1; 32], || false));
        assert!(!links.check([1; 32], || false), "a bad one was remembered");
        assert!(links.check([1; 32], || true));
        assert!(links.check([1; 32], || panic!("checked again")));
        assert!(!links.check([2; 32], || false));
    }

    #[test]
    fn a_known_key_verifies_no_more_than_an_unknown_one() {
        let links = VerifiedLinks::new();
        let (node, other) = (NodeIdentity::from_seed([1; 64]), NodeIdentity::from_seed([2; 64]));
        let signature = node.sign(Domain::Identity, b"message").unwrap();
        let kept = || links.remembered().decoded.len();
        let holds =
            |keys: &PublicKeys, domain, message: &[u8]| links.verifies(&signature, keys, domain, message);
        assert!(!holds(other.public(), Domain::Identity, b"message"));
        assert_eq!(kept(), 0, "a signature that does not hold keeps no key");
        for _ in 0..2 {
            assert!(holds(node.public(), Domain::Identity, b"message"));
            assert_eq!(kept(), 1);
            assert!(!holds(node.public(), Domain::Identity, b"another"));
            assert!(!holds(node.public(), Domain::Join, b"message"));
            let mixed = PublicKeys::of_node(node.node_id(), other.public().ml_dsa().clone());
            assert!(!holds(&mixed, Domain::Identity, b"message"));
            let mixed = PublicKeys::of_node(other.node_id(), node.public().ml_dsa().clone());
            assert!(!holds(&mixed, Domain::Identity, b"message"));
            assert_eq!(kept(), 1);
        }
    }

    #[test]
    fn the_key_that_was_not_used_for_longest_goes() {
        let mut remembered = Remembered::default();
        let key = |n: usize| MlDsaKey::from_bytes([u8::try_from(n).unwrap(); ML_DSA_KEY_BYTES]);
        let decoded = DecodedKey::of(&key(0));
        for n in 0..DECODED_KEYS {
            remembered.keep(&key(n), decoded.clone());
        }
        remembered.keep(&key(0), decoded.clone());
        remembered.keep(&key(DECODED_KEYS), decoded);
        assert_eq!(remembered.decoded.len(), DECODED_KEYS);
        assert!(remembered.decoded(&key(0)).is_some() && remembered.decoded(&key(1)).is_none());
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
