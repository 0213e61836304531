//! Which protocols run on a session, and their bounds.
use std::time::Duration;

use libp2p::{
    PeerId, StreamProtocol, connection_limits, gossipsub,
    identity::Keypair,
    ping, relay, request_response,
    swarm::{NetworkBehaviour, behaviour::toggle::Toggle},
};
use octomesh_protocol::{
    advert::{CardsReply, CardsRequest},
    limits,
};

use super::{
    circuit,
    codec::WireCodec,
    inbound::Inbound,
    outbound::Outbound,
    secure::{Admission, Gate},
};

pub(super) const STEP_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/step/1");
pub(super) const BLOB_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/blob/1");
pub(super) const SWIM_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/swim/1");
const CARDS_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/cards/1");
const SYNC_PROTOCOL: StreamProtocol = StreamProtocol::new("/octomesh/sync/1");
/// The only gossip topic.
pub(super) const ADVERT_TOPIC: &str = "octomesh/advert/1";

/// Two, because two nodes that dial each other at the same moment end with one connection each way, and a limit of one makes
/// them close different ones. Twice that, because they may come upon each other directly while they have circuits.
const CONNECTIONS_PER_NODE: u32 = 4;
/// What the dials of two seconds need, `CONNECT_TIMEOUT` of [`zone`](super::zone), when hundreds of addresses are dead.
const PENDING_OUTBOUND: u32 = 448;
/// Up to 64 nodes keep a full mesh; twice that leaves room for simultaneous dials.
const ESTABLISHED: u32 = 256;
/// Pings measure the round trip. Who is dead is found out by SWIM, and which connection is, by the kernel; a ping every 2 s on each of
/// 63 sessions cost more than everything else that an idle node of a large mesh says.
const PING_EVERY: Duration = Duration::from_secs(60);
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
    /// Opens streams of steps, of blobs and of membership.
    pub(super) step: Outbound,
    /// Takes those of others.
    pub(super) inbound: Inbound,
    /// And membership streams.
    pub(super) swim: Inbound,
    /// And streams of blobs.
    pub(super) blob: Inbound,
    /// Carries circuits of others.
    pub(super) carrier: relay::Behaviour,
    /// Goes over circuits of others; absent where the transport has none.
    pub(super) circuits: Toggle<relay::client::Behaviour>,
}

/// What is made outside of [`Behaviour`] and belongs to it.
pub(super) struct Parts {
    pub(super) outbound: Outbound,
    pub(super) inbound: Inbound,
    pub(super) swim: Inbound,
    pub(super) blob: Inbound,
    pub(super) gate: Gate,
    pub(super) circuits: Option<relay::client::Behaviour>,
    /// Whether circuits of others are carried.
    pub(super) relay: bool,
}

impl Behaviour {
    /// # Errors
    /// A sentence from gossipsub when its configuration contradicts itself: a bug of ours.
    pub(super) fn new(keypair: &Keypair, parts: Parts) -> Result<Self, String> {
        let Parts { outbound, inbound, swim, blob, gate, circuits, relay } = parts;
        let exchange = request_response::Config::default()
            .with_request_timeout(EXCHANGE_TIMEOUT)
            .with_max_concurrent_streams(EXCHANGES);
        Ok(Self {
            admission: Admission(gate),
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
            step: outbound,
            inbound,
            swim,
            blob,
            carrier: circuit::carrier(PeerId::from(keypair.public()), relay),
            circuits: circuits.into(),
        })
    }
}

/// The half of the origin's key that is no common prefix, and its number: 24 bytes, where the default is 70 and more. Lists of these
/// go out every [`HEARTBEAT`].
fn message_id(message: &gossipsub::Message) -> gossipsub::MessageId {
    let source = message.source.map(PeerId::to_bytes).unwrap_or_default();
    let number = message.sequence_number.unwrap_or_default().to_be_bytes();
    let tail = source.get(source.len().saturating_sub(16)..).unwrap_or_default();
    gossipsub::MessageId::new(&[tail, &number].concat())
}

/// How soon a neighbour that is lost is replaced, and how often lists of messages go out.
const HEARTBEAT: Duration = Duration::from_millis(700);

/// A small, fast mesh: the defaults of gossipsub are made for thousands of nodes and wait five seconds before the first
/// message. Adverts are signed by their origin and at most 1 KiB; the frame around one is under 200 bytes. Each is passed on to two or
/// three neighbours; lists of what there was lately go to two more and not, as is the default, to a quarter of all. What is lost all
/// the same comes with the next advert or comparison.
fn gossip(keypair: &Keypair) -> Result<gossipsub::Behaviour, String> {
    let config = gossipsub::ConfigBuilder::default()
        .mesh_outbound_min(1)
        .mesh_n_low(2)
        .mesh_n(3)
        .mesh_n_high(6)
        .gossip_lazy(2)
        .gossip_factor(0.0)
        .history_gossip(2)
        .message_id_fn(message_id)
        .heartbeat_initial_delay(Duration::from_millis(200))
        .heartbeat_interval(HEARTBEAT)
        .max_transmit_size(limits::ADVERT_BYTES + 512)
        .validation_mode(gossipsub::ValidationMode::Strict)
        // The driver says what goes on to others.
        .validate_messages()
        .build()
        .map_err(|e| e.to_string())?;
    let mut behaviour =
        gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Signed(keypair.clone()), config)
            .map_err(str::to_owned)?;
    behaviour.subscribe(&gossipsub::IdentTopic::new(ADVERT_TOPIC)).map_err(|e| e.to_string())?;
    Ok(behaviour)
}
