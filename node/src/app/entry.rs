//! What the command line starts: everything else it does goes through the HTTP API.
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use octomesh_protocol::{
    id::NodeName,
    join::JoinRefusal,
    session::secret::MeshSecret,
    trust::{
        CLOCK_TOLERANCE_S, CertificateRequest, Grants, IdentityError, MeshRoot, Role, Ticket,
        certificate::LIFETIME_S, clocks_differ,
    },
};
use octomesh_tools::sandbox::Launcher;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::{net::TcpStream, sync::broadcast, time::timeout};
use tokio_util::{compat::TokioAsyncReadCompatExt, sync::CancellationToken};
use zeroize::Zeroizing;

use super::{
    backend::NodeBackend,
    clock::{Clock, SystemClock},
    events::NodeEvent,
    home::{Home, HomeError},
    node::{self, Node, NodeParts, StartError},
    root::{self, Passphrase},
};
use crate::{
    api,
    config::NodeConfig,
    membership::write_peers,
    net::{
        TransportKind,
        join::{JoinError, Joined, join_over},
    },
};

/// Why a command that works on the home directory itself failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EntryError {
    /// For programs, in snake case; `unavailable`, `exists`, `invalid_ticket`, `port_in_use`, `interrupted`, …
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// What to do, when it is known.
    pub hint: Option<String>,
}

/// Arguments of `octomesh init`.
#[derive(Debug, Clone)]
pub struct InitArgs {
    /// The home directory.
    pub home: PathBuf,
    /// The node's name; the machine's when absent.
    pub name: Option<String>,
    /// Seals the root key; it is kept in the clear when absent.
    pub passphrase: Option<Passphrase>,
    /// How long the node's own certificate holds, in seconds.
    pub lifetime_s: u64,
}

impl InitArgs {
    /// As `octomesh init` without options.
    #[must_use]
    pub fn new(home: &Path, name: Option<&str>) -> Self {
        Self {
            home: home.to_owned(),
            name: name.map(str::to_owned),
            passphrase: None,
            lifetime_s: LIFETIME_S,
        }
    }
}

/// What `octomesh init` made.
#[derive(Debug, Clone, Serialize)]
pub struct InitReply {
    /// The new mesh.
    pub mesh_id: String,
    /// The new node.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub home: String,
}

/// Arguments of `octomesh join`.
#[derive(Debug, Clone)]
pub struct JoinArgs {
    /// The home directory.
    pub home: PathBuf,
    /// The ticket.
    pub ticket: String,
    /// The node's name; the machine's when absent.
    pub name: Option<String>,
}

/// What `octomesh join` got.
#[derive(Debug, Clone, Serialize)]
pub struct JoinReply {
    /// The mesh.
    pub mesh_id: String,
    /// This node.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// What its owner should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Arguments of `octomesh up`.
#[derive(Debug, Clone)]
pub struct UpArgs {
    /// The home directory.
    pub home: PathBuf,
    /// The configuration, already checked.
    pub config: NodeConfig,
    /// What the configuration should be told its owner.
    pub warnings: Vec<String>,
    /// The end of stdin stops the node like SIGTERM.
    pub stop_with_stdin: bool,
}

/// Something that a running node tells its terminal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UpEvent {
    /// In snake case: `listening`, `peer_up`, `stopped`, …
    pub event: &'static str,
    /// One line for people.
    #[serde(rename = "message")]
    pub sentence: String,
    /// The facts in it, for programs.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Where a running node tells what happens; called from the node's tasks, so it must not block for long.
pub type UpEvents = Box<dyn Fn(UpEvent) + Send + Sync>;

/// Who the node in a home directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalIdentity {
    /// The mesh.
    pub mesh_id: String,
    /// The node.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// When its certificate ends, in seconds since the Unix epoch.
    pub ends_at: u64,
}

fn failed(code: &'static str, message: impl std::fmt::Display, hint: Option<String>) -> EntryError {
    EntryError { code, message: message.to_string(), hint }
}

impl From<HomeError> for EntryError {
    fn from(error: HomeError) -> Self {
        let code = match error {
            HomeError::Exists(_) => "exists",
            _ => (&error).into(),
        };
        failed(code, &error, error.hint())
    }
}

impl From<StartError> for EntryError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Home(home) => home.into(),
            StartError::ApiListen { address, ref cause } if cause.kind() == std::io::ErrorKind::AddrInUse => failed(
                "port_in_use",
                &error,
                Some(format!("another program (perhaps another node) uses {address}; choose another with --api ADDR:PORT")),
            ),
            StartError::Net(ref net) if net.to_string().contains("in use") => failed(
                "port_in_use",
                &error,
                Some("another program (perhaps another node) uses that port; choose another with --listen ADDR:PORT".to_owned()),
            ),
            other => failed((&other).into(), &other, None),
        }
    }
}

/// A name that a person gave, or the machine's own made into one.
fn node_name(given: Option<&str>) -> Result<NodeName, EntryError> {
    if let Some(name) = given {
        return NodeName::parse(name).map_err(|e| failed("invalid_name", e, None));
    }
    let machine =
        nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let label = machine.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let label: String =
        label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(63).collect();
    NodeName::parse(label.trim_matches('-')).map_err(|_| {
        failed(
            "invalid_name",
            "this machine's name makes no node name",
            Some("give one with --name".to_owned()),
        )
    })
}

fn random<const N: usize>(clock: &dyn Clock) -> Result<Zeroizing<[u8; N]>, EntryError> {
    let mut bytes = Zeroizing::new([0; N]);
    clock.fill(&mut *bytes).map_err(|e| failed("entropy", e, None))?;
    Ok(bytes)
}

/// Makes identity, mesh root and own certificate; refuses to overwrite.
///
/// # Errors
/// [`EntryError`]: `exists`, `invalid_name`, or what is wrong with the home directory.
pub fn init(args: InitArgs) -> Result<InitReply, EntryError> {
    let clock = SystemClock;
    let home = Home::new(&args.home);
    let name = node_name(args.name.as_deref())?;
    let _alone = home.lock_to_enter()?;
    let node = home.pending_node(&random(&clock)?)?;
    let root = MeshRoot::from_seed(*random(&clock)?);
    let request = CertificateRequest {
        keys: node.public().clone(),
        name: name.clone(),
        role: Role::Admin,
        grants: Grants::default(),
        serial: 1,
        now: clock.unix(),
        lifetime_s: args.lifetime_s,
    };
    let chain = root.issue(request).map_err(|e| failed("certificate", e, None))?;
    let mesh = root.mesh_id();
    let root = root::file_of(root, args.passphrase.as_ref())?;
    home.adopt(&chain, &MeshSecret::from_bytes(*random(&clock)?), Some(&root), &[])?;
    Ok(InitReply {
        mesh_id: mesh.to_string(),
        node_id: node.node_id().to_string(),
        name: name.to_string(),
        home: args.home.display().to_string(),
    })
}

/// What the owner of a new member should know of its clock: certificates forgive a day at their beginning, and little later on.
fn clock_warning(issuers: u64, ours: u64) -> Option<String> {
    let differ = issuers.abs_diff(ours) > CLOCK_TOLERANCE_S;
    differ.then(|| format!("{}; set it", clocks_differ(issuers, ours, "the issuer's")))
}

/// How long one address of a ticket may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Redeems a ticket.
///
/// # Errors
/// [`EntryError`]: `exists`, `invalid_ticket`, `unreachable`, or the issuer's refusal.
pub async fn join(args: JoinArgs) -> Result<JoinReply, EntryError> {
    let clock = SystemClock;
    let home = Home::new(&args.home);
    let name = node_name(args.name.as_deref())?;
    let ticket = Ticket::parse(&args.ticket).map_err(|e| failed("invalid_ticket", e, None))?;
    let _alone = home.lock_to_enter()?;
    let node = home.pending_node(&random(&clock)?)?;
    let mut tried = Vec::new();
    for address in &ticket.addresses {
        let socket = match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => {
                tried.push(format!("{address}: {error}"));
                continue;
            }
            Err(_) => {
                tried.push(format!("{address}: no answer within {} s", CONNECT.as_secs()));
                continue;
            }
        };
        let Joined { grant, issuer_time } = match join_over(socket.compat(), &ticket, &node, &name, &clock)
            .await
        {
            Ok(joined) => joined,
            // The issuer has spoken; the ticket's other addresses are its own.
            Err(JoinError::Refused { reason: JoinRefusal::NameTaken, detail }) if !detail.is_empty() => {
                let hint = "join with another --name; the ticket is still good".to_owned();
                return Err(failed("join_refused", detail, Some(hint)));
            }
            Err(error @ JoinError::Refused { .. }) => return Err(failed("join_refused", error, None)),
            Err(error @ JoinError::Identity(IdentityError::Clock { .. })) => {
                let hint =
                    "set this machine's clock (`timedatectl set-ntp true`), or the issuer's; then join again";
                return Err(failed("clocks_differ", error, Some(hint.to_owned())));
            }
            Err(error) => {
                tried.push(format!("{address}: {error}"));
                continue;
            }
        };
        let verified = grant
            .chain
            .verify(ticket.mesh, clock.unix(), CLOCK_TOLERANCE_S)
            .map_err(|e| failed("certificate", e, None))?;
        if verified.certificate.keys() != *node.public() {
            return Err(failed("certificate", "the certificate that came is another node's", None));
        }
        // The address book first: an identity without it could not find its mesh.
        write_peers(&home.peers(), &grant.members)
            .map_err(|cause| HomeError::Io { path: home.peers(), cause })?;
        home.adopt(&grant.chain, &grant.mesh_secret, None, &grant.revocations)?;
        return Ok(JoinReply {
            mesh_id: ticket.mesh.to_string(),
            node_id: node.node_id().to_string(),
            name: verified.certificate.name.to_string(),
            role: verified.certificate.role.to_string(),
            warning: clock_warning(issuer_time, clock.unix()),
        });
    }
    let hint = match ticket.check_time(clock.unix()) {
        Ok(()) => "is the node that made the ticket up, and can this machine reach one of these addresses?"
            .to_owned(),
        Err(ended) => format!("{ended}, or set the clock if it is wrong"),
    };
    Err(failed(
        "unreachable",
        format!("the ticket's issuer was not reached: {}", tried.join("; ")),
        Some(hint),
    ))
}

fn event(name: &'static str, sentence: String, fields: Value) -> UpEvent {
    let fields = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    UpEvent { event: name, sentence, fields }
}

pub(super) fn show(event_of_node: &NodeEvent) -> UpEvent {
    match event_of_node {
        NodeEvent::Advert { node, incarnation, seq, running, queued, draining, ready, tool_set } => event(
            "advert",
            format!("{node} runs {running} steps, {queued} wait"),
            json!({
                "node": node, "incarnation": incarnation, "advert_seq": seq, "running": running, "queued": queued,
                "draining": draining, "ready": ready, "tool_set": tool_set,
            }),
        ),
        NodeEvent::Member { node, state } => {
            event("member", format!("{node} is {state}"), json!({"node": node, "state": state}))
        }
        NodeEvent::Refused { address, reason } => {
            let from = address.as_deref().unwrap_or("somebody");
            event("refused", format!("refused {from}: {reason}"), json!({"addr": address, "reason": reason}))
        }
        NodeEvent::Joined { node, node_id } => {
            event("joined", format!("{node} joined the mesh"), json!({"node": node, "node_id": node_id}))
        }
    }
}

fn log(filter: &str) {
    use std::io::IsTerminal;
    let filter = crate::net::log_filter(filter);
    let filter = tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_else(|_| "info".into());
    let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(color).with_writer(std::io::stderr);
    // silent-ok: a program that embeds the node has its own subscriber
    let _ = log.try_init();
}

fn no_identity(home: &Path) -> EntryError {
    let hint = "`octomesh init` makes a new mesh, `octomesh join TICKET` joins one".to_owned();
    failed("no_identity", format!("{} has no identity", home.display()), Some(hint))
}

/// Runs the node until SIGINT or SIGTERM; a second signal stops it at once.
///
/// # Errors
/// [`EntryError`]: `no_identity`, `port_in_use`, or whatever keeps the node from starting.
pub async fn up(args: UpArgs, events: UpEvents) -> Result<(), EntryError> {
    log(&args.config.log);
    let home = Home::new(&args.home);
    if home.finish_leaving()? {
        let said = "it had left its mesh before it was cut off; the keys are erased";
        events(event("left", said.to_owned(), json!({})));
    }
    let identity = home.identity()?.ok_or_else(|| no_identity(&args.home))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let token = match &args.config.api_token {
        Some(token) => token.clone(),
        None => api::token::load_or_create(&args.home, *random(&*clock)?)
            .map_err(|cause| HomeError::Io { path: args.home.join(crate::config::TOKEN_FILE), cause })?,
    };
    let api_address = args.config.api;
    // A node that runs in this home holds its ports; say that, not that a port is in use.
    drop(home.lock()?);
    let listener = node::bind_api(api_address).await?;
    let mut signals = Signals::new()?;
    let node = Node::start(NodeParts {
        home,
        identity,
        config: args.config,
        clock,
        transport: TransportKind::Tcp,
        listen: None,
        plaintext: false,
        warnings: args.warnings,
        launcher: Launcher::current().map_err(node::setup("own program"))?,
    })
    .await?;
    let mut happening = node.events.subscribe();
    let api_stop = CancellationToken::new();
    let backend = Arc::new(NodeBackend(Arc::clone(&node)));
    let serving = api::serve(
        listener,
        backend,
        api::Token::new(&token),
        Arc::new(node.metrics.clone()),
        api_stop.clone(),
    );
    let (api_told, all) = (api_stop.clone(), node.supervisor.stop_token().clone());
    node.supervisor.spawn("api", async move {
        let ended = serving.await;
        if !api_told.is_cancelled() {
            tracing::error!(?ended, "the API stopped by itself; so does the node");
            all.cancel();
        }
    });
    let parent_gone = stdin_ends(args.stop_with_stdin);
    tokio::pin!(parent_gone);
    events(event(
        "started",
        format!("{} is up: mesh {}, API http://{api_address}", node.name(), node.listening.join(", ")),
        json!({
            "node": node.name(), "node_id": node.caller.node.to_string(), "listen": node.listening,
            "api": api_address.to_string(), "suite": octomesh_protocol::session::SUITE,
        }),
    ));
    let stop = node.supervisor.stop_token().clone();
    loop {
        tokio::select! {
            () = signals.next() => break,
            () = &mut parent_gone => break,
            () = stop.cancelled() => break,
            () = node.leaving.cancelled() => break,
            happened = happening.recv() => match happened {
                // Too many for a terminal.
                Ok(NodeEvent::Advert { .. }) => {}
                Ok(happened) => events(show(&happened)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break,
            }
        }
    }
    let by_itself = stop.is_cancelled();
    events(event("stopping", "stopping; a second signal stops at once".to_owned(), json!({})));
    api_stop.cancel();
    let ended = tokio::select! {
        ended = node.stop() => ended,
        () = signals.next() => false,
    };
    events(event("stopped", "stopped".to_owned(), json!({"orderly": ended})));
    if node.left.load(Ordering::SeqCst) {
        return erase_left(&node, &events);
    }
    if by_itself {
        return Err(failed("stopped", "a part of the node failed; see the log", None));
    }
    if ended { Ok(()) } else { Err(failed("interrupted", "stopped before everything had ended", None)) }
}

/// The last act of a node that has left its mesh.
fn erase_left(node: &Node, events: &UpEvents) -> Result<(), EntryError> {
    node.home.erase_identity()?;
    events(event("left", "left the mesh; the keys are erased".to_owned(), json!({})));
    Ok(())
}

/// Ends when stdin does; never, when that is not asked for.
async fn stdin_ends(watch: bool) {
    use tokio::io::AsyncReadExt;
    if !watch {
        return std::future::pending().await;
    }
    let (mut stdin, mut scrap) = (tokio::io::stdin(), [0; 64]);
    while matches!(stdin.read(&mut scrap).await, Ok(read) if read > 0) {}
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, EntryError> {
        use tokio::signal::unix::{SignalKind, signal};
        let install = |kind| signal(kind).map_err(|e| failed("signals", e, None));
        Ok(Self {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Erases the identity of a node that does not run.
///
/// # Errors
/// [`EntryError`]: `no_identity`, `busy` while a node runs in the home, `holds_root`.
pub fn leave(path: &Path) -> Result<LocalIdentity, EntryError> {
    let home = Home::new(path);
    let Some(who) = identity(path)? else {
        return Err(failed("no_identity", format!("{} belongs to no mesh", path.display()), None));
    };
    let _alone = home.lock()?;
    if home.root()?.is_some() {
        return Err(failed(
            "holds_root",
            "the mesh's root key is on this node and would be erased with it: nobody could make or renew an admin any more",
            Some(
                "`octomesh root export FILE`, then `octomesh root remove --copy FILE`, then leave".to_owned(),
            ),
        ));
    }
    home.erase_identity()?;
    Ok(who)
}

/// Who lives in the home directory; `None` when nobody does.
///
/// # Errors
/// [`EntryError`] when there is an identity that can't be read.
pub fn identity(home: &Path) -> Result<Option<LocalIdentity>, EntryError> {
    let Some(identity) = Home::new(home).identity()? else { return Ok(None) };
    let certificate =
        identity.chain.leaf().ok_or_else(|| failed("certificate", "the certificate chain is empty", None))?;
    Ok(Some(LocalIdentity {
        mesh_id: identity.mesh.to_string(),
        node_id: identity.node.node_id().to_string(),
        name: certificate.name.to_string(),
        role: certificate.role.to_string(),
        ends_at: identity.chain.ends().unwrap_or(0),
    }))
}

/// The wall clock, in seconds since the Unix epoch.
#[must_use]
pub fn unix_seconds() -> u64 {
    SystemClock.unix()
}
