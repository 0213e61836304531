//! What becomes of trust when something is learnt: a pure function from what holds to what holds next and what has to be written first.
use std::{collections::BTreeSet, sync::Arc};

use octomesh_protocol::{
    id::{NodeId, RevocationId},
    limits,
    trust::{CertificateChain, Issuer, Learned, SignedRevocation, SignedRotation},
};

use super::{PREVIOUS_SECRETS, Previous, ROTATION_WINDOW_S, Secrets, Trust};

/// Members remembered that said that this node is out: one is enough to tell its owner, a few show that it is not one liar.
pub(super) const TELLERS: usize = 8;
/// Names of revocations that are void, did not fit, or say no more than a better one, so that they are not asked for again and again.
const UNWANTED: usize = limits::REVOCATIONS;

/// How far ahead of the secret in force a rotation may be. A mesh rotates a few times a year, so that nobody was away for so many; without
/// a limit one rogue admin could use up all numbers, and nobody could ever replace its secret.
pub(super) const GENERATIONS_AHEAD: u64 = 1 << 20;

/// What was learnt. Everything signed was verified before.
#[derive(Debug)]
pub(super) enum Input {
    Revocation(Arc<SignedRevocation>),
    Rotation(Arc<SignedRotation>),
    /// Another certificate of this node.
    Chain(CertificateChain),
    /// This member closed a session with the reason that this node is revoked.
    Told(NodeId),
    /// This member opened a session all the same.
    Welcomed(NodeId),
    /// Time passes.
    Tick,
}

/// What has to be on the disk before the change takes effect.
#[derive(Debug, PartialEq)]
pub(super) enum Write {
    Revocation { signed: Arc<SignedRevocation>, instead_of: Option<Arc<SignedRevocation>> },
    Secrets,
    Chain,
}

/// A change.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub(super) next: Trust,
    pub(super) write: Option<Write>,
}

/// The state of the task.
#[derive(Debug)]
pub(super) struct TrustState {
    pub(super) now: Trust,
    unwanted: BTreeSet<RevocationId>,
}

impl TrustState {
    pub(super) fn new(now: Trust) -> Self {
        Self { now, unwanted: BTreeSet::new() }
    }

    /// Of these, the revocations that are worth asking for.
    pub(super) fn missing(&self, ids: &[RevocationId]) -> Vec<RevocationId> {
        let held: BTreeSet<RevocationId> = self.now.revocations.ids().into_iter().collect();
        let known = |id: &&RevocationId| held.contains(id) || self.unwanted.contains(id);
        ids.iter().filter(|id| !known(id)).copied().collect()
    }

    /// The change that an input makes at `now`, unix seconds; none when it says nothing new.
    pub(super) fn handle(&mut self, input: Input, now: u64) -> Option<Change> {
        let mut next = self.now.clone();
        let write = match input {
            Input::Revocation(signed) => Some(self.revocation(&mut next, signed)?),
            Input::Rotation(rotation) => Some(rotated(&mut next, rotation, now)?),
            Input::Chain(chain) if chain != next.chain => {
                next.chain = chain;
                Some(Write::Chain)
            }
            Input::Told(by) if !next.told.contains(&by) && next.told.len() < TELLERS => {
                next.told.push(by);
                None
            }
            Input::Welcomed(by) if next.told.contains(&by) => {
                next.told.retain(|teller| *teller != by);
                None
            }
            Input::Tick if next.secrets.previous.iter().any(|p| now > p.until) => {
                next.secrets.previous.retain(|p| now <= p.until);
                Some(Write::Secrets)
            }
            Input::Chain(_) | Input::Told(_) | Input::Welcomed(_) | Input::Tick => return None,
        };
        Some(Change { next, write })
    }

    fn revocation(&mut self, next: &mut Trust, signed: Arc<SignedRevocation>) -> Option<Write> {
        let node = signed.unverified().node;
        let instead_of = next.revocations.signed(node).cloned();
        let mut set = (*next.revocations).clone();
        match set.learn(Arc::clone(&signed)) {
            Learned::New | Learned::Instead => {
                // What was worth nothing before may be worth something now.
                self.unwanted.clear();
                next.revocations = Arc::new(set);
                Some(Write::Revocation { signed, instead_of })
            }
            learned => {
                if learned != Learned::Known {
                    tracing::warn!(
                        node = node.short(),
                        why = <&str>::from(learned),
                        "a revocation was not taken"
                    );
                }
                if self.unwanted.len() >= UNWANTED {
                    self.unwanted.clear();
                }
                self.unwanted.insert(signed.id());
                None
            }
        }
    }
}

fn rotated(next: &mut Trust, rotation: Arc<SignedRotation>, now: u64) -> Option<Write> {
    let said = rotation.unverified();
    // Not held before, so what a revoked admin may have backdated is void.
    let void = matches!(said.issuer, Issuer::Admin(issuer) if next.is_revoked(issuer));
    if void || rotation.stamp() <= next.secrets.stamp {
        return None;
    }
    if said.generation.saturating_sub(next.secrets.stamp.generation) > GENERATIONS_AHEAD {
        tracing::warn!(generation = said.generation, "a rotation that is too far ahead was refused");
        return None;
    }
    // A new member was given the current secret without its rotation, and a secret may be signed again: then none was replaced.
    let replaced = (said.secret != next.secrets.current).then(|| Previous {
        secret: next.secrets.current.clone(),
        until: now.saturating_add(ROTATION_WINDOW_S),
    });
    let earlier = next.secrets.previous.iter().filter(|p| now <= p.until && p.secret != said.secret).cloned();
    let previous = replaced.into_iter().chain(earlier).take(PREVIOUS_SECRETS).collect();
    let current = said.secret.clone();
    next.secrets = Secrets { current, stamp: rotation.stamp(), rotation: Some(rotation), previous };
    Some(Write::Secrets)
}

#[cfg(test)]
mod tests;
