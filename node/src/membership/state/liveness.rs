//! What SWIM finds out, in the member table.
use std::time::{Duration, SystemTime};

use octomesh_protocol::id::NodeId;
use tokio::time::Instant;

use super::{Effect, MemberState, MembershipState, backoff, heard};

/// A member that is down and was heard less long ago than this is about to say that it lives: while it was only suspected it was
/// asked twice a second.
const SILENT: Duration = Duration::from_secs(2);

/// What people read of a member that was stopped in order.
const STOPPED: &str = "it was stopped";

impl MembershipState {
    /// Rumours and nodes that are gone for good have no state that could change.
    pub(super) fn liveness(&mut self, node: NodeId, to: MemberState, effects: &mut Vec<Effect>) {
        let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.certified) else { return };
        let member = &mut contact.member;
        if std::mem::replace(&mut member.state, to) == to {
            return;
        }
        let said = match to {
            MemberState::Alive if member.connected => None,
            // It lives, but not for us: why its session ended stays.
            MemberState::Alive => member.problem.take(),
            MemberState::Left => Some(STOPPED.to_owned()),
            MemberState::Suspect | MemberState::Down if member.connected => {
                Some("connected, but it does not answer".to_owned())
            }
            MemberState::Suspect | MemberState::Down => member.problem.take(),
        };
        member.problem = said;
        effects.push(Effect::Transition { node, name: member.name.clone(), to });
    }

    /// Sessions with members that are down and silent end. TCP alone would keep them for as long as it may send again what was not
    /// answered, or for ever when the machine answers for a process that stands still.
    pub(super) fn hang_up(&self, now: Instant, effects: &mut Vec<Effect>) {
        let down = self.contacts.iter().filter(|(_, c)| {
            let member = &c.member;
            let silent = member.last_contact.is_none_or(|at| now >= at + SILENT);
            member.connected && member.state == MemberState::Down && silent
        });
        effects.extend(down.map(|(node, _)| Effect::HangUp { node: *node }));
    }

    /// A session is wanted now. One that just failed is not tried again before its time.
    pub(super) fn wanted(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        if self.revoked.contains_key(&node) {
            return;
        }
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        let waits = contact.failures > 0 && now < contact.next_dial;
        if !contact.member.connected && !waits {
            contact.relaying.wanted(now);
        }
        if contact.member.connected || contact.member.addresses.is_empty() || waits {
            return;
        }
        contact.next_dial = now + backoff(contact.failures);
        effects.push(Effect::Dial { node: Some(node), addresses: contact.member.addresses.clone() });
    }

    /// A packet of its own came over its session. That happens several times a second, so nobody is told.
    pub(crate) fn heard_directly(&mut self, node: NodeId, now: Instant, wall: SystemTime) {
        if let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.member.connected) {
            heard(&mut contact.member, now, wall);
        }
    }
}
