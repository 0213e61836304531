//! Sessions, and connections that did not become any, as the API's documents.
use std::{cmp::Reverse, time::Duration};

use octomesh_protocol::session::{AEAD, IDENTITY_KEYS, KEY_EXCHANGE, SUITE};

use crate::{
    api::types::{RefusalEntry, RefusalsReply, SessionEntry, SessionsReply},
    membership::MeshView,
    net::{RefusalReport, SessionReport},
};

/// Longer ago than this a copied home is no news: the copy dials at least twice a minute.
const NEWS: Duration = Duration::from_secs(300);

const fn direction(outbound: bool) -> &'static str {
    if outbound { "out" } else { "in" }
}

pub(super) fn sessions(view: &MeshView, sessions: &[SessionReport]) -> SessionsReply {
    let name = |s: &SessionReport| view.get(s.node).map(|m| view.shown(m)).unwrap_or_default();
    let mut entries: Vec<SessionEntry> = sessions
        .iter()
        .map(|s| SessionEntry {
            node_id: s.node.to_string(),
            name: name(s),
            suite: SUITE.to_owned(),
            pq: true,
            direction: direction(s.outbound).to_owned(),
            established_s: s.established.as_secs(),
            rekeys: s.rekeys,
            bytes_in: s.bytes_in,
            bytes_out: s.bytes_out,
            addr: s.address.clone().unwrap_or_default(),
            relay: s.relay.and_then(|r| view.get(r)).map(|m| m.name.to_string()),
            identity: IDENTITY_KEYS.to_owned(),
            kem: KEY_EXCHANGE.to_owned(),
            aead: AEAD.to_owned(),
            certificate_name: s.certificate_name.to_string(),
            role: s.role,
            certificate_expires_at: s.certificate_expires,
        })
        .collect();
    entries.sort_by(|a, b| (&a.name, &a.direction).cmp(&(&b.name, &b.direction)));
    SessionsReply { sessions: entries }
}

/// `now` is unix seconds.
pub(super) fn refusals(view: &MeshView, reports: &[RefusalReport], now: u64) -> RefusalsReply {
    let mut reports: Vec<&RefusalReport> = reports.iter().collect();
    reports.sort_by_key(|r| Reverse(r.last));
    let entry = |r: &RefusalReport| RefusalEntry {
        direction: direction(r.outbound).to_owned(),
        refused_by: if r.by_peer { "other" } else { "this" }.to_owned(),
        addr: r.address.clone().unwrap_or_default(),
        name: r.node.and_then(|n| view.get(n)).map(|m| view.shown(m)),
        reason: r.cause.to_string(),
        message: r.message.clone(),
        count: r.count,
        last_at: now.saturating_sub(r.last.elapsed().as_secs()),
    };
    RefusalsReply { refusals: reports.into_iter().map(entry).collect() }
}

/// What the owner of this node should look at: its home, or that of another member, runs twice.
pub(super) fn warnings(reports: &[RefusalReport]) -> Vec<String> {
    let mut warnings: Vec<String> = reports
        .iter()
        .filter(|r| r.is_copy() && r.last.elapsed() < NEWS)
        .map(|r| match &r.address {
            Some(address) => format!("{} ({address})", r.message),
            None => r.message.clone(),
        })
        .collect();
    warnings.sort();
    warnings.dedup();
    warnings
}
