//! Real drivers over both transports, and the parts of a peer that does not keep to the rules.
mod adverts;
mod circuits;
mod conformance;
mod dials;
mod hostile;
mod refused;
mod revoked;
mod swim;

use std::{sync::Arc, time::Duration};

use octomesh_protocol::id::NodeId;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    BlobListener, NetConfig, NetEvent, NetHandle, StepListener, SwimLink, TransportKind,
    driver::start,
    secure::{
        Security,
        tests::{Member, member},
    },
};
use crate::{app::supervise::Supervisor, metrics::NodeMetrics};

const NOW: u64 = 1_800_000_000;
/// Nothing in these tests takes a tenth of this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A driver with its task, as the rooms above would hold it.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) handle: NetHandle,
    pub(crate) events: mpsc::Receiver<NetEvent>,
    pub(crate) steps: StepListener,
    pub(crate) blobs: BlobListener,
    pub(crate) swim: SwimLink,
    pub(crate) address: String,
    pub(crate) metrics: NodeMetrics,
    pub(super) security: Security,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    supervisor: Supervisor,
}

/// A member of the one mesh of these tests, listening at `listen`: `memory:0` or `127.0.0.1:0`.
pub(crate) async fn peer(seed: u8, listen: &str) -> Peer {
    peer_at(seed, listen, NOW).await
}

/// The same, with its clock at `unix`.
async fn peer_at(seed: u8, listen: &str, unix: u64) -> Peer {
    peer_of(member(1, 1, seed, unix, None), listen).await
}

/// The same for a member that was made elsewhere.
pub(super) async fn peer_of(member: Member, listen: &str) -> Peer {
    peer_that(member, listen, true).await
}

/// The same, which carries circuits of others or not.
async fn peer_that(member: Member, listen: &str, relay: bool) -> Peer {
    let kind = if listen.starts_with("memory:") { TransportKind::Memory } else { TransportKind::Tcp };
    let metrics = NodeMetrics::new("test").unwrap();
    let node = member.node();
    let supervisor = Supervisor::new();
    let network = start(NetConfig {
        seed: zeroize::Zeroizing::new(*member.identity.expose_ed25519_seed()),
        transport: kind,
        security: member.security.clone(),
        plaintext: false,
        relay,
        opened: member.opened,
        listen: vec![listen.to_owned()],
        tasks: supervisor.clone(),
        metrics: metrics.net.clone(),
        dropped: metrics.dropped.clone(),
    })
    .await
    .unwrap();
    let (stop, mut tasks) = (supervisor.stop_token().clone(), JoinSet::new());
    tasks.spawn(network.driver.run(stop.clone()));
    tasks.spawn(network.swim_traffic.run(stop.clone()));
    Peer {
        node,
        handle: network.handle,
        events: network.events,
        steps: network.steps,
        blobs: network.blobs,
        swim: network.swim,
        address: network.listening[0].clone(),
        metrics,
        security: member.security,
        stop,
        tasks,
        supervisor,
    }
}

impl Peer {
    /// The first event that `pick` makes something of; others are dropped.
    pub(crate) async fn wait<T>(&mut self, mut pick: impl FnMut(NetEvent) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = pick(self.events.recv().await.expect("the driver runs")) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("the event comes")
    }

    /// Dials `other` until both have told of the session.
    pub(crate) async fn connect(&mut self, other: &mut Self) {
        assert!(self.handle.dial(Some(other.node), vec![other.address.clone()]));
        let (a, b) = (self.node, other.node);
        let here = self.wait(|e| matches!(e, NetEvent::Connected { node, .. } if node == b).then_some(()));
        let there = other.wait(|e| matches!(e, NetEvent::Connected { node, .. } if node == a).then_some(()));
        tokio::join!(here, there);
    }

    /// Ends the driver in order and waits for it.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(PATIENCE, ended).await.expect("the driver ends");
        assert!(self.supervisor.join(PATIENCE).await, "the doorkeeper ends");
    }

    /// Drops the driver where it stands, as a kill would.
    pub(crate) fn kill(mut self) {
        self.tasks.abort_all();
    }
}

/// What a peer trusts.
pub(crate) fn trusting(peer: &Peer) -> crate::trust::TrustReader {
    peer.security.trust()
}

/// The security of a peer that dials by hand.
fn config(peer: &Peer) -> Arc<super::secure::SecureConfig> {
    Arc::clone(peer.security.config())
}
