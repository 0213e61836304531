//! Connections that came to nothing, and sessions that ended: what is counted, remembered and told.
use libp2p::{
    Multiaddr, PeerId,
    swarm::{ConnectionError, ConnectionId},
};
use octomesh_protocol::{id::NodeId, session::record::CloseReason};
use tokio::time::Instant;

use super::{Diagnosis, Driver, root_cause};
use crate::net::{
    address,
    event::NetEvent,
    handle::node_id,
    refusal,
    secure::{Cause, Farewell, Occupant, SecureError, SessionOpened, diagnose},
};

impl Driver {
    pub(super) fn dial_failed(
        &mut self,
        node: Option<NodeId>,
        address: Option<String>,
        found: Diagnosis,
        refused: bool,
    ) -> NetEvent {
        self.metrics.handshake_failed("out", found.cause.into());
        self.remember(true, address.as_deref(), node, &found);
        let revoked = says_revoked(&found);
        NetEvent::DialFailed { node, address, reason: found.message, revoked, refused }
    }

    pub(super) fn inbound_failed(
        &mut self,
        at: &Multiaddr,
        from: &Multiaddr,
        found: Diagnosis,
    ) -> Option<NetEvent> {
        self.metrics.handshake_failed("in", found.cause.into());
        let address = address::from_multiaddr(from);
        self.remember(false, address.as_deref(), None, &found);
        // Counted and remembered each; told as often as somebody could read it.
        if !self.swarm.behaviour().admission.0.tells(at, from) {
            return None;
        }
        Some(NetEvent::Refused { address, reason: found.message })
    }

    pub(super) fn remember(
        &mut self,
        outbound: bool,
        address: Option<&str>,
        node: Option<NodeId>,
        found: &Diagnosis,
    ) {
        let count = self.refusals.add(outbound, address, node, found, Instant::now());
        // The other side's refusals come with every dial; ever more rarely told, since its owner may not be there to act.
        if found.by_peer && count.is_power_of_two() {
            tracing::warn!(address, tries = count, "{}", found.message);
        }
    }

    /// Two processes with one identity came at the same moment, and neither saw the other: the one that is here stays.
    pub(super) fn came_second(
        &mut self,
        connection: ConnectionId,
        opened: SessionOpened,
        address: Option<&str>,
        occupant: Occupant,
    ) {
        let (outbound, detail) = (opened.outbound, occupant.to_string());
        // silent-ok: nobody else ends a session that the driver has not taken in
        let _ = opened.farewell.set(Farewell::new(CloseReason::IdentityInUse, detail));
        let error = SecureError::IdentityInUse(occupant);
        let found = diagnose(&error, Cause::IdentityInUse);
        self.metrics.handshake_failed(if outbound { "out" } else { "in" }, found.cause.into());
        tracing::info!(address, reason = found.message, "refused a connection");
        self.remember(outbound, address, Some(opened.peer), &found);
        self.swarm.close_connection(connection);
    }

    pub(super) fn closed(
        &mut self,
        peer: &PeerId,
        connection: ConnectionId,
        cause: Option<ConnectionError>,
    ) -> Option<NetEvent> {
        let session = self.sessions.remove(&connection);
        self.failed_pings.remove(&connection);
        self.count_sessions();
        let node = node_id(peer)?;
        // Nobody was told of one that was ended before it counted.
        let session = session?;
        self.session_ended(node);
        // By what was told: a connection that never counted may outlive the last one that did.
        let last = !self.sessions.values().any(|other| other.node == node);
        let mut revoked = false;
        if let Some(found) = cause.as_ref().and_then(refusal::of_end) {
            self.remember(session.opened.outbound, session.address.as_deref(), Some(node), &found);
            revoked = says_revoked(&found);
        }
        Some(NetEvent::Disconnected {
            node,
            last,
            path: self.path(node),
            reason: cause.map_or_else(|| session.ended.unwrap_or("closed").to_owned(), |c| root_cause(&c)),
            revoked,
        })
    }
}

/// The other side says that this node was revoked.
pub(super) fn says_revoked(found: &Diagnosis) -> bool {
    found.by_peer && found.cause == Cause::Revoked
}
