//! Why a member is not reached, and what the networks of this machine are good for, as the API's documents.
use std::net::{IpAddr, SocketAddr};

use crate::{
    api::types::{DiscoveryInterface, DiscoveryReport, UnreachedAddress},
    discovery::{NetworkReport, SegmentReport},
    membership::{Member, MeshView, reach::Unreached},
};

/// Warnings of one kind: the first ones are enough to know what to look at.
const WARNINGS: usize = 5;
/// Names in a list.
const NAMES: usize = 16;

/// The step that failed, of a member without a session.
pub(super) fn step(view: &MeshView, member: &Member) -> Option<String> {
    let away = !view.is_me(member.node) && !member.connected;
    away.then(|| member.reach.step(!member.addresses.is_empty()).to_string())
}

/// Addresses that lead to no member.
pub(super) fn unreached(view: &MeshView) -> Vec<UnreachedAddress> {
    let entry = |u: &Unreached| UnreachedAddress {
        addr: u.address.clone(),
        source: u.source.to_string(),
        reason: u.reason.clone(),
    };
    view.unreached.iter().map(entry).collect()
}

/// What the owner should look at.
pub(super) fn warnings(view: &MeshView) -> Vec<String> {
    let failed = view.unreached.iter().filter_map(|u| Some((u, u.reason.as_ref()?)));
    let failed = failed.map(|(u, reason)| format!("{} ({}): dialled, but: {reason}", u.address, u.source));
    let own = env!("CARGO_PKG_VERSION");
    let others = view.members.values().filter(|m| !view.is_me(m.node));
    let versions = others.filter_map(|m| {
        let version = &m.advert.as_ref()?.version;
        (version != own && m.state.is_present())
            .then(|| format!("{} runs version {version}, this node {own}", m.name))
    });
    failed.take(WARNINGS).chain(versions.take(WARNINGS)).collect()
}

/// How it stands with multicast DNS.
pub(super) fn discovery(report: &NetworkReport, view: &MeshView) -> DiscoveryReport {
    let interfaces = report.segments.iter().map(|s| DiscoveryInterface {
        interface: s.interface.clone(),
        listening_s: s.listening.as_secs(),
        heard: s.heard,
        other_meshes: s.foreign,
        members: members_on(s, view),
        problem: s.problem.clone(),
    });
    DiscoveryReport { mdns: report.mdns, interfaces: interfaces.collect() }
}

fn members_on(segment: &SegmentReport, view: &MeshView) -> Vec<String> {
    let ip = |address: &String| address.parse::<SocketAddr>().map(|socket| socket.ip());
    let here = |ip: IpAddr| segment.networks.iter().any(|n| n.contains(ip) && n.ip != ip);
    let connected = view.members.values().filter(|m| m.connected);
    let there = connected.filter(|m| m.direct_address.as_ref().is_some_and(|a| ip(a).is_ok_and(here)));
    there.map(|m| m.name.to_string()).take(NAMES).collect()
}
