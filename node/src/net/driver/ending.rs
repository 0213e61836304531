//! Sessions that the driver ends, and the question whether an identity is in use.
use std::sync::Arc;

use libp2p::{request_response::OutboundRequestId, swarm::ConnectionId};
use octomesh_protocol::{
    advert::CardsRequest,
    id::{NodeId, ToolSetHash},
    session::record::CloseReason,
};
use tokio::sync::oneshot;

use super::{Driver, Reply, Session};
use crate::net::{
    handle::peer_id,
    secure::{Farewell, Occupant, Occupants, PROBE, Probe, ProcessKey},
};

/// Newcomers that wait for one probe: each is a handshake, of which a few dozen go on at once.
const WAITING: usize = 32;

/// An old session that is asked whether it is there.
pub(super) struct Probing {
    process: ProcessKey,
    /// The question; any answer to it, or to a ping, will do.
    request: OutboundRequestId,
    waiting: Vec<oneshot::Sender<bool>>,
}

impl Driver {
    /// Ends a session with a close record that says why; within about a second, whether or not the other side takes it.
    pub(super) fn end(&mut self, connection: ConnectionId, reason: CloseReason, detail: &str) {
        if let Some(session) = self.sessions.get(&connection) {
            // silent-ok: it is being ended already
            let _ = session.opened.farewell.set(Farewell::new(reason, detail));
        }
        self.swarm.close_connection(connection);
    }

    /// Ends a session of which nothing comes any more; `why` is what its owner reads.
    pub(super) fn end_useless(&mut self, connection: ConnectionId, why: &'static str) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.ended = Some(why);
        }
        self.end(connection, CloseReason::Done, "");
    }

    /// Ends all sessions with a node that is down: steps on them are looked for elsewhere, and it can be dialled at another address.
    pub(super) fn end_silent(&mut self, node: NodeId) {
        let silent = self.sessions.iter().filter(|(_, s)| s.node == node && s.ended.is_none());
        for connection in silent.map(|(id, _)| *id).collect::<Vec<_>>() {
            tracing::info!(node = node.short(), "a session with a node that is down was ended");
            self.end_useless(connection, "it did not answer");
        }
    }

    /// The sessions of a process that still count.
    fn of_process(
        &self,
        node: NodeId,
        process: ProcessKey,
    ) -> impl Iterator<Item = (ConnectionId, &Session)> {
        self.sessions
            .iter()
            .filter(move |(_, s)| s.node == node && s.opened.process == process && !s.replaced)
            .map(|(id, s)| (*id, s))
    }

    /// Tells the handshakes who has which identity.
    pub(super) fn publish_occupants(&self) {
        let occupants: Occupants =
            self.sessions.values().filter(|s| !s.replaced).map(|s| (s.node, s.occupant())).collect();
        self.occupants.send_replace(Arc::new(occupants));
    }

    /// Another process than the newcomer's that has `node`'s identity.
    pub(super) fn occupant(&self, node: NodeId, newcomer: ProcessKey) -> Option<Occupant> {
        let mut others = self.sessions.values().filter(|s| s.node == node && !s.replaced);
        others.find(|s| s.opened.process != newcomer).map(Session::occupant)
    }

    /// Asks the process that has an identity whether it is there.
    pub(super) fn probe(&mut self, probe: Probe) {
        let Probe { node, process, answers } = probe;
        let (Some(peer), Some(_)) = (peer_id(node), self.of_process(node, process).next()) else {
            // silent-ok: the newcomer is gone
            let _ = answers.send(false);
            return;
        };
        if let Some(probing) = self.probing.get_mut(&node).filter(|p| p.process == process) {
            // One too many is dropped, and so told that the node is busy.
            if probing.waiting.len() < WAITING {
                probing.waiting.push(answers);
            }
            return;
        }
        // Cheap to answer, and answered by whoever is alive: nobody has a tool set with this hash.
        let question = CardsRequest::Manifest(ToolSetHash::from_bytes([0; 32]));
        let request = self.swarm.behaviour_mut().cards.send_request(&peer, question);
        self.probing.insert(node, Probing { process, request, waiting: vec![answers] });
        self.replies.push(Box::pin(async move {
            tokio::time::sleep(PROBE).await;
            Reply::ProbeOver { node, request }
        }));
    }

    /// Whether an answered exchange was a probe's.
    pub(super) fn probe_answered(&mut self, request: OutboundRequestId) -> bool {
        let node = self.probing.iter().find(|(_, p)| p.request == request).map(|(node, _)| *node);
        if let Some(node) = node {
            self.settle(node, true);
        }
        node.is_some()
    }

    /// A session has just answered a ping.
    pub(super) fn answered_ping(&mut self, connection: ConnectionId) {
        let Some(session) = self.sessions.get(&connection) else { return };
        let (node, process) = (session.node, session.opened.process);
        if self.probing.get(&node).is_some_and(|p| p.process == process) {
            self.settle(node, true);
        }
    }

    /// The time of a probe is over.
    pub(super) fn probe_over(&mut self, node: NodeId, request: OutboundRequestId) {
        if self.probing.get(&node).is_some_and(|p| p.request == request) {
            self.settle(node, false);
        }
    }

    /// A session has ended; the last one of a probed process answers by that.
    pub(super) fn session_ended(&mut self, node: NodeId) {
        self.publish_occupants();
        let process = self.probing.get(&node).map(|p| p.process);
        if process.is_some_and(|process| self.of_process(node, process).next().is_none()) {
            self.settle(node, false);
        }
    }

    fn settle(&mut self, node: NodeId, answers: bool) {
        let Some(probing) = self.probing.remove(&node) else { return };
        if !answers {
            let silent: Vec<ConnectionId> =
                self.of_process(node, probing.process).map(|(id, _)| id).collect();
            for connection in silent {
                tracing::info!(
                    node = node.short(),
                    "a silent session makes way for a newer process of its node"
                );
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.replaced = true;
                }
                self.end(connection, CloseReason::IdentityInUse, "a newer process of the same node");
            }
            self.publish_occupants();
        }
        for waiting in probing.waiting {
            // silent-ok: the newcomer is gone
            let _ = waiting.send(answers);
        }
    }
}

impl Session {
    fn occupant(&self) -> Occupant {
        Occupant {
            process: Some(self.opened.process),
            name: self.opened.certificate.name.to_string(),
            address: self.address.clone(),
        }
    }
}
