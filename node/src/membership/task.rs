//! Drives [`MembershipState`]: network events and this node's own load in, fetches and adverts out, a snapshot for everybody.
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use octomesh_protocol::{
    advert::{Advert, CardsReply, CardsRequest, LoadState, Manifest, Sync},
    card::ToolCard,
    id::{CardHash, NodeId, ToolName},
    limits,
    trust::Role,
};
use octomesh_tools::{
    registry::{Registry, Snapshot},
    sandbox::Sandbox,
};
use tokio::{
    sync::{broadcast, mpsc, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    peers,
    state::{Effect, Input, MembershipState},
    view::{Member, MeshView, RemoteTool},
};
use crate::{
    app::{clock::Clock, events::NodeEvent},
    load::Hardware,
    metrics::NodeMetrics,
    net::{NetEvent, NetHandle},
};

const TICK: Duration = Duration::from_millis(500);
/// A name server that does not answer is asked again later.
const RESOLVE: Duration = Duration::from_secs(5);
const ADVERT_EVERY: Duration = Duration::from_secs(10);
/// A changed load is told at most this often.
const ADVERT_GAP: Duration = Duration::from_secs(1);

/// What the task is made of.
pub(crate) struct Membership {
    pub(crate) me: Member,
    pub(crate) incarnation: u64,
    pub(crate) region: String,
    pub(crate) tags: Vec<String>,
    pub(crate) sandbox: Sandbox,
    /// Addresses given by the owner; when empty, those that the network listens on.
    pub(crate) advertise: Vec<String>,
    /// Loopback addresses may be told to others: the owner listens on one explicitly.
    pub(crate) loopback: bool,
    pub(crate) static_peers: Vec<String>,
    pub(crate) peers_file: PathBuf,
    pub(crate) net: NetHandle,
    pub(crate) events: mpsc::Receiver<NetEvent>,
    pub(crate) registry: Registry,
    pub(crate) load: watch::Receiver<LoadState>,
    pub(crate) hardware: Hardware,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) node_events: broadcast::Sender<NodeEvent>,
}

struct Task {
    facts: Membership,
    state: MembershipState,
    view: watch::Sender<Arc<MeshView>>,
    /// Fetches under way; each ends within the network's own time-outs, and there are at most a few per member.
    fetches: FuturesUnordered<BoxFuture<'static, Vec<Input>>>,
    own_tools: Arc<BTreeMap<ToolName, Arc<RemoteTool>>>,
    manifest: Manifest,
    listening: Vec<String>,
    seq: u64,
    told: LoadState,
    told_at: Option<Instant>,
    /// Address books that were to be written, and the newest that was.
    persists: u64,
    persisted: Arc<Mutex<u64>>,
}

impl Membership {
    /// The view as it is before anything was heard, and the task that keeps it.
    pub(crate) fn start(
        self,
        listening: Vec<String>,
        stop: CancellationToken,
    ) -> (watch::Receiver<Arc<MeshView>>, impl Future<Output = ()> + Send) {
        let state = MembershipState::new(self.me.clone());
        let (view, reader) = watch::channel(Arc::new(state.view()));
        let mut task = Task {
            facts: self,
            state,
            view,
            fetches: FuturesUnordered::new(),
            own_tools: Arc::default(),
            manifest: Manifest::default(),
            listening,
            seq: 0,
            told: LoadState::default(),
            told_at: None,
            persists: 0,
            persisted: Arc::default(),
        };
        task.take_tools();
        task.tell(false);
        let known = peers::read(&task.facts.peers_file);
        task.input(Input::Members { from: None, members: known });
        let addresses = std::mem::take(&mut task.facts.static_peers);
        task.input(Input::Static { addresses });
        (reader, task.run(stop))
    }
}

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        let mut tools = self.facts.registry.subscribe();
        let mut load = self.facts.load.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = tools.changed() => match changed {
                    Ok(()) => {
                        tools.mark_unchanged();
                        self.take_tools();
                        self.tell(true);
                    }
                    Err(_) => break,
                },
                changed = load.changed() => match changed {
                    Ok(()) => {
                        load.mark_unchanged();
                        self.load_changed();
                    }
                    Err(_) => break,
                },
                Some(inputs) = self.fetches.next(), if !self.fetches.is_empty() => {
                    for input in inputs {
                        self.input(input);
                    }
                }
                event = self.facts.events.recv() => match event {
                    Some(event) => self.network(event),
                    None => break,
                },
                _ = tick.tick() => {
                    self.input(Input::Tick);
                    if self.told_at.is_none_or(|at| at.elapsed() >= ADVERT_EVERY) {
                        self.tell(true);
                    }
                }
            }
        }
    }

    fn input(&mut self, input: Input) {
        let effects = self.state.handle(input, Instant::now(), self.facts.clock.wall());
        self.view.send_replace(Arc::new(self.state.view()));
        for effect in effects {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { node, addresses } => {
                if !self.facts.net.dial(node, addresses) {
                    self.facts.metrics.dropped.with_label_values(&["net_commands"]).inc();
                    tracing::debug!("the network is busy; the dial is retried");
                }
            }
            Effect::Resolve { name } => self.fetches.push(Box::pin(resolve(name))),
            Effect::FetchManifest { node, hash } => {
                let net = self.facts.net.clone();
                self.fetches.push(Box::pin(async move {
                    match net.cards(node, CardsRequest::Manifest(hash)).await {
                        Ok(CardsReply::Manifest(bytes)) => match Manifest::from_bytes(&bytes, hash) {
                            Ok(manifest) => return vec![Input::Manifest { node, hash, manifest }],
                            Err(error) => tracing::warn!(node = node.short(), %error, "manifest refused"),
                        },
                        Ok(_) => tracing::debug!(node = node.short(), "manifest is not there any more"),
                        Err(error) => tracing::debug!(node = node.short(), %error, "manifest not fetched"),
                    }
                    Vec::new()
                }));
            }
            Effect::FetchCards { node, hashes } => {
                let net = self.facts.net.clone();
                self.fetches.push(Box::pin(async move {
                    match net.cards(node, CardsRequest::Cards(hashes.clone())).await {
                        Ok(CardsReply::Cards(list)) => vec![Input::Cards { cards: checked(&list, &hashes) }],
                        Ok(_) => Vec::new(),
                        Err(error) => {
                            tracing::debug!(node = node.short(), %error, "cards not fetched");
                            Vec::new()
                        }
                    }
                }));
            }
            Effect::Sync { node } => {
                let Some(bytes) = self.sync_bytes() else { return };
                let net = self.facts.net.clone();
                self.fetches.push(Box::pin(async move {
                    match net.sync(node, bytes).await {
                        Ok(reply) => synced(node, &reply),
                        Err(error) => {
                            tracing::debug!(node = node.short(), %error, "sync failed");
                            Vec::new()
                        }
                    }
                }));
            }
            Effect::Persist => {
                let members = self.state.remembered();
                let path = self.facts.peers_file.clone();
                self.persists += 1;
                let (turn, newest) = (self.persists, Arc::clone(&self.persisted));
                self.fetches.push(Box::pin(async move {
                    let write = move || {
                        // Held while writing: of two lists on their way the newer stays, whichever thread is faster.
                        let mut newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
                        if *newest > turn {
                            return Ok(());
                        }
                        *newest = turn;
                        peers::write(&path, &members)
                    };
                    let written = tokio::task::spawn_blocking(write).await;
                    if let Ok(Err(error)) = written {
                        tracing::warn!(%error, "addresses of members can't be written; after a restart they are learnt anew");
                    }
                    Vec::new()
                }));
            }
            Effect::Transition { node, name, to } => {
                self.facts.metrics.membership.transitions.with_label_values(&[<&str>::from(to)]).inc();
                tracing::info!(node = %name, id = node.short(), state = %to, "member");
                // silent-ok: nobody watches
                let _ = self
                    .facts
                    .node_events
                    .send(NodeEvent::Member { node: name.to_string(), state: to.to_string() });
            }
        }
    }

    fn network(&mut self, event: NetEvent) {
        match event {
            NetEvent::Listening { address } => {
                if !self.listening.contains(&address) && self.listening.len() < 2 * limits::MEMBER_ADDRESSES {
                    self.listening.push(address);
                    self.tell(false);
                }
            }
            NetEvent::Connected { node, certificate, address, outbound } => {
                let certificate = *certificate;
                self.input(Input::Connected {
                    node,
                    name: certificate.name,
                    role: certificate.role,
                    grants: certificate.grants,
                    address,
                    outbound,
                });
            }
            NetEvent::Disconnected { node, last, reason } => {
                self.input(Input::Disconnected { node, last, reason });
            }
            NetEvent::DialFailed { node, address, reason } => {
                tracing::debug!(node = node.map(|n| n.short()), address, reason, "dial failed");
                self.input(Input::DialFailed { node, address, reason });
            }
            NetEvent::Refused { address, reason } => {
                tracing::info!(address, reason, "refused a connection");
                // silent-ok: nobody watches
                let _ = self.facts.node_events.send(NodeEvent::Refused { address, reason });
            }
            NetEvent::Rtt { node, rtt } => {
                self.facts.metrics.net.peer_rtt_seconds.observe(rtt.as_secs_f64());
                self.input(Input::Rtt { node, rtt });
            }
            NetEvent::Advert { origin, bytes } => match Advert::from_bytes(&bytes, origin) {
                Ok(advert) => self.input(Input::Advert { advert, direct: false }),
                Err(error) => tracing::warn!(node = origin.short(), %error, "advert refused"),
            },
            NetEvent::Sync { node, bytes, reply } => {
                if let Some(own) = self.sync_bytes() {
                    // silent-ok: the asker does not wait any more
                    let _ = reply.send(own);
                }
                for input in synced(node, &bytes) {
                    self.input(input);
                }
            }
            NetEvent::Cards { request, reply } => {
                // silent-ok: the asker does not wait any more
                let _ = reply.send(self.answer(request));
            }
        }
    }

    fn answer(&self, request: CardsRequest) -> CardsReply {
        match request {
            CardsRequest::Manifest(hash) => match (self.manifest.hash(), self.manifest.to_bytes()) {
                (Ok(own), Ok(bytes)) if own == hash => CardsReply::Manifest(bytes),
                _ => CardsReply::Unknown,
            },
            CardsRequest::Cards(hashes) => {
                let snapshot = self.facts.registry.snapshot();
                let mut room = limits::CARDS_REPLY_BYTES - 4096;
                let mut cards = Vec::new();
                for bytes in
                    hashes.iter().take(limits::CARDS_PER_REPLY).filter_map(|h| snapshot.card_bytes(h))
                {
                    match room.checked_sub(bytes.len() + 8) {
                        Some(left) => room = left,
                        None => break,
                    }
                    cards.push(bytes.to_vec());
                }
                CardsReply::Cards(cards)
            }
        }
    }

    /// This node's tools changed: a client offers none.
    fn take_tools(&mut self) {
        let snapshot: Arc<Snapshot> = self.facts.registry.snapshot();
        if self.facts.me.role == Role::Client {
            return;
        }
        self.manifest = snapshot.manifest().clone();
        let tools = self.manifest.entries().iter().filter_map(|e| {
            let entry = snapshot.get(&e.name)?;
            Some((e.name.clone(), Arc::new(RemoteTool { card: Arc::clone(&entry.card), hash: entry.hash })))
        });
        self.own_tools = Arc::new(tools.collect());
    }

    fn load_changed(&mut self) {
        let load = *self.facts.load.borrow();
        let at_once = load.draining != self.told.draining || load.ready != self.told.ready;
        let (now, before) = (f64::from(load.work_ms), f64::from(self.told.work_ms));
        let much = (now - before).abs() > 0.5 * before.max(1.0) || load.running != self.told.running;
        let gap = self.told_at.is_none_or(|at| at.elapsed() >= ADVERT_GAP);
        self.tell(at_once || (much && gap));
    }

    /// Puts the newest facts of this node into the view and, when asked to, tells them to the mesh.
    fn tell(&mut self, publish: bool) {
        let Some(advert) = self.own_advert() else { return };
        if publish {
            match advert.to_bytes() {
                Ok(bytes) => {
                    if self.facts.net.publish(bytes) {
                        self.told = advert.load;
                        self.told_at = Some(Instant::now());
                    }
                }
                Err(error) => tracing::error!(%error, "own advert can't be encoded"),
            }
        }
        let addresses = self.own_addresses();
        self.input(Input::Own { advert, tools: Arc::clone(&self.own_tools), addresses });
    }

    fn own_advert(&mut self) -> Option<Advert> {
        let tool_set = match self.manifest.hash() {
            Ok(hash) => hash,
            Err(error) => {
                tracing::error!(%error, "own manifest can't be encoded");
                return None;
            }
        };
        self.seq += 1;
        let mut load = *self.facts.load.borrow();
        load.memory_free = self.facts.hardware.memory_free();
        let mut advert = Advert {
            node: self.facts.me.node,
            incarnation: self.facts.incarnation,
            seq: self.seq,
            load,
            memory_total: self.facts.hardware.memory_total(),
            gpus: self.facts.hardware.gpus(),
            models: Vec::new(),
            tool_set,
            speed_percent: 100,
            sandbox: self.facts.sandbox.level(),
            region: self.facts.region.clone(),
            tags: self.facts.tags.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        advert.truncate();
        Some(advert)
    }

    fn own_addresses(&self) -> Vec<String> {
        if !self.facts.advertise.is_empty() {
            return self.facts.advertise.iter().take(limits::MEMBER_ADDRESSES).cloned().collect();
        }
        let mut addresses: Vec<String> = self
            .listening
            .iter()
            .filter(|a| crate::load::is_advertisable(a, self.facts.loopback))
            .cloned()
            .collect();
        // The same set in the same order after every restart.
        addresses.sort();
        addresses.truncate(limits::MEMBER_ADDRESSES);
        addresses
    }

    fn sync_bytes(&mut self) -> Option<Vec<u8>> {
        let advert = self.own_advert()?.to_bytes().ok()?;
        let mut members = self.state.addresses();
        loop {
            match (Sync { advert: advert.clone(), members: members.clone() }).to_bytes() {
                Ok(bytes) => return Some(bytes),
                // Very long addresses: tell fewer members.
                Err(_) if !members.is_empty() => members.truncate(members.len() / 2),
                Err(error) => {
                    tracing::error!(%error, "sync can't be encoded");
                    return None;
                }
            }
        }
    }
}

/// The addresses of a configured host name; none, and a line in the log, when there are none.
async fn resolve(name: String) -> Vec<Input> {
    let found = tokio::time::timeout(RESOLVE, tokio::net::lookup_host(name.clone())).await;
    let addresses = match found {
        Ok(Ok(found)) => found.take(limits::MEMBER_ADDRESSES).map(|a| a.to_string()).collect(),
        Ok(Err(error)) => {
            tracing::warn!(peer = name, %error, "a configured peer's name can't be resolved");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!(peer = name, "a configured peer's name was not resolved in time");
            Vec::new()
        }
    };
    vec![Input::Resolved { name, addresses }]
}

/// Cards that are what was asked for; the rest is refused.
fn checked(list: &[Vec<u8>], wanted: &[CardHash]) -> Vec<Arc<RemoteTool>> {
    let mut cards = Vec::new();
    let mut wanted = wanted.iter();
    for bytes in list.iter().take(limits::CARDS_PER_REPLY) {
        // Replies keep the order of the request and leave out what is not there.
        match wanted.find_map(|hash| ToolCard::from_bytes(bytes, *hash).ok().map(|card| (card, *hash))) {
            Some((card, hash)) => cards.push(Arc::new(RemoteTool { card: Arc::new(card), hash })),
            None => {
                tracing::warn!("a card that is not what was asked for was refused");
                break;
            }
        }
    }
    cards
}

fn synced(node: NodeId, bytes: &[u8]) -> Vec<Input> {
    let sync = match Sync::from_bytes(bytes) {
        Ok(sync) => sync,
        Err(error) => {
            tracing::warn!(node = node.short(), %error, "sync refused");
            return Vec::new();
        }
    };
    let mut inputs = vec![Input::Members { from: Some(node), members: sync.members }];
    match Advert::from_bytes(&sync.advert, node) {
        Ok(advert) => inputs.push(Input::Advert { advert, direct: true }),
        Err(error) => tracing::warn!(node = node.short(), %error, "advert refused"),
    }
    inputs
}
