//! Which protocols run on a session, and their bounds.
use std::time::Duration;

use libp2p::{
    StreamProtocol, connection_limits, gossipsub, identity::Keypair, ping, request_response,
    swarm::NetworkBehaviour,
};
use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    limits,
};

use super::{
    codec::WireCodec,
    inbound::Inbound,
    secure::{Admission, Places},
};

pub(super) const STEP_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/step/1");
pub(super) const SWIM_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/swim/1");
const CARDS_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/cards/1");
const SYNC_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/sync/1");
/// The only gossip topic.
pub(super) const ADVERT_TOPIC: &str = "octomesh/advert/1";

/// Two, because two nodes that dial each other at the same moment end with one connection each way, and a limit of one makes
/// them close different ones.
const CONNECTIONS_PER_NODE: u32 = 2;
/// What the dials of two seconds need, [`CONNECT_TIMEOUT`](super::transport), when hundreds of addresses are dead.
const PENDING_OUTBOUND: u32 = 448;
/// Up to 64 nodes keep a full mesh; twice that leaves room for simultaneous dials.
const ESTABLISHED: u32 = 256;
/// Pings double as the measurement of the round trip and as the detector of a dead connection.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Card and sync exchanges are answered from memory.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent exchanges per connection, both ways.
const EXCHANGES: usize = 32;

type CardsCodec =
    WireCodec<CardsRequest, CardsReply, { limits::CARDS_REQUEST_BYTES }, { limits::CARDS_REPLY_BYTES }>;
/// The canonical bytes of [`octomesh_protocol::sync`], with a length before them, decoded above with their own limits.
type SyncCodec = WireCodec<Vec<u8>, Vec<u8>, { limits::SYNC_BYTES + 16 }, { limits::SYNC_REPLY_BYTES + 16 }>;

/// The limits come first: a connection that they deny must not have reached the others.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    pub(super) admission: Admission,
    pub(super) limits: connection_limits::Behaviour,
    pub(super) gossip: gossipsub::Behaviour,
    pub(super) cards: request_response::Behaviour<CardsCodec>,
    pub(super) sync: request_response::Behaviour<SyncCodec>,
    pub(super) ping: ping::Behaviour,
    /// Opens step streams and membership streams.
    pub(super) step: libp2p_stream::Behaviour,
    /// Takes those of others.
    pub(super) inbound: Inbound,
    /// And membership streams.
    pub(super) swim: Inbound,
}

impl Behaviour {
    /// # Errors
    /// A sentence from gossipsub when its configuration contradicts itself: a bug of ours.
    pub(super) fn new(
        keypair: &Keypair,
        inbound: Inbound,
        swim: Inbound,
        places: Places,
    ) -> Result<Self, String> {
        let exchange = request_response::Config::default()
            .with_request_timeout(EXCHANGE_TIMEOUT)
            .with_max_concurrent_streams(EXCHANGES);
        Ok(Self {
            admission: Admission::new(places),
            limits: connection_limits::Behaviour::new(
                connection_limits::ConnectionLimits::default()
                    .with_max_pending_outgoing(Some(PENDING_OUTBOUND))
                    .with_max_established(Some(ESTABLISHED))
                    .with_max_established_per_peer(Some(CONNECTIONS_PER_NODE)),
            ),
            gossip: gossip(keypair)?,
            cards: request_response::Behaviour::new(
                [(CARDS_PROTOCOL, request_response::ProtocolSupport::Full)],
                exchange.clone(),
            ),
            sync: request_response::Behaviour::new(
                [(SYNC_PROTOCOL, request_response::ProtocolSupport::Full)],
                exchange,
            ),
            ping: ping::Behaviour::new(
                ping::Config::new().with_interval(PING_EVERY).with_timeout(PING_TIMEOUT),
            ),
            step: libp2p_stream::Behaviour::new(),
            inbound,
            swim,
        })
    }
}

/// A small, fast mesh: the defaults of gossipsub are made for thousands of nodes and wait five seconds before the first
/// message. Adverts are signed by their origin and at most 1 KiB; the frame around one is under 200 bytes.
fn gossip(keypair: &Keypair) -> Result<gossipsub::Behaviour, String> {
    let config = gossipsub::ConfigBuilder::default()
        .mesh_outbound_min(1)
        .mesh_n_low(2)
        .mesh_n(4)
        .mesh_n_high(8)
        .gossip_lazy(3)
        .heartbeat_initial_delay(Duration::from_millis(200))
        .heartbeat_interval(Duration::from_millis(700))
        .max_transmit_size(limits::ADVERT_BYTES + 512)
        .validation_mode(gossipsub::ValidationMode::Strict)
        .build()
        .map_err(|e| e.to_string())?;
    let mut behaviour =
        gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Signed(keypair.clone()), config)
            .map_err(str::to_owned)?;
    behaviour.subscribe(&gossipsub::IdentTopic::new(ADVERT_TOPIC)).map_err(|e| e.to_string())?;
    Ok(behaviour)
}
