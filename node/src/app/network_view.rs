//! Why a member is not reached, and what the networks of this machine are good for, as the API's documents.
use std::net::{IpAddr, SocketAddr};

use crate::{
    api::types::{DiscoveryInterface, DiscoveryReport, RelayedMember, UnreachedAddress},
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

/// The name of the member that relays the session with `member`.
pub(super) fn relay(view: &MeshView, member: &Member) -> Option<String> {
    let relay = member.relay?;
    Some(view.get(relay).map_or_else(|| relay.short(), |m| m.name.to_string()))
}

/// Members that are reached over others.
pub(super) fn relayed(view: &MeshView) -> Vec<RelayedMember> {
    let mut relayed: Vec<RelayedMember> = view
        .members
        .values()
        .filter_map(|m| Some(RelayedMember { name: m.name.to_string(), relay: relay(view, m)? }))
        .collect();
    relayed.sort_by(|a, b| a.name.cmp(&b.name));
    relayed
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
    let twins = view.twins();
    let twins = twins.iter().filter_map(|members| {
        let (first, others) = members.split_first()?;
        let others: Vec<_> = others.iter().map(|m| format!("{} ({})", view.shown(m), m.node.short())).collect();
        Some(format!(
            "several members are named {name}: here `{name}` is the node with the id …{id}, and there is {others}; give one of them \
             another name: run `octomesh rename NEW-NAME` on its machine",
            name = first.name,
            id = first.node.short(),
            others = others.join(", ")
        ))
    });
    failed.take(WARNINGS).chain(versions.take(WARNINGS)).chain(twins.take(WARNINGS)).collect()
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
