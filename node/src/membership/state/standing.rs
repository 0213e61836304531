//! Who may be here, and whether this node can know: revocations, and the exchange of them with other members.
use std::collections::BTreeMap;

use octomesh_protocol::id::NodeId;
use tokio::time::Instant;

use super::{Effect, MemberState, MembershipState, closed};

impl MembershipState {
    /// Revoked nodes leave, and everybody with whom there is a session hears the news at once.
    pub(super) fn trust(&mut self, revoked: BTreeMap<NodeId, String>, effects: &mut Vec<Effect>) {
        for (node, problem) in revoked {
            if !self.revoked.insert(node) {
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
