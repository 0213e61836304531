//! Packets of others, read before foca sees them. Whoever sends is known: the session is authenticated. So nobody speaks for
//! somebody else, and what is told of a third member counts less than what that member says itself.
use std::collections::BTreeSet;

use foca::{Member, Message as Word, State};
use octomesh_protocol::id::NodeId;
use tokio::time::Instant;

use super::{
    codec::Packet,
    config,
    core::{At, Effect, Swim},
    identity::Identity,
};

impl Swim {
    pub(super) fn packet(&mut self, from: NodeId, bytes: &[u8], at: At, effects: &mut Vec<Effect>) {
        let mut packet = match Packet::read(bytes) {
            Ok(packet) => packet,
            Err(error) => return effects.push(Effect::Refused { from, why: error.into() }),
        };
        let src = packet.header.src;
        if src.node != from || from == self.me() {
            return effects.push(Effect::Refused { from, why: "foreign_sender" });
        }
        if self.barred.contains(&from) || !self.admit(from, false) {
            return;
        }
        self.keep_ahead(packet.header.dst, at, effects);
        let told = packet.members.len();
        let mut altered = false;
        let mut kept = Vec::with_capacity(told);
        let mut about = BTreeSet::from([from]);
        for member in std::mem::take(&mut packet.members) {
            let Some(vetted) = self.vet(from, &member, at, effects) else { continue };
            altered |= vetted != member;
            about.insert(vetted.id().node);
            kept.push(vetted);
        }
        altered |= kept.len() != told;
        packet.members = kept;
        about.retain(|node| self.may_change(*node, &packet));
        let written = if altered { packet.write().ok() } else { None };
        let bytes = written.as_deref().unwrap_or(bytes);
        self.run(at.now, effects, about, |foca, wants| foca.handle_data(bytes, wants));
        if let Word::ForwardedAck { origin, .. } = packet.header.message {
            self.heard_through_others(origin, at.now, effects);
        }
    }

    /// Whether the packet can bring something new of that member; looking it up in foca costs a pass over all members.
    fn may_change(&self, node: NodeId, packet: &Packet) -> bool {
        let known = self.peers.get(&node).and_then(|p| p.known);
        let Some(known) = known else { return true };
        let differs = |id: &Identity, refutations, state| {
            *id != known.id || refutations != known.refutations || state != known.state
        };
        let header = &packet.header;
        (header.src.node == node && differs(&header.src, header.src_incarnation, State::Alive))
            || packet
                .members
                .iter()
                .any(|m| m.id().node == node && differs(m.id(), m.incarnation(), m.state()))
    }

    /// What is told of a member, as foca may have it; `None` when it may not.
    pub(super) fn vet(
        &mut self,
        from: NodeId,
        told: &Member<Identity>,
        at: At,
        effects: &mut Vec<Effect>,
    ) -> Option<Member<Identity>> {
        let id = *told.id();
        if id.node == self.me() {
            self.keep_ahead(id, at, effects);
            return Some(told.clone());
        }
        if id.node == from {
            return Some(told.clone());
        }
        if self.barred.contains(&id.node)
            || id.incarnation > at.unix.saturating_add(config::INCARNATION_AHEAD)
            || !self.admit(id.node, false)
        {
            return None;
        }
        if told.state() == State::Down { self.vet_death(told, at.now) } else { Some(told.clone()) }
    }

    /// A member that we are connected with, and have no reason to doubt, is asked before others are believed that it is down.
    /// Otherwise a node that was cut off for a while would come back and bury everybody.
    fn vet_death(&mut self, told: &Member<Identity>, now: Instant) -> Option<Member<Identity>> {
        let peer = self.peers.get_mut(&told.id().node)?;
        let Some(known) = peer.known.filter(|_| peer.is_active()) else { return Some(told.clone()) };
        if peer.is_expected_to_die(now) || told.id().version() < known.id.version() {
            return Some(told.clone());
        }
        if told.id().version() > known.id.version() {
            // A later life of it, or its good-bye: it has a session with us and says so itself.
            return None;
        }
        if peer.verdict.is_none() {
            peer.verdict = Some(now + config::CONFIRM);
            self.watched.insert(known.id.node);
        }
        Some(Member::new(known.id, told.incarnation().max(known.refutations), State::Suspect))
    }

    /// Others know a later life of this node than this one: its disk was set back. Only a still later one is heard.
    fn keep_ahead(&mut self, told: Identity, at: At, effects: &mut Vec<Effect>) {
        let own = *self.foca.identity();
        if told.node != own.node
            || told.version() <= own.version()
            || told.incarnation > at.unix.saturating_add(config::INCARNATION_AHEAD)
        {
            return;
        }
        let Some(beyond) = own.beyond(&told) else { return };
        tracing::info!(
            incarnation = beyond.incarnation,
            bump = beyond.bump,
            "others know a later life of this node"
        );
        self.run(at.now, effects, None, |foca, wants| foca.change_identity(beyond, wants));
        self.begin_life(at.now, effects);
    }
}
