//! The fast path, and everything else that waits for an answer: members whose last connection closed, who are suspected, or who
//! are said to be down.
use std::time::Duration;

use foca::{Member, Message as Word, State};
use octomesh_protocol::{id::NodeId, swim::Message};
use tokio::time::Instant;

use super::{
    config,
    core::{Effect, Swim},
    identity::Identity,
    peer::{Doubt, Known, Peer},
};
use crate::membership::view::MemberState;

/// How often members that wait for an answer are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Probes of ours are told apart from those of foca by who asks, not by number.
const ANY_PROBE: u8 = 0;

impl Swim {
    pub(super) fn connected(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        if node == self.me() {
            return;
        }
        self.barred.remove(&node);
        let alone = !self.peers.values().any(|p| p.connected);
        if !self.admit(node, true) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if alone {
            (self.pulls, self.next_pull) = (0, Some(now));
        }
        (peer.connected, peer.met, peer.gone, peer.doubt) = (true, true, false, None);
        peer.provisional_until = Some(now + config::PROVISIONAL).filter(|_| !peer.is_active());
        let held = peer.held.take().filter(|(at, _)| now < *at + config::HELD);
        match peer.known.filter(|_| peer.is_active()) {
            // Both sides ask, so each learns of the other's newest life.
            Some(known) => {
                if let Some(bytes) = self.craft(known.id, Word::Ping(ANY_PROBE), Vec::new()) {
                    self.send(node, bytes, now, effects);
                }
            }
            // The answer to an announcement is a part of the member list.
            None => {
                let dst = Identity::of_any_life(node);
                self.run(now, effects, None, |foca, wants| foca.announce(dst, wants));
            }
        }
        if let Some((_, bytes)) = held {
            effects.push(Effect::Send { to: node, message: Message::Packet(bytes) });
        }
        self.pull_when_due(now, effects);
        self.show(node, now, effects);
    }

    pub(super) fn closed(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if !std::mem::replace(&mut peer.connected, false) {
            return;
        }
        peer.provisional_until = None;
        // Who is down or left stays so; who is alive or suspect has to show itself.
        if peer.known.is_some() && !peer.is_active() {
            self.show(node, now, effects);
            return;
        }
        // The verdict, if there is one, was to be refuted over this connection.
        peer.verdict = None;
        peer.next_dial = None;
        let known = peer.known;
        let asked = self.ask_others(node, known, now, effects);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.doubt = Some(Doubt { since: now, refused: false, asked, told: false });
        }
        self.want_session(node, now, effects);
        self.show(node, now, effects);
    }

    /// Asks others whether they hear the member. Gives how many were asked.
    fn ask_others(
        &mut self,
        node: NodeId,
        known: Option<Known>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) -> usize {
        let Some(known) = known else { return 0 };
        let others = self.some_connected(config::HELPERS, Some(node));
        let mut asked = 0;
        for other in others {
            let Some(id) = self.peers.get(&other).and_then(|p| p.known).map(|k| k.id) else { continue };
            let word = Word::PingReq { target: known.id, probe_number: ANY_PROBE };
            if let Some(bytes) = self.craft(id, word, Vec::new()) {
                self.send(other, bytes, now, effects);
                asked += 1;
            }
        }
        asked
    }

    pub(super) fn dial_failed(
        &mut self,
        node: NodeId,
        refused: bool,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(doubt) = self.peers.get_mut(&node).and_then(|p| p.doubt.as_mut()) else { return };
        doubt.refused |= refused;
        self.look_at(node, now, effects);
    }

    /// Somebody hears it: it is alive, if not for us directly.
    pub(super) fn heard_through_others(&mut self, id: Identity, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&id.node) else { return };
        let same_life = peer.known.is_some_and(|k| id.version() >= k.id.version());
        if same_life && peer.doubt.as_ref().is_some_and(|d| d.asked > 0) {
            peer.doubt = None;
            self.show(id.node, now, effects);
        }
    }

    /// Looks at everybody who waits for an answer.
    pub(super) fn look_after(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for node in self.watched.iter().copied().collect::<Vec<_>>() {
            self.look_at(node, now, effects);
            if self.peers.get(&node).is_none_or(|p| !p.needs_watching()) {
                self.watched.remove(&node);
            }
        }
    }

    fn look_at(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.held.as_ref().is_some_and(|(at, _)| now >= *at + config::HELD) {
            peer.held = None;
        }
        if peer.provisional_until.is_some_and(|until| now >= until) {
            peer.provisional_until = None;
        }
        let certain = self.doubts_itself_until.is_none();
        if certain && peer.verdict.is_some_and(|at| now >= at) {
            self.declare_down(node, now, effects);
        } else if let Some(doubt) = peer.doubt.clone() {
            self.weigh(node, &doubt, now, certain, effects);
        } else if peer.state() == Some(State::Suspect) {
            self.confront(node, now, effects);
        }
        self.show(node, now, effects);
    }

    /// Decides about a member whose last connection closed.
    fn weigh(&mut self, node: NodeId, doubt: &Doubt, now: Instant, certain: bool, effects: &mut Vec<Effect>) {
        let waited = now.saturating_duration_since(doubt.since);
        let patience = config::CLOSED_GRACE + config::suspicion(self.foca.num_members() + 1);
        let confirmed = doubt.refused && (doubt.asked == 0 || waited >= config::REFUSED_GRACE);
        if certain && (confirmed || waited >= patience) {
            self.declare_down(node, now, effects);
        } else if certain && waited >= config::CLOSED_GRACE && !doubt.told {
            let Some(peer) = self.peers.get_mut(&node) else { return };
            if let Some(doubt) = &mut peer.doubt {
                doubt.told = true;
            }
            if let Some(known) = peer.known {
                self.tell(known, State::Suspect, now, effects);
            }
        } else {
            self.want_session(node, now, effects);
        }
    }

    /// Tells a suspected member that it is, and asks for an answer: one that lives refutes within a round trip.
    fn confront(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let Some(known) = peer.known else { return };
        if peer.next_confront.is_some_and(|at| now < at) {
            return;
        }
        peer.next_confront = Some(now + config::CONFRONT_EVERY);
        let suspicion = Member::new(known.id, known.refutations, State::Suspect);
        if let Some(bytes) = self.craft(known.id, Word::Ping(ANY_PROBE), vec![suspicion]) {
            self.send(node, bytes, now, effects);
        }
    }

    /// It is down, and everybody is told.
    fn declare_down(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        (peer.doubt, peer.verdict) = (None, None);
        match peer.known {
            Some(known) => self.tell(known, State::Down, now, effects),
            None => peer.gone = true,
        }
        self.show(node, now, effects);
    }

    /// Puts a judgement of ours into foca, and sends it out without waiting for the next probe.
    fn tell(&mut self, known: Known, state: State, now: Instant, effects: &mut Vec<Effect>) {
        let judged = Member::new(known.id, known.refutations, state);
        self.run(now, effects, Some(known.id.node), |foca, wants| {
            foca.apply_many(std::iter::once(judged), true, &mut *wants)?;
            foca.gossip(wants)
        });
    }
}

impl Peer {
    /// Whether it is fit to be believed dead at once when others say so.
    pub(super) fn is_expected_to_die(&self, now: Instant) -> bool {
        let suspected = self.suspect_since.is_some_and(|since| now >= since + config::CONFIRM);
        !self.connected || suspected || self.shown == MemberState::Down
    }
}
