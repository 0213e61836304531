//! Connections that came to nothing, and sessions that ended: what is counted, remembered and told.
use libp2p::{
    Multiaddr, PeerId,
    swarm::{ConnectionError, ConnectionId},
};
use octomesh_protocol::{id::NodeId, session::record::CloseReason};
use tokio::time::Instant;

use super::{Diagnosis, Driver, OFFER_QUEUE, root_cause};
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

    pub(super) fn inbound_failed(&mut self, from: &Multiaddr, found: Diagnosis) -> Option<NetEvent> {
        let found = refusal::with_offer(found, self.offered_by(from).as_deref());
        self.metrics.handshake_failed("in", found.cause.into());
        let address = address::from_multiaddr(from);
        self.remember(false, address.as_deref(), None, &found);
        // Counted and remembered each; told as often as somebody could read it.
        if !self.swarm.behaviour_mut().admission.tells(from) {
            return None;
        }
        Some(NetEvent::Refused { address, reason: found.message })
    }

    /// What was offered from there before the connection failed, taken out of what strangers said lately.
    fn offered_by(&mut self, from: &Multiaddr) -> Option<String> {
        while let Ok(offer) = self.offers.try_recv() {
            if self.offered.len() >= OFFER_QUEUE {
                self.offered.pop_front();
            }
            self.offered.push_back(offer);
        }
        let at = self.offered.iter().position(|offer| offer.from == *from)?;
        self.offered.remove(at).map(|offer| offer.protocols)
    }

    fn remember(&mut self, outbound: bool, address: Option<&str>, node: Option<NodeId>, found: &Diagnosis) {
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
        self.metrics.open_sessions(self.sessions.len());
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
            reason: cause.map_or_else(|| "closed".to_owned(), |c| root_cause(&c)),
            revoked,
        })
    }
}

/// The other side says that this node was revoked.
fn says_revoked(found: &Diagnosis) -> bool {
    found.by_peer && found.cause == Cause::Revoked
}
