//! A running node: which tasks there are, how they are connected, and in which order they stop.
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use octomesh_protocol::{
    id::{CardHash, MeshId, NodeId, NodeName, RunId, StepId, StepKey, ToolName},
    trust::{Certificate, NodeIdentity, Role},
};
use octomesh_tools::{
    availability, builtin,
    registry::Registry,
    sandbox::{Launcher, RENEW_EVERY, Sandbox, SandboxConfig},
    tool::{CallContext, Caller, EventSink, WallClock, Workspace},
    watch as tool_folder,
};
use tokio::{
    net::TcpListener,
    sync::{OnceCell, Semaphore, broadcast, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    events::NodeEvent,
    gauges::Gauges,
    home::{Home, HomeError, Identity},
    issuer::{Issuer, IssuerCommand, IssuerHandle, Record, Signer},
    measure::Measuring,
    renewal::{RenewalHandle, RenewalParts},
    root::RootKeeper,
    runs::{Runs, RunsParts},
    supervise::Supervisor,
    tools_port::{MeshCatalogue, RegistryRunner},
    wake::WakeBook,
};
use crate::{
    blob::{self, BlobClient, Files, Store as BlobStore},
    config::NodeConfig,
    discovery::{Discovery, DiscoveryParts, NetworkReport},
    dispatch::{DispatchParts, Dispatcher},
    executor::{ExecutorConfig, ExecutorHandle, ExecutorParts, Prover, ServeParts, executor},
    journal::{JournalError, JournalHandle},
    load::{GpuSources, Gpus, Hardware, MemoryReader, models::ModelServers},
    membership::{
        AddressBook, MEMBERSHIP_COMMANDS, Member, Membership, MembershipHandle, MeshView, SwimPort,
        renewals::{RenewAsk, Renewals},
    },
    metrics::NodeMetrics,
    net::{
        self, BlobListener, NetConfig, NetHandle, Network, OPENED_QUEUE, StepListener, SwimLink, SwimTraffic,
        TransportKind,
        join::{JoinAsk, JoinService, OpenTicket},
        secure::{SecureConfig, Security},
    },
    solve::{
        roles::Roles,
        rules::{RulesRoles, ranker::CardRanker, recipes::Recipes},
    },
    trust::{
        Trust, TrustHandle, TrustParts, TrustReader,
        store::{Store, StoreError},
    },
};

/// Events for watchers of the node; a slow one loses the oldest.
const EVENTS: usize = 256;
/// Joins that wait for the issuer; each is a handshake of its own.
const JOINS: usize = 16;
const ISSUER_COMMANDS: usize = 16;
/// Rows of the journal are kept for days.
const PRUNE_EVERY: Duration = Duration::from_secs(6 * 3600);
/// How long running steps may go on after the stop signal.
const DRAIN_FOR: Duration = Duration::from_secs(10);
/// How long the tasks may take to end after that.
const STOP_FOR: Duration = Duration::from_secs(6);
/// A tool's demo calls must be over by then; they run before the node offers the tool.
const DEMO_CALL: Duration = Duration::from_secs(20);

/// Why a node does not start.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum StartError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Trust(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Net(#[from] net::StartError),
    #[error("the API can't listen on {address}: {cause}")]
    ApiListen { address: SocketAddr, cause: std::io::Error },
    #[error("{what}: {cause}")]
    Setup { what: &'static str, cause: String },
}

pub(super) fn setup<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |cause| StartError::Setup { what, cause: cause.to_string() }
}

/// What a node is started with.
pub(crate) struct NodeParts {
    /// How programs are started.
    pub(crate) launcher: Launcher,
    pub(crate) home: Home,
    pub(crate) identity: Identity,
    pub(crate) config: NodeConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) transport: TransportKind,
    /// Instead of the configuration's addresses; for the transport of tests.
    pub(crate) listen: Option<Vec<String>>,
    pub(crate) plaintext: bool,
    pub(crate) warnings: Vec<String>,
}

/// A node; all its tasks run until [`Node::stop`].
pub(crate) struct Node {
    pub(crate) certificate: Certificate,
    pub(crate) caller: Caller,
    pub(crate) config: NodeConfig,
    pub(crate) warnings: Vec<String>,
    pub(crate) listening: Vec<String>,
    pub(crate) started: Instant,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Registry,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) net: NetHandle,
    pub(crate) trust: TrustHandle,
    pub(crate) executor: ExecutorHandle,
    pub(crate) hardware: Hardware,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) journal: JournalHandle,
    pub(crate) issuer: IssuerHandle,
    pub(crate) runs: Runs,
    pub(crate) blobs: BlobClient,
    pub(crate) files: Files,
    pub(crate) metrics: NodeMetrics,
    /// Steps that other nodes started here.
    pub(crate) routed_in: Arc<AtomicU64>,
    pub(crate) events: broadcast::Sender<NodeEvent>,
    /// How it stands with finding others on the network.
    pub(crate) network: watch::Receiver<Arc<NetworkReport>>,
    pub(crate) supervisor: Supervisor,
    /// Ends what serves others (API, steps) before the rest.
    pub(crate) serving: CancellationToken,
    pub(crate) sandbox: Sandbox,
    pub(crate) home: Home,
    pub(crate) wake: WakeBook,
    pub(crate) life: Life,
    /// It leaves its mesh for good: its identity is erased at the end.
    pub(crate) left: AtomicBool,
    /// Cancelled when it has told the members that it leaves.
    pub(crate) leaving: CancellationToken,
    /// Held while a sealed root key is opened.
    pub(crate) unlocking: Semaphore,
    _lock: std::fs::File,
}

/// What changes this node's membership.
pub(crate) struct Life {
    pub(crate) root: RootKeeper,
    pub(crate) renewal: RenewalHandle,
    pub(crate) membership: MembershipHandle,
}

/// What a node was started with and keeps.
struct Upper {
    home: Home,
    config: NodeConfig,
    warnings: Vec<String>,
    certificate: Certificate,
    listening: Vec<String>,
    lock: std::fs::File,
}

/// Handles of the rooms below.
struct Lower {
    registry: Registry,
    executor: ExecutorHandle,
    hardware: Hardware,
    view: watch::Receiver<Arc<MeshView>>,
    net: NetHandle,
    trust: TrustHandle,
    life: Life,
    issuer: IssuerHandle,
    network: watch::Receiver<Arc<NetworkReport>>,
    blobs: BlobStore,
    files: Files,
}

/// What the later stages of a start stand on.
struct Base {
    sandbox: Sandbox,
    clock: Arc<dyn Clock>,
    wall: WallClock,
    supervisor: Supervisor,
    metrics: NodeMetrics,
    journal: JournalHandle,
    caller: Caller,
    events: broadcast::Sender<NodeEvent>,
}

impl Base {
    fn new(
        home: &Home,
        certificate: &Certificate,
        clock: Arc<dyn Clock>,
        sandbox: Sandbox,
    ) -> Result<Self, StartError> {
        let wall: WallClock = {
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.wall())
        };
        let metrics = NodeMetrics::new(env!("CARGO_PKG_VERSION")).map_err(setup("metrics"))?;
        Ok(Self {
            supervisor: Supervisor::new(),
            journal: JournalHandle::open(&home.journal(), Arc::clone(&wall), Some(metrics.journal.clone()))?,
            metrics,
            caller: Caller {
                node: certificate.node,
                name: certificate.name.clone(),
                role: certificate.role,
                grants: certificate.grants.clone(),
                local: true,
            },
            events: broadcast::channel(EVENTS).0,
            clock,
            wall,
            sandbox,
        })
    }

    fn stop(&self) -> CancellationToken {
        self.supervisor.stop_token().clone()
    }

    fn files(&self, registry: &Registry, workspace: &Arc<Workspace>) -> Files {
        Files {
            registry: registry.clone(),
            sandbox: self.sandbox.clone(),
            workspace: Arc::clone(workspace),
            offers_tools: self.caller.role != Role::Client,
        }
    }

    /// Slots, leases and running steps; the hardware that they share.
    fn executor(
        &self,
        config: &NodeConfig,
        registry: &Registry,
        workspace: &Arc<Workspace>,
        gpus: Gpus,
        blobs: &BlobStore,
    ) -> Result<(ExecutorHandle, Hardware), StartError> {
        self.supervisor.spawn_critical("sandbox", keep_sandbox(self.sandbox.clone(), self.stop()));
        let memory = MemoryReader::new();
        let (servers, models) =
            ModelServers::new(config.model_servers.clone()).map_err(setup("model servers"))?;
        self.supervisor.spawn("model servers", servers.run(self.stop()));
        let (measuring, resources, condition) =
            Measuring::new(config, memory.clone(), gpus, &self.wall, models);
        let random = Arc::clone(&self.clock);
        let (handle, task) = executor(ExecutorParts {
            config: ExecutorConfig { slots: config.slots, offers_tools: self.caller.role != Role::Client },
            runner: Arc::new(RegistryRunner {
                registry: registry.clone(),
                workspace: Arc::clone(workspace),
                wall: Arc::clone(&self.wall),
                metrics: self.metrics.executor.clone(),
                sandbox: self.sandbox.clone(),
                blobs: blobs.clone(),
            }),
            journal: self.journal.clone(),
            resources,
            random: Box::new(move || u64::from_le_bytes(random.id_bytes())),
            queue_wait: Some(self.metrics.executor.queue_wait_seconds.clone()),
        });
        self.supervisor.spawn_critical("executor", task.run(self.stop()));
        self.supervisor.spawn_critical("measure", measuring.run(handle.cards(), self.stop()));
        let hardware = Hardware::new(memory, handle.cards(), condition);
        Ok((handle, hardware))
    }

    /// The first self-call, before others hear of this node; then one now and then.
    async fn prove(&self, executor: &ExecutorHandle) {
        let mut prover = Prover::new(executor.clone(), self.caller.clone());
        prover.turn().await;
        self.supervisor.spawn_critical("self-call", prover.run(self.stop()));
    }

    /// The owner of certificate, secrets and revocations.
    fn trust(&self, key: &Arc<NodeIdentity>, root: &RootKeeper, held: Trust, store: Store) -> TrustHandle {
        let (trust, task) = TrustParts {
            identity: Arc::clone(key),
            root: root.source(),
            trust: held,
            store,
            clock: Arc::clone(&self.clock),
        }
        .start(self.stop());
        self.supervisor.spawn_critical("trust", task);
        trust
    }

    /// Certificates for others, and this node's own anew in time.
    fn issuing(
        &self,
        issuer: Issuer,
        joins: mpsc::Receiver<JoinAsk>,
        renewals: mpsc::Receiver<RenewAsk>,
        own: RenewalParts,
    ) -> (IssuerHandle, RenewalHandle) {
        let (commands, inbox) = mpsc::channel::<IssuerCommand>(ISSUER_COMMANDS);
        self.supervisor.spawn_critical("issuer", issuer.run(joins, renewals, inbox, self.stop()));
        let (renewal, task) = own.start(self.stop());
        self.supervisor.spawn_critical("renewal", task);
        (IssuerHandle(commands), renewal)
    }

    /// Who is alive, over streams of their own.
    fn swim(&self, me: NodeId, incarnation: u64, link: SwimLink, traffic: SwimTraffic) -> SwimPort {
        self.supervisor.spawn_critical("membership streams", traffic.run(self.stop()));
        SwimPort::new(me, incarnation, link, Arc::clone(&self.clock), self.metrics.dropped.clone())
    }

    /// Sessions as this node's keys and certificate allow them, and the ways of tickets to the issuer and of joins to it.
    async fn network(
        &self,
        key: &Arc<NodeIdentity>,
        trust: TrustReader,
        (transport, plaintext, relay, listen): (TransportKind, bool, bool, Vec<String>),
    ) -> Result<(Network, watch::Sender<Arc<Vec<OpenTicket>>>, mpsc::Receiver<JoinAsk>), StartError> {
        let (open_tickets, tickets) = watch::channel(Arc::new(Vec::new()));
        let (join_asks, joins) = mpsc::channel::<JoinAsk>(JOINS);
        let (opened_out, opened) = mpsc::channel(OPENED_QUEUE);
        let secure = SecureConfig::new(Arc::clone(key), trust, Arc::clone(&self.clock), opened_out)
            .map_err(setup("randomness"))?
            .counting_rekeys(self.metrics.net.rekeys.clone());
        let config = NetConfig {
            seed: zeroize::Zeroizing::new(*key.expose_ed25519_seed()),
            transport,
            security: Security::new(Arc::new(secure), Some(JoinService::new(tickets, join_asks))),
            plaintext,
            relay,
            opened,
            listen,
            tasks: self.supervisor.clone(),
            metrics: self.metrics.net.clone(),
            dropped: self.metrics.dropped.clone(),
        };
        // The doorkeeper is there before the listeners are, which may fail.
        let network = net::start(config).await.inspect_err(|_| self.supervisor.stop_token().cancel())?;
        Ok((network, open_tickets, joins))
    }
}

impl Base {
    /// Steps that others place here.
    fn step_server(
        &self,
        listener: StepListener,
        (executor, view, trust): (&ExecutorHandle, &watch::Receiver<Arc<MeshView>>, &TrustHandle),
        started: &Arc<AtomicU64>,
        serving: &CancellationToken,
    ) {
        let parts = ServeParts {
            listener,
            executor: executor.clone(),
            view: view.clone(),
            trust: trust.reader(),
            supervisor: self.supervisor.clone(),
            started: Arc::clone(started),
        };
        self.supervisor.spawn("step server", crate::executor::serve(parts, serving.clone()));
    }

    /// Transfers that others begin, and the way to those that this node begins.
    fn blobs(
        &self,
        listener: BlobListener,
        (store, files): (BlobStore, Files),
        (net, view, trust): (&NetHandle, &watch::Receiver<Arc<MeshView>>, &TrustHandle),
        serving: &CancellationToken,
    ) -> BlobClient {
        let parts = blob::ServeParts {
            listener,
            store: store.clone(),
            files,
            view: view.clone(),
            trust: trust.reader(),
            supervisor: self.supervisor.clone(),
        };
        self.supervisor.spawn("blob server", blob::serve(parts, serving.clone()));
        BlobClient { me: self.caller.node, net: net.clone(), view: view.clone(), store }
    }

    /// Interfaces, and nodes heard on them.
    fn discovery(&self, config: &NodeConfig, mesh: MeshId, bound: Vec<SocketAddr>) -> Discovery {
        let parts = DiscoveryParts {
            mdns: config.mdns,
            mesh,
            bound,
            explicit: config.listen_is_explicit,
            clock: Arc::clone(&self.clock),
            dropped: self.metrics.dropped.clone(),
        };
        let (discovery, task) = parts.start(self.stop());
        self.supervisor.spawn_critical("discovery", task);
        discovery
    }
}

impl Node {
    /// Starts every task, lowest room first. The API is started by the caller, who has the listener.
    pub(crate) async fn start(parts: NodeParts) -> Result<Arc<Self>, StartError> {
        let NodeParts { home, identity, config, clock, transport, listen, plaintext, warnings, launcher } =
            parts;
        home.prepare()?;
        let lock = home.lock()?;
        let empty = || setup("certificate")("the chain is empty");
        let certificate = identity.chain.leaf().cloned().ok_or_else(empty)?;
        let listen = listen.unwrap_or_else(|| config.listen.iter().map(ToString::to_string).collect());
        // Before there are tasks that a failed start would have to end.
        net::check_free(&listen)?;
        let store = Store::new(home.identity_folder());
        let held = Trust::load(&store, certificate.node, identity.chain, identity.secret)?;
        let incarnation = home.next_incarnation(clock.unix())?;
        let mut gpus = Gpus::start(&GpuSources::of(&config));
        let sandbox = Sandbox::probe(confinement(&config, launcher, &home)).await;
        let base = Base::new(&home, &certificate, clock, sandbox)?;
        let workspace = Arc::new(Workspace::open(&home.workspace()).map_err(setup("workspace"))?);
        let blobs = BlobStore::open(&home.blobs(), config.blob_limit_bytes, Arc::clone(&base.wall))
            .map_err(setup("blob store"))?;
        let late_view = Arc::default();
        let registry = tools(&home, &base, &workspace, &late_view).await?;
        gpus.first_look().await;
        let (executor, hardware) = base.executor(&config, &registry, &workspace, gpus, &blobs)?;
        let files = base.files(&registry, &workspace);
        base.prove(&executor).await;

        let key = Arc::new(identity.node);
        let root = RootKeeper::new(home.clone(), identity.mesh);
        let trust = base.trust(&key, &root, held, store);
        let (network, open_tickets, joins) =
            base.network(&key, trust.reader(), (transport, plaintext, config.relay, listen.clone())).await?;
        base.supervisor.spawn_critical("network", network.driver.run(base.stop()));

        let heard = base.discovery(&config, identity.mesh, bound(&listen, &network.listening));
        let (renewals, renew_asks) = Renewals::new();
        let (membership_out, membership_commands) = mpsc::channel(MEMBERSHIP_COMMANDS);
        let membership = Membership {
            me: member(&certificate),
            incarnation,
            region: config.region.clone(),
            tags: config.tags.clone(),
            sandbox: base.sandbox.clone(),
            advertise: config.advertise.iter().map(ToString::to_string).collect(),
            discovery: (heard.own, heard.hints),
            static_peers: config.peers.clone(),
            address_book: AddressBook::File(home.peers()),
            net: network.handle.clone(),
            swim: base.swim(certificate.node, incarnation, network.swim, network.swim_traffic),
            trust: trust.clone(),
            renewals: renewals.clone(),
            commands: membership_commands,
            events: network.events,
            registry: registry.clone(),
            load: executor.load(),
            hardware: hardware.clone(),
            clock: Arc::clone(&base.clock),
            metrics: base.metrics.clone(),
            node_events: base.events.clone(),
        };
        let (view, membership_task) = membership.start(network.listening.clone(), base.stop());
        // silent-ok: it is set here only
        let _ = late_view.set(view.clone());
        base.supervisor.spawn_critical("membership", membership_task);

        let issuer = Issuer {
            signer: Signer {
                node: key,
                root: root.clone(),
                trust: trust.reader(),
                lifetime_s: config.certificate_lifetime_s,
            },
            file: home.tickets(),
            view: view.clone(),
            clock: Arc::clone(&base.clock),
            open: open_tickets,
            events: base.events.clone(),
            record: Record::default(),
        };
        let renewal = RenewalParts {
            trust: trust.clone(),
            renewals,
            net: network.handle.clone(),
            view: view.clone(),
            clock: Arc::clone(&base.clock),
        };
        let (issuer, renewal) = base.issuing(issuer, joins, renew_asks, renewal);
        let parts = Upper { home, config, warnings, certificate, listening: network.listening, lock };
        let life = Life { root, renewal, membership: MembershipHandle(membership_out) };
        let (net, network, streams) = (network.handle, heard.report, (network.steps, network.blobs));
        let lower =
            Lower { registry, executor, hardware, view, net, trust, life, issuer, network, blobs, files };
        Self::upper(base, parts, lower, streams).await
    }

    /// What stands on network and membership: serving steps, dispatch, runs.
    async fn upper(
        base: Base,
        own: Upper,
        lower: Lower,
        (steps, blob_streams): (StepListener, BlobListener),
    ) -> Result<Arc<Self>, StartError> {
        let serving = base.stop().child_token();
        let routed_in = Arc::new(AtomicU64::new(0));
        let Lower { registry, executor, hardware, view, net, trust, life, issuer, network, blobs, files } =
            lower;
        base.step_server(steps, (&executor, &view, &trust), &routed_in, &serving);
        let blobs = base.blobs(blob_streams, (blobs, files.clone()), (&net, &view, &trust), &serving);
        let dispatcher = Dispatcher::new(DispatchParts {
            me: base.caller.clone(),
            view: view.clone(),
            net: net.clone(),
            trust: trust.reader(),
            executor: executor.clone(),
            journal: base.journal.clone(),
            clock: Arc::clone(&base.clock),
            metrics: base.metrics.clone(),
            epoch: base.journal.next_epoch().await?,
            blobs: blobs.clone(),
        });
        let wake = WakeBook::read(own.home.wake(), own.config.wake.auto);
        dispatcher.wake_with(Arc::new(wake.clone()));
        base.supervisor.spawn("wake-up addresses", wake.clone().run(view.clone(), base.stop()));
        if let Err(error) = dispatcher.remember().await {
            tracing::warn!(%error, "what calls took before the restart is not known; cards count until it is measured again");
        }
        base.supervisor.spawn("step streams", dispatcher.clone().keep_streams(base.stop()));
        let recipes = Recipes::with_folder(&own.home.recipes()).map_err(setup("recipes"))?;
        let roles: Arc<dyn Roles> = Arc::new(RulesRoles::new(recipes, Arc::new(CardRanker)));
        let runs = Runs::new(RunsParts {
            folder: own.home.runs(),
            dispatcher: dispatcher.clone(),
            view: view.clone(),
            journal: base.journal.clone(),
            roles,
            clock: Arc::clone(&base.clock),
            metrics: base.metrics.clone(),
            supervisor: base.supervisor.clone(),
        });
        runs.resume_unfinished().await?;
        let gauges = Gauges {
            metrics: base.metrics.clone(),
            executor: executor.clone(),
            view: view.clone(),
            registry: registry.clone(),
            sandbox: base.sandbox.clone(),
            hardware: hardware.clone(),
        };
        base.supervisor.spawn_critical("gauges", gauges.run(base.stop()));
        base.supervisor.spawn_critical("journal keeper", keep_journal(base.journal.clone(), base.stop()));
        Ok(Arc::new(Self {
            certificate: own.certificate,
            caller: base.caller,
            config: own.config,
            warnings: own.warnings,
            listening: own.listening,
            started: Instant::now(),
            clock: base.clock,
            registry,
            view,
            net,
            trust,
            executor,
            hardware,
            dispatcher,
            journal: base.journal,
            issuer,
            runs,
            blobs,
            files,
            metrics: base.metrics,
            routed_in,
            events: base.events,
            network,
            supervisor: base.supervisor,
            serving,
            sandbox: base.sandbox,
            home: own.home,
            wake,
            life,
            unlocking: Semaphore::new(1),
            left: AtomicBool::new(false),
            leaving: CancellationToken::new(),
            _lock: own.lock,
        }))
    }

    /// The node's name now.
    pub(crate) fn name(&self) -> NodeName {
        self.trust.now().own().unwrap_or(&self.certificate).name.clone()
    }

    /// Stops in this order: no new work, runs cancelled (and with them their steps on other nodes), steps of others finished,
    /// then network, membership and the rest. Gives whether every task ended in time.
    pub(crate) async fn stop(&self) -> bool {
        // silent-ok: an executor that has gone takes no work either
        let _ = self.executor.drain(true).await;
        self.runs.stop(DRAIN_FOR).await;
        let mut remaining = self.executor.watch_remaining();
        let drained = remaining.wait_for(|left| *left == 0);
        if tokio::time::timeout(DRAIN_FOR, drained).await.is_err() {
            tracing::warn!("steps are still running and are stopped now");
        }
        // Before the sessions close, or the members would take that for a death.
        self.life.membership.leave().await;
        self.serving.cancel();
        self.supervisor.stop_token().cancel();
        let ended = self.supervisor.join(STOP_FOR).await;
        // silent-ok: a journal that can't flush has said so
        let _ = self.journal.flush().await;
        ended
    }
}

/// The node's tools: built-in ones, those of the folder, each proved by its demo calls before anybody hears of it.
async fn tools(
    home: &Home,
    base: &Base,
    workspace: &Arc<Workspace>,
    view: &Arc<OnceCell<watch::Receiver<Arc<MeshView>>>>,
) -> Result<Registry, StartError> {
    let registry = Registry::new();
    let catalogue = MeshCatalogue { registry: registry.clone(), view: Arc::clone(view) };
    builtin::register_all(&registry, Arc::new(catalogue)).map_err(setup("built-in tools"))?;
    builtin::register_code(&registry, &base.sandbox).map_err(setup("built-in tools"))?;
    tool_folder::scan_once(&registry, &home.tools(), &base.sandbox).await;
    let step = StepId::parse("s001").map_err(setup("step id"))?;
    let (clock, caller, workspace, wall) =
        (Arc::clone(&base.clock), base.caller.clone(), Arc::clone(workspace), Arc::clone(&base.wall));
    let context = move || CallContext {
        key: StepKey { run: RunId::call(clock.id_bytes()), step: step.clone() },
        caller: caller.clone(),
        cancel: CancellationToken::new(),
        deadline: Instant::now() + DEMO_CALL,
        workspace: Arc::clone(&workspace),
        events: EventSink::none(),
        wall: Arc::clone(&wall),
        gpu: BTreeMap::new(),
    };
    for (tool, reason) in availability::check_all(&registry, &context).await {
        tracing::warn!(%tool, reason, "a tool does not work and is not offered");
    }
    let proved = registry.snapshot().entries.iter().map(|(name, e)| (name.clone(), e.hash)).collect();
    for (path, problem) in &registry.snapshot().problems {
        tracing::warn!(path = %path.display(), problem, "a tool manifest is not used");
    }
    let names: Vec<String> = registry.snapshot().entries.keys().map(ToString::to_string).collect();
    base.metrics.learn_tools(names.iter().map(String::as_str));
    let watching = tool_folder::watch(registry.clone(), home.tools(), base.sandbox.clone(), base.stop());
    base.supervisor.spawn_critical("tool folder", watching);
    base.supervisor.spawn_critical("tool check", prove_new(registry.clone(), proved, context, base.stop()));
    Ok(registry)
}

fn confinement(config: &NodeConfig, launcher: Launcher, home: &Home) -> SandboxConfig {
    SandboxConfig {
        uid_base: config.sandbox.uid_base,
        min_level: Some(config.sandbox.min_level),
        ..SandboxConfig::new(launcher, home.sandbox_probe())
    }
}

/// Proves the sandbox's level again from time to time.
async fn keep_sandbox(sandbox: Sandbox, stop: CancellationToken) {
    report_sandbox(&sandbox);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RENEW_EVERY) => {
                sandbox.renew().await;
                report_sandbox(&sandbox);
            }
        }
    }
}

fn report_sandbox(sandbox: &Sandbox) {
    let test = sandbox.self_test();
    tracing::info!(level = %test.level, proofs = test.proved.len(), "programs are confined");
    for missing in &test.missing {
        tracing::warn!(missing, "a better sandbox is not reached");
    }
}

/// Tools that are dropped in later are proved by their demo calls like those that were there at the start; one that is being
/// proved is not offered.
async fn prove_new(
    registry: Registry,
    mut proved: BTreeSet<(ToolName, CardHash)>,
    context: impl Fn() -> CallContext + Send + Sync,
    stop: CancellationToken,
) {
    let mut changes = registry.subscribe();
    loop {
        let snapshot = registry.snapshot();
        let current: BTreeSet<_> = snapshot.entries.iter().map(|(name, e)| (name.clone(), e.hash)).collect();
        proved.retain(|known| current.contains(known));
        let unproved = snapshot.entries.values().filter(|e| {
            !e.card.demo_calls.is_empty()
                && e.state.is_available()
                && !proved.contains(&(e.card.name.clone(), e.hash))
        });
        for (name, hash) in unproved.map(|e| (e.card.name.clone(), e.hash)).collect::<Vec<_>>() {
            registry.set_unavailable(&name, "its demo calls are being run");
            let checked = tokio::select! {
                () = stop.cancelled() => return,
                checked = availability::check(&registry, &name, &context) => checked,
            };
            match checked {
                Ok(()) => tracing::info!(tool = %name, "a new tool works and is offered"),
                Err(reason) => {
                    tracing::warn!(tool = %name, reason, "a new tool does not work and is not offered")
                }
            }
            proved.insert((name, hash));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Rows that are too old go, also in a node that runs for months.
async fn keep_journal(journal: JournalHandle, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PRUNE_EVERY) => {
                if let Err(error) = journal.prune().await {
                    tracing::warn!(%error, "old rows of the journal were not removed");
                }
            }
        }
    }
}

/// Where the node listens: what was asked for, with the ports that it got.
fn bound(asked: &[String], got: &[String]) -> Vec<SocketAddr> {
    let socket = |(asked, got): (&String, &String)| {
        let (asked, got): (SocketAddr, SocketAddr) = (asked.parse().ok()?, got.parse().ok()?);
        Some(SocketAddr::new(asked.ip(), got.port()))
    };
    asked.iter().zip(got).filter_map(socket).collect()
}

/// This node as a member.
fn member(certificate: &Certificate) -> Member {
    Member::new(certificate.node, certificate.name.clone(), certificate.role, certificate.grants.clone())
}

/// Binds the API before anything else is started: a port in use must not leave half a node behind.
pub(crate) async fn bind_api(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|cause| StartError::ApiListen { address, cause })
}
