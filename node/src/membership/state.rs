//! Who is in the mesh: a pure state machine. Inputs are what the network says and the clock; effects are what the task then
//! does. Everything that a peer can make us remember has a bound.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use octomesh_protocol::{
    advert::{Advert, Manifest},
    id::{CardHash, NodeId, NodeName, ToolName, ToolSetHash},
    limits,
    sync::MemberAddress,
    trust::{Certificate, Grants, Role},
};
use tokio::time::Instant;

use crate::net::Path;

use super::{
    reach::{Source, Step},
    view::{Member, MemberState, MeshView, RemoteTool},
};

mod cards;
mod hints;
mod liveness;
mod membership;
mod relays;
mod standing;
mod statics;

use membership::Gone;
use relays::{Relaying, Reserved};
use statics::StaticPeer;

/// Members remembered: the design target is 1,000 nodes; a hostile member that tells of more is cut off here.
pub(super) const MEMBERS: usize = 1024;
/// Dials of a node that was only heard of, and never answered, after which it is forgotten: about half an hour.
const HEARSAY_DIALS: u32 = 64;
/// Dials are retried after half a second, then twice as long each time, up to this.
const DIAL_FIRST: Duration = Duration::from_millis(500);
const DIAL_SLOWEST: Duration = Duration::from_secs(30);
/// Of two nodes the one with the greater id waits this long before its first dial, so that they do not dial each other at the
/// same moment.
const DIAL_YIELD: Duration = Duration::from_millis(1_500);
/// The same for members of the address book, who may be hundreds.
const BOOK_YIELD: Duration = Duration::from_millis(500);
/// Dials started at one tick: hundreds of dead addresses must not crowd out live ones.
const DIALS_PER_TICK: usize = 96;
/// Addresses of one dial, which are tried one after the other: whoever asks why a member can't be reached gets an answer within
/// seconds.
const ADDRESSES_PER_DIAL: usize = 3;
/// What such a dial takes when nobody answers. Until then it is not due again, and takes no other's turn.
const DIAL_TAKES: Duration = Duration::from_secs(6);
/// A manifest or card fetch that brought nothing is tried again after this long.
const FETCH_RETRY: Duration = Duration::from_secs(3);
/// How often the members and adverts are compared with one peer.
const SYNC_EVERY: Duration = Duration::from_secs(30);

use octomesh_protocol::session::SUITE;

/// What happened.
#[derive(Debug)]
pub(crate) enum Input {
    Connected {
        node: NodeId,
        name: NodeName,
        role: Role,
        grants: Grants,
        /// What the handshake showed.
        certificate: Option<Arc<Certificate>>,
        /// Where the other end of the best session is; of one that was dialled from there this is no address to dial.
        address: Option<String>,
        /// Where a dial of this node has just reached it.
        dialled: Option<String>,
        /// Who carries the best session with it.
        relay: Option<NodeId>,
    },
    Disconnected {
        node: NodeId,
        last: bool,
        /// How the best session goes that is left.
        path: Path,
        reason: String,
    },
    /// No circuit of `relay` to a member.
    CircuitFailed {
        node: NodeId,
        relay: NodeId,
        reason: String,
    },
    /// A member carries no circuits, or no more.
    NotReserved {
        relay: NodeId,
    },
    DialFailed {
        node: Option<NodeId>,
        address: Option<String>,
        reason: String,
    },
    Rtt {
        node: NodeId,
        rtt: Duration,
    },
    /// A checked advert; `direct` when it came over the node's own session.
    Advert {
        advert: Advert,
        direct: bool,
    },
    Manifest {
        node: NodeId,
        hash: ToolSetHash,
        manifest: Manifest,
    },
    Cards {
        cards: Vec<Arc<RemoteTool>>,
    },
    /// Members told by a member, or by the file of the last run.
    Members {
        from: Option<NodeId>,
        members: Vec<MemberAddress>,
    },
    /// Why a dial failed, found out afterwards.
    Explained {
        node: Option<NodeId>,
        address: String,
        reason: String,
    },
    /// Somebody of this mesh was heard on the network.
    Heard(crate::discovery::Hint),
    /// Addresses from the configuration.
    Static {
        addresses: Vec<String>,
    },
    /// What a configured host name stands for now; empty when it could not be resolved.
    Resolved {
        name: String,
        addresses: Vec<String>,
    },
    /// This node's own advert and tools.
    Own {
        advert: Advert,
        tools: Arc<BTreeMap<ToolName, Arc<RemoteTool>>>,
        addresses: Vec<String>,
    },
    /// Who is out, each with what to say of it. Something that members tell each other changed.
    Trust {
        revoked: BTreeMap<NodeId, String>,
    },
    /// A member, or this node itself, has another certificate; it was checked.
    Shown {
        certificate: Box<Certificate>,
    },
    /// A member leaves for good.
    Left {
        node: NodeId,
    },
    /// The owner wants a member out of sight.
    Forget {
        node: NodeId,
    },
    /// This node and `node` have the same revocations now.
    Exchanged {
        node: NodeId,
    },
    /// What SWIM says of a member.
    Liveness {
        node: NodeId,
        to: MemberState,
    },
    /// SWIM wants to talk to a member without a session.
    Wanted {
        node: NodeId,
    },
    Tick,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    Dial {
        node: Option<NodeId>,
        addresses: Vec<String>,
    },
    /// An address heard on the network, to learn who is there.
    Try {
        address: String,
    },
    /// Over a circuit of `relay`.
    DialOver {
        node: NodeId,
        relay: NodeId,
    },
    /// Be reachable for circuits at these members.
    Reserve {
        relays: Vec<NodeId>,
    },
    /// A configured peer is a host name.
    Resolve {
        name: String,
    },
    FetchManifest {
        node: NodeId,
        hash: ToolSetHash,
    },
    FetchCards {
        node: NodeId,
        hashes: Vec<CardHash>,
    },
    Sync {
        node: NodeId,
    },
    /// A member is down and its session still open.
    HangUp {
        node: NodeId,
    },
    /// The list of members to dial after a restart changed.
    Persist,
    Transition {
        node: NodeId,
        name: NodeName,
        to: MemberState,
    },
}

/// What the state remembers of a member beyond the view.
#[derive(Debug)]
struct Contact {
    member: Member,
    /// A certificate was seen in a handshake; others are hearsay.
    certified: bool,
    /// It is in the file of an earlier run: it was a member then, and may be switched off.
    remembered: bool,
    /// The address of the last dial that reached it.
    reached: Option<String>,
    failures: u32,
    next_dial: Instant,
    manifest: Option<(ToolSetHash, Manifest)>,
    fetch_after: Option<Instant>,
    next_sync: Option<Instant>,
    /// When it was last dialled because the network told of it.
    called_again: Option<Instant>,
    relaying: Relaying,
}

/// The state. [`MembershipState::handle`] is its only entrance.
#[derive(Debug)]
pub(crate) struct MembershipState {
    me: Member,
    contacts: BTreeMap<NodeId, Contact>,
    statics: Vec<StaticPeer>,
    hints: hints::Hints,
    /// Where this node waits for circuits.
    reserved: Reserved,
    /// Never members again, whatever anybody tells.
    revoked: BTreeMap<NodeId, String>,
    /// Members again only by a session of their own.
    gone: Gone,
    cards: cards::Cards,
    /// When the last comparison began that nothing but time had asked for.
    compared: Option<Instant>,
    version: u64,
}

impl Contact {
    /// A few addresses at a time, each dial beginning with another: all of a member's may take a second or two to fail.
    fn to_dial(&self, dials: u32) -> Vec<String> {
        let addresses = &self.member.addresses;
        let turn = usize::try_from(dials).unwrap_or(0) * ADDRESSES_PER_DIAL % addresses.len().max(1);
        addresses.iter().cycle().skip(turn).take(addresses.len().min(ADDRESSES_PER_DIAL)).cloned().collect()
    }

    /// Somebody told of it: a member, or the address book.
    fn told_by(&mut self, from: Option<NodeId>, has_address: bool) {
        let member = &mut self.member;
        member.reach.heard(if from.is_some() { Source::Member } else { Source::AddressBook });
        let never_met = member.state == MemberState::Down && member.last_contact.is_none();
        let waits = never_met && member.reach.step(true) == Step::NotDialled;
        if !member.connected && (member.problem.is_none() || waits) {
            member.problem = Some(member.reach.sentence(has_address || !member.addresses.is_empty()));
        }
    }
}

fn backoff(failures: u32) -> Duration {
    DIAL_FIRST.saturating_mul(1u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX)).min(DIAL_SLOWEST)
}

impl MembershipState {
    pub(crate) fn new(mut me: Member) -> Self {
        me.state = MemberState::Alive;
        Self {
            me,
            contacts: BTreeMap::new(),
            statics: Vec::new(),
            hints: hints::Hints::default(),
            reserved: Reserved::default(),
            revoked: BTreeMap::new(),
            gone: Gone::default(),
            cards: cards::Cards::default(),
            compared: None,
            version: 0,
        }
    }

    /// The snapshot for everybody else.
    pub(crate) fn view(&self) -> MeshView {
        let others = self.contacts.iter().map(|(id, c)| (*id, Arc::new(c.member.clone())));
        let members = others.chain([(self.me.node, Arc::new(self.me.clone()))]).collect();
        MeshView {
            me: self.me.node,
            members,
            unreached: self.unreached().into(),
            gone: self.gone.nodes(),
            version: self.version,
        }
    }

    /// What this node told last of itself.
    pub(crate) fn own_advert(&self) -> Option<&Advert> {
        self.me.advert.as_deref()
    }

    /// The certificate that a node showed last.
    pub(crate) fn certificate(&self, node: NodeId) -> Option<&Certificate> {
        self.contacts.get(&node)?.member.certificate.as_deref()
    }

    /// Members worth telling others: those whose certificate was seen and whose address is known.
    pub(crate) fn addresses(&self) -> Vec<MemberAddress> {
        let own = (!self.me.addresses.is_empty()).then_some(&self.me);
        let known = self.contacts.values().filter(|c| c.certified).map(|c| &c.member);
        told(own.into_iter().chain(known), limits::SYNC_MEMBERS)
    }

    /// Members worth dialling after a restart: the same, and those of the file that were not reached since.
    pub(crate) fn remembered(&self) -> Vec<MemberAddress> {
        let certified = self.contacts.values().filter(|c| c.certified);
        let waiting = self.contacts.values().filter(|c| c.remembered && !c.certified);
        let mut members: Vec<&Member> = certified.chain(waiting).map(|c| &c.member).collect();
        // Dialled in this order after a restart: those who were there lately come first.
        members.sort_by_key(|m| std::cmp::Reverse(m.last_seen));
        let mut all = told(members.into_iter(), MEMBERS);
        // Nobody dials them; their owner wants to know who it was.
        let out = self.contacts.values().map(|c| &c.member).filter(|m| self.revoked.contains_key(&m.node));
        let out = out.map(|m| MemberAddress { node: m.node, name: m.name.clone(), addresses: Vec::new() });
        all.extend(out.take(MEMBERS.saturating_sub(all.len())));
        all
    }

    /// One input at one moment. `wall` is the same moment for people.
    pub(crate) fn handle(&mut self, input: Input, now: Instant, wall: SystemTime) -> Vec<Effect> {
        self.version += 1;
        let mut effects = Vec::new();
        match input {
            Input::Connected { node, name, role, grants, certificate, address, dialled, relay } => {
                let mut member = Member::new(node, name, role, grants);
                (member.certificate, member.relay) = (certificate, relay);
                self.connected(member, address, dialled, now, wall, &mut effects);
            }
            Input::Disconnected { node, last: true, reason, .. } => {
                self.disconnected(node, &reason, now, &mut effects);
            }
            Input::Disconnected { node, last: false, path, .. } => self.goes_on(node, path),
            Input::CircuitFailed { node, relay, reason } => self.circuit_failed(node, relay, &reason),
            Input::NotReserved { relay } => self.not_reserved(relay, now),
            Input::DialFailed { node, address, reason } => {
                self.dial_failed(node, address.as_deref(), &reason, now)
            }
            Input::Rtt { node, rtt } => {
                let revoked = self.revoked.contains_key(&node);
                if let Some(contact) = self.contacts.get_mut(&node).filter(|_| !revoked) {
                    // One slow ping must not move work. The first is often slow, though, since everybody joins at once; and the next
                    // one comes half a minute later.
                    let mean = contact.member.rtt.map_or(rtt, |old| match rtt < old {
                        true => (old + rtt) / 2,
                        false => (old * 3 + rtt) / 4,
                    });
                    contact.member.rtt = Some(mean);
                    heard(&mut contact.member, now, wall);
                }
            }
            Input::Advert { advert, direct } => self.advert(advert, direct, now, wall, &mut effects),
            Input::Manifest { node, hash, manifest } => {
                self.manifest(node, hash, manifest, now, &mut effects)
            }
            Input::Cards { cards } => self.cards_came(cards, now, &mut effects),
            Input::Members { from, members } => self.told(from, members, now, &mut effects),
            Input::Explained { node, address, reason } => self.explained(node, &address, &reason),
            Input::Heard(hint) => self.hint(hint, now),
            Input::Static { addresses } => {
                self.statics.extend(addresses.into_iter().map(|address| StaticPeer {
                    address,
                    resolved: Vec::new(),
                    node: None,
                    failures: 0,
                    next_dial: now,
                    reason: None,
                }))
            }
            Input::Resolved { name, addresses } => self.resolved(&name, &addresses, now, &mut effects),
            Input::Own { advert, tools, addresses } => {
                self.own(advert, tools, addresses, now, wall, &mut effects)
            }
            Input::Trust { revoked } => self.trust(revoked, &mut effects),
            Input::Exchanged { node } => self.exchanged(node),
            Input::Shown { certificate } => self.shown(*certificate, &mut effects),
            Input::Left { node } => self.left(node, now, &mut effects),
            Input::Forget { node } => self.forget(node, now, &mut effects),
            Input::Liveness { node, to } => self.liveness(node, to, &mut effects),
            Input::Wanted { node } => self.wanted(node, now, &mut effects),
            Input::Tick => self.tick(now, &mut effects),
        }
        effects
    }

    fn connected(
        &mut self,
        fresh: Member,
        address: Option<String>,
        dialled: Option<String>,
        now: Instant,
        wall: SystemTime,
        effects: &mut Vec<Effect>,
    ) {
        let node = fresh.node;
        self.gone.is_back(node);
        if self.revoked.contains_key(&node) {
            return;
        }
        self.back_among_others(node, now);
        let direct = fresh.relay.is_none();
        if let Some(address) = &dialled {
            // A dial of a configured address tells who lives there.
            for peer in self.statics.iter_mut().filter(|p| p.is_at(address)) {
                peer.node = Some(node);
                peer.failures = 0;
                peer.reason = None;
            }
            self.hints.reached(address, node);
        }
        self.make_room_for(node);
        let Some(contact) = self.contact(node, fresh.name.clone(), now) else { return };
        let member = &mut contact.member;
        let was = member.state;
        let first = !member.connected;
        let relay = fresh.relay;
        membership::shows(member, fresh);
        member.state = MemberState::Alive;
        member.connected = true;
        member.suite = Some(SUITE);
        member.problem = None;
        member.reach.connected();
        if dialled.is_none() && direct {
            member.reach.heard(Source::Session);
        }
        heard(member, now, wall);
        // One with a zone means nothing to others, nor after a restart.
        let outbound = dialled.is_some();
        if let Some(address) = dialled.filter(|a| crate::net::is_address(a)) {
            if !member.addresses.contains(&address) {
                // What works is worth more than what somebody told.
                member.addresses.truncate(limits::MEMBER_ADDRESSES - 1);
                member.addresses.insert(0, address.clone());
            }
            contact.reached = Some(address);
        }
        (member.direct_address, member.relay) = (address, relay);
        contact.relaying.connected(direct, now);
        contact.failures = 0;
        contact.fetch_after = None;
        let newly = !std::mem::replace(&mut contact.certified, true);
        contact.member.known = true;
        if newly || outbound {
            effects.push(Effect::Persist);
        }
        if was != MemberState::Alive {
            let name = contact.member.name.clone();
            effects.push(Effect::Transition { node, name, to: MemberState::Alive });
        }
        if first {
            contact.next_sync = Some(now + SYNC_EVERY);
            effects.push(Effect::Sync { node });
        }
    }

    fn disconnected(&mut self, node: NodeId, reason: &str, now: Instant, effects: &mut Vec<Effect>) {
        let yields = node < self.me.node;
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        let member = &mut contact.member;
        contact.relaying.ended(if yields { now + DIAL_YIELD } else { now });
        closed(member);
        // That a node that was stopped has closed its sessions is no news.
        if member.state != MemberState::Left {
            member.reach.lost(reason);
            member.problem = Some(member.reach.sentence(!member.addresses.is_empty()));
            contact.next_dial = now;
        }
        if member.state == MemberState::Alive {
            member.state = MemberState::Suspect;
            let name = member.name.clone();
            effects.push(Effect::Transition { node, name, to: MemberState::Suspect });
        }
        self.alone();
    }

    fn dial_failed(&mut self, node: Option<NodeId>, address: Option<&str>, reason: &str, now: Instant) {
        let by_node = node.is_some();
        if let Some(address) = address {
            self.hints.failed(address, reason);
        }
        let failed = |p: &&mut StaticPeer| address.is_some_and(|a| p.is_at(a)) || (by_node && p.node == node);
        for peer in self.statics.iter_mut().filter(failed) {
            // Another node may live there now: the next dial takes whoever answers.
            peer.node = None;
            peer.reason = Some(reason.to_owned());
            peer.failures = peer.failures.saturating_add(1);
            peer.next_dial = now + backoff(peer.failures);
            // Its owner wrote that address down and has no other place to look; ever more rarely, since it may stay away.
            if peer.failures.is_power_of_two() {
                tracing::info!(
                    address = peer.address,
                    reason,
                    tries = peer.failures,
                    "a configured peer was not reached"
                );
            }
        }
        let Some(contact) = node.and_then(|n| self.contacts.get_mut(&n)) else { return };
        // It is reached another way, and looked for directly when that is due.
        if contact.member.connected {
            return;
        }
        contact.failures = contact.failures.saturating_add(1);
        contact.next_dial = now + backoff(contact.failures);
        contact.member.tried = true;
        // That nobody answers where a node was stopped is no news.
        if contact.member.state != MemberState::Left {
            contact.member.reach.failed(address, reason);
            contact.member.problem = Some(contact.member.reach.sentence(true));
        }
        if !contact.certified && !contact.remembered && contact.failures >= HEARSAY_DIALS {
            self.contacts.retain(|id, _| Some(*id) != node);
        }
    }

    fn advert(
        &mut self,
        advert: Advert,
        direct: bool,
        now: Instant,
        wall: SystemTime,
        effects: &mut Vec<Effect>,
    ) {
        let node = advert.node;
        // Only certified members have a place; an advert of a stranger can't come over a session, but a member may pass one on.
        if self.revoked.contains_key(&node) {
            return;
        }
        let Some(contact) = self.contacts.get_mut(&node).filter(|c| c.certified) else { return };
        if direct {
            heard(&mut contact.member, now, wall);
        }
        if contact.member.advert.as_ref().is_some_and(|old| !advert.is_newer_than(old)) {
            return;
        }
        contact.member.advert = Some(Arc::new(advert));
        contact.member.advert_at = Some(now);
        self.fetch(node, now, effects);
    }

    /// What a node tells of itself replaces what was known; what others tell of it fills up what is left.
    fn told(
        &mut self,
        from: Option<NodeId>,
        members: Vec<MemberAddress>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let mut news = false;
        for (rank, told) in members.into_iter().enumerate() {
            let of_itself = from == Some(told.node);
            if self.revoked.contains_key(&told.node) {
                if from.is_none() {
                    self.revoked_before(told, now);
                }
                continue;
            }
            if self.gone.contains(told.node, now) {
                continue;
            }
            let Some(contact) = self.contact(told.node, told.name, now) else { continue };
            contact.remembered |= from.is_none();
            contact.told_by(from, !told.addresses.is_empty());
            if from.is_none() {
                // In the order of the file, which has those first who were there lately.
                let rank = Duration::from_millis(u64::try_from(rank).unwrap_or(0));
                contact.next_dial = contact.next_dial.min(now + BOOK_YIELD) + rank;
            }
            contact.member.known |= from.is_none();
            let keeps = contact.certified || contact.remembered;
            let known = &mut contact.member.addresses;
            let dialable = told.addresses.into_iter().filter(|a| crate::net::is_address(a));
            if of_itself {
                let mut own: Vec<String> = dialable.collect();
                if own.is_empty() {
                    continue;
                }
                // Where it was really reached stays: a node behind a forwarder does not know that address.
                let reached =
                    contact.reached.iter().filter(|a| !own.contains(a)).cloned().collect::<Vec<_>>();
                own.truncate(limits::MEMBER_ADDRESSES - reached.len());
                own.extend(reached);
                news |= keeps && *known != own;
                *known = own;
                continue;
            }
            for address in dialable {
                if !known.contains(&address) && known.len() < limits::MEMBER_ADDRESSES {
                    known.push(address);
                    news |= keeps;
                    // Somebody who was seen is looked for at the new place at once; a rumour gets no such favour.
                    if contact.certified {
                        contact.failures = 0;
                    }
                }
            }
        }
        if news {
            effects.push(Effect::Persist);
        }
    }

    fn own(
        &mut self,
        advert: Advert,
        tools: Arc<BTreeMap<ToolName, Arc<RemoteTool>>>,
        addresses: Vec<String>,
        now: Instant,
        wall: SystemTime,
        effects: &mut Vec<Effect>,
    ) {
        if self.me.addresses != addresses {
            self.me.addresses = addresses;
            let connected = self.contacts.iter().filter(|(_, c)| c.member.connected);
            effects.extend(connected.map(|(id, _)| Effect::Sync { node: *id }));
        }
        self.me.advert = Some(Arc::new(advert));
        self.me.advert_at = Some(now);
        self.me.tools = tools;
        self.me.tools_complete = true;
        heard(&mut self.me, now, wall);
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut dials = 0;
        let connected: BTreeSet<NodeId> =
            self.contacts.iter().filter(|(_, c)| c.member.connected).map(|(id, _)| *id).collect();
        for peer in &mut self.statics {
            let reached = peer.node.is_some_and(|n| connected.contains(&n));
            if !reached && now >= peer.next_dial && dials < DIALS_PER_TICK {
                dials += 1;
                peer.next_dial = now + backoff(peer.failures).max(Duration::from_secs(2));
                effects.push(if peer.is_name() {
                    Effect::Resolve { name: peer.address.clone() }
                } else {
                    Effect::Dial { node: peer.node, addresses: vec![peer.address.clone()] }
                });
            }
        }
        self.compare(now, effects);
        self.hang_up(now, effects);
        dials += self.dial_hints(now, effects);
        self.dial_due(now, DIALS_PER_TICK.saturating_sub(dials), effects);
        self.relays(now, effects);
        let connected: Vec<NodeId> = connected.into_iter().collect();
        for node in connected {
            self.fetch(node, now, effects);
        }
    }

    /// Dials whoever waits longest: with hundreds of dead addresses everybody gets a turn.
    fn dial_due(&mut self, now: Instant, most: usize, effects: &mut Vec<Effect>) {
        let mut due: Vec<(Instant, NodeId)> = self
            .contacts
            .iter()
            .filter(|(_, c)| !c.member.connected && !c.member.addresses.is_empty() && now >= c.next_dial)
            .filter(|(id, _)| !self.revoked.contains_key(id))
            .map(|(id, c)| (c.next_dial, *id))
            .collect();
        due.sort_unstable();
        for (_, node) in due.into_iter().take(most) {
            if let Some(contact) = self.contacts.get_mut(&node) {
                contact.next_dial = now + backoff(contact.failures).max(DIAL_TAKES);
                effects.push(Effect::Dial { node: Some(node), addresses: contact.to_dial(contact.failures) });
            }
        }
    }

    /// Somebody with a certificate takes the place of somebody who was only heard of: rumours must not lock members out.
    fn make_room_for(&mut self, node: NodeId) {
        if self.contacts.len() < MEMBERS || self.contacts.contains_key(&node) {
            return;
        }
        let rumours = self.contacts.iter().filter(|(_, c)| !c.certified);
        let rumour = rumours.max_by_key(|(_, c)| (!c.remembered, c.failures));
        if let Some(rumour) = rumour.map(|(id, _)| *id) {
            self.contacts.remove(&rumour);
        }
    }

    /// The contact of a node, made when there is room for another.
    fn contact(&mut self, node: NodeId, name: NodeName, now: Instant) -> Option<&mut Contact> {
        if node == self.me.node || (!self.contacts.contains_key(&node) && self.contacts.len() >= MEMBERS) {
            return None;
        }
        let first_dial = if self.me.node < node { now } else { now + DIAL_YIELD };
        Some(self.contacts.entry(node).or_insert_with(|| {
            let member = Member::new(node, name, Role::Worker, Grants::default());
            Contact {
                member,
                certified: false,
                remembered: false,
                reached: None,
                failures: 0,
                next_dial: first_dial,
                manifest: None,
                fetch_after: None,
                next_sync: None,
                called_again: None,
                relaying: Relaying::new(first_dial),
            }
        }))
    }
}

fn told<'a>(members: impl Iterator<Item = &'a Member>, most: usize) -> Vec<MemberAddress> {
    members
        // Those that are gone for good have none; one that was switched off comes back.
        .filter(|m| !m.addresses.is_empty())
        .take(most)
        .map(|m| MemberAddress { node: m.node, name: m.name.clone(), addresses: m.addresses.clone() })
        .collect()
}

/// No session with it is open.
fn closed(member: &mut Member) {
    member.connected = false;
    member.suite = None;
    (member.direct_address, member.relay) = (None, None);
    member.rtt = None;
}

fn heard(member: &mut Member, now: Instant, wall: SystemTime) {
    member.last_contact = Some(now);
    member.last_seen = Some(wall);
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
