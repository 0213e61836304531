//! Who may be here, and whether this node can know: revocations, and the exchange of them with other members.
use std::{collections::BTreeMap, time::Duration};

use octomesh_protocol::{id::NodeId, sync::MemberAddress};
use tokio::time::Instant;

use super::{Effect, MemberState, MembershipState, SYNC_EVERY, closed};

/// Comparisons go with one session at a time, whoever has waited longest: news go to all at once, so this is for what was lost, and in a mesh of 64
/// each comparison is of 4 KiB both ways.
const SYNC_GAP: Duration = Duration::from_secs(30);

impl MembershipState {
    /// Revoked nodes leave, and everybody with whom there is a session hears the news at once.
    pub(super) fn trust(&mut self, revoked: BTreeMap<NodeId, String>, effects: &mut Vec<Effect>) {
        for (node, problem) in revoked {
            if self.revoked.insert(node, problem.clone()).is_some() {
                continue;
            }
            let Some(contact) = self.contacts.get_mut(&node) else { continue };
            // A rumour that nobody confirmed any more.
            if !contact.certified && !contact.remembered {
                self.contacts.remove(&node);
                continue;
            }
            let member = &mut contact.member;
            closed(member);
            member.state = MemberState::Left;
            member.problem = Some(problem);
            (member.advert, member.advert_at, member.tools_complete) = (None, None, false);
            member.tools = std::sync::Arc::default();
            member.addresses.clear();
            (member.exchanged, member.known) = (false, false);
            (contact.manifest, contact.next_sync) = (None, None);
            (contact.certified, contact.remembered) = (false, false);
            let name = member.name.clone();
            effects.push(Effect::Transition { node, name, to: MemberState::Left });
            effects.push(Effect::Persist);
        }
        self.forget_unused_cards();
        let connected = self.contacts.iter().filter(|(_, c)| c.member.connected);
        effects.extend(connected.map(|(id, _)| Effect::Sync { node: *id }));
    }

    /// A node of the address book that was revoked before this start: only its name is left.
    pub(super) fn revoked_before(&mut self, told: MemberAddress, now: Instant) {
        let problem = self.revoked.get(&told.node).cloned();
        if let Some(contact) = self.contact(told.node, told.name, now) {
            contact.member.state = MemberState::Left;
            contact.member.problem = problem;
        }
    }

    /// Compares with one member what both hold.
    pub(super) fn compare(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.compared.is_some_and(|at| now < at + SYNC_GAP) {
            return;
        }
        let due = self.contacts.iter_mut().filter(|(_, c)| c.member.connected);
        let due = due.filter(|(_, c)| c.next_sync.is_some_and(|at| now >= at));
        if let Some((node, contact)) = due.min_by_key(|(_, c)| c.next_sync) {
            (contact.next_sync, self.compared) = (Some(now + SYNC_EVERY), Some(now));
            effects.push(Effect::Sync { node: *node });
        }
    }

    pub(super) fn exchanged(&mut self, node: NodeId) {
        if let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.member.connected) {
            contact.member.exchanged = true;
        }
    }

    /// Without any session this node misses whatever is revoked: what it exchanged before says nothing any more.
    pub(super) fn alone(&mut self) {
        if !self.contacts.values().any(|c| c.member.connected) {
            self.contacts.values_mut().for_each(|c| c.member.exchanged = false);
        }
    }

    /// The first session after a time without any: `node` may be the one that was revoked meanwhile, so all others are looked for now.
    pub(super) fn back_among_others(&mut self, node: NodeId, now: Instant) {
        if self.contacts.values().any(|c| c.member.connected) {
            return;
        }
        for (_, other) in self.contacts.iter_mut().filter(|(id, _)| **id != node) {
            other.member.tried = false;
            other.next_dial = other.next_dial.min(now);
        }
    }
}
