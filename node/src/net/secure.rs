//! Connections become sessions: the handshake of `octomesh_protocol::session` as a libp2p upgrade.
//!
//! `/octomesh/pq/1` is the only way to another protocol. A node that can issue certificates also answers `/octomesh/join/1`, which
//! ends in one exchange and never in a session.
use std::{
    fmt, io, iter, option,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use libp2p::{
    PeerId,
    core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo},
};
use multistream_select::NegotiationError;
use octomesh_protocol::{
    id::{MeshId, NodeId, NodeName},
    join::JoinRequestError,
    limits,
    session::{
        self,
        handshake::{
            AwaitHello, HandshakeError, Initiator, InitiatorRandom, MESSAGE_1_BYTES, MESSAGE_2_OVERHEAD,
            MESSAGE_3_OVERHEAD, Params, ResponderRandom, SendResponse, Split, StaticKey,
        },
        record::RecordLimits,
        rekey::Session,
        secret::{MeshSecret, PreSharedKey},
    },
    trust::{
        CLOCK_TOLERANCE_S, Certificate, IdentityError, NodeIdentity, RevokedError, Side, VerifiedLinks,
        VerifiedPeer, identity_payload,
    },
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc},
    time::{Instant, timeout},
};
use zeroize::Zeroizing;

use crate::{
    app::clock::{Clock, EntropyError},
    net::join::JoinService,
    trust::{Trust, TrustReader},
};

mod admission;
mod diagnosis;
mod farewell;
mod knock;
pub(super) mod message;
mod occupancy;
mod offer;
mod place;
mod stream;

use admission::Replays;
pub(super) use admission::{Admission, Crowded, Gate, MEMBERS, STRANGERS, Visitor};
pub(crate) use diagnosis::{Cause, Diagnosis, diagnose};
pub(crate) use farewell::Farewell;
pub(super) use farewell::VOID;
pub(super) use knock::{Anew, knock};
pub(super) use occupancy::{Lookout, Occupants, PROBE, Probe};
pub(crate) use occupancy::{Occupant, ProcessKey};
pub(crate) use stream::SecureStream;
pub(super) use stream::Traffic;

/// A stranger that says nothing holds a place for this long.
const FIRST_MESSAGE: Duration = Duration::from_secs(2);
/// A handshake takes 1 ms of work and one and a half round trips; this allows for lost packets.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Handshakes that go on past message 1 at once: their public-key work is a millisecond or two each.
const ANSWERED_AT_ONCE: usize = 16;

/// Told to the owner of the swarm just before libp2p reports the connection.
#[derive(Debug)]
pub(crate) struct SessionOpened {
    /// Who is there.
    pub(crate) peer: NodeId,
    /// What it may be.
    pub(crate) certificate: Certificate,
    /// Which of its processes.
    pub(crate) process: ProcessKey,
    /// Set once to end the session with this; see [`stream`].
    pub(crate) farewell: Arc<OnceLock<Farewell>>,
    /// Whether this side dialled.
    pub(crate) outbound: bool,
    /// Bytes received, ciphertext and all.
    pub(crate) bytes_in: Arc<std::sync::atomic::AtomicU64>,
    /// Bytes sent, ciphertext and all.
    pub(crate) bytes_out: Arc<std::sync::atomic::AtomicU64>,
    /// How often it got fresh secrets.
    pub(crate) rekeys: Arc<std::sync::atomic::AtomicU64>,
    /// How long the handshake took.
    pub(crate) handshake: Duration,
}

/// Why a connection did not become a session.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum SecureError {
    /// The peer offers no suite of ours.
    #[error(
        "the other side offers no post-quantum session ({}): it is another program, or a classical-only peer",
        session::PROTOCOL
    )]
    ClassicalOnly,
    /// The connection ended, or something else was said, while both sides looked for a protocol.
    #[error(
        "the other side chose no post-quantum session ({}); it is another program, a classical-only peer, or it broke off: {}",
        session::PROTOCOL,
        .0
    )]
    NoNegotiation(String),
    /// Message 1 does not open with the mesh secret.
    #[error("the other side has another mesh secret or is no member of mesh {}", .0.short())]
    WrongMeshSecret(MeshId),
    /// A first message came twice.
    #[error("a first message was sent again: somebody replays what was recorded")]
    Replay,
    /// The responder hung up on message 1.
    #[error(
        "the other side ended the handshake: it has another mesh secret, or this node is no member of its mesh"
    )]
    HungUp,
    /// A later message is wrong.
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// The peer is no member.
    #[error("the other side's identity is refused: {0}")]
    Identity(#[from] IdentityError),
    /// The peer was a member, or the admin that issued its certificate was.
    #[error("refused: {0}")]
    Revoked(#[from] RevokedError),
    /// The own address was dialled.
    #[error("connected to this node itself")]
    SelfDial,
    /// Another process with the same identity has a session, or is this one.
    #[error(
        "identity_in_use: {0} has this identity already, and answers; a copy of its home tries to connect"
    )]
    IdentityInUse(Occupant),
    /// The other side said why it ends what was to become a session.
    #[error("{0}")]
    RefusedByPeer(Farewell),
    /// The peer was too slow.
    #[error("handshake took longer than {} s", HANDSHAKE.as_secs())]
    Timeout,
    /// More sessions open at once than their owner can take in.
    #[error("too many sessions open at once")]
    Busy,
    /// The connection failed.
    #[error("connection: {0}")]
    Io(io::Error),
    /// No randomness, no handshake.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// A machine with a ticket was answered; such a connection ends here.
    #[error("{name} ({}) joined; this connection is done", node.short())]
    JoinServed {
        /// Who asked.
        node: NodeId,
        /// The name it asked for.
        name: NodeName,
    },
    /// A machine with a ticket was told why not.
    #[error("{name} ({}) could not join: {why}", node.short())]
    JoinRefused {
        /// Who asked.
        node: NodeId,
        /// The name it asked for.
        name: NodeName,
        /// What it was told.
        why: String,
    },
    /// A machine with a ticket that is not open here.
    #[error("a machine tried to join with a ticket that is not open here")]
    JoinUnknownTicket,
    /// A machine with a ticket whose request is wrong.
    #[error("a machine tried to join: {0}")]
    JoinRequest(#[from] JoinRequestError),
    /// The peer offered only to take a ticket where a session was wanted.
    #[error("the other side takes tickets and no sessions")]
    JoinOnly,
}

impl From<io::Error> for SecureError {
    fn from(error: io::Error) -> Self {
        // A lazy negotiation fails at the first read, inside an I/O error.
        let negotiation = error.get_ref().and_then(|inner| inner.downcast_ref::<NegotiationError>());
        match negotiation {
            Some(NegotiationError::Failed) => Self::ClassicalOnly,
            _ => Self::Io(error),
        }
    }
}

/// What the check of a peer's identity gave.
type Checked = Result<VerifiedPeer, SecureError>;

/// What this node brings to every handshake.
pub(crate) struct SecureConfig {
    identity: Arc<NodeIdentity>,
    trust: TrustReader,
    mesh: MeshId,
    /// Which of the accepted secrets is dialled with next, from the newest: whoever hung up last may not have heard of that.
    dial_secret: AtomicUsize,
    static_key: StaticKey,
    clock: Arc<dyn Clock>,
    sessions: mpsc::Sender<SessionOpened>,
    links: VerifiedLinks,
    rekey_at: RecordLimits,
    all_rekeys: Option<prometheus::IntCounter>,
    answered: Semaphore,
    replays: Mutex<Replays>,
    lookout: OnceLock<Lookout>,
}

impl fmt::Debug for SecureConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecureConfig")
            .field("identity", &self.identity)
            .field("mesh", &self.mesh)
            .finish_non_exhaustive()
    }
}

impl SecureConfig {
    /// For the node `identity`; certificate, mesh secret and revocations are read from `trust` at every handshake. Draws the Noise
    /// static key, which lives as long as this.
    ///
    /// # Errors
    /// [`EntropyError`].
    pub(crate) fn new(
        identity: Arc<NodeIdentity>,
        trust: TrustReader,
        clock: Arc<dyn Clock>,
        sessions: mpsc::Sender<SessionOpened>,
    ) -> Result<Self, EntropyError> {
        let mesh = trust.borrow().mesh;
        let mut secret = Zeroizing::new([0; 32]);
        clock.fill(&mut *secret)?;
        let static_key = StaticKey::from_secret(*secret);
        let links = VerifiedLinks::new();
        Ok(Self {
            identity,
            trust,
            mesh,
            dial_secret: AtomicUsize::new(0),
            static_key,
            clock,
            sessions,
            links,
            rekey_at: RecordLimits::default(),
            all_rekeys: None,
            answered: Semaphore::new(ANSWERED_AT_ONCE),
            replays: Mutex::new(Replays::new()),
            lookout: OnceLock::new(),
        })
    }

    /// Counts the rekeys of all sessions in `metric`, too.
    pub(crate) fn counting_rekeys(mut self, metric: prometheus::IntCounter) -> Self {
        self.all_rekeys = Some(metric);
        self
    }

    /// Sessions of this node get fresh secrets after so much.
    #[cfg(test)]
    pub(crate) fn rekey_at(mut self, limits: RecordLimits) -> Self {
        self.rekey_at = limits;
        self
    }

    pub(super) fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.borrow())
    }

    fn params(&self, secret: &MeshSecret) -> Params {
        Params::new(PreSharedKey::from(secret), session::prologue(self.mesh), self.static_key.clone())
    }

    /// From now on asks the owner of the sessions whether an identity is in use. The first one counts.
    pub(super) fn look_out(&self, lookout: Lookout) {
        // silent-ok: one configuration is for one driver
        let _ = self.lookout.set(lookout);
    }

    pub(super) fn mesh(&self) -> MeshId {
        self.mesh
    }

    pub(super) fn static_key(&self) -> StaticKey {
        self.static_key.clone()
    }

    pub(super) fn responder_random(&self) -> Result<ResponderRandom, EntropyError> {
        let mut bytes = Zeroizing::new([0; ResponderRandom::BYTES]);
        self.clock.fill(&mut *bytes)?;
        Ok(ResponderRandom::from_bytes(&bytes))
    }

    /// The own identity payload.
    pub(super) fn payload(
        &self,
        side: Side,
        transcript: session::handshake::TranscriptHash,
    ) -> Result<Vec<u8>, SecureError> {
        let now = self.clock.unix();
        Ok(identity_payload::build(&self.identity, &self.trust().chain, side, transcript, now)?)
    }

    fn check(
        &self,
        side: Side,
        received: &session::handshake::Received,
    ) -> Result<VerifiedPeer, SecureError> {
        let now = self.clock.unix();
        let peer = identity_payload::verify(
            &received.payload,
            side,
            received.transcript,
            self.mesh,
            now,
            CLOCK_TOLERANCE_S,
            &self.links,
        )?;
        self.trust().check(&peer.certificate)?;
        Ok(peer)
    }

    /// Whether a process may have a session as `peer`.
    async fn admit(&self, peer: &VerifiedPeer, remote_static: &[u8; 32]) -> Result<ProcessKey, SecureError> {
        let process = ProcessKey::of(remote_static);
        if peer.node == self.identity.node_id() {
            if remote_static == self.static_key.public() {
                return Err(SecureError::SelfDial);
            }
            let name = peer.certificate.name.to_string();
            return Err(SecureError::IdentityInUse(Occupant { process: None, name, address: None }));
        }
        if let Some(lookout) = self.lookout.get() {
            lookout.admit(peer.node, process).await?;
        }
        Ok(process)
    }

    /// Hears a first message only to know whether it is worth an answer.
    async fn hear<T: AsyncRead + Unpin>(&self, io: &mut T) -> Result<(), SecureError> {
        let first = first_message(io).await?;
        self.try_first(&first, || self.open_first(&first)).map(drop)
    }

    /// Reads a first message with `read` unless it was heard before, and does not remember it.
    pub(super) fn try_first<S>(
        &self,
        first: &[u8],
        read: impl FnOnce() -> Result<S, SecureError>,
    ) -> Result<S, SecureError> {
        let hash = Sha256::digest(first).into();
        if self.replays.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash) {
            return Err(SecureError::Replay);
        }
        read()
    }

    /// Reads a first message with `read` unless it was heard before. One that `read` refuses is not remembered: it cost a few
    /// microseconds, and remembering it would push out those that cost more.
    pub(super) fn hear_first<S>(
        &self,
        first: &[u8],
        read: impl FnOnce() -> Result<S, SecureError>,
    ) -> Result<S, SecureError> {
        let hash = Sha256::digest(first).into();
        let replays = || self.replays.lock().unwrap_or_else(PoisonError::into_inner);
        if replays().contains(&hash) {
            return Err(SecureError::Replay);
        }
        let state = read()?;
        if replays().add(hash) { Ok(state) } else { Err(SecureError::Replay) }
    }

    /// A place among the handshakes that are being answered; the handshake's own time limit bounds the wait. `None` can't be: the
    /// places are never taken away.
    pub(super) async fn answered(&self) -> Option<SemaphorePermit<'_>> {
        self.answered.acquire().await.ok()
    }

    async fn initiate<T>(&self, io: &mut T) -> Result<(Checked, Split), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut bytes = Zeroizing::new([0; InitiatorRandom::BYTES]);
        self.clock.fill(&mut *bytes)?;
        let secrets = self.trust().secrets.clone();
        let accepted: Vec<_> =
            iter::once(&secrets.current).chain(secrets.previous(self.clock.unix())).collect();
        let place = self.dial_secret.load(Ordering::Relaxed);
        let (place, secret) = accepted.get(place).map_or((0, &secrets.current), |secret| (place, *secret));
        let params = self.params(secret);
        let (state, first) = Initiator::start(&params, InitiatorRandom::from_bytes(&bytes))?;
        message::send(io, &first).await?;
        let second = message::receive(io, MESSAGE_2_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES)
            .await
            .map_err(hung_up)
            .inspect_err(|error| {
                // Each dial after a refusal tries the next older secret, and after the oldest the current one again.
                if matches!(error, SecureError::HungUp) {
                    let next = (place + 1).checked_rem(accepted.len()).unwrap_or(0);
                    self.dial_secret.store(next, Ordering::Relaxed);
                }
            })?;
        let (state, received) = state.read(&second)?;
        let peer = self.check(Side::Responder, &received)?;
        let (third, split) = state.write(|transcript| self.payload(Side::Initiator, transcript))?;
        message::send(io, &third).await?;
        Ok((Ok(peer), split))
    }

    /// Reads a first message made with the mesh secret, or with one before it while that is accepted.
    fn open_first(&self, first: &[u8]) -> Result<SendResponse, SecureError> {
        let secrets = self.trust().secrets.clone();
        for secret in iter::once(&secrets.current).chain(secrets.previous(self.clock.unix())) {
            match AwaitHello::new(&self.params(secret)).read(first) {
                Err(HandshakeError::Authentication) => {}
                other => return Ok(other?),
            }
        }
        Err(SecureError::WrongMeshSecret(self.mesh))
    }

    /// With the keys there is a way to say why a peer is refused.
    async fn respond<T>(&self, io: &mut T) -> Result<(Checked, Split), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let first = first_message(io).await?;
        let state = self.hear_first(&first, || self.open_first(&first))?;
        // Who comes this far has the mesh secret, so members wait for members only.
        let _answered = self.answered().await;
        let random = self.responder_random()?;
        let (second, state) = state.write(random, |transcript| self.payload(Side::Responder, transcript))?;
        message::send(io, &second).await?;
        let third = message::receive(io, MESSAGE_3_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES).await?;
        let (received, split) = state.read(&third)?;
        Ok((self.check(Side::Initiator, &received), split))
    }

    async fn secure<T>(&self, mut io: T, outbound: bool) -> Result<(PeerId, SecureStream<T>), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (peer, split, traffic) = self.authenticate(&mut io, outbound).await?;
        let session = Session::new(&split, outbound, self.rekey_at);
        Ok((peer, SecureStream::new(io, session, traffic, Arc::clone(&self.clock))))
    }

    /// The handshake, and the announcement of its result.
    pub(super) async fn authenticate<T>(
        &self,
        io: &mut T,
        outbound: bool,
    ) -> Result<(PeerId, Split, Traffic), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let began = Instant::now();
        let handshake = async { if outbound { self.initiate(io).await } else { self.respond(io).await } };
        let (checked, split) = timeout(HANDSHAKE, handshake).await.map_err(|_| SecureError::Timeout)??;
        match self.open(checked, &split, outbound, began.elapsed()).await {
            Ok((peer, traffic)) => Ok((peer, split, traffic)),
            Err(error) => Err(farewell::refuse(io, &split, error).await),
        }
    }

    /// Announces the result of a handshake if it is one.
    async fn open(
        &self,
        checked: Checked,
        split: &Split,
        outbound: bool,
        handshake: Duration,
    ) -> Result<(PeerId, Traffic), SecureError> {
        let peer = checked?;
        let process = self.admit(&peer, &split.remote_static).await?;
        let peer_id = PeerId::from_bytes(&peer.node.to_peer_id_bytes())
            .map_err(|_| SecureError::Identity(IdentityError::Signature))?;
        let traffic = Traffic { all_rekeys: self.all_rekeys.clone(), ..Traffic::default() };
        let opened = SessionOpened {
            peer: peer.node,
            certificate: peer.certificate,
            process,
            farewell: traffic.farewell.clone(),
            outbound,
            bytes_in: traffic.bytes_in.clone(),
            bytes_out: traffic.bytes_out.clone(),
            rekeys: traffic.rekeys.clone(),
            handshake,
        };
        self.sessions.try_send(opened).map_err(|_| SecureError::Busy)?;
        Ok((peer_id, traffic))
    }
}

/// Message 1, for which a stranger has less time than a member has for the rest.
pub(super) async fn first_message<T: AsyncRead + Unpin>(io: &mut T) -> Result<Vec<u8>, SecureError> {
    let message = timeout(FIRST_MESSAGE, message::receive(io, MESSAGE_1_BYTES..=MESSAGE_1_BYTES)).await;
    Ok(message.map_err(|_| SecureError::Timeout)??)
}

/// A responder that does not like message 1 hangs up without a word.
fn hung_up(error: io::Error) -> SecureError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            SecureError::HungUp
        }
        _ => error.into(),
    }
}

/// The upgrade of every connection, both ways.
#[derive(Debug, Clone)]
pub(crate) struct Security {
    config: Arc<SecureConfig>,
    join: Option<JoinService>,
}

impl Security {
    /// With `join`, incoming connections may also ask to join.
    ///
    /// libp2p asks one type what it offers in both directions; a dialler therefore names the join protocol last, and refuses it
    /// should a peer pick it.
    pub(crate) fn new(config: Arc<SecureConfig>, join: Option<JoinService>) -> Self {
        Self { config, join }
    }

    /// What this node trusts.
    pub(super) fn trust(&self) -> TrustReader {
        self.config.trust.clone()
    }

    pub(super) fn config(&self) -> &Arc<SecureConfig> {
        &self.config
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = iter::Chain<iter::Once<&'static str>, option::IntoIter<&'static str>>;

    fn protocol_info(&self) -> Self::InfoIter {
        let join = self.join.as_ref().map(|_| octomesh_protocol::join::PROTOCOL);
        iter::once(session::PROTOCOL).chain(join)
    }
}

type Upgrading<T> = Pin<Box<dyn Future<Output = Result<(PeerId, SecureStream<T>), SecureError>> + Send>>;

impl<T> InboundConnectionUpgrade<T> for Security
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, SecureStream<T>);
    type Error = SecureError;
    type Future = Upgrading<T>;

    fn upgrade_inbound(self, io: T, info: &'static str) -> Self::Future {
        async move {
            match self.join {
                Some(join) if info == octomesh_protocol::join::PROTOCOL => {
                    Err(join.serve(&self.config, io).await)
                }
                _ => self.config.secure(io, false).await,
            }
        }
        .boxed()
    }
}

impl<T> OutboundConnectionUpgrade<T> for Security
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, SecureStream<T>);
    type Error = SecureError;
    type Future = Upgrading<T>;

    fn upgrade_outbound(self, io: T, info: &'static str) -> Self::Future {
        async move {
            if info == session::PROTOCOL {
                self.config.secure(io, true).await
            } else {
                Err(SecureError::JoinOnly)
            }
        }
        .boxed()
    }
}

#[cfg(test)]
pub(super) mod tests;
