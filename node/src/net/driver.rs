//! The one task that owns the swarm. It translates: commands in, events out; it decides nothing about membership.
use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroU8,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    PeerId, Swarm,
    gossipsub::{self, MessageAcceptance},
    identity::Keypair,
    request_response,
    swarm::{ConnectionId, DialError, SwarmEvent, dial_opts::DialOpts},
};
use octomesh_protocol::{
    advert::CardsReply, id::NodeId, session::record::CloseReason, sync::SyncRequest, trust::Issuer,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    address,
    behaviour::{
        ADVERT_TOPIC, BLOB_PROTOCOL, Behaviour, BehaviourEvent, Parts, STEP_PROTOCOL, SWIM_PROTOCOL,
    },
    blob::BlobListener,
    circuit,
    doorkeeper::Book,
    event::{NetEvent, Path, SessionReport},
    handle::{NetCommand, NetError, NetHandle, node_id, peer_id},
    inbound::Inbound,
    outbound::{Open, Outbound},
    refusal::{self, Refusals},
    secure::{Cause, Diagnosis, Farewell, Gate, Lookout, Occupants, Probe, Security, SessionOpened, VOID},
    stream::StepListener,
    swim::{self, SwimLink, SwimTraffic},
    transport::{self, TransportKind},
};
use crate::{
    app::supervise::Supervisor,
    metrics::NetMetrics,
    trust::{Trust, TrustReader},
};

mod circuits;
mod ending;
mod met;
mod refused;

use circuits::Circuits;
use ending::Probing;
use met::Met;

/// Commands waiting for the driver: a burst of card fetches after a join of many nodes.
const COMMAND_QUEUE: usize = 256;
/// Events waiting for membership, which never waits for the driver; a full queue slows the network down, never loses a
/// connection.
const EVENT_QUEUE: usize = 1024;
/// Gossip keeps sessions open; this only matters when gossip is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Sessions announced by the upgrade and not yet established by the swarm.
pub(crate) const OPENED_QUEUE: usize = 512;
/// How long a node that was revoked has to hear of it before its sessions end.
const TELL: Duration = Duration::from_millis(500);
/// Questions of handshakes whether an identity is in use; each is of a member, and asked anew at its next try.
const PROBE_QUEUE: usize = 64;
/// Failed pings in a row after which a connection counts as dead.
const PING_FAILURES: u8 = 2;

/// What the network needs.
pub(crate) struct NetConfig {
    /// Ed25519 seed of the identity; gossip is signed with it.
    pub(crate) seed: zeroize::Zeroizing<[u8; 32]>,
    pub(crate) transport: TransportKind,
    pub(crate) security: Security,
    /// Test transport: the same handshake, then records in the clear. Only where the feature `testing` is on.
    pub(crate) plaintext: bool,
    /// Whether circuits of other members are carried.
    pub(crate) relay: bool,
    /// The other end of the security's channel.
    pub(crate) opened: mpsc::Receiver<SessionOpened>,
    /// `IP:PORT` to listen on.
    pub(crate) listen: Vec<String>,
    /// Owns the doorkeeper, which must run before there is a listener.
    pub(crate) tasks: Supervisor,
    pub(crate) metrics: NetMetrics,
    /// Messages dropped, by queue.
    pub(crate) dropped: prometheus::IntCounterVec,
}

/// Where the node listens.
pub(crate) type Listening = Vec<String>;

/// Everything that the network gives to the rooms above.
pub(crate) struct Network {
    pub(crate) handle: NetHandle,
    pub(crate) events: mpsc::Receiver<NetEvent>,
    pub(crate) steps: StepListener,
    pub(crate) blobs: BlobListener,
    pub(crate) swim: SwimLink,
    pub(crate) swim_traffic: SwimTraffic,
    pub(crate) listening: Listening,
    pub(crate) driver: Driver,
}

/// Why a network can't start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum StartError {
    /// An address can't be listened on.
    #[error("can't listen on {address}: {cause}")]
    Listen { address: String, cause: String },
    /// The identity's key or the configuration of a protocol is unusable.
    #[error("network set-up: {0}")]
    Setup(String),
}

/// Binds the listeners, starts the doorkeeper and builds the swarm; [`Driver::run`] then drives it.
pub(crate) async fn start(config: NetConfig) -> Result<Network, StartError> {
    let trust = config.security.trust();
    let keypair = Keypair::ed25519_from_bytes(*config.seed).map_err(|e| StartError::Setup(e.to_string()))?;
    let local = PeerId::from(keypair.public());
    let open = Open::default();
    let outbound = Outbound::new(&[STEP_PROTOCOL, BLOB_PROTOCOL], open.clone());
    let (inbound, steps) = Inbound::new(STEP_PROTOCOL, Some(open.clone()));
    let (blob_inbound, blobs) = Inbound::new(BLOB_PROTOCOL, Some(open.clone()));
    let (swim_inbound, swim_streams) = Inbound::new(SWIM_PROTOCOL, None);
    let gate = Gate::new();
    let (occupants, known) = watch::channel(Arc::default());
    let (probes_out, probes) = mpsc::channel(PROBE_QUEUE);
    config.security.config().look_out(Lookout { occupants: known, probes: probes_out });
    let (refusals, refused) = Refusals::new();
    let (outbox, events) = mpsc::channel(EVENT_QUEUE);
    let book = Book { metrics: config.metrics.clone(), refusals: refusals.clone(), events: outbox.clone() };
    let control = outbound.opener();
    let (security, plain) = (config.security, config.plaintext);
    let door = (gate.clone(), book);
    let (transport, doorkeeper, circuits) =
        transport::build(config.transport, security, plain, door, Handle::current(), local);
    doorkeeper.start(&config.tasks).await.map_err(|e| StartError::Setup(format!("doorkeeper: {e}")))?;
    let parts = Parts {
        outbound,
        inbound,
        swim: swim_inbound,
        blob: blob_inbound,
        gate,
        circuits,
        relay: config.relay,
    };
    let behaviour = Behaviour::new(&keypair, parts).map_err(StartError::Setup)?;
    let mut swarm = Swarm::new(
        transport,
        behaviour,
        local,
        libp2p::swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(IDLE_TIMEOUT)
            .with_dial_concurrency_factor(NonZeroU8::MIN),
    );
    let ended = config.tasks.stop_token().cancelled();
    let listening = tokio::select! {
        listening = listen(&mut swarm, &config.listen) => listening?,
        // The listeners are the doorkeeper's.
        () = ended => return Err(StartError::Setup("nobody stands at the door".to_owned())),
    };
    swarm.add_external_address(circuit::told_address(local));
    let (swim, swim_traffic) =
        swim::link(swim_streams, control.clone(), config.metrics.clone(), config.dropped);
    let mut trust = trust;
    // What was revoked before the start counts as well.
    trust.mark_changed();
    let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
    let driver = Driver {
        swarm,
        inbox,
        outbox,
        opened: config.opened,
        announced: Vec::new(),
        sessions: HashMap::new(),
        cards: HashMap::new(),
        syncs: HashMap::new(),
        replies: FuturesUnordered::new(),
        failed_pings: HashMap::new(),
        occupants,
        probes,
        probing: HashMap::new(),
        refusals,
        metrics: config.metrics,
        trust,
        leaving: BTreeSet::new(),
        members: Met::default(),
        told: FuturesUnordered::new(),
        circuits: Circuits::new(open),
    };
    Ok(Network {
        handle: NetHandle {
            commands,
            control,
            refusals: refused,
            #[cfg(test)]
            links: None,
        },
        events,
        steps: StepListener(steps),
        blobs: BlobListener(blobs),
        swim,
        swim_traffic,
        listening,
        driver,
    })
}

/// libp2p listens with `SO_REUSEPORT`, so that it can dial from the port it listens on; two nodes of one user would then share a
/// port, and each get half of the connections. A socket that does not share finds that out.
fn in_use(address: &str) -> Option<std::io::Error> {
    let address: std::net::SocketAddr = address.parse().ok()?;
    let bound = std::net::TcpListener::bind(address);
    // Whatever else is wrong with the address, libp2p says it.
    bound.err().filter(|e| e.kind() == std::io::ErrorKind::AddrInUse)
}

/// Says which address is in use, if one is.
pub(crate) fn check_free(addresses: &[String]) -> Result<(), StartError> {
    for address in addresses {
        if let Some(cause) = in_use(address) {
            return Err(StartError::Listen { address: address.clone(), cause: cause.to_string() });
        }
    }
    Ok(())
}

/// Starts all listeners and waits until each told its address: a port in use is an error at start, not a line in a log.
async fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[String]) -> Result<Listening, StartError> {
    let failed = |address: &str, cause: String| StartError::Listen { address: address.to_owned(), cause };
    let mut listening = Vec::new();
    for text in addresses {
        let multiaddr = address::to_multiaddr(text)
            .ok_or_else(|| failed(text, "not an address of the form IP:PORT".to_owned()))?;
        if let Some(cause) = in_use(text) {
            return Err(failed(text, cause.to_string()));
        }
        let id = swarm.listen_on(multiaddr).map_err(|e| failed(text, root_cause(&e)))?;
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::NewListenAddr { listener_id, address } if listener_id == id => {
                    listening.extend(address::from_multiaddr(&address));
                    break;
                }
                SwarmEvent::ListenerClosed { listener_id, reason, .. } if listener_id == id => {
                    let cause = reason.err().map_or_else(|| "listener closed".to_owned(), |e| e.to_string());
                    return Err(failed(text, cause));
                }
                SwarmEvent::ListenerError { listener_id, error } if listener_id == id => {
                    return Err(failed(text, error.to_string()));
                }
                _ => {}
            }
        }
    }
    Ok(listening)
}

/// The revocation for which `certificate` is refused, as a request that tells it.
fn proof(trust: &Trust, certificate: &octomesh_protocol::trust::Certificate) -> Option<Vec<u8>> {
    let of_issuer = match certificate.issuer {
        Issuer::Admin(issuer) => trust.revocations.signed(issuer),
        Issuer::Root => None,
    };
    let signed = trust.revocations.signed(certificate.node).or(of_issuer)?;
    SyncRequest::Revoked(signed.to_bytes().ok()?).to_bytes().ok()
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

struct Session {
    node: NodeId,
    /// Where the other side is; over a circuit it has no address.
    address: Option<String>,
    /// The same for libp2p.
    remote: libp2p::Multiaddr,
    /// Who carries it.
    relay: Option<NodeId>,
    since: Instant,
    opened: SessionOpened,
    /// Another process has its identity now, and this one is being closed.
    replaced: bool,
    /// Why this side ended it, for people.
    ended: Option<&'static str>,
}

enum Reply {
    Cards(request_response::ResponseChannel<CardsReply>, CardsReply),
    Sync(request_response::ResponseChannel<Vec<u8>>, Vec<u8>),
    /// Whoever should have answered is gone; the exchange times out at the other side.
    None,
    /// No reply: a session over a circuit may be done.
    Yield(ConnectionId),
    /// No reply: the time for one.
    ProbeOver {
        node: NodeId,
        request: request_response::OutboundRequestId,
    },
}

/// The driver's state. Only [`Driver::run`] touches it.
pub(crate) struct Driver {
    swarm: Swarm<Behaviour>,
    inbox: mpsc::Receiver<NetCommand>,
    outbox: mpsc::Sender<NetEvent>,
    opened: mpsc::Receiver<SessionOpened>,
    announced: Vec<SessionOpened>,
    sessions: HashMap<ConnectionId, Session>,
    cards: HashMap<request_response::OutboundRequestId, oneshot::Sender<Result<CardsReply, NetError>>>,
    syncs: HashMap<request_response::OutboundRequestId, oneshot::Sender<Result<Vec<u8>, NetError>>>,
    replies: FuturesUnordered<BoxFuture<'static, Reply>>,
    failed_pings: HashMap<ConnectionId, u8>,
    occupants: watch::Sender<Arc<Occupants>>,
    probes: mpsc::Receiver<Probe>,
    probing: HashMap<NodeId, Probing>,
    refusals: Refusals,
    metrics: NetMetrics,
    trust: TrustReader,
    /// Whose gossip goes on to others.
    members: Met,
    /// Nodes that are being told that they are out.
    leaving: BTreeSet<NodeId>,
    told: FuturesUnordered<BoxFuture<'static, NodeId>>,
    circuits: Circuits,
}

impl Driver {
    /// Runs until `stop`, or until nobody listens to its events.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut trusting = true;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.trust.changed(), if trusting => {
                    trusting = changed.is_ok();
                    self.trust_changed();
                }
                Some(node) = self.told.next(), if !self.told.is_empty() => {
                    self.leaving.remove(&node);
                    let void = !self.trust.borrow().is_revoked(node);
                    self.end_sessions(node, CloseReason::Revoked, if void { VOID } else { "" });
                }
                // Taken at once, whatever becomes of them: a full channel refuses every further handshake.
                Some(opened) = self.opened.recv() => self.announce(opened),
                Some(probe) = self.probes.recv() => self.probe(probe),
                command = self.inbox.recv() => match command {
                    Some(command) => {
                        if let Some(event) = self.command(command)
                            && self.outbox.send(event).await.is_err()
                        {
                            break;
                        }
                    }
                    None => break,
                },
                Some(reply) = self.replies.next(), if !self.replies.is_empty() => self.reply(reply),
                event = self.swarm.select_next_some() => {
                    if let Some(event) = self.event(event) {
                        // Waits when membership is behind. Membership never waits for the driver, so this ends.
                        if self.outbox.send(event).await.is_err() {
                            break;
                        }
                    }
                }
            }
        }
        self.close().await;
    }

    /// Ends all sessions with an authenticated close.
    async fn close(mut self) {
        let peers: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            // silent-ok: an error means that it was not connected any more
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let patience = tokio::time::sleep(Duration::from_secs(1));
        tokio::pin!(patience);
        while self.swarm.connected_peers().next().is_some() {
            tokio::select! {
                () = &mut patience => break,
                _ = self.swarm.select_next_some() => {}
            }
        }
    }

    fn command(&mut self, command: NetCommand) -> Option<NetEvent> {
        match command {
            NetCommand::Dial { node, addresses } => {
                // Whoever is looked for there may also come from there.
                let places = addresses.iter().filter_map(|a| address::to_multiaddr(a));
                places.for_each(|a| self.swarm.behaviour().admission.0.know(&a));
                return self.dial(node, &addresses);
            }
            NetCommand::DialOver { node, relay } => return self.dial_over(node, relay),
            NetCommand::Reserve { relays } => return self.reserve(&relays),
            NetCommand::Try { address } => return self.dial(None, &[address]),
            NetCommand::Publish { advert } => {
                self.metrics.gossip("out", advert.len());
                // silent-ok: nobody subscribed yet, or a duplicate; the next advert follows in seconds
                let _ = self
                    .swarm
                    .behaviour_mut()
                    .gossip
                    .publish(gossipsub::IdentTopic::new(ADVERT_TOPIC), advert);
            }
            NetCommand::Cards { node, request, reply } => match peer_id(node) {
                Some(peer) => {
                    let id = self.swarm.behaviour_mut().cards.send_request(&peer, request);
                    self.cards.insert(id, reply);
                }
                None => drop(reply.send(Err(NetError::Unknown))),
            },
            NetCommand::Sync { node, bytes, reply } => match peer_id(node) {
                Some(peer) => {
                    let id = self.swarm.behaviour_mut().sync.send_request(&peer, bytes);
                    self.syncs.insert(id, reply);
                }
                None => drop(reply.send(Err(NetError::Unknown))),
            },
            NetCommand::Expired { node } => {
                self.end_sessions(node, CloseReason::Refused, Cause::Expired.into());
            }
            NetCommand::Silent { node } => self.end_silent(node),
            NetCommand::Sessions { reply } => drop(reply.send(self.report())),
        }
        None
    }

    /// Whoever may not be here any more is told why, and then its sessions end. Its gossip is dropped at once, also what others pass on.
    fn trust_changed(&mut self) {
        let trust = Arc::clone(&self.trust.borrow_and_update());
        for peer in trust.revocations.nodes().filter_map(peer_id) {
            self.swarm.behaviour_mut().gossip.blacklist_peer(&peer);
        }
        let out: Vec<(NodeId, Option<Vec<u8>>)> = self
            .sessions
            .values()
            .filter(|s| trust.check(&s.opened.certificate).is_err())
            .map(|s| (s.node, proof(&trust, &s.opened.certificate)))
            .collect();
        for (node, proof) in out {
            if !self.leaving.insert(node) {
                continue;
            }
            let (reply, told) = oneshot::channel();
            if let (Some(peer), Some(bytes)) = (peer_id(node), proof) {
                let id = self.swarm.behaviour_mut().sync.send_request(&peer, bytes);
                self.syncs.insert(id, reply);
            }
            self.told.push(Box::pin(async move {
                // silent-ok: heard or not, its sessions end now
                let _ = tokio::time::timeout(TELL, told).await;
                node
            }));
        }
    }

    /// Ends all sessions with a node that is out.
    fn end_sessions(&mut self, node: NodeId, reason: CloseReason, detail: &str) {
        let of_node = self.sessions.iter().filter(|(_, s)| s.node == node).map(|(id, _)| *id);
        for connection in of_node.collect::<Vec<_>>() {
            self.end(connection, reason, detail);
        }
    }

    /// The event is that of a dial that fails before it begins.
    fn dial(&mut self, node: Option<NodeId>, addresses: &[String]) -> Option<NetEvent> {
        let first = addresses.first().cloned();
        let addresses: Vec<_> = addresses.iter().filter_map(|a| address::to_multiaddr(a)).collect();
        // From a port of its own. Two nodes that dialled each other from the ports that they listen on would at times meet in one TCP
        // connection (simultaneous open), in which both are the dialer; a firewall before one of them makes that the rule.
        let options = match node.and_then(peer_id) {
            Some(peer) => DialOpts::peer_id(peer)
                .addresses(addresses)
                .condition(self.direct_condition(peer))
                .allocate_new_port()
                .build(),
            None => match addresses.into_iter().next() {
                Some(address) => DialOpts::unknown_peer_id().address(address).allocate_new_port().build(),
                None => return None,
            },
        };
        match self.swarm.dial(options) {
            Ok(()) => None,
            // It is connected, or being dialled.
            Err(DialError::DialPeerConditionFalse(_)) => None,
            Err(error) => {
                let reason = refusal::of_dial(&error).message;
                Some(NetEvent::DialFailed { node, address: first, reason, revoked: false, refused: false })
            }
        }
    }

    fn report(&self) -> Vec<SessionReport> {
        self.sessions
            .values()
            .map(|s| SessionReport {
                node: s.node,
                outbound: s.opened.outbound,
                address: s.address.clone(),
                relay: s.relay,
                established: s.since.elapsed(),
                bytes_in: s.opened.bytes_in.load(Ordering::Relaxed),
                bytes_out: s.opened.bytes_out.load(Ordering::Relaxed),
                rekeys: s.opened.rekeys.load(Ordering::Relaxed),
                certificate_name: s.opened.certificate.name.clone(),
                role: s.opened.certificate.role,
                certificate_expires: s.opened.certificate.not_after,
            })
            .collect()
    }

    fn reply(&mut self, reply: Reply) {
        // silent-ok: an error means that the other side does not wait any more
        match reply {
            Reply::Cards(channel, cards) => {
                let _ = self.swarm.behaviour_mut().cards.send_response(channel, cards);
            }
            Reply::Sync(channel, bytes) => {
                let _ = self.swarm.behaviour_mut().sync.send_response(channel, bytes);
            }
            Reply::None => {}
            Reply::Yield(connection) => self.yields(connection),
            Reply::ProbeOver { node, request } => self.probe_over(node, request),
        }
    }

    fn event(&mut self, event: SwarmEvent<BehaviourEvent>) -> Option<NetEvent> {
        match event {
            SwarmEvent::Behaviour(event) => self.behaviour(event),
            SwarmEvent::NewListenAddr { address, .. } if circuit::is_circuit(&address) => None,
            SwarmEvent::NewListenAddr { address, .. } => {
                address::from_multiaddr(&address).map(|address| NetEvent::Listening { address })
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.circuits.dialled(connection_id);
                self.established(&peer_id, connection_id, &endpoint)
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, cause, .. } => {
                self.closed(&peer_id, connection_id, cause)
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. }
                if self.circuits.is_dialled(connection_id) =>
            {
                self.circuit_failed(connection_id, &error)
            }
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                let address = match &error {
                    DialError::Transport(tried) => {
                        tried.first().and_then(|(a, _)| address::from_multiaddr(a))
                    }
                    _ => None,
                };
                let node = peer_id.as_ref().and_then(node_id);
                let refused = refusal::nobody_listens(&error);
                Some(self.dial_failed(node, address, refusal::of_dial(&error), refused))
            }
            SwarmEvent::IncomingConnectionError { local_addr, send_back_addr, error, .. } => {
                self.inbound_failed(&local_addr, &send_back_addr, refusal::of_inbound(&error)?)
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!(%error, "a listener had an error and goes on");
                None
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. }
                if self.circuits.is_reservation(listener_id) =>
            {
                self.reservation_ended(listener_id, reason.err())
            }
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                let addresses: Vec<_> = addresses.iter().filter_map(address::from_multiaddr).collect();
                let reason = reason.err().map(|e| e.to_string());
                tracing::error!(?addresses, reason, "this node does not listen there any more");
                None
            }
            _ => None,
        }
    }

    /// Remembers what an upgrade said until the swarm tells of its connection. Whoever hangs up in between, or is denied for a
    /// limit, has dropped its stream, and with it the other owner of the counters.
    fn announce(&mut self, opened: SessionOpened) {
        self.announced.retain(|o| Arc::strong_count(&o.bytes_in) > 1);
        self.announced.push(opened);
    }

    /// Matches a connection with what the upgrade said of it just before.
    fn established(
        &mut self,
        peer: &PeerId,
        connection: ConnectionId,
        endpoint: &libp2p::core::ConnectedPoint,
    ) -> Option<NetEvent> {
        let outbound = endpoint.is_dialer();
        while let Ok(opened) = self.opened.try_recv() {
            self.announce(opened);
        }
        let node = node_id(peer)?;
        // The newest: an older one can only be of a connection that is about to be dropped.
        let found = self.announced.iter().rposition(|o| o.peer == node && o.outbound == outbound);
        let Some(opened) = found.map(|at| self.announced.swap_remove(at)) else {
            // Can't happen while the upgrade announces before it returns; without a certificate there is no member.
            tracing::error!(node = node.short(), "a connection without a checked certificate was closed");
            self.swarm.close_connection(connection);
            return None;
        };
        // Revoked after its certificate was checked.
        if self.trust.borrow().check(&opened.certificate).is_err() {
            // silent-ok: nobody else ends a session that the driver has not taken in
            let _ = opened.farewell.set(Farewell::new(CloseReason::Revoked, ""));
            self.swarm.close_connection(connection);
            return None;
        }
        let remote = endpoint.get_remote_address().clone();
        let relay = self.relay_of(endpoint);
        if endpoint.is_relayed() && relay.is_none() {
            // Its relay has just gone, and so has it.
            self.swarm.close_connection(connection);
            return None;
        }
        let address = address::from_multiaddr(&remote).filter(|_| relay.is_none());
        if let Some(occupant) = self.occupant(node, opened.process) {
            self.came_second(connection, opened, address.as_deref(), occupant);
            return None;
        }
        self.metrics.handshake_ok(if outbound { "out" } else { "in" }, opened.handshake);
        // What a peer dialled us from is no address of it.
        let dialled = address.clone().filter(|_| outbound);
        let certificate = Box::new(opened.certificate.clone());
        let since = Instant::now();
        let session = Session { node, address, remote, relay, since, opened, replaced: false, ended: None };
        self.members.met(&session.opened.certificate);
        self.sessions.insert(connection, session);
        self.publish_occupants();
        self.count_sessions();
        self.give_way(node);
        let Path { address, relay } = self.path(node);
        Some(NetEvent::Connected { node, certificate, address, dialled, relay })
    }

    fn behaviour(&mut self, event: BehaviourEvent) -> Option<NetEvent> {
        match event {
            BehaviourEvent::Gossip(gossipsub::Event::Message { message, message_id, propagation_source }) => {
                self.metrics.gossip("in", message.data.len());
                let origin = message.source.as_ref().and_then(node_id);
                let member = origin.is_some_and(|origin| self.members.is_one(origin, &self.trust.borrow()));
                // Who is unknown here may be a member all the same: it is not held against whoever passed it on.
                let verdict = if member { MessageAcceptance::Accept } else { MessageAcceptance::Ignore };
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                // silent-ok: too late to be passed on
                let _ = gossip.report_message_validation_result(&message_id, &propagation_source, verdict);
                let origin = origin?;
                Some(NetEvent::Advert { origin, bytes: message.data })
            }
            BehaviourEvent::Ping(event) => match event.result {
                Ok(rtt) => {
                    self.failed_pings.remove(&event.connection);
                    self.answered_ping(event.connection);
                    if self.is_second_best(event.connection) {
                        return None;
                    }
                    Some(NetEvent::Rtt { node: node_id(&event.peer)?, rtt })
                }
                Err(error) => {
                    let failures = self.failed_pings.entry(event.connection).or_default();
                    *failures = failures.saturating_add(1);
                    if *failures >= PING_FAILURES {
                        tracing::info!(peer = %event.peer, %error, "connection answers no ping; closed");
                        self.end_useless(event.connection, "it answered no ping");
                    }
                    None
                }
            },
            BehaviourEvent::Cards(event) => self.cards_event(event),
            BehaviourEvent::Sync(event) => self.sync_event(event),
            BehaviourEvent::Carrier(event) => {
                self.carried(&event);
                None
            }
            BehaviourEvent::Circuits(event) => {
                tracing::debug!(?event, "circuit");
                None
            }
            BehaviourEvent::Gossip(_) => None,
            BehaviourEvent::Limits(never)
            | BehaviourEvent::Step(never)
            | BehaviourEvent::Inbound(never)
            | BehaviourEvent::Swim(never) => match never {},
        }
    }

    fn cards_event(
        &mut self,
        event: request_response::Event<octomesh_protocol::advert::CardsRequest, CardsReply>,
    ) -> Option<NetEvent> {
        use request_response::{Event, Message};
        match event {
            Event::Message { message: Message::Request { request, channel, .. }, .. } => {
                let (reply, answer) = oneshot::channel();
                self.replies.push(Box::pin(async move {
                    answer.await.map_or(Reply::None, |cards| Reply::Cards(channel, cards))
                }));
                Some(NetEvent::Cards { request, reply })
            }
            Event::Message { message: Message::Response { request_id, .. }, .. }
                if self.probe_answered(request_id) =>
            {
                None
            }
            Event::Message { message: Message::Response { request_id, response }, .. } => {
                if let Some(waiting) = self.cards.remove(&request_id) {
                    drop(waiting.send(Ok(response)));
                }
                None
            }
            Event::OutboundFailure { request_id, error, .. } => {
                if let Some(waiting) = self.cards.remove(&request_id) {
                    drop(waiting.send(Err(NetError::Exchange(error.to_string()))));
                }
                None
            }
            Event::InboundFailure { .. } | Event::ResponseSent { .. } => None,
        }
    }

    fn sync_event(&mut self, event: request_response::Event<Vec<u8>, Vec<u8>>) -> Option<NetEvent> {
        use request_response::{Event, Message};
        match event {
            Event::Message { peer, message: Message::Request { request, channel, .. }, .. } => {
                let (reply, answer) = oneshot::channel();
                self.replies.push(Box::pin(async move {
                    answer.await.map_or(Reply::None, |bytes| Reply::Sync(channel, bytes))
                }));
                Some(NetEvent::Sync { node: node_id(&peer)?, bytes: request, reply })
            }
            Event::Message { message: Message::Response { request_id, response }, .. } => {
                if let Some(waiting) = self.syncs.remove(&request_id) {
                    drop(waiting.send(Ok(response)));
                }
                None
            }
            Event::OutboundFailure { request_id, error, .. } => {
                if let Some(waiting) = self.syncs.remove(&request_id) {
                    drop(waiting.send(Err(NetError::Exchange(error.to_string()))));
                }
                None
            }
            Event::InboundFailure { .. } | Event::ResponseSent { .. } => None,
        }
    }
}
