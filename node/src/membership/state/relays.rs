//! Members that neither side can dial: they are reached over a third one that has sessions with both.
//!
//! A node that misses somebody waits for circuits at a few members, and asks members for a circuit. Both go through the members in one
//! order, by how near their ids are to that of the node which is looked for, and so they meet. Nobody tells anybody who relays whom:
//! what is not told can't be forged, and who says no costs a round trip.
use std::{collections::BTreeSet, time::Duration};

use octomesh_protocol::id::{NodeId, NodeName};
use tokio::time::Instant;

use super::{Effect, MemberState, MembershipState, Path, backoff};

/// Members at which this node waits for circuits: one may go without a gap, a second one at the same time.
const WAITS_AT: usize = 3;
/// They are asked again this often, for those that have a new session. Whoever is asked already is not asked twice.
const RESERVE_EVERY: Duration = Duration::from_secs(5);
/// A member that carries no circuits is left out for so long: its owner may change that.
const LEFT_OUT: Duration = Duration::from_secs(60);
/// Between the members that are asked for one circuit: an answer takes a round trip or two.
const NEXT_RELAY: Duration = Duration::from_millis(500);
/// Circuits asked for at one tick; others wait for the next.
const ASKED_PER_TICK: usize = 16;
/// A member that is reached over a relay is dialled directly after so long, then ever more rarely: a firewall may open.
const DIRECT_FIRST: Duration = Duration::from_secs(15);
const DIRECT_SLOWEST: Duration = Duration::from_secs(300);

/// What is remembered of a member for this.
#[derive(Debug)]
pub(super) struct Relaying {
    /// How many members were asked for a circuit to it, since the start.
    asked: usize,
    /// All of them in vain, how often.
    rounds: u32,
    next: Instant,
    /// It was reached over a relay before.
    worked: bool,
    /// When it is dialled directly although it is reached.
    next_direct: Instant,
    directly: u32,
    /// It carries no circuits itself, until then.
    left_out: Option<Instant>,
}

/// Where this node waits for circuits.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    at: BTreeSet<NodeId>,
    again: Option<Instant>,
}

impl Relaying {
    pub(super) fn new(first: Instant) -> Self {
        Self {
            asked: 0,
            rounds: 0,
            next: first,
            worked: false,
            next_direct: first,
            directly: 0,
            left_out: None,
        }
    }

    pub(super) fn connected(&mut self, direct: bool, now: Instant) {
        self.rounds = 0;
        if direct {
            (self.worked, self.left_out) = (false, None);
        } else if !self.worked {
            (self.worked, self.directly, self.next_direct) = (true, 0, now + DIRECT_FIRST);
        }
    }

    /// No session with it is left: another member may relay, and that one may be gone.
    pub(super) fn ended(&mut self, next: Instant) {
        (self.rounds, self.next) = (0, next);
    }

    pub(super) fn wanted(&mut self, now: Instant) {
        self.next = self.next.min(now + NEXT_RELAY);
    }

    /// It was heard on the network; not more often than it would be dialled first.
    pub(super) fn look_directly(&mut self, now: Instant) {
        self.next_direct = self.next_direct.min(now + DIRECT_FIRST);
    }
}

/// How far an id is from another one, as a number of 256 bits.
fn distance(a: NodeId, b: NodeId) -> [u8; 32] {
    let mut distance = *a.as_bytes();
    distance.iter_mut().zip(b.as_bytes()).for_each(|(x, y)| *x ^= y);
    distance
}

impl MembershipState {
    /// Members that may relay, in the order for circuits to `node`.
    fn relays_to(&self, node: NodeId, now: Instant) -> Vec<NodeId> {
        let carries = |c: &super::Contact| c.relaying.left_out.is_none_or(|until| now >= until);
        let near = self
            .contacts
            .iter()
            .filter(|(id, c)| **id != node && c.member.connected && c.member.relay.is_none() && carries(c));
        let mut relays: Vec<NodeId> = near.map(|(id, _)| *id).collect();
        relays.sort_by_key(|id| distance(*id, node));
        relays
    }

    /// A member that could relay and said that it does not.
    fn refuses_circuits(&self, now: Instant) -> Option<NodeName> {
        let left_out = |c: &&super::Contact| c.relaying.left_out.is_some_and(|until| now < until);
        self.contacts.values().filter(|c| c.member.connected).find(left_out).map(|c| c.member.name.clone())
    }

    /// Whether a member is to be had over a relay only, as far as this node knows: its addresses were dialled in vain, or there are none.
    fn is_missed(&self, node: NodeId) -> bool {
        let Some(contact) = self.contacts.get(&node) else { return false };
        let member = &contact.member;
        let directly = member.tried || member.addresses.is_empty();
        !member.connected
            && directly
            && member.state != MemberState::Left
            && !self.revoked.contains_key(&node)
    }

    /// Asks for circuits to those who are missed, waits for circuits, and looks whether circuits are still needed.
    pub(super) fn relays(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let missed: Vec<NodeId> = self.contacts.keys().copied().filter(|id| self.is_missed(*id)).collect();
        let relayed = self.contacts.values().any(|c| c.member.relay.is_some());
        let mut asked = 0;
        for node in &missed {
            if asked == ASKED_PER_TICK {
                break;
            }
            asked += usize::from(self.ask_for_circuit(*node, now, effects));
        }
        if relayed {
            self.dial_directly(now, effects);
        }
        if relayed || !missed.is_empty() {
            self.wait_for_circuits(now, effects);
        }
    }

    fn ask_for_circuit(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) -> bool {
        let due = self.contacts.get(&node).is_some_and(|c| now >= c.relaying.next);
        if !due {
            return false;
        }
        let relays = self.relays_to(node, now);
        let refuses = self.refuses_circuits(now);
        let Some(contact) = self.contacts.get_mut(&node) else { return false };
        let relaying = &mut contact.relaying;
        let relay = relaying.asked.checked_rem(relays.len()).and_then(|turn| relays.get(turn)).copied();
        let Some(relay) = relay else {
            relaying.next = now + backoff(0);
            let worked = relaying.worked;
            if let Some(name) = refuses {
                self.say_not_relayed(node, &format!("over {name}: it carries no circuits for this node"));
            } else if worked {
                self.say_not_relayed(
                    node,
                    "no member is left that has a session with this node and could relay",
                );
            }
            return false;
        };
        relaying.asked = relaying.asked.wrapping_add(1);
        relaying.next = if relaying.asked.is_multiple_of(relays.len()) {
            relaying.rounds = relaying.rounds.saturating_add(1);
            now + backoff(relaying.rounds)
        } else {
            now + NEXT_RELAY
        };
        effects.push(Effect::DialOver { node, relay });
        true
    }

    fn dial_directly(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let relayed = self.contacts.iter_mut().filter(|(_, c)| c.member.relay.is_some());
        for (node, contact) in relayed.filter(|(_, c)| !c.member.addresses.is_empty()) {
            if now < contact.relaying.next_direct {
                continue;
            }
            let gap = DIRECT_FIRST.saturating_mul(1 << contact.relaying.directly.min(16)).min(DIRECT_SLOWEST);
            contact.relaying.directly = contact.relaying.directly.saturating_add(1);
            contact.relaying.next_direct = now + gap;
            let addresses = contact.to_dial(contact.relaying.directly);
            effects.push(Effect::Dial { node: Some(*node), addresses });
        }
    }

    fn wait_for_circuits(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let relays: Vec<NodeId> = self.relays_to(self.me.node, now).into_iter().take(WAITS_AT).collect();
        let at: BTreeSet<NodeId> = relays.iter().copied().collect();
        if relays.is_empty()
            || (at == self.reserved.at && self.reserved.again.is_some_and(|again| now < again))
        {
            return;
        }
        self.reserved = Reserved { at, again: Some(now + RESERVE_EVERY) };
        effects.push(Effect::Reserve { relays });
    }

    /// Another session with a member is left.
    pub(super) fn goes_on(&mut self, node: NodeId, path: Path) {
        if let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.member.connected) {
            (contact.member.direct_address, contact.member.relay) = (path.address, path.relay);
        }
    }

    pub(super) fn circuit_failed(&mut self, node: NodeId, relay: NodeId, reason: &str) {
        let name = self.contacts.get(&relay).map_or_else(|| relay.short(), |c| c.member.name.to_string());
        self.say_not_relayed(node, &format!("over {name}: {reason}"));
    }

    fn say_not_relayed(&mut self, node: NodeId, said: &str) {
        let Some(member) = self.contacts.get_mut(&node).map(|c| &mut c.member) else { return };
        if member.connected || member.state == MemberState::Left {
            return;
        }
        member.reach.not_relayed(said.to_owned());
        member.problem = Some(member.reach.sentence(!member.addresses.is_empty()));
    }

    pub(super) fn not_reserved(&mut self, relay: NodeId, now: Instant) {
        if let Some(contact) = self.contacts.get_mut(&relay) {
            contact.relaying.left_out = Some(now + LEFT_OUT);
        }
        self.reserved.again = None;
    }
}

#[cfg(test)]
#[path = "relays_tests.rs"]
mod tests;
