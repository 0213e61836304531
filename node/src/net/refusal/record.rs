//! Who was refused lately, and who refused this node: what `doctor` shows. Bounded, whatever strangers do.
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use octomesh_protocol::id::NodeId;
use tokio::{sync::watch, time::Instant};

use crate::net::secure::{Cause, Diagnosis};

/// Distinct (direction, address, cause) remembered; the one that was quiet for longest makes room.
const REMEMBERED: usize = 64;
/// Longest sentence remembered.
const MESSAGE_CHARS: usize = 400;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalReport {
    /// This node dialled.
    pub(crate) outbound: bool,
    /// The other side refused this node; otherwise this node refused it.
    pub(crate) by_peer: bool,
    /// Where it was dialled; who dialled this node is known by its address without the port, and an IPv6 one by its /64.
    pub(crate) address: Option<String>,
    /// Who was dialled, if that was known.
    pub(crate) node: Option<NodeId>,
    pub(crate) cause: Cause,
    /// The newest sentence.
    pub(crate) message: String,
    /// How often.
    pub(crate) count: u64,
    pub(crate) last: Instant,
}

impl RefusalReport {
    /// A home runs twice.
    pub(crate) fn is_copy(&self) -> bool {
        self.cause == Cause::IdentityInUse
    }
}

/// The list, written by the driver and at the door; others read its snapshot.
#[derive(Clone)]
pub(crate) struct Refusals(watch::Sender<Arc<Vec<RefusalReport>>>);

impl Refusals {
    pub(crate) fn new() -> (Self, watch::Receiver<Arc<Vec<RefusalReport>>>) {
        let (sender, receiver) = watch::channel(Arc::default());
        (Self(sender), receiver)
    }

    /// Takes note of a refusal; gives how often this one happened, 0 for what is none.
    pub(crate) fn add(
        &self,
        outbound: bool,
        address: Option<&str>,
        node: Option<NodeId>,
        found: &Diagnosis,
        now: Instant,
    ) -> u64 {
        if !found.cause.is_refusal() {
            return 0;
        }
        let address = address.map(|a| if outbound { a.to_owned() } else { prefix(a) });
        let message: String = found.message.chars().take(MESSAGE_CHARS).collect();
        let mut count = 1;
        self.0.send_modify(|list| {
            // Copied only while somebody reads the old one.
            let list = Arc::make_mut(list);
            let same = |r: &&mut RefusalReport| {
                r.outbound == outbound
                    && r.by_peer == found.by_peer
                    && r.cause == found.cause
                    && r.address == address
                    && r.node == node
            };
            if let Some(known) = list.iter_mut().find(same) {
                known.count = known.count.saturating_add(1);
                (known.message, known.last) = (message, now);
                count = known.count;
                return;
            }
            if list.len() >= REMEMBERED
                && let Some(oldest) = (0..list.len()).min_by_key(|at| list.get(*at).map(|r| r.last))
            {
                list.swap_remove(oldest);
            }
            list.push(RefusalReport {
                outbound,
                by_peer: found.by_peer,
                address,
                node,
                cause: found.cause,
                message,
                count,
                last: now,
            });
        });
        count
    }
}

/// What one stranger can't easily change.
fn prefix(address: &str) -> String {
    let Ok(address) = address.parse::<SocketAddr>() else { return address.to_owned() };
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) if ip.is_loopback() => ip.to_string(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn found(cause: Cause) -> Diagnosis {
        Diagnosis::new(cause, format!("because of {cause}"))
    }

    #[tokio::test]
    async fn the_same_counts_and_strangers_have_a_bound() {
        let (refusals, read) = Refusals::new();
        let now = Instant::now();
        let add = |address: &str, cause, at| refusals.add(false, Some(address), None, &found(cause), at);
        assert_eq!(add("192.0.2.1:1000", Cause::ClassicalOnly, now), 1);
        assert_eq!(add("192.0.2.1:2000", Cause::ClassicalOnly, now), 2);
        assert_eq!(add("192.0.2.1:2000", Cause::Expired, now), 1);
        assert_eq!(add("[2001:db8::1]:5", Cause::Expired, now), 1);
        assert_eq!(add("[2001:db8::2]:5", Cause::Expired, now), 2);
        assert_eq!(add("192.0.2.1:3", Cause::Timeout, now), 0, "slow is not refused");
        let list = read.borrow().clone();
        assert_eq!(list.len(), 3);
        assert_eq!((list[0].address.as_deref(), list[0].count), (Some("192.0.2.1"), 2));
        assert_eq!(list[2].address.as_deref(), Some("2001:db8::/64"));
        for n in 0..1000u32 {
            let ip = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            add(&format!("{ip}:1"), Cause::Replay, now + Duration::from_secs(1));
        }
        let list = read.borrow().clone();
        assert_eq!(list.len(), REMEMBERED);
        assert!(list.iter().all(|r| r.cause == Cause::Replay), "the quiet ones made room");
    }
}
