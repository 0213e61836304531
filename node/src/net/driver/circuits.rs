//! Sessions over circuits: those that this node asks for, those that it can be reached by, and those of others that it carries.
use std::collections::HashMap;

use libp2p::{
    PeerId,
    core::{ConnectedPoint, transport::ListenerId},
    relay::{self, outbound::hop::ConnectError},
    swarm::{
        ConnectionId, DialError,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use octomesh_protocol::{id::NodeId, session::record::CloseReason};
use tokio::time::Duration;

use super::{Driver, Reply, Session, refused::says_revoked, root_cause};
use crate::net::{
    circuit,
    event::{NetEvent, Path},
    handle::{node_id, peer_id},
    outbound::Open,
    refusal,
};

/// How often a session over a circuit looks whether it is still needed beside a direct one: what the other side has just begun on it is
/// seen by then.
const LOOK: Duration = Duration::from_secs(2);

/// What goes over circuits.
pub(super) struct Circuits {
    open: Open,
    /// Circuits that are being dialled: to whom, over whom. As many as the swarm has pending dials.
    dials: HashMap<ConnectionId, (NodeId, NodeId)>,
    /// Where this node waits for circuits.
    reservations: HashMap<NodeId, ListenerId>,
}

impl Circuits {
    pub(super) fn new(open: Open) -> Self {
        Self { open, dials: HashMap::new(), reservations: HashMap::new() }
    }

    pub(super) fn dialled(&mut self, connection: ConnectionId) {
        self.dials.remove(&connection);
    }

    pub(super) fn is_dialled(&self, connection: ConnectionId) -> bool {
        self.dials.contains_key(&connection)
    }

    pub(super) fn is_reservation(&self, listener: ListenerId) -> bool {
        self.reservations.values().any(|id| *id == listener)
    }
}

impl Driver {
    /// The oldest direct session with a node.
    fn direct(&self, node: NodeId) -> Option<&Session> {
        let direct = self.sessions.iter().filter(|(_, s)| s.node == node && s.relay.is_none() && !s.replaced);
        direct.min_by_key(|(id, _)| **id).map(|(_, session)| session)
    }

    /// How a node is reached best. New streams choose alike, see [`crate::net::outbound`].
    pub(super) fn path(&self, node: NodeId) -> Path {
        if let Some(direct) = self.direct(node) {
            return Path { address: direct.address.clone(), relay: None };
        }
        let over = self.sessions.iter().filter(|(_, s)| s.node == node && !s.replaced);
        Path { address: None, relay: over.min_by_key(|(id, _)| **id).and_then(|(_, s)| s.relay) }
    }

    /// Who carries a connection. A relay that has just gone is nobody; then so is the connection, in a moment.
    pub(super) fn relay_of(&self, endpoint: &ConnectedPoint) -> Option<NodeId> {
        if !endpoint.is_relayed() {
            return None;
        }
        let at = match endpoint {
            ConnectedPoint::Dialer { address, .. } => address,
            ConnectedPoint::Listener { local_addr, .. } => local_addr,
        };
        let named = at.iter().find_map(|part| match part {
            libp2p::multiaddr::Protocol::P2p(peer) => node_id(&peer),
            _ => None,
        });
        let at = circuit::before(at);
        named.or_else(|| {
            let relay = |s: &&Session| s.relay.is_none() && circuit::before(&s.remote) == at;
            self.sessions.values().find(relay).map(|s| s.node)
        })
    }

    /// A direct dial is worth it also while there is a circuit.
    pub(super) fn direct_condition(&self, peer: PeerId) -> PeerCondition {
        let node = node_id(&peer);
        let relayed = node.is_some_and(|n| self.direct(n).is_none() && self.path(n).relay.is_some());
        if relayed { PeerCondition::NotDialing } else { PeerCondition::DisconnectedAndNotDialing }
    }

    /// The event is that of a dial that fails before it begins.
    pub(super) fn dial_over(&mut self, node: NodeId, relay: NodeId) -> Option<NetEvent> {
        let failed = |reason: String| Some(NetEvent::CircuitFailed { node, relay, reason, revoked: false });
        let (Some(peer), Some(over)) = (peer_id(node), peer_id(relay)) else { return None };
        if self.circuits.dials.values().any(|dial| *dial == (node, relay)) {
            return None;
        }
        // Without a session libp2p would dial the relay.
        let Some(at) = self.direct(relay).map(|s| s.remote.clone()) else {
            return failed("no session with it".to_owned());
        };
        let options = DialOpts::peer_id(peer)
            .addresses(vec![circuit::address(&at, over, Some(peer))])
            .condition(PeerCondition::Disconnected)
            .allocate_new_port()
            .build();
        let connection = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.circuits.dials.insert(connection, (node, relay));
                None
            }
            // It is connected.
            Err(DialError::DialPeerConditionFalse(_)) => None,
            Err(error) => failed(refusal::of_dial(&error).message),
        }
    }

    pub(super) fn circuit_failed(&mut self, connection: ConnectionId, error: &DialError) -> Option<NetEvent> {
        let (node, relay) = self.circuits.dials.remove(&connection)?;
        let found = refusal::of_dial(error);
        self.metrics.handshake_failed("out", found.cause.into());
        self.remember(true, None, Some(node), &found);
        let reason = why(error).map_or_else(|| found.message.clone(), str::to_owned);
        tracing::debug!(node = node.short(), relay = relay.short(), reason, "no circuit");
        Some(NetEvent::CircuitFailed { node, relay, reason, revoked: says_revoked(&found) })
    }

    /// Waits for circuits at members with a direct session. What was reserved stays as long as the session over which it was: there
    /// would be a race with a circuit that is just coming.
    pub(super) fn reserve(&mut self, relays: &[NodeId]) -> Option<NetEvent> {
        for relay in relays {
            if self.circuits.reservations.contains_key(relay) {
                continue;
            }
            let (Some(over), Some(session)) = (peer_id(*relay), self.direct(*relay)) else { continue };
            match self.swarm.listen_on(circuit::address(&session.remote, over, None)) {
                Ok(listener) => {
                    self.circuits.reservations.insert(*relay, listener);
                }
                Err(error) => {
                    return Some(NetEvent::NotReserved { relay: *relay, reason: root_cause(&error) });
                }
            }
        }
        None
    }

    pub(super) fn reservation_ended(
        &mut self,
        listener: ListenerId,
        error: Option<std::io::Error>,
    ) -> Option<NetEvent> {
        let relay = *self.circuits.reservations.iter().find(|(_, id)| **id == listener)?.0;
        self.circuits.reservations.remove(&relay);
        let reason = error.map(|e| refusal::root(&e))?;
        tracing::debug!(relay = relay.short(), reason, "a member keeps no circuits open to this node");
        Some(NetEvent::NotReserved { relay, reason })
    }

    /// Beside a direct session those over circuits are only kept for the streams that they have.
    pub(super) fn give_way(&mut self, node: NodeId) {
        if self.direct(node).is_none() {
            return;
        }
        let over = self.sessions.iter().filter(|(_, s)| s.node == node && s.relay.is_some());
        let over: Vec<ConnectionId> = over.map(|(id, _)| *id).collect();
        for connection in over {
            self.look_later(connection);
        }
    }

    fn look_later(&mut self, connection: ConnectionId) {
        self.replies.push(Box::pin(async move {
            tokio::time::sleep(LOOK).await;
            Reply::Yield(connection)
        }));
    }

    /// Ends a session over a circuit that is not needed any more.
    pub(super) fn yields(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get(&connection) else { return };
        let node = session.node;
        if self.direct(node).is_none() {
            return;
        }
        if self.circuits.open.on(connection) == 0 {
            tracing::debug!(node = node.short(), "a direct session takes the place of one over a circuit");
            self.end(connection, CloseReason::Done, "");
        } else {
            self.look_later(connection);
        }
    }

    /// Whether there is a better session with the same node.
    pub(super) fn is_second_best(&self, connection: ConnectionId) -> bool {
        let session = self.sessions.get(&connection).filter(|s| s.relay.is_some());
        session.is_some_and(|s| self.direct(s.node).is_some())
    }

    pub(super) fn count_sessions(&self) {
        let relayed = self.sessions.values().filter(|s| s.relay.is_some()).count();
        self.metrics.open_sessions(self.sessions.len(), relayed);
    }

    /// Circuits of others.
    pub(super) fn carried(&self, event: &relay::Event) {
        use relay::Event;
        match event {
            Event::ReservationReqAccepted { renewed: false, .. } => {
                self.metrics.relay("reservation", "accepted");
            }
            Event::ReservationReqDenied { .. } => self.metrics.relay("reservation", "denied"),
            Event::CircuitReqAccepted { src_peer_id, dst_peer_id } => {
                self.metrics.relay("circuit", "accepted");
                self.metrics.relay_circuits.inc();
                tracing::info!(from = %src_peer_id, to = %dst_peer_id, "carries a circuit");
            }
            Event::CircuitReqDenied { src_peer_id, dst_peer_id, status } => {
                self.metrics.relay("circuit", "denied");
                tracing::debug!(from = %src_peer_id, to = %dst_peer_id, ?status, "no circuit");
            }
            Event::CircuitClosed { .. } => self.metrics.relay_circuits.dec(),
            _ => {}
        }
    }
}

/// What the relay said, for people.
fn why(error: &DialError) -> Option<&'static str> {
    let DialError::Transport(attempts) = error else { return None };
    attempts.iter().find_map(|(_, error)| refusal::find::<ConnectError>(error)).and_then(|said| match said {
        ConnectError::NoReservation => Some("that node is not there, or does not wait for circuits"),
        ConnectError::ConnectionFailed => Some("that node did not take the circuit"),
        ConnectError::ResourceLimitExceeded => Some("it carries as many circuits as it can"),
        ConnectError::Unsupported => Some("it carries no circuits (`relay = false`)"),
        ConnectError::PermissionDenied => Some("it may not carry this circuit"),
        _ => None,
    })
}
