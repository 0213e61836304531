//! Addresses heard on the network: they name nobody, so they are dialled to learn who is there. Anybody can make them up; hence
//! few are kept, few are dialled at once, and those that lead nowhere are dialled ever more rarely.
use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use octomesh_protocol::id::NodeId;
use tokio::time::Instant;

use super::{Contact, DIAL_YIELD, Effect, MembershipState};
use crate::{
    discovery::Hint,
    membership::reach::{Source, Unreached},
};

/// Kept at once: as many as nodes of one mesh are on one network.
const KEPT: usize = 64;
/// Dials of them at one tick, so two a second per place: invented ones must not crowd out members.
const DIALS_PER_TICK: usize = 4;
/// An announcement is repeated every minute; after this one the node is gone.
const KEPT_FOR: Duration = Duration::from_secs(150);
/// A member that should be there is dialled first, by its name.
const MEMBER_FIRST: Duration = Duration::from_secs(3);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_SLOWEST: Duration = Duration::from_secs(300);
/// A member that did not answer is dialled at once when it is heard again, but not more often.
const CALLED_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Entry {
    addresses: Vec<String>,
    /// Who answered there.
    node: Option<NodeId>,
    dials: u32,
    next_dial: Instant,
    until: Instant,
    reason: Option<String>,
}

/// The addresses.
#[derive(Debug, Default)]
pub(super) struct Hints(Vec<Entry>);

impl Hints {
    /// An address was reached.
    pub(super) fn reached(&mut self, address: &str, node: NodeId) {
        for entry in self.0.iter_mut().filter(|e| e.addresses.iter().any(|a| a == address)) {
            (entry.node, entry.dials, entry.reason) = (Some(node), 0, None);
        }
    }

    /// A dial of it failed.
    pub(super) fn failed(&mut self, address: &str, reason: &str) {
        for entry in self.0.iter_mut().filter(|e| e.addresses.iter().any(|a| a == address)) {
            (entry.node, entry.reason) = (None, Some(reason.to_owned()));
        }
    }

    fn keep(&mut self, addresses: Vec<String>, first_dial: Instant, now: Instant) {
        let until = now + KEPT_FOR;
        let known = |e: &&mut Entry| e.addresses.iter().any(|a| addresses.contains(a));
        if let Some(entry) = self.0.iter_mut().find(known) {
            if entry.addresses != addresses {
                (entry.dials, entry.next_dial) = (0, first_dial);
            }
            (entry.addresses, entry.until) = (addresses, until);
            return;
        }
        if self.0.len() >= KEPT {
            // The one that was dialled most in vain goes.
            let worst =
                self.0.iter().enumerate().filter(|(_, e)| e.node.is_none()).max_by_key(|(_, e)| e.dials);
            match worst.filter(|(_, e)| e.dials > 0).map(|(at, _)| at) {
                Some(at) => drop(self.0.swap_remove(at)),
                None => return,
            }
        }
        self.0.push(Entry { addresses, node: None, dials: 0, next_dial: first_dial, until, reason: None });
    }
}

impl MembershipState {
    /// A node of this mesh was heard on the network, so it is said.
    pub(super) fn hint(&mut self, hint: Hint, now: Instant) {
        let Hint { addresses, yields, .. } = hint;
        let mut first_dial = if yields { now + DIAL_YIELD } else { now };
        for contact in self.contacts.values_mut() {
            let member = &mut contact.member;
            let at = |known: &String| addresses.contains(known);
            if !member.addresses.iter().any(at) && !member.direct_address.as_ref().is_some_and(at) {
                continue;
            }
            member.reach.heard(Source::Mdns);
            if member.connected && member.relay.is_none() {
                continue;
            }
            if member.connected {
                contact.relaying.look_directly(now);
                continue;
            }
            first_dial = first_dial.max(now + MEMBER_FIRST);
            if contact.called_again.is_none_or(|at| now >= at + CALLED_AGAIN) {
                contact.called_again = Some(now);
                contact.failures = 0;
                contact.next_dial = contact.next_dial.min(if yields { now + DIAL_YIELD } else { now });
            }
        }
        self.hints.keep(addresses, first_dial, now);
    }

    /// Dials what is due, unless somebody who is connected is there.
    pub(super) fn dial_hints(&mut self, now: Instant, effects: &mut Vec<Effect>) -> usize {
        if self.hints.0.is_empty() {
            return 0;
        }
        let mut dials = 0;
        let places = places(&self.contacts);
        let contacts = &self.contacts;
        let open = |entry: &Entry| {
            entry.node.is_some_and(|node| contacts.get(&node).is_some_and(|c| c.member.connected))
                || entry.addresses.iter().any(|a| places.contains(a.as_str()))
        };
        self.hints.0.retain(|entry| now < entry.until);
        for entry in self.hints.0.iter_mut().filter(|e| now >= e.next_dial) {
            if dials == DIALS_PER_TICK {
                break;
            }
            if open(entry) {
                // Looked at again soon: the session may end.
                entry.next_dial = now + RETRY_FIRST;
                continue;
            }
            let turn = usize::try_from(entry.dials).unwrap_or(0) % entry.addresses.len().max(1);
            let Some(address) = entry.addresses.get(turn) else { continue };
            effects.push(Effect::Try { address: address.clone() });
            dials += 1;
            let gap = RETRY_FIRST.saturating_mul(1 << entry.dials.min(16)).min(RETRY_SLOWEST);
            entry.dials = entry.dials.saturating_add(1);
            entry.next_dial = now + gap;
        }
        dials
    }

    /// A better reason for the last dial of an address.
    pub(super) fn explained(&mut self, node: Option<NodeId>, address: &str, reason: &str) {
        self.hints.failed(address, reason);
        for peer in self.statics.iter_mut().filter(|p| p.is_at(address) && p.reason.is_some()) {
            peer.reason = Some(reason.to_owned());
        }
        let contact = node.and_then(|n| self.contacts.get_mut(&n));
        if let Some(member) = contact.map(|c| &mut c.member).filter(|m| !m.connected) {
            member.reach.failed(Some(address), reason);
            member.problem = Some(member.reach.sentence(true));
        }
    }

    /// Addresses that lead to nobody: configured ones and those heard on the network.
    pub(super) fn unreached(&self) -> Vec<Unreached> {
        let connected = |node: Option<NodeId>| {
            node.and_then(|n| self.contacts.get(&n)).is_some_and(|c| c.member.connected)
        };
        let of_statics = self.statics.iter().filter(|p| !connected(p.node)).map(|p| Unreached {
            address: p.address.clone(),
            source: Source::Config,
            reason: p.reason.clone(),
        });
        let of_hints = self.hints.0.iter().filter(|e| e.dials > 0 && !connected(e.node)).map(|e| Unreached {
            address: e.addresses.join(" "),
            source: Source::Mdns,
            reason: e.reason.clone(),
        });
        let mut unreached: Vec<Unreached> = of_statics.chain(of_hints).collect();
        if !unreached.is_empty() {
            // Whoever is connected may have been found by another way.
            let places = places(&self.contacts);
            unreached.retain(|u| !u.address.split(' ').any(|a| places.contains(a)));
        }
        unreached
    }
}

/// Addresses of members with an open session.
fn places(contacts: &BTreeMap<NodeId, Contact>) -> HashSet<&str> {
    let connected = contacts.values().map(|c| &c.member).filter(|m| m.connected);
    connected.flat_map(|m| m.addresses.iter().chain(&m.direct_address)).map(String::as_str).collect()
}

#[cfg(test)]
#[path = "hints_tests.rs"]
mod tests;
