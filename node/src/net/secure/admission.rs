//! Who may begin a handshake, and how often: decided by address, before a byte is read and before the swarm knows of a connection.
//!
//! Strangers have 256 places together and 8 for each IPv4 address or IPv6 /64; 64 failures at once and then 8 a second close the door
//! to an address. Addresses with which there was a session, or which this node dials itself, are members': they have places of
//! their own and their failures are not charged, so that somebody behind the same router can't lock a member out. Nor can strangers
//! take the places that they do not have. Where all places are taken, the oldest connection that has said nothing gives way to the
//! newcomer; only an address of strangers that has its eight is turned away.
//!
//! Telling of refusals is bounded, too: each costs a line in the log, and the one who is refused decides how many there are.
use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    multiaddr::Protocol,
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, ListenError, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm, dummy,
    },
};
use tokio::time::Instant;

use super::place::{Place, Places};
use crate::net::{circuit, refusal};

/// Open at once before there is a session, of strangers.
pub(in crate::net) const STRANGERS: usize = 256;
/// The same from addresses of members: a mesh of 64 whose nodes all come back at once, with simultaneous dials.
pub(in crate::net) const MEMBERS: usize = 128;
/// Of them from one address.
const PER_BLOCK: usize = 8;
/// A household behind one address may have many nodes.
const PER_MEMBER_BLOCK: usize = 64;
/// Failures that an address may have at once, and how fast they are forgotten.
const BURST: u32 = 64;
const FORGOTTEN_EACH: Duration = Duration::from_millis(125);
/// Refusals of one address that are told at once, and how soon the next one is; all of them are counted.
const TOLD: u32 = 16;
const TOLD_EACH: Duration = Duration::from_secs(1);
/// Addresses remembered, of each kind; the oldest are forgotten first.
const REMEMBERED: usize = 4096;

/// Addresses that count as one: an IPv4 address, or the /64 that one IPv6 customer has at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Block {
    V4(Ipv4Addr),
    V6([u16; 4]),
    /// The session with a member that carries circuits. Who comes over it has no address of its own, and it may make up as many as it
    /// likes.
    Circuits(u64),
}

impl Block {
    /// Of a connection from `remote` that came in at `local`.
    fn from(local: &Multiaddr, remote: &Multiaddr) -> Option<Self> {
        if !circuit::is_circuit(local) {
            return Self::of(remote);
        }
        let mut hasher = DefaultHasher::new();
        circuit::before(local).hash(&mut hasher);
        Some(Self::Circuits(hasher.finish()))
    }

    /// `None` for transports without addresses, which only tests have.
    fn of(address: &Multiaddr) -> Option<Self> {
        let ip = address.iter().find_map(|part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => Some(IpAddr::V6(ip)),
            _ => None,
        })?;
        Some(match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        })
    }
}

/// Why a connection was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Crowded {
    /// The places of its address are taken.
    #[error("too many handshakes at once from this address")]
    Address,
    /// Its address failed too often.
    #[error("too many failed handshakes from this address")]
    Failures,
}

/// At most [`REMEMBERED`] blocks, the oldest forgotten first.
struct Remembered<V> {
    known: HashMap<Block, V>,
    by_age: VecDeque<Block>,
}

impl<V> Remembered<V> {
    fn new() -> Self {
        Self { known: HashMap::new(), by_age: VecDeque::new() }
    }

    fn put(&mut self, block: Block, value: V) {
        if self.known.insert(block, value).is_some() {
            return;
        }
        self.by_age.push_back(block);
        if self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// One connection from outside; later ones have higher numbers.
pub(in crate::net) type Visitor = u64;

/// A handshake that goes on.
struct Open {
    remote: Multiaddr,
    block: Option<Block>,
    member: bool,
    place: Arc<Place>,
}

/// The rules, without a network.
struct Door {
    open: HashMap<Visitor, Open>,
    /// When the failures of an address will all be forgotten.
    failures: Remembered<Instant>,
    /// The same for what was told of it.
    told: Remembered<Instant>,
    members: Remembered<()>,
}

impl Door {
    fn new() -> Self {
        Self {
            open: HashMap::new(),
            failures: Remembered::new(),
            told: Remembered::new(),
            members: Remembered::new(),
        }
    }

    fn enter(
        &mut self,
        id: Visitor,
        (local, remote): (&Multiaddr, &Multiaddr),
        now: Instant,
        place: impl FnOnce() -> Arc<Place>,
    ) -> Result<(), Crowded> {
        let block = Block::from(local, remote);
        let member = block.is_some_and(|block| self.members.known.contains_key(&block));
        let (places, per_block) = if member { (MEMBERS, PER_MEMBER_BLOCK) } else { (STRANGERS, PER_BLOCK) };
        if let Some(block) = block {
            let until = self.failures.known.get(&block).copied().unwrap_or(now);
            if !member && until.saturating_duration_since(now) > FORGOTTEN_EACH * (BURST - 1) {
                return Err(Crowded::Failures);
            }
            let same = |open: &Open| open.block == Some(block);
            if self.open.values().filter(|o| same(o)).count() >= per_block {
                if !member {
                    return Err(Crowded::Address);
                }
                self.make_way(same);
            }
        }
        let kind = |open: &Open| open.member == member;
        if self.open.values().filter(|o| kind(o)).count() >= places {
            self.make_way(kind);
        }
        self.open.insert(id, Open { remote: remote.clone(), block, member, place: place() });
        Ok(())
    }

    /// Takes a place away: that of the oldest which said nothing, else of the oldest. It is no failure of its own.
    fn make_way(&mut self, of: impl Fn(&Open) -> bool) {
        let candidates = self.open.iter().filter(|(_, open)| of(open));
        let oldest = candidates.min_by_key(|(id, open)| (!open.place.is_silent(), **id)).map(|(id, _)| *id);
        if let Some(open) = oldest.and_then(|id| self.open.remove(&id)) {
            open.place.take_away();
        }
    }

    /// The handshake is over; `failed` if it was the other side's fault.
    fn leave(&mut self, id: Visitor, failed: bool, now: Instant) {
        let Some(open) = self.open.remove(&id) else { return };
        open.place.over();
        if let (Some(block), true) = (open.block, failed) {
            let until = self.failures.known.get(&block).copied().unwrap_or(now).max(now);
            self.failures.put(block, until + FORGOTTEN_EACH);
        }
    }

    /// Who has that address; the newest, should the end of an older one not be known yet.
    fn visitor(&self, remote: &Multiaddr) -> Option<Visitor> {
        self.open.iter().filter(|(_, open)| open.remote == *remote).map(|(id, _)| *id).max()
    }

    /// Whether a refusal of this address is to be told.
    fn tells(&mut self, block: Block, now: Instant) -> bool {
        let until = self.told.known.get(&block).copied().unwrap_or(now).max(now);
        let tells = until - now <= TOLD_EACH * (TOLD - 1);
        if tells {
            self.told.put(block, until + TOLD_EACH);
        }
        tells
    }

    fn know(&mut self, block: Block) {
        self.members.put(block, ());
    }
}

/// The rules, for whoever stands at the door and for the swarm behind it.
#[derive(Clone)]
pub(in crate::net) struct Gate {
    door: Arc<Mutex<Door>>,
    places: Places,
}

impl Gate {
    pub(in crate::net) fn new() -> Self {
        Self { door: Arc::new(Mutex::new(Door::new())), places: Places::default() }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where connections come for the places that they are given here.
    pub(in crate::net) fn places(&self) -> Places {
        self.places.clone()
    }

    /// Lets a connection from `remote` to `local` in, or says why not. `id` is higher than all before.
    pub(in crate::net) fn enter(
        &self,
        id: Visitor,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), Crowded> {
        self.door().enter(id, (local, remote), Instant::now(), || self.places.give(remote))
    }

    /// A connection failed before the swarm knew of it.
    pub(in crate::net) fn failed(&self, id: Visitor, remote: &Multiaddr) {
        self.door().leave(id, true, Instant::now());
        self.places.forget(remote);
    }

    fn leave(&self, remote: &Multiaddr, failed: bool) {
        let mut door = self.door();
        if let Some(id) = door.visitor(remote) {
            door.leave(id, failed, Instant::now());
        }
        drop(door);
        self.places.forget(remote);
    }

    /// A member is to be found at `address`.
    pub(in crate::net) fn know(&self, address: &Multiaddr) {
        if circuit::is_circuit(address) {
            return;
        }
        if let Some(block) = Block::of(address) {
            self.door().know(block);
        }
    }

    /// Whether a refusal of `remote`, who came in at `local`, is to be told; it may have been one of thousands.
    pub(in crate::net) fn tells(&self, local: &Multiaddr, remote: &Multiaddr) -> bool {
        Block::from(local, remote).is_none_or(|block| self.door().tells(block, Instant::now()))
    }
}

/// The swarm's part of the rules: how the handshakes end that it sees, and where members are.
pub(in crate::net) struct Admission(pub(in crate::net) Gate);

impl NetworkBehaviour for Admission {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // The upgrade is done: whoever is there is a member.
        self.0.leave(remote, false);
        self.0.know(remote);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        remote: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.0.know(remote);
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ListenFailure(failure) = event {
            let ours = matches!(failure.error, ListenError::Denied { .. } | ListenError::Aborted);
            let failed = !ours && refusal::of_inbound(failure.error).is_some();
            self.0.leave(failure.send_back_addr, failed);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// First messages that were taken lately. One that comes again is refused before any public-key work.
pub(super) struct Replays {
    seen: HashSet<[u8; 32]>,
    by_age: VecDeque<[u8; 32]>,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self { seen: HashSet::new(), by_age: VecDeque::new() }
    }

    pub(super) fn contains(&self, hash: &[u8; 32]) -> bool {
        self.seen.contains(hash)
    }

    /// Remembers a message that opened with the mesh secret; others can't push it out. `false` if it was there.
    pub(super) fn add(&mut self, hash: [u8; 32]) -> bool {
        if !self.seen.insert(hash) {
            return false;
        }
        self.by_age.push_back(hash);
        if self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests;
