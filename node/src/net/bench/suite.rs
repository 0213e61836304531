//! What secures a connection, and what it takes.
use std::{
    iter,
    net::Ipv4Addr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{AsyncRead, AsyncWrite, future};
use libp2p::{
    core::upgrade::{InboundConnectionUpgrade as _, OutboundConnectionUpgrade as _, Version},
    identity::Keypair,
    noise, tls,
};
use multistream_select::{Negotiated, dialer_select_proto, listener_select_proto};
use octomesh_protocol::{
    id::NodeName,
    session::{self, secret::MeshSecret},
    trust::{
        CertificateRequest, Grants, MeshRoot, NodeIdentity, Role, certificate::LIFETIME_S,
        identity::SEED_BYTES,
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};
use zeroize::Zeroizing;

use super::{
    BenchError,
    ed25519::{self, End},
    meter::{Cost, Meter},
};
use crate::{
    app::{clock::Clock, supervise::Supervisor},
    net::{
        driver::OPENED_QUEUE,
        secure::{SecureConfig, Security, SessionOpened},
    },
    trust::{Trust, TrustReader},
};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Variant {
    /// Two nodes that have met before: the certificates are known, the signatures are not.
    Octomesh,
    /// Two nodes that meet for the first time: two certificates each to check.
    OctomeshFirst,
    /// Our handshake with the identity of libp2p's Noise in it, one Ed25519 signature: what there is before ML-DSA is counted.
    OctomeshEd25519,
    /// libp2p's Noise.
    Noise,
    /// libp2p's TLS 1.3.
    Tls,
    /// Nothing but the negotiation.
    Plaintext,
}

impl Variant {
    /// Whether its bytes travel in another way than those of the variants before it.
    pub(crate) const fn carries(self) -> bool {
        !matches!(self, Self::OctomeshFirst | Self::OctomeshEd25519)
    }
}

/// A connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
pub(super) type Secured = Box<dyn Duplex>;

type Socket = Compat<TcpStream>;

/// One end of one connection, before its handshake.
enum Upgrade {
    Session(Security),
    Ed25519(Arc<End>, Arc<dyn Clock>),
    Noise(noise::Config),
    Tls(tls::Config, Arc<OnceLock<String>>),
    Plaintext,
}

impl Upgrade {
    const fn protocol(&self) -> &'static str {
        match self {
            Self::Session(_) => session::PROTOCOL,
            Self::Ed25519(..) => ed25519::PROTOCOL,
            Self::Noise(_) => "/noise",
            Self::Tls(..) => "/tls/1.0.0",
            Self::Plaintext => "/octomesh/bench-plaintext/1",
        }
    }

    async fn dial(self, socket: Socket) -> Result<Secured, BenchError> {
        let name = self.protocol();
        let (_, mut io): (_, Negotiated<Socket>) =
            dialer_select_proto(socket, iter::once(name), Version::V1).await?;
        Ok(match self {
            Self::Session(security) => Box::new(security.upgrade_outbound(io, name).await?.1),
            Self::Ed25519(end, clock) => {
                end.initiate(&mut io, &*clock).await?;
                Box::new(io)
            }
            Self::Noise(config) => Box::new(config.upgrade_outbound(io, name).await?.1),
            Self::Tls(config, suite) => {
                let (_, stream) = config.upgrade_outbound(io, name).await?;
                suite.get_or_init(|| negotiated(&stream));
                Box::new(stream)
            }
            Self::Plaintext => Box::new(io),
        })
    }

    async fn listen(self, socket: Socket) -> Result<Secured, BenchError> {
        let name = self.protocol();
        let (_, mut io): (_, Negotiated<Socket>) = listener_select_proto(socket, iter::once(name)).await?;
        Ok(match self {
            Self::Session(security) => Box::new(security.upgrade_inbound(io, name).await?.1),
            Self::Ed25519(end, clock) => {
                end.respond(&mut io, &*clock).await?;
                Box::new(io)
            }
            Self::Noise(config) => Box::new(config.upgrade_inbound(io, name).await?.1),
            Self::Tls(config, _) => Box::new(config.upgrade_inbound(io, name).await?.1),
            Self::Plaintext => Box::new(io),
        })
    }
}

/// What TLS agreed on, as it names it itself.
fn negotiated<T>(stream: &tls::TlsStream<T>) -> String {
    let (_, state) = stream.get_ref();
    let group = state.negotiated_key_exchange_group().map(|group| format!("{:?}", group.name()));
    let suite = state.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
    format!("{} {}", group.unwrap_or_default(), suite.unwrap_or_default())
}

/// One end's identity in all its forms.
struct Party {
    identity: Arc<NodeIdentity>,
    trust: TrustReader,
    met: Security,
    ed25519: Arc<End>,
    noise: noise::Config,
    tls: tls::Config,
}

/// Both ends, and what they need for every variant.
pub(crate) struct Suites {
    clock: Arc<dyn Clock>,
    parties: [Party; 2],
    listener: TcpListener,
    supervisor: Supervisor,
    sessions: mpsc::Sender<SessionOpened>,
    opened: mpsc::Receiver<SessionOpened>,
    tls: Arc<OnceLock<String>>,
}

fn drawn<const N: usize>(clock: &dyn Clock) -> Result<[u8; N], BenchError> {
    let mut bytes = [0; N];
    clock.fill(&mut bytes)?;
    Ok(bytes)
}

impl Suites {
    /// Draws identities and a mesh of their own: two workers that one admin certified.
    pub(crate) async fn new(clock: Arc<dyn Clock>) -> Result<Self, BenchError> {
        let root = MeshRoot::from_seed(drawn(&*clock)?);
        let admin = NodeIdentity::from_seed(drawn(&*clock)?);
        let admins = root.issue(request(&admin, "admin", Role::Admin, clock.unix())?)?;
        let secret = MeshSecret::from_bytes(drawn(&*clock)?);
        let (sessions, opened) = mpsc::channel(OPENED_QUEUE);
        let party = |name| -> Result<Party, BenchError> {
            let seed = Zeroizing::new(drawn::<SEED_BYTES>(&*clock)?);
            let identity = Arc::new(NodeIdentity::from_seed(*seed));
            let chain = admins.issue(&admin, request(&identity, name, Role::Worker, clock.unix())?)?;
            let trust = Trust::fixed(chain, &secret);
            let config = SecureConfig::new(identity.clone(), trust.clone(), clock.clone(), sessions.clone())?;
            let mut seed = Zeroizing::new(*identity.expose_ed25519_seed());
            let keypair = Keypair::ed25519_from_bytes(&mut seed[..])
                .map_err(|_| BenchError::BrokeOff("its key is no Ed25519 key"))?;
            Ok(Party {
                identity,
                trust,
                met: Security::new(Arc::new(config), None),
                ed25519: Arc::new(End::new(keypair.clone(), &secret, root.mesh_id(), &*clock)?),
                noise: noise::Config::new(&keypair)?,
                tls: tls::Config::new(&keypair)?,
            })
        };
        let parties = [party("near")?, party("far")?];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let supervisor = Supervisor::new();
        let tls = Arc::default();
        Ok(Self { clock, parties, listener, supervisor, sessions, opened, tls })
    }

    /// What TLS negotiated, once it has.
    pub(crate) fn tls(&self) -> Option<&str> {
        self.tls.get().map(String::as_str)
    }

    fn end(&self, variant: Variant, party: &Party) -> Result<Upgrade, BenchError> {
        Ok(match variant {
            Variant::Octomesh => Upgrade::Session(party.met.clone()),
            Variant::OctomeshFirst => {
                let (identity, trust) = (party.identity.clone(), party.trust.clone());
                let (clock, sessions) = (self.clock.clone(), self.sessions.clone());
                let config = SecureConfig::new(identity, trust, clock, sessions)?;
                Upgrade::Session(Security::new(Arc::new(config), None))
            }
            Variant::OctomeshEd25519 => Upgrade::Ed25519(party.ed25519.clone(), self.clock.clone()),
            Variant::Noise => Upgrade::Noise(party.noise.clone()),
            Variant::Tls => Upgrade::Tls(party.tls.clone(), self.tls.clone()),
            Variant::Plaintext => Upgrade::Plaintext,
        })
    }

    /// Two ends, connected, with nothing said yet.
    async fn meeting(&self, variant: Variant) -> Result<Meeting, BenchError> {
        let [near, far] = &self.parties;
        let address = self.listener.local_addr()?;
        let (dialled, accepted) = tokio::try_join!(TcpStream::connect(address), self.listener.accept())?;
        let (accepted, _) = accepted;
        dialled.set_nodelay(true)?;
        accepted.set_nodelay(true)?;
        Ok(Meeting {
            near: (self.end(variant, near)?, dialled.compat()),
            far: (self.end(variant, far)?, accepted.compat()),
            supervisor: self.supervisor.clone(),
        })
    }

    fn forget_opened(&mut self) {
        while self.opened.try_recv().is_ok() {}
    }

    /// One handshake, from a connection to two ends that can both send.
    pub(crate) async fn handshake(&mut self, variant: Variant) -> Result<Duration, BenchError> {
        let meeting = self.meeting(variant).await?;
        let began = Instant::now();
        let ends = meeting.run().await?;
        let took = began.elapsed();
        drop(ends);
        self.forget_opened();
        Ok(took)
    }

    /// `count` handshakes at once; gives the cost of one.
    pub(crate) async fn handshakes(&mut self, variant: Variant, count: u32) -> Result<Cost, BenchError> {
        let mut meetings = Vec::new();
        for _ in 0..count {
            meetings.push(self.meeting(variant).await?);
        }
        let meter = Meter::start()?;
        let ends = future::try_join_all(meetings.into_iter().map(Meeting::run)).await?;
        let cost = meter.read()?;
        drop(ends);
        self.forget_opened();
        Ok(cost / count.max(1))
    }

    /// A connection that stays.
    pub(crate) async fn connect(&mut self, variant: Variant) -> Result<super::Link, BenchError> {
        let (near, far) = self.meeting(variant).await?.run().await?;
        self.forget_opened();
        super::Link::over(near, far, &self.supervisor).await
    }
}

fn request(
    identity: &NodeIdentity,
    name: &str,
    role: Role,
    now: u64,
) -> Result<CertificateRequest, BenchError> {
    Ok(CertificateRequest {
        keys: identity.public().clone(),
        name: NodeName::parse(name)?,
        role,
        grants: Grants::default(),
        serial: 1,
        now,
        lifetime_s: LIFETIME_S,
    })
}

/// Two ends on the point of shaking hands.
struct Meeting {
    near: (Upgrade, Socket),
    far: (Upgrade, Socket),
    supervisor: Supervisor,
}

impl Meeting {
    async fn run(self) -> Result<(Secured, Secured), BenchError> {
        let (tell, told) = oneshot::channel();
        let (upgrade, socket) = self.far;
        self.supervisor.spawn("bench listener", async move {
            // silent-ok: who asked is gone
            let _ = tell.send(upgrade.listen(socket).await);
        });
        let (upgrade, socket) = self.near;
        let near = upgrade.dial(socket).await;
        let far = told.await.map_err(|_| BenchError::BrokeOff("its task ended"))?;
        Ok((near?, far?))
    }
}
