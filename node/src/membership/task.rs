//! Drives [`MembershipState`]: network events and this node's own load in, fetches and adverts out, a snapshot for everybody.
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use octomesh_protocol::{
    advert::{Advert, CardsReply, CardsRequest, LoadState, Manifest},
    card::ToolCard,
    id::{CardHash, NodeId, RevocationId, ToolName},
    limits,
    sync::{Sync, SyncReply, SyncRequest},
    trust::{CLOCK_TOLERANCE_S, CertificateChain, Role, SecretStamp},
};
use octomesh_tools::{
    registry::{Registry, Snapshot},
    sandbox::Sandbox,
};
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    catching::Catching,
    exchange,
    peers::{self, AddressBook},
    renewals::Renewals,
    state::{Effect, Input, MembershipState},
    swim::{self, SwimPort, Told},
    view::{Member, MeshView, RemoteTool},
};
use crate::{
    app::{clock::Clock, events::NodeEvent},
    discovery::Hint,
    load::{Hardware, Outline},
    metrics::NodeMetrics,
    net::{self, NetEvent, NetHandle},
    trust::{Trust, TrustHandle},
};

const TICK: Duration = Duration::from_millis(500);
/// A name server that does not answer is asked again later.
const RESOLVE: Duration = Duration::from_secs(5);
/// An advert without news: five quarters of a second for each member, so that in a mesh of any size each node passes on less than one a
/// second.
const ADVERT_EVERY: std::ops::RangeInclusive<u64> = 10..=90;
/// Other programs asked for their protocols at once: each follows a failed dial, and those are rare for one address.
const VERSIONS_ASKED: usize = 4;
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
    /// This node's addresses as the machine has them, and who is heard on its networks.
    pub(crate) discovery: (watch::Receiver<Option<Vec<String>>>, mpsc::Receiver<Hint>),
    pub(crate) static_peers: Vec<String>,
    pub(crate) address_book: AddressBook,
    pub(crate) net: NetHandle,
    pub(crate) swim: SwimPort,
    pub(crate) trust: TrustHandle,
    pub(crate) renewals: Renewals,
    pub(crate) commands: mpsc::Receiver<MembershipCommand>,
    pub(crate) events: mpsc::Receiver<NetEvent>,
    pub(crate) registry: Registry,
    pub(crate) load: watch::Receiver<LoadState>,
    pub(crate) hardware: Hardware,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: NodeMetrics,
    pub(crate) node_events: broadcast::Sender<NodeEvent>,
}

/// What the owner asks of membership.
pub(crate) enum MembershipCommand {
    /// Takes a member out of sight, unless it is here.
    Forget { node: NodeId, reply: oneshot::Sender<()> },
    /// Says good-bye to all members: the node is about to stop.
    Leave { reply: oneshot::Sender<()> },
}

/// Commands wait here; they come from a person.
pub(crate) const COMMANDS: usize = 4;

/// Talks to the task; cheap to clone.
#[derive(Clone)]
pub(crate) struct MembershipHandle(pub(crate) mpsc::Sender<MembershipCommand>);

impl MembershipHandle {
    /// Says good-bye to all members, and waits until that has left this node.
    pub(crate) async fn leave(&self) {
        let (reply, done) = oneshot::channel();
        if self.0.send(MembershipCommand::Leave { reply }).await.is_ok() {
            // silent-ok: the task has ended, so there is nobody to say it
            let _ = done.await;
        }
    }

    /// Takes a member out of sight, unless it is here. Gives whether the task still runs.
    pub(crate) async fn forget(&self, node: NodeId) -> bool {
        let (reply, done) = oneshot::channel();
        self.0.send(MembershipCommand::Forget { node, reply }).await.is_ok() && done.await.is_ok()
    }
}

struct Task {
    facts: Membership,
    state: MembershipState,
    view: watch::Sender<Arc<MeshView>>,
    /// Fetches under way; each ends within the network's own time-outs, and there are at most a few per member.
    fetches: FuturesUnordered<BoxFuture<'static, Vec<Input>>>,
    /// The certificate that members were told last.
    shown: Option<CertificateChain>,
    /// What members were told last of revocations and secret.
    compared: (Vec<RevocationId>, SecretStamp),
    own_tools: Arc<BTreeMap<ToolName, Arc<RemoteTool>>>,
    manifest: Manifest,
    listening: Vec<String>,
    seq: u64,
    told: LoadState,
    /// Of the hardware, what is told at once.
    told_outline: Outline,
    told_at: Option<Instant>,
    /// Address books that were to be written, and the newest that was.
    persists: u64,
    persisted: Arc<Mutex<u64>>,
    asking: Arc<AtomicUsize>,
    catching: Catching,
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
        let own = self.trust.now().chain.clone();
        let mut task = Task {
            facts: self,
            state,
            view,
            fetches: FuturesUnordered::new(),
            shown: Some(own),
            compared: (Vec::new(), SecretStamp::FIRST),
            own_tools: Arc::default(),
            manifest: Manifest::default(),
            listening,
            seq: 0,
            told: LoadState::default(),
            told_outline: Outline::default(),
            told_at: None,
            persists: 0,
            persisted: Arc::default(),
            asking: Arc::default(),
            catching: Catching::default(),
        };
        task.trust_changed();
        task.take_tools();
        task.tell(false);
        let known = task.facts.address_book.read();
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
        let mut own = self.facts.discovery.0.clone();
        let mut trust = self.facts.trust.reader();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = trust.changed() => match changed {
                    Ok(()) => {
                        trust.mark_unchanged();
                        self.trust_changed();
                    }
                    Err(_) => break,
                },
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
                Some(command) = self.facts.commands.recv() => self.command(command).await,
                Some(inputs) = self.fetches.next(), if !self.fetches.is_empty() => {
                    for input in inputs {
                        self.input(input);
                    }
                }
                changed = own.changed() => match changed {
                    Ok(()) => self.tell(false),
                    Err(_) => break,
                },
                Some(hint) = self.facts.discovery.1.recv() => self.input(Input::Heard(hint)),
                told = self.facts.swim.next() => self.swim_told(told),
                event = self.facts.events.recv() => match event {
                    Some(event) => self.network(event),
                    None => break,
                },
                _ = tick.tick() => {
                    self.input(Input::Tick);
                    self.end_expired();
                    if self.told_at.is_none_or(|at| at.elapsed() >= self.advert_every()) {
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

    async fn command(&mut self, command: MembershipCommand) {
        // silent-ok: whoever asked does not wait any more
        match command {
            MembershipCommand::Forget { node, reply } => {
                self.input(Input::Forget { node });
                if self.state.is_gone(node, Instant::now()) {
                    self.swim(swim::Input::Forget { node });
                }
                let _ = reply.send(());
            }
            MembershipCommand::Leave { reply } => {
                self.facts.swim.leave().await;
                let _ = reply.send(());
            }
        }
    }

    fn swim(&mut self, input: swim::Input) {
        let told = self.facts.swim.give(input);
        self.swim_told(told);
    }

    fn swim_told(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::State { node, to } => self.input(Input::Liveness { node, to }),
                Told::Wanted { node } => self.input(Input::Wanted { node }),
                Told::Heard { node } => {
                    self.state.heard_directly(node, Instant::now(), self.facts.clock.wall());
                }
            }
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { node, addresses } => self.dialled(self.facts.net.dial(node, addresses)),
            Effect::DialOver { node, relay } => self.dialled(self.facts.net.dial_over(node, relay)),
            Effect::Reserve { relays } => self.dialled(self.facts.net.reserve(relays)),
            Effect::Try { address } => self.dialled(self.facts.net.try_address(address)),
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
                let Some(sync) = self.own_sync() else { return };
                let (net, trust) = (self.facts.net.clone(), self.facts.trust.clone());
                self.fetches.push(Box::pin(exchange::compare(net, trust, node, sync)));
            }
            Effect::HangUp { node } => {
                if !self.facts.net.silent(node) {
                    // The next tick asks again.
                    self.facts.metrics.dropped.with_label_values(&["net_commands"]).inc();
                }
            }
            Effect::Persist => {
                let members = self.state.remembered();
                let Some(path) = self.facts.address_book.write_or_path(&members) else { return };
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

    fn dialled(&self, taken: bool) {
        if !taken {
            self.facts.metrics.dropped.with_label_values(&["net_commands"]).inc();
            tracing::debug!("the network is busy; the dial is retried");
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
            NetEvent::Connected { node, certificate, address, dialled, relay } => {
                self.facts.trust.welcomed(node);
                let certificate = Arc::new(*certificate);
                self.input(Input::Connected {
                    node,
                    name: certificate.name.clone(),
                    role: certificate.role,
                    grants: certificate.grants.clone(),
                    certificate: Some(certificate),
                    address,
                    dialled,
                    relay,
                });
                if !self.facts.trust.now().is_revoked(node) {
                    self.swim(swim::Input::Connected { node });
                }
            }
            NetEvent::Disconnected { node, last, path, reason, revoked } => {
                self.told_revoked(revoked.then_some(node));
                self.input(Input::Disconnected { node, last, path, reason });
                if last {
                    self.swim(swim::Input::Closed { node });
                }
            }
            NetEvent::DialFailed { node, address, reason, revoked, refused } => {
                self.told_revoked(node.filter(|_| revoked));
                tracing::debug!(node = node.map(|n| n.short()), address, reason, "dial failed");
                if let Some(address) = address.clone().filter(|_| net::version::is_worth_asking(&reason)) {
                    self.ask_version(node, address);
                }
                self.input(Input::DialFailed { node, address, reason });
                // One that is reached over a relay is not gone because its port is closed.
                let away = |node: &NodeId| !self.view.borrow().get(*node).is_some_and(|m| m.connected);
                if let Some(node) = node.filter(away) {
                    self.swim(swim::Input::DialFailed { node, refused });
                }
            }
            NetEvent::CircuitFailed { node, relay, reason, revoked } => {
                self.told_revoked(revoked.then_some(node));
                self.input(Input::CircuitFailed { node, relay, reason });
            }
            NetEvent::NotReserved { relay, reason } => {
                tracing::info!(relay = relay.short(), reason, "a member carries no circuits for this node");
                self.input(Input::NotReserved { relay });
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
                Ok(advert) => self.advert(advert),
                Err(error) => tracing::warn!(node = origin.short(), %error, "advert refused"),
            },
            NetEvent::Sync { node, bytes, reply } => {
                self.answer_sync(node, &bytes, reply);
            }
            NetEvent::Cards { request, reply } => {
                // silent-ok: the asker does not wait any more
                let _ = reply.send(self.answer(request));
            }
        }
    }

    /// Another program answered: perhaps it is a node of another version.
    fn ask_version(&mut self, node: Option<NodeId>, address: String) {
        if self.asking.load(Ordering::Relaxed) >= VERSIONS_ASKED {
            return;
        }
        self.asking.fetch_add(1, Ordering::Relaxed);
        let asking = Arc::clone(&self.asking);
        self.fetches.push(Box::pin(async move {
            let found = net::version::skew(&address).await;
            asking.fetch_sub(1, Ordering::Relaxed);
            found.map(|reason| Input::Explained { node, address, reason }).into_iter().collect()
        }));
    }

    fn advert(&mut self, advert: Advert) {
        let (node, order) = (advert.node, (advert.incarnation, advert.seq));
        self.input(Input::Advert { advert, direct: false });
        let view = self.view.borrow();
        let Some(member) = view.get(node) else { return };
        let Some(advert) = member.advert.as_ref().filter(|a| (a.incarnation, a.seq) == order) else { return };
        // silent-ok: nobody watches
        let _ = self.facts.node_events.send(NodeEvent::Advert {
            node: member.name.to_string(),
            incarnation: advert.incarnation,
            seq: advert.seq,
            running: advert.load.running,
            queued: advert.load.queued,
            draining: advert.load.draining,
            ready: advert.load.ready,
            tool_set: advert.tool_set.to_string(),
        });
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

    fn advert_every(&self) -> Duration {
        let members = u64::try_from(self.view.borrow().members.len()).unwrap_or(u64::MAX);
        // What a driver says of its memory is believed for a minute only.
        let measured = self.state.own_advert().is_some_and(|a| a.gpus.iter().any(|gpu| !gpu.declared));
        let (least, most) = ADVERT_EVERY.into_inner();
        Duration::from_secs(if measured { least } else { (members.saturating_mul(5) / 4).clamp(least, most) })
    }

    fn load_changed(&mut self) {
        let load = *self.facts.load.borrow();
        let outline = self.facts.hardware.outline();
        let at_once = load.draining != self.told.draining
            || load.ready != self.told.ready
            || outline != self.told_outline;
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
                        self.told_outline = self.facts.hardware.outline();
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
            models: self.facts.hardware.models(),
            tool_set,
            speed_percent: 100,
            sandbox: self.facts.sandbox.level(),
            region: self.facts.region.clone(),
            tags: self.facts.tags.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            circumstances: self.facts.hardware.circumstances(),
        };
        advert.truncate();
        Some(advert)
    }

    fn own_addresses(&self) -> Vec<String> {
        if !self.facts.advertise.is_empty() {
            return self.facts.advertise.iter().take(limits::MEMBER_ADDRESSES).cloned().collect();
        }
        if let Some(found) = self.facts.discovery.0.borrow().as_ref() {
            return found.clone();
        }
        // A transport that is not the machine's network.
        let mut addresses: Vec<String> =
            self.listening.iter().filter(|a| a.starts_with("memory:")).cloned().collect();
        // The same set in the same order after every restart.
        addresses.sort();
        addresses.truncate(limits::MEMBER_ADDRESSES);
        addresses
    }

    fn own_sync(&mut self) -> Option<Sync> {
        let advert = self.own_advert()?.to_bytes().ok()?;
        let trust = self.facts.trust.now();
        let mut sync = Sync {
            advert,
            members: self.state.addresses(),
            revocations: trust.revocations.ids(),
            secret: trust.secrets.stamp,
        };
        loop {
            match SyncRequest::State(sync.clone()).to_bytes() {
                Ok(_) => return Some(sync),
                // Very long addresses: tell fewer members.
                Err(_) if !sync.members.is_empty() => sync.members.truncate(sync.members.len() / 2),
                Err(error) => {
                    tracing::error!(%error, "sync can't be encoded");
                    return None;
                }
            }
        }
    }

    /// Answers a member. What it tells is taken in like an answer of its own.
    fn answer_sync(&mut self, node: NodeId, bytes: &[u8], reply: oneshot::Sender<Vec<u8>>) {
        let request = match SyncRequest::from_bytes(bytes) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(node = node.short(), %error, "sync refused");
                return exchange::reply(reply, &SyncReply::Refused);
            }
        };
        let trust = self.facts.trust.clone();
        // Its session ends in a moment.
        let showed = self.state.certificate(node);
        if trust.now().is_revoked(node) || showed.is_some_and(|c| trust.now().check(c).is_err()) {
            return exchange::reply(reply, &SyncReply::Refused);
        }
        match request {
            SyncRequest::State(theirs) => {
                let own = self.own_sync().map_or(SyncReply::Refused, SyncReply::State);
                exchange::reply(reply, &own);
                for input in exchange::told(node, &theirs) {
                    self.input(input);
                }
                if let Some(theirs) = self.catching.begin(node, theirs) {
                    let (net, catching) = (self.facts.net.clone(), self.catching.clone());
                    self.fetches.push(Box::pin(exchange::catch_up_all(net, trust, catching, node, theirs)));
                }
            }
            SyncRequest::Revocations(ids) => exchange::reply(reply, &trust.answer_revocations(&ids)),
            SyncRequest::Secret => exchange::reply(reply, &trust.answer_secret(node)),
            SyncRequest::Revoked(revocation) => {
                self.fetches.push(Box::pin(exchange::heard_out(trust, revocation, reply)));
            }
            SyncRequest::Renew(renewal) => {
                let renewals = self.facts.renewals.clone();
                self.fetches.push(Box::pin(async move {
                    exchange::reply(reply, &renewals.ask(node, *renewal).await);
                    Vec::new()
                }));
            }
            SyncRequest::Shown(chain) => {
                let taken = exchange::shown(&trust.now(), node, &chain, self.facts.clock.unix());
                let held = self.state.certificate(node).map_or(0, |held| held.not_before);
                let taken = taken.filter(|shown| shown.not_before >= held);
                exchange::reply(reply, if taken.is_some() { &SyncReply::Done } else { &SyncReply::Refused });
                if let Some(certificate) = taken {
                    self.input(Input::Shown { certificate: Box::new(certificate) });
                }
            }
            SyncRequest::Leaving => {
                exchange::reply(reply, &SyncReply::Done);
                self.input(Input::Left { node });
                self.swim(swim::Input::Forget { node });
            }
            SyncRequest::Certificate(chain) => {
                self.fetches.push(Box::pin(exchange::certified(trust, node, *chain, reply)));
            }
        }
    }

    /// Everybody with whom there is a session gets this node's new certificate; new sessions begin with it.
    fn show(&mut self, trust: &Trust) {
        if let Some(own) = trust.own() {
            self.input(Input::Shown { certificate: Box::new(own.clone()) });
        }
        let view = self.view.borrow().clone();
        for member in view.members.values().filter(|m| m.connected) {
            let (net, node, chain) = (self.facts.net.clone(), member.node, trust.chain.clone());
            self.fetches.push(Box::pin(exchange::show(net, node, chain)));
        }
    }

    /// Sessions last for months, certificates need not.
    fn end_expired(&self) {
        for node in self.state.expired(self.facts.clock.unix(), CLOCK_TOLERANCE_S) {
            tracing::warn!(
                node = node.short(),
                "the certificate of a member has ended, and so does its session"
            );
            if !self.facts.net.expired(node) {
                self.facts.metrics.dropped.with_label_values(&["net_commands"]).inc();
            }
        }
    }

    fn told_revoked(&self, by: Option<NodeId>) {
        if by.is_some_and(|by| !self.facts.trust.told_revoked(by)) {
            self.facts.metrics.dropped.with_label_values(&["trust_commands"]).inc();
        }
    }

    /// Revoked nodes go; news go to all members.
    fn trust_changed(&mut self) {
        let trust: Arc<Trust> = self.facts.trust.now();
        if self.shown.as_ref() != Some(&trust.chain) {
            self.shown = Some(trust.chain.clone());
            self.show(&trust);
        }
        let compared = (trust.revocations.ids(), trust.secrets.stamp);
        if compared == self.compared {
            return;
        }
        self.compared = compared;
        let problem = |node| match trust.revocations.of(node) {
            Some(said) if !said.reason.is_empty() => format!("revoked: {}", said.reason),
            _ => "revoked".to_owned(),
        };
        let revoked = trust.revocations.nodes().map(|node| (node, problem(node))).collect();
        let nodes: Vec<NodeId> = trust.revocations.nodes().collect();
        self.input(Input::Trust { revoked });
        for node in nodes {
            self.swim(swim::Input::Forget { node });
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
