//! The state machine: [`Swim::handle`] is its only entrance.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use foca::{Foca, Header, Member, NoCustomBroadcast, Notification, State, Timer};
use octomesh_protocol::{id::NodeId, swim::Message};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;

use super::{
    closed,
    codec::{Packet, PacketCodec},
    config,
    identity::Identity,
    pages::Pull,
    peer::{Known, Peer},
};
use crate::membership::view::MemberState;

/// One moment, by three clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    /// Monotonic; may stand still while the machine sleeps.
    pub(crate) now: Instant,
    /// Time since boot, sleep included; `None` where there is no such clock.
    pub(crate) boot: Option<Duration>,
    /// Unix seconds, to tell incarnations that can be from those that can't.
    pub(crate) unix: u64,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A message over the session with `from`.
    Message { from: NodeId, message: Message },
    /// A session is open.
    Connected { node: NodeId },
    /// The last session with the node closed.
    Closed { node: NodeId },
    /// A dial failed; `refused` when its port said that nobody listens.
    DialFailed { node: NodeId, refused: bool },
    /// The owner forgot the node, or revoked it: nothing that others tell brings it back, only a session of its own.
    Forget { node: NodeId },
    /// This node goes.
    Leave,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect {
    /// Send over the session with the node. It is connected.
    Send { to: NodeId, message: Message },
    /// A session with the node is wanted.
    Dial { node: NodeId },
    /// The node is in another state now.
    State { node: NodeId, to: MemberState },
    /// A message that no honest node sends.
    Refused { from: NodeId, why: &'static str },
    /// This process stood still for so long.
    Paused { gap: Duration },
}

/// What foca wants done, until it is.
#[derive(Debug, Default)]
pub(super) struct Wants {
    sends: Vec<(Identity, Vec<u8>)>,
    timers: Vec<(Duration, Timer<Identity>)>,
    changed: BTreeSet<NodeId>,
    renewed: bool,
}

impl foca::Runtime<Identity> for &mut Wants {
    fn notify(&mut self, notification: Notification<'_, Identity>) {
        match notification {
            Notification::MemberUp(id) | Notification::MemberDown(id) | Notification::Rename(_, id) => {
                self.changed.insert(id.node);
            }
            Notification::Rejoin(_) => self.renewed = true,
            Notification::Active | Notification::Idle | Notification::Defunct => {}
        }
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        self.sends.push((to, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        self.timers.push((after, event));
    }
}

pub(super) type Machine = Foca<Identity, PacketCodec, SmallRng, NoCustomBroadcast>;

/// SWIM of one node.
pub(crate) struct Swim {
    pub(super) foca: Machine,
    pub(super) rng: SmallRng,
    /// What foca has to be given back, by time; the second part keeps the order of equals.
    timers: BTreeMap<(Instant, u64), Timer<Identity>>,
    numbered: u64,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    /// Of whom the clock alone can change something.
    pub(super) watched: BTreeSet<NodeId>,
    pub(super) barred: BTreeSet<NodeId>,
    /// Whom foca probes.
    probing: Option<NodeId>,
    /// Suspicions that this life refuted, as foca counts them.
    pub(super) refutations: u16,
    last: Option<At>,
    /// A pause is not long ago.
    pub(super) doubts_itself_until: Option<Instant>,
    sized_for: usize,
    pub(super) pull: Option<Pull>,
    /// Lists that were fetched since there is a session, and when the next one is.
    pub(super) pulls: usize,
    pub(super) next_pull: Option<Instant>,
    leaving: bool,
}

impl std::fmt::Debug for Swim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swim")
            .field("me", self.foca.identity())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Swim {
    /// `incarnation` is greater than that of every earlier start, and on the disk. `seed` need not be secret.
    pub(crate) fn new(me: NodeId, incarnation: u64, seed: [u8; 32]) -> Self {
        let mut rng = SmallRng::from_seed(seed);
        let own = SmallRng::from_rng(&mut rng);
        Self {
            foca: Foca::new(Identity::new(me, incarnation), config::config(1), own, PacketCodec),
            rng,
            timers: BTreeMap::new(),
            numbered: 0,
            peers: BTreeMap::new(),
            watched: BTreeSet::new(),
            barred: BTreeSet::new(),
            probing: None,
            refutations: 0,
            last: None,
            doubts_itself_until: None,
            sized_for: 1,
            pull: None,
            pulls: 0,
            next_pull: None,
            leaving: false,
        }
    }

    pub(super) fn me(&self) -> NodeId {
        self.foca.identity().node
    }

    /// One input at one moment.
    pub(crate) fn handle(&mut self, input: Input, at: At) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.leaving {
            return effects;
        }
        self.notice_pause(at, &mut effects);
        match input {
            Input::Message { from, message: Message::Packet(bytes) } => {
                self.packet(from, &bytes, at, &mut effects);
            }
            Input::Message { from, message: Message::Ask(after) } => {
                self.asked(from, after, at.now, &mut effects)
            }
            Input::Message { from, message: Message::Page(page) } => self.page(from, &page, at, &mut effects),
            Input::Connected { node } => self.connected(node, at.now, &mut effects),
            Input::Closed { node } => self.closed(node, at.now, &mut effects),
            Input::DialFailed { node, refused } => self.dial_failed(node, refused, at.now, &mut effects),
            Input::Forget { node } => self.forget(node, &mut effects),
            Input::Leave => self.leave(&mut effects),
            Input::Tick => self.tick(at.now, &mut effects),
        }
        effects
    }

    /// When the next tick is wanted: soon enough for whatever is due, and never so late that it looks like a pause.
    pub(crate) fn wake(&self, now: Instant) -> Instant {
        let latest = now + if self.watched.is_empty() { config::IDLE } else { closed::LOOK_EVERY };
        self.timers.keys().next().map_or(latest, |(due, _)| (*due).min(latest))
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            self.timer(timer, now, effects);
        }
        self.look_after(now, effects);
        self.pull_when_due(now, effects);
        self.adapt();
    }

    fn timer(&mut self, timer: Timer<Identity>, now: Instant, effects: &mut Vec<Effect>) {
        let mut about = None;
        match &timer {
            Timer::ChangeSuspectToDown { member_id, incarnation, .. } => {
                let known = self.peers.get(&member_id.node).and_then(|p| p.known);
                let stands = Known { id: *member_id, refutations: *incarnation, state: State::Suspect };
                if known != Some(stands) {
                    // It refuted. foca 2.0.0 would still tell it that it is down, and it would begin another life for nothing.
                    return;
                }
                if let Some(until) = self.doubts_itself_until {
                    // Nobody is declared down by a node that does not know whether it is the one to blame.
                    self.later(until + config::CONFIRM, timer);
                    return;
                }
                about = Some(member_id.node);
            }
            // The last probe is judged now.
            Timer::ProbeRandomMember(_) => about = self.probing.take(),
            _ => {}
        }
        self.run(now, effects, about, |foca, wants| foca.handle_timer(timer, wants));
    }

    fn later(&mut self, due: Instant, timer: Timer<Identity>) {
        self.numbered += 1;
        self.timers.insert((due, self.numbered), timer);
    }

    /// Lets foca do something and does what it wants. `about` may be in another state afterwards.
    pub(super) fn run(
        &mut self,
        now: Instant,
        effects: &mut Vec<Effect>,
        about: impl IntoIterator<Item = NodeId>,
        does: impl FnOnce(&mut Machine, &mut Wants) -> Result<(), foca::Error>,
    ) {
        let mut wants = Wants::default();
        if let Err(error) = does(&mut self.foca, &mut wants) {
            // Packets are vetted, so this is about late answers (a probe of a life that is over) or a fault of ours.
            tracing::debug!(%error, "swim");
        }
        for (after, timer) in wants.timers {
            if let Timer::SendIndirectProbe { probed_id, .. } = &timer {
                self.probing = Some(probed_id.node);
            }
            self.later(now + after, timer);
        }
        if wants.renewed {
            tracing::info!(bump = self.foca.identity().bump, "this node was declared down and comes back");
            self.begin_life(now, effects);
        }
        wants.changed.extend(about);
        self.refresh(&wants.changed, now, effects);
        for (to, bytes) in wants.sends {
            self.send(to.node, bytes, now, effects);
        }
    }

    /// After a change of identity foca waits for a packet before it probes anybody; it may wait in vain.
    pub(super) fn begin_life(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.refutations = 0;
        self.run(now, effects, None, |foca, wants| foca.apply_many(std::iter::empty(), false, wants));
    }

    /// Sends a packet; when there is no session, holds it and asks for one. News go to somebody who has one instead.
    pub(super) fn send(&mut self, to: NodeId, bytes: Vec<u8>, now: Instant, effects: &mut Vec<Effect>) {
        let Ok(packet) = Packet::read(&bytes) else { return };
        // Each packet of ours tells how many suspicions were refuted; foca does not say it otherwise.
        self.refutations = packet.header.src_incarnation;
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if peer.connected {
            return effects.push(Effect::Send { to, message: Message::Packet(bytes) });
        }
        match packet.header.message {
            foca::Message::Gossip | foca::Message::Announce => self.send_elsewhere(packet, effects),
            _ if peer.is_active() => {
                peer.held = Some((now, bytes));
                self.watched.insert(to);
                self.want_session(to, now, effects);
            }
            _ => {}
        }
    }

    /// Whoever hears news is as good as anybody else: no session is opened for them.
    fn send_elsewhere(&mut self, mut packet: Packet, effects: &mut Vec<Effect>) {
        let Some(to) = self.some_connected(1, None).pop() else { return };
        let Some(known) = self.peers.get(&to).and_then(|p| p.known) else { return };
        packet.header.dst = known.id;
        if let Ok(bytes) = packet.write() {
            effects.push(Effect::Send { to, message: Message::Packet(bytes) });
        }
    }

    pub(super) fn want_session(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.next_dial.is_none_or(|at| now >= at) {
            peer.next_dial = Some(now + config::DIAL_EVERY);
            effects.push(Effect::Dial { node });
        }
    }

    /// A packet of our own making: foca has no way to say something to a certain member.
    pub(super) fn craft(
        &self,
        dst: Identity,
        message: foca::Message<Identity>,
        members: Vec<Member<Identity>>,
    ) -> Option<Vec<u8>> {
        let header = Header { src: *self.foca.identity(), src_incarnation: self.refutations, dst, message };
        Packet { header, members }.write().ok()
    }

    /// Brings what is remembered of these members in line with foca, and tells what changed.
    pub(super) fn refresh(&mut self, nodes: &BTreeSet<NodeId>, now: Instant, effects: &mut Vec<Effect>) {
        if nodes.is_empty() {
            return;
        }
        let members = self.foca.iter_membership_state().filter(|m| nodes.contains(&m.id().node));
        for member in members {
            let node = member.id().node;
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            let fresh = Known { id: *member.id(), refutations: member.incarnation(), state: member.state() };
            if peer.known == Some(fresh) {
                continue;
            }
            let newer = peer.known.is_none_or(|old| fresh.version() > old.version());
            peer.known = Some(fresh);
            match fresh.state {
                State::Alive => {
                    peer.suspect_since = None;
                    peer.verdict = None;
                    // It said something of itself after we lost it; through others, then.
                    if newer {
                        peer.doubt = None;
                    }
                }
                State::Suspect => {
                    if peer.suspect_since.is_none() || newer {
                        peer.suspect_since = Some(now);
                        peer.next_confront = Some(now);
                    }
                }
                State::Down => {
                    peer.suspect_since = None;
                    peer.verdict = None;
                    peer.doubt = None;
                    peer.held = None;
                    // News, and so younger than the session.
                    peer.provisional_until = None;
                }
            }
        }
        for node in nodes {
            self.show(*node, now, effects);
        }
    }

    /// Tells the state of a member when it is another one than last time.
    pub(super) fn show(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.needs_watching() {
            self.watched.insert(node);
        }
        let to = peer.liveness(now);
        if to != peer.shown {
            peer.shown = to;
            effects.push(Effect::State { node, to });
        }
    }

    /// Makes room for a member; false when it has none and can't get any.
    pub(super) fn admit(&mut self, node: NodeId, met: bool) -> bool {
        if self.peers.contains_key(&node) {
            return true;
        }
        if self.peers.len() >= config::MEMBERS {
            // Somebody with a session takes the place of somebody who was only heard of, the dead first.
            let strangers = self.peers.iter().filter(|(_, p)| !p.met && !p.connected);
            let stranger = strangers.min_by_key(|(_, p)| p.is_active()).map(|(n, _)| *n);
            match stranger {
                Some(stranger) if met => self.remove(stranger),
                _ => return false,
            }
        }
        self.peers.insert(node, Peer::new());
        true
    }

    /// Takes a member out of foca and out of here. foca only removes the dead, so it dies first, without a word to others.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.watched.remove(&node);
        let Some(known) = self.peers.remove(&node).and_then(|p| p.known) else { return };
        let mut wants = Wants::default();
        let down = Member::new(known.id, known.refutations, State::Down);
        let removed = self
            .foca
            .apply_many(std::iter::once(down), false, &mut wants)
            .and_then(|()| self.foca.handle_timer(Timer::RemoveDown(known.id), &mut wants));
        if let Err(error) = removed {
            tracing::debug!(%error, "swim: a member was not removed");
        }
    }

    fn forget(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if self.peers.get(&node).is_some_and(|p| p.shown.is_present()) {
            effects.push(Effect::State { node, to: MemberState::Down });
        }
        self.remove(node);
        self.barred.insert(node);
        if self.barred.len() > config::BARRED {
            self.barred.pop_first();
        }
    }

    /// Says good-bye to everybody who is connected; they tell the rest.
    fn leave(&mut self, effects: &mut Vec<Effect>) {
        self.leaving = true;
        let last_word = Member::new(self.foca.identity().after_leaving(), 0, State::Down);
        for (node, peer) in self.peers.iter().filter(|(_, p)| p.connected) {
            let dst = peer.known.map_or(Identity::of_any_life(*node), |k| k.id);
            if let Some(bytes) = self.craft(dst, foca::Message::Gossip, vec![last_word.clone()]) {
                effects.push(Effect::Send { to: *node, message: Message::Packet(bytes) });
            }
        }
    }

    /// Suspicion and the spreading of news follow the size of the mesh.
    fn adapt(&mut self) {
        let size = self.foca.num_members() + 1;
        if size.is_power_of_two() || size.abs_diff(self.sized_for) * 4 > self.sized_for {
            if size == self.sized_for {
                return;
            }
            self.sized_for = size;
            if let Err(error) = self.foca.set_config(config::config(size)) {
                tracing::debug!(%error, "swim: the size of the mesh was not taken over");
            }
        }
    }

    /// A gap between two inputs: this process stood still, and whatever seems overdue is our own fault.
    fn notice_pause(&mut self, at: At, effects: &mut Vec<Effect>) {
        let Some(last) = self.last.replace(at) else { return };
        let by_now = at.now.saturating_duration_since(last.now);
        let by_boot = at.boot.zip(last.boot).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        let gap = by_now.max(by_boot);
        if gap < config::PAUSE {
            if self.doubts_itself_until.is_some_and(|until| at.now >= until) {
                self.doubts_itself_until = None;
            }
            return;
        }
        self.doubts_itself_until = Some(at.now + config::SELF_DOUBT);
        effects.push(Effect::Paused { gap });
        // Nothing has run out while nobody was here to see an answer.
        let timers = std::mem::take(&mut self.timers);
        self.timers = timers.into_iter().map(|((due, n), t)| ((due + by_now, n), t)).collect();
        for peer in self.peers.values_mut() {
            let moved = |time: &mut Option<Instant>| *time = time.map(|t| t + by_now);
            moved(&mut peer.suspect_since);
            moved(&mut peer.verdict);
            moved(&mut peer.provisional_until);
            if let Some(doubt) = &mut peer.doubt {
                doubt.since += by_now;
            }
        }
        // Whoever declared us down says so in answer to this, and we come back with a new life.
        for node in self.some_connected(config::HELPERS, None) {
            let Some(id) = self.peers.get(&node).and_then(|p| p.known).map(|k| k.id) else { continue };
            self.run(at.now, effects, None, |foca, wants| foca.announce(id, wants));
        }
    }

    /// Random members that are connected and alive.
    pub(super) fn some_connected(&mut self, most: usize, but: Option<NodeId>) -> Vec<NodeId> {
        let alive = self
            .peers
            .iter()
            .filter(|(n, p)| p.connected && p.state() == Some(State::Alive) && Some(**n) != but);
        let mut nodes: Vec<NodeId> = alive.map(|(n, _)| *n).collect();
        while nodes.len() > most {
            let out = self.rng.random_range(0..nodes.len());
            nodes.swap_remove(out);
        }
        nodes
    }
}
