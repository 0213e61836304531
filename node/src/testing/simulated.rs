//! Nodes for whole-mesh simulations: sessions, trust and membership of the real node over lines that the simulation makes, without
//! files that block, threads or the machine's clock. What serves people (HTTP) and what runs steps is left out.
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use octomesh_protocol::{
    advert::LoadState,
    card::SandboxLevel,
    id::{NodeId, NodeName},
    session::secret::MeshSecret,
    sync::{SyncReply, SyncRequest},
    trust::{
        CertificateChain, CertificateRequest, Grants, MeshRoot, NodeIdentity, Role, certificate::LIFETIME_S,
    },
};
use octomesh_tools::{
    builtin,
    registry::Registry,
    sandbox::{Launcher, Sandbox, SandboxConfig},
};
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{TestResult, text};
pub use crate::net::simulated::{Duplex, Line, Lines};
use crate::{
    app::{
        clock::{Clock, TestClock},
        events::NodeEvent,
        supervise::Supervisor,
    },
    discovery::Hint,
    load::{Hardware, MemoryReader},
    membership::{
        AddressBook, MEMBERSHIP_COMMANDS, Member, Membership, MembershipHandle, MeshView, SwimPort,
        renewals::{RenewAsk, Renewals},
    },
    metrics::NodeMetrics,
    net::{
        self, NetConfig, NetEvent, NetHandle, OPENED_QUEUE, TransportKind,
        secure::{SecureConfig, Security},
    },
    trust::{RevokeAsk, Trust, TrustHandle, TrustParts, store::Store},
};

/// Events of members that the simulation has not looked at yet; it looks several times a second.
const EVENTS: usize = 4096;
/// Memory that each node claims to have.
const MEMORY: u64 = 8 << 30;
/// As the API's `leave` waits for each member.
const GOODBYE: Duration = Duration::from_secs(2);
/// As a node that stops waits for its tasks.
const STOP_FOR: Duration = Duration::from_secs(6);

/// A mesh: its root key and first secret, made of a seed.
#[derive(Debug)]
pub struct SimMesh {
    root: [u8; 64],
    seed: u64,
    begin: Instant,
    unix: u64,
}

impl SimMesh {
    /// The mesh of `seed`. The wall clock of its nodes shows `unix` now, and goes with tokio's.
    #[must_use]
    pub fn new(seed: u64, unix: u64) -> Self {
        Self { root: repeated(seed, 0), seed, begin: Instant::now(), unix }
    }

    fn root(&self) -> MeshRoot {
        MeshRoot::from_seed(self.root)
    }

    fn secret(&self) -> MeshSecret {
        let [.., half] = self.root.as_chunks::<32>().0 else { return MeshSecret::from_bytes([1; 32]) };
        MeshSecret::from_bytes(*half)
    }

    fn clock(&self, number: u64, life: u64) -> Arc<dyn Clock> {
        let seed = self.seed.wrapping_mul(1 << 20).wrapping_add(number << 8).wrapping_add(life);
        Arc::new(TestClock::going(self.unix, self.begin, seed))
    }
}

/// 64 bytes that differ for each pair.
fn repeated(seed: u64, number: u64) -> [u8; 64] {
    let mut bytes = [0x5a; 64];
    for (to, from) in bytes.iter_mut().zip(seed.to_le_bytes().into_iter().chain(number.to_le_bytes())) {
        *to = from;
    }
    bytes
}

/// What is left of a node while it does not run: its disk.
#[derive(Debug)]
pub struct SimHome {
    number: u64,
    chain: CertificateChain,
    folder: PathBuf,
    book: AddressBook,
    incarnation: u64,
    life: u64,
    lines: Arc<dyn Lines>,
}

impl SimHome {
    /// A new member that listens at place `number`; `folder` is its own. An admin may revoke others.
    ///
    /// # Errors
    /// When the name is none, or the folder can't be made.
    pub fn new(
        mesh: &SimMesh,
        number: u64,
        admin: bool,
        folder: &Path,
        lines: Arc<dyn Lines>,
    ) -> TestResult<Self> {
        let name = NodeName::parse(&format!("n{number}")).map_err(text)?;
        let identity = NodeIdentity::from_seed(repeated(mesh.seed, number));
        let chain = mesh.root().issue(CertificateRequest {
            keys: identity.public().clone(),
            name: name.clone(),
            role: if admin { Role::Admin } else { Role::Worker },
            grants: Grants::default(),
            serial: number,
            now: mesh.unix,
            lifetime_s: LIFETIME_S,
        });
        let folder = folder.join(name.as_str());
        std::fs::create_dir_all(&folder).map_err(text)?;
        Ok(Self {
            number,
            chain: chain.map_err(text)?,
            folder,
            book: AddressBook::Kept(Arc::new(Mutex::new(Vec::new()))),
            incarnation: 0,
            life: 0,
            lines,
        })
    }

    /// The node's id.
    #[must_use]
    pub fn id(&self) -> Option<NodeId> {
        self.chain.leaf().map(|own| own.node)
    }

    /// The number of the node's present or last life.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

/// What a node counted since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Membership messages that it began to write.
    pub swim_out: u64,
    /// Membership messages that it read.
    pub swim_in: u64,
    /// Everything that it dropped and counted, of all queues.
    pub dropped: u64,
}

/// A running node. Dropping it is a kill: no task goes on, nobody is told.
pub struct SimNode {
    view: watch::Receiver<Arc<MeshView>>,
    events: broadcast::Receiver<NodeEvent>,
    net: NetHandle,
    trust: TrustHandle,
    membership: MembershipHandle,
    metrics: NodeMetrics,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _idle: Idle,
}

impl std::fmt::Debug for SimNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimNode({})", self.view.borrow().me.short())
    }
}

/// Ends of channels to rooms that a simulated node does not have. They stay open and say nothing.
struct Idle {
    _own_addresses: watch::Sender<Option<Vec<String>>>,
    _hints: mpsc::Sender<Hint>,
    _load: watch::Sender<LoadState>,
    _vram: watch::Sender<Vec<crate::load::CardState>>,
    _renewals: mpsc::Receiver<RenewAsk>,
}

/// What the rooms of one node share.
struct Base {
    identity: Arc<NodeIdentity>,
    clock: Arc<dyn Clock>,
    metrics: NodeMetrics,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Base {
    fn trust(&mut self, mesh: &SimMesh, home: &SimHome) -> TestResult<TrustHandle> {
        let mesh_id = mesh.root().mesh_id();
        let store = Store::new(home.folder.clone());
        let secrets = store.secrets(mesh_id, mesh.secret()).map_err(text)?;
        let revocations = store.revocations(mesh_id).map_err(text)?;
        let parts = TrustParts {
            identity: Arc::clone(&self.identity),
            root: Arc::new(|| None),
            trust: Trust::new(self.identity.node_id(), home.chain.clone(), secrets, revocations),
            store,
            clock: Arc::clone(&self.clock),
        };
        let (trust, task) = parts.start(self.stop.clone());
        self.tasks.spawn(task);
        Ok(trust)
    }

    /// Sessions over the lines of `home`: the handle, what happens, and the way of membership messages.
    async fn network(
        &mut self,
        home: &SimHome,
        trust: &TrustHandle,
    ) -> TestResult<(NetHandle, mpsc::Receiver<NetEvent>, SwimPort, Vec<String>)> {
        let (opened_out, opened) = mpsc::channel(OPENED_QUEUE);
        let secure = SecureConfig::new(
            Arc::clone(&self.identity),
            trust.reader(),
            Arc::clone(&self.clock),
            opened_out,
        )
        .map_err(text)?
        .counting_rekeys(self.metrics.net.rekeys.clone());
        let network = net::start(NetConfig {
            seed: Zeroizing::new(*self.identity.expose_ed25519_seed()),
            transport: TransportKind::Simulated(Arc::clone(&home.lines)),
            security: Security::new(Arc::new(secure), None),
            plaintext: false,
            relay: true,
            tasks: Supervisor::stopped_by(self.stop.clone()),
            opened,
            listen: vec![format!("memory:{}", home.number)],
            metrics: self.metrics.net.clone(),
            dropped: self.metrics.dropped.clone(),
        })
        .await
        .map_err(text)?;
        self.tasks.spawn(network.driver.run(self.stop.clone()));
        self.tasks.spawn(network.swim_traffic.run(self.stop.clone()));
        let swim = SwimPort::new(
            self.identity.node_id(),
            home.incarnation,
            network.swim,
            Arc::clone(&self.clock),
            self.metrics.dropped.clone(),
        );
        Ok((network.handle, network.events, swim, network.listening))
    }
}

impl SimNode {
    /// Starts the node of `home`, which dials `peers`, places of others, besides whom it knows already.
    ///
    /// # Errors
    /// What `octomesh up` would say.
    pub async fn start(mesh: &SimMesh, home: &mut SimHome, peers: &[u64]) -> TestResult<Self> {
        home.life += 1;
        let clock = mesh.clock(home.number, home.life);
        home.incarnation = clock.unix().max(home.incarnation + 1);
        let mut base = Base {
            identity: Arc::new(NodeIdentity::from_seed(repeated(mesh.seed, home.number))),
            clock,
            metrics: NodeMetrics::new("simulation").map_err(text)?,
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
        };
        let trust = base.trust(mesh, home)?;
        let (net, net_events, swim, listening) = base.network(home, &trust).await?;
        let registry = Registry::new();
        builtin::register_all(&registry, registry.catalogue()).map_err(text)?;
        let own = home.chain.leaf().ok_or("the chain is empty")?;
        let (own_addresses_out, own_addresses) = watch::channel(None);
        let (hints_out, hints) = mpsc::channel(1);
        let (load_out, load) = watch::channel(LoadState::default());
        let (vram_out, vram) = watch::channel(Vec::new());
        let (renewals, renewal_asks) = Renewals::new();
        let (commands_out, commands) = mpsc::channel(MEMBERSHIP_COMMANDS);
        let (node_events, events) = broadcast::channel(EVENTS);
        let membership = Membership {
            me: Member::new(own.node, own.name.clone(), own.role, own.grants.clone()),
            incarnation: home.incarnation,
            region: String::new(),
            tags: Vec::new(),
            sandbox: no_sandbox(&home.folder).await,
            advertise: Vec::new(),
            discovery: (own_addresses, hints),
            static_peers: peers.iter().map(|place| format!("memory:{place}")).collect(),
            address_book: home.book.clone(),
            net: net.clone(),
            swim,
            trust: trust.clone(),
            renewals,
            commands,
            events: net_events,
            registry,
            load,
            hardware: Hardware::new(
                MemoryReader::Fixed(MEMORY),
                vram,
                watch::channel(crate::load::Condition::default()).1,
            ),
            clock: Arc::clone(&base.clock),
            metrics: base.metrics.clone(),
            node_events,
        };
        let (view, task) = membership.start(listening, base.stop.clone());
        base.tasks.spawn(task);
        let idle = Idle {
            _own_addresses: own_addresses_out,
            _hints: hints_out,
            _load: load_out,
            _vram: vram_out,
            _renewals: renewal_asks,
        };
        let Base { metrics, stop, tasks, .. } = base;
        let membership = MembershipHandle(commands_out);
        Ok(Self { view, events, net, trust, membership, metrics, stop, tasks, _idle: idle })
    }

    /// The mesh as this node sees it.
    #[must_use]
    pub fn view(&self) -> Arc<MeshView> {
        Arc::clone(&self.view.borrow())
    }

    /// Changes of members' states since the last time, as this node saw them: name and new state. `None` when some were lost.
    pub fn transitions(&mut self) -> Option<Vec<(String, String)>> {
        let mut seen = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(NodeEvent::Member { node, state }) => seen.push((node, state)),
                Ok(_) => {}
                Err(broadcast::error::TryRecvError::Lagged(_)) => return None,
                Err(_) => return Some(seen),
            }
        }
    }

    /// Whether all its tasks still run.
    pub fn is_whole(&mut self) -> bool {
        self.tasks.try_join_next().is_none()
    }

    /// What it counted.
    #[must_use]
    pub fn counts(&self) -> SimCounts {
        let swim = |direction| self.metrics.net.gossip_messages.with_label_values(&[direction, "swim"]).get();
        let queues = prometheus::core::Collector::collect(&self.metrics.dropped);
        let dropped =
            queues.iter().flat_map(|family| family.get_metric()).map(|m| m.get_counter().get_value());
        // Whole numbers far below 2^52.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative")]
        SimCounts { swim_out: swim("out"), swim_in: swim("in"), dropped: dropped.sum::<f64>() as u64 }
    }

    /// Throws a member out, and replaces the mesh secret.
    ///
    /// # Errors
    /// When this node may not.
    pub async fn revoke(&self, node: NodeId) -> TestResult<()> {
        let ask = RevokeAsk { node, reason: "simulated".to_owned(), rotate: true };
        self.trust.revoke(ask).await.map(drop).map_err(text)
    }

    /// Stops in order, as `octomesh up` does at a signal; gives what it counted.
    ///
    /// # Errors
    /// When not every task ended in time.
    pub async fn stop(mut self) -> TestResult<SimCounts> {
        self.membership.leave().await;
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(STOP_FOR, ended)
            .await
            .map_err(|_| "the node did not stop in time".to_owned())?;
        Ok(self.counts())
    }

    /// Tells the members that it leaves for good, and stops; gives what it counted.
    ///
    /// # Errors
    /// When not every task ended in time.
    pub async fn leave(self) -> TestResult<SimCounts> {
        let connected: Vec<NodeId> = {
            let view = self.view.borrow();
            view.members.values().filter(|m| m.connected && !view.is_me(m.node)).map(|m| m.node).collect()
        };
        let goodbyes = connected.into_iter().map(|node| {
            let net = self.net.clone();
            async move {
                let bytes = SyncRequest::Leaving.to_bytes().ok()?;
                let answer = tokio::time::timeout(GOODBYE, net.sync(node, bytes)).await.ok()?.ok()?;
                matches!(SyncReply::from_bytes(&answer), Ok(SyncReply::Done)).then_some(())
            }
        });
        futures::future::join_all(goodbyes).await;
        self.stop().await
    }
}

/// Programs can't be confined in a simulation, and none is started.
async fn no_sandbox(folder: &Path) -> Sandbox {
    let launcher = Launcher { program: "/bin/false".into(), args: Vec::new() };
    let config = SandboxConfig::new(launcher, folder.to_owned());
    Sandbox::probe(SandboxConfig { highest: SandboxLevel::None, ..config }).await
}
