//! Looks at the interfaces every two seconds and drives [`Beacon`].
use std::{net::SocketAddr, sync::Arc, time::Duration};

use octomesh_protocol::id::MeshId;
use prometheus::IntCounterVec;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    Hint, NetworkReport,
    beacon::Beacon,
    dns::PACKET_BYTES,
    interfaces::{self, Interface},
    socket::Sockets,
};
use crate::app::clock::Clock;

/// A new cable or address is told to others within seconds; a look takes a fraction of a millisecond.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Hints waiting for membership, which reads them at once.
const HINTS: usize = 64;

/// What the task is made of.
pub(crate) struct DiscoveryParts {
    /// Whether to speak and listen; interfaces are looked at in any case.
    pub(crate) mdns: bool,
    pub(crate) mesh: MeshId,
    /// Where the node listens, with the ports that it got. Empty where it has no network of the machine's.
    pub(crate) bound: Vec<SocketAddr>,
    /// Whether the owner wrote the addresses.
    pub(crate) explicit: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dropped: IntCounterVec,
}

/// What the task gives.
pub(crate) struct Discovery {
    /// This node's addresses for others; `None` where there is no network of the machine's.
    pub(crate) own: watch::Receiver<Option<Vec<String>>>,
    pub(crate) hints: mpsc::Receiver<Hint>,
    pub(crate) report: watch::Receiver<Arc<NetworkReport>>,
}

struct Task {
    parts: DiscoveryParts,
    own: watch::Sender<Option<Vec<String>>>,
    hints: mpsc::Sender<Hint>,
    report: watch::Sender<Arc<NetworkReport>>,
    beacon: Beacon,
    sockets: Sockets,
    interfaces: Vec<Interface>,
}

impl DiscoveryParts {
    /// The handles, and the task that fills them.
    pub(crate) fn start(self, stop: CancellationToken) -> (Discovery, impl Future<Output = ()> + Send) {
        let (hints, hints_out) = mpsc::channel(HINTS);
        let seed = u64::from_le_bytes(self.clock.id_bytes());
        let mut task = Task {
            own: watch::channel(None).0,
            hints,
            report: watch::channel(Arc::new(NetworkReport { mdns: self.mdns, segments: Vec::new() })).0,
            beacon: Beacon::new(self.mesh, self.clock.unix(), seed),
            sockets: Sockets::default(),
            interfaces: Vec::new(),
            parts: self,
        };
        // Before anybody asks.
        task.look();
        let handles =
            Discovery { own: task.own.subscribe(), hints: hints_out, report: task.report.subscribe() };
        (handles, task.run(stop))
    }
}

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = [0; PACKET_BYTES];
        loop {
            // Without an interface there is nothing to say until the next look.
            let due = self.beacon.next_due().unwrap_or_else(|| Instant::now() + LOOK_EVERY);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = look.tick() => self.look(),
                () = tokio::time::sleep_until(due) => self.speak(),
                (index, source, length) = self.sockets.next(&mut buffer) => {
                    let packet = buffer.get(..length).unwrap_or_default();
                    let hints = self.beacon.received(index, source, packet, Instant::now());
                    if !hints.is_empty() {
                        self.tell();
                    }
                    hints.into_iter().for_each(|hint| self.hint(hint));
                }
            }
        }
        for (index, packet) in self.beacon.farewell() {
            self.sockets.send(index, &packet);
        }
    }

    fn look(&mut self) {
        if self.parts.bound.is_empty() {
            return;
        }
        let interfaces = interfaces::read();
        let DiscoveryParts { bound, explicit, mdns, .. } = &self.parts;
        let own = Some(interfaces::advertised(bound, *explicit, &interfaces));
        self.own.send_if_modified(|known| {
            let changed = *known != own;
            if changed {
                tracing::info!(addresses = ?own.as_deref().unwrap_or_default(), "this node's addresses for others");
                *known = own;
            }
            changed
        });
        if *mdns {
            if interfaces != self.interfaces {
                self.beacon.interfaces(&interfaces, bound, Instant::now());
                self.interfaces = interfaces;
            }
            // Also without a change: a socket that failed is opened again.
            self.sockets.follow(self.beacon.indices());
            self.tell();
        }
    }

    fn tell(&self) {
        let mut segments = self.beacon.report(Instant::now());
        segments.iter_mut().for_each(|s| s.problem = self.sockets.problem(&s.interface));
        self.report.send_replace(Arc::new(NetworkReport { mdns: true, segments }));
    }

    fn speak(&mut self) {
        for (index, packet) in self.beacon.due(Instant::now(), self.parts.clock.unix()) {
            self.sockets.send(index, &packet);
        }
    }

    fn hint(&self, hint: Hint) {
        tracing::debug!(addresses = ?hint.addresses, interface = hint.interface, "heard a node of this mesh");
        if self.hints.try_send(hint).is_err() {
            // It is announced again within a minute.
            self.parts.dropped.with_label_values(&["mdns_hints"]).inc();
        }
    }
}
