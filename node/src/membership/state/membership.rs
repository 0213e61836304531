//! Changes of a membership: another certificate, a member that leaves, one that its owner forgets here.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use octomesh_protocol::{id::NodeId, trust::Certificate};
use tokio::time::Instant;

use super::{Contact, Effect, Member, MemberState, MembershipState};

/// Members that were forgotten or have left are not taken from hearsay for this long: by then those who still knew them have met
/// somebody who does not, or have given up.
const NOT_FROM_HEARSAY: Duration = Duration::from_secs(24 * 3600);
/// Such members remembered; the oldest goes first.
const GONE: usize = 256;

/// Nodes of whom only a session of their own brings news.
#[derive(Debug, Default)]
pub(super) struct Gone(BTreeMap<NodeId, Instant>, Arc<BTreeSet<NodeId>>);

impl Gone {
    pub(super) fn put(&mut self, node: NodeId, now: Instant) {
        self.0.retain(|_, until| now < *until);
        if self.0.len() >= GONE
            && let Some(oldest) = self.0.iter().min_by_key(|(_, until)| **until).map(|(node, _)| *node)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(node, now + NOT_FROM_HEARSAY);
        self.changed();
    }

    fn changed(&mut self) {
        self.1 = Arc::new(self.0.keys().copied().collect());
    }

    /// All of them, for the view.
    pub(super) fn nodes(&self) -> Arc<BTreeSet<NodeId>> {
        Arc::clone(&self.1)
    }

    pub(super) fn contains(&self, node: NodeId, now: Instant) -> bool {
        self.0.get(&node).is_some_and(|until| now < *until)
    }

    pub(super) fn is_back(&mut self, node: NodeId) {
        if self.0.remove(&node).is_some() {
            self.changed();
        }
    }
}

fn certified(member: &mut Member, certificate: Arc<Certificate>) {
    member.name = certificate.name.clone();
    member.role = certificate.role;
    member.grants = certificate.grants.clone();
    member.certificate = Some(certificate);
}

/// Whether a member would take back a name, or limits, that it gave up.
fn is_older(certificate: &Certificate, held: Option<&Arc<Certificate>>) -> bool {
    held.is_some_and(|held| {
        // Of one second. Each issuer counts for itself.
        let same = held.not_before == certificate.not_before && held.issuer == certificate.issuer;
        certificate.not_before < held.not_before || (same && certificate.serial < held.serial)
    })
}

/// Takes what a member is from the certificate of a new session, unless it has shown a newer one before.
pub(super) fn shows(member: &mut Member, fresh: Member) {
    if fresh.certificate.as_ref().is_some_and(|new| is_older(new, member.certificate.as_ref())) {
        return;
    }
    (member.name, member.role, member.grants) = (fresh.name, fresh.role, fresh.grants);
    member.certificate = fresh.certificate;
}

/// Says nothing more of what it does and where it is.
fn silent(contact: &mut Contact, problem: &str) {
    let member = &mut contact.member;
    member.state = MemberState::Left;
    member.problem = Some(problem.to_owned());
    (member.advert, member.advert_at, member.tools_complete) = (None, None, false);
    member.tools = Arc::default();
    member.addresses.clear();
    (member.exchanged, member.known) = (false, false);
    (contact.manifest, contact.next_sync) = (None, None);
    (contact.certified, contact.remembered) = (false, false);
}

impl MembershipState {
    /// A member has another certificate, which was checked.
    pub(super) fn shown(&mut self, certificate: Certificate, effects: &mut Vec<Effect>) {
        let node = certificate.node;
        if node == self.me.node {
            certified(&mut self.me, Arc::new(certificate));
            return;
        }
        let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.member.connected) else { return };
        if is_older(&certificate, contact.member.certificate.as_ref()) {
            return;
        }
        certified(&mut contact.member, Arc::new(certificate));
        effects.push(Effect::Persist);
    }

    /// A member said that it leaves for good.
    pub(super) fn left(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        silent(contact, "it has left the mesh");
        let name = contact.member.name.clone();
        self.gone.put(node, now);
        self.forget_unused_cards();
        effects.push(Effect::Transition { node, name, to: MemberState::Left });
        effects.push(Effect::Persist);
    }

    /// The owner wants to hear no more of a member. One with a session stays.
    pub(super) fn forget(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        if self.contacts.get(&node).is_none_or(|c| c.member.connected || c.member.state.is_present()) {
            return;
        }
        self.contacts.remove(&node);
        self.gone.put(node, now);
        self.forget_unused_cards();
        effects.push(Effect::Persist);
    }

    /// Whether only a session of its own brings that node back.
    pub(crate) fn is_gone(&self, node: NodeId, now: Instant) -> bool {
        self.gone.contains(node, now)
    }

    /// A session that its certificate no longer allows is over.
    pub(crate) fn expired(&self, unix: u64, tolerance_s: u64) -> Vec<NodeId> {
        let over = |m: &Member| {
            m.certificate.as_ref().is_some_and(|c| unix.saturating_sub(c.not_after) > tolerance_s)
        };
        self.contacts
            .iter()
            .filter(|(_, c)| c.member.connected && over(&c.member))
            .map(|(id, _)| *id)
            .collect()
    }
}

#[cfg(test)]
mod tests;
