//! Peers that the owner wrote down.
use octomesh_protocol::id::NodeId;
use tokio::time::Instant;

use super::{Effect, MembershipState, backoff};

/// A configured peer.
#[derive(Debug)]
pub(super) struct StaticPeer {
    /// `IP:PORT`, or `HOST:PORT`.
    pub(super) address: String,
    /// The addresses of a host name when it was last resolved.
    pub(super) resolved: Vec<String>,
    /// The node that answered there.
    pub(super) node: Option<NodeId>,
    pub(super) failures: u32,
    pub(super) next_dial: Instant,
    /// What came of the last dial.
    pub(super) reason: Option<String>,
}

impl StaticPeer {
    /// Whether it is reached at this address.
    pub(super) fn is_at(&self, address: &str) -> bool {
        self.address == address || self.resolved.iter().any(|a| a == address)
    }

    pub(super) fn is_name(&self) -> bool {
        self.address.parse::<std::net::SocketAddr>().is_err() && !self.address.starts_with("memory:")
    }
}

impl MembershipState {
    /// A configured host name has addresses (again): they are dialled one after the other until one answers.
    pub(super) fn resolved(
        &mut self,
        name: &str,
        addresses: &[String],
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        for peer in self.statics.iter_mut().filter(|p| p.address == name) {
            if addresses.is_empty() {
                peer.failures = peer.failures.saturating_add(1);
                peer.next_dial = now + backoff(peer.failures);
                peer.reason = Some("its name can't be resolved".to_owned());
                continue;
            }
            peer.resolved = addresses.to_vec();
            // An unknown node is dialled at one address at a time; each failure moves on to the next.
            let turn = usize::try_from(peer.failures).unwrap_or(0) % addresses.len();
            let dialled = match (peer.node, addresses.get(turn)) {
                (None, Some(next)) => vec![next.clone()],
                _ => addresses.to_vec(),
            };
            effects.push(Effect::Dial { node: peer.node, addresses: dialled });
        }
    }
}
