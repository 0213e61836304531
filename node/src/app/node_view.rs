//! The view as the API's documents.
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, UNIX_EPOCH},
};

use octomesh_protocol::{
    card::ToolCard,
    id::{CardHash, ToolName},
    session::{AEAD, IDENTITY_KEYS, KEY_EXCHANGE, SUITE},
};
use octomesh_tools::registry::{EntryState, Tier};

use super::{network_view, node::Node, session_view};
use crate::{
    api::{
        ApiError,
        types::{
            Gpu, GpuAbsence, LoadedModel, MembershipCounts, NodeEntry, NodesReply, RoutingCounts,
            StatusReply, ToolEntry, Transport,
        },
    },
    load::{
        CardState, Condition,
        gpu::{Absence, GpuProblem},
        models::Model,
    },
    membership::{Member, MemberState, MeshView, view::CatalogueView},
    router::vram,
};

/// Names suggested for one that is not known.
const SUGGESTED: usize = 3;

fn gpus(member: &Member) -> Vec<Gpu> {
    let Some(advert) = &member.advert else { return Vec::new() };
    let since = member.advert_at.map_or(Duration::ZERO, |at| at.elapsed());
    advert
        .gpus
        .iter()
        .map(|g| Gpu {
            name: g.name.clone(),
            vram_total: g.vram_total,
            vram_free: vram::known_free(g, since),
            age_ms: if g.declared { Some(0) } else { vram::reading_age(g, since).map(millis) },
            declared: g.declared,
            id: None,
            reserved: None,
            busy_percent: None,
        })
        .collect()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// This node's own: as they are now, not as the last advert said.
fn own_gpus(node: &Node) -> Vec<Gpu> {
    let gpu = |state: CardState| Gpu {
        vram_total: state.card.total,
        vram_free: state.free,
        age_ms: match state.card.free {
            _ if state.card.is_declared() => Some(0),
            read => read.map(|(_, at)| millis(at.elapsed())),
        },
        declared: state.card.is_declared(),
        id: Some(state.card.id.to_string()),
        reserved: Some(state.reserved),
        busy_percent: state.card.busy_percent,
        name: state.card.name,
    };
    node.hardware.cards().into_iter().map(gpu).collect()
}

fn gpus_absent(condition: &Condition) -> Vec<GpuAbsence> {
    let told = condition.absent.iter().filter(|a| a.problem != GpuProblem::Off);
    let absence = |a: &Absence| GpuAbsence {
        vendor: a.vendor.to_string(),
        reason: a.problem.code().to_owned(),
        detail: a.to_string(),
        present: a.present,
    };
    told.map(absence).collect()
}

fn loaded(model: &Model) -> LoadedModel {
    LoadedModel {
        name: model.name.clone(),
        server: model.server.clone(),
        bytes: model.bytes,
        vram: model.vram,
        context: model.context,
        slots_busy: model.slots.map(|(busy, _)| busy),
        slots: model.slots.map(|(_, all)| all),
    }
}

/// What the owner should know: a card that can't be used, and that others send nothing.
fn hardware_warnings(condition: &Condition) -> Vec<String> {
    let cards = condition.absent.iter().filter(|a| a.present).map(|a| format!("gpu: {a}"));
    let kept = condition.yields.map(|reason| {
        format!(
            "other nodes send no steps here, because this machine is kept by its owner: {}",
            reason.words()
        )
    });
    cards.chain(kept).collect()
}

fn ratio(running: u16, queued: u16, slots: u16) -> f64 {
    let ratio = (f64::from(running) + f64::from(queued)) / f64::from(slots.max(1));
    (ratio * 1000.0).round() / 1000.0
}

/// `not_ready`: why, when it is not.
pub(super) fn status(node: &Node, view: &MeshView, not_ready: Option<String>) -> StatusReply {
    let own = view.own();
    let load = *node.executor.load().borrow();
    let counts = node.dispatcher.counts();
    let condition = node.hardware.condition();
    let revoked = node.trust.now().is_revoked(node.caller.node);
    let state = match (&not_ready, load.draining) {
        _ if revoked => "revoked",
        (Some(_), _) => "not_ready",
        (None, true) => "draining",
        (None, false) => "alive",
    };
    let problems = node.registry.snapshot();
    let tool_warnings = problems
        .entries
        .values()
        .filter_map(|e| {
            e.state.reason().map(|reason| format!("tool {} is not offered: {reason}", e.card.name))
        })
        .chain(problems.problems.iter().map(|(path, why)| format!("{}: {why}", path.display())));
    let certificate = node.life.renewal.warning(&node.trust.now().chain, node.clock.unix());
    let excluded = node.trust.now().exclusion().map(|why| format!("{why}; {}", why.hint()));
    let sandbox = node.sandbox.self_test();
    // Without bubblewrap the next level does the same.
    let weak = sandbox.level < octomesh_tools::policy::CODE_LEVEL;
    let sandbox_warnings =
        sandbox.missing.iter().filter(|_| weak).map(|missing| format!("sandbox: {missing}"));
    StatusReply {
        cluster_enabled: true,
        node_id: node.caller.node.to_string(),
        state: state.to_owned(),
        region: node.config.region.clone(),
        capabilities: problems.available().map(|e| e.card.name.to_string()).collect(),
        uptime_secs: node.started.elapsed().as_secs(),
        transport: Transport {
            bind_addr: node.listening.join(","),
            advertise_addr: own.and_then(|m| m.addresses.first().cloned()),
            encryption: SUITE.to_owned(),
            identity: IDENTITY_KEYS.to_owned(),
            kem: KEY_EXCHANGE.to_owned(),
            aead: AEAD.to_owned(),
            protocol_version: 1,
        },
        membership: membership(view),
        routing: RoutingCounts {
            local_load: ratio(load.running, load.queued, load.slots),
            tasks_routed_out: counts.routed_out.load(Ordering::Relaxed),
            tasks_routed_in: node.routed_in.load(Ordering::Relaxed),
            tasks_failed_over: counts.failed_over.load(Ordering::Relaxed),
        },
        name: node.name().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sandbox: node.sandbox.level(),
        slots: u32::from(load.slots),
        running: u32::from(load.running),
        queued: u32::from(load.queued),
        engines: vec!["rules".to_owned()],
        lazy_tools: node.config.lazy_tools.to_string(),
        gpus: own_gpus(node),
        warnings: excluded
            .into_iter()
            .chain(certificate)
            .chain(node.trust.now().warning())
            .chain(node.warnings.iter().cloned())
            .chain(session_view::warnings(&node.net.refusals()))
            .chain(sandbox_warnings)
            .chain(hardware_warnings(&condition))
            .chain(tool_warnings)
            .chain(network_view::warnings(view))
            .collect(),
        discovery: network_view::discovery(&node.network.borrow(), view),
        unreached: network_view::unreached(view),
        not_ready,
        relayed: network_view::relayed(view),
        models: condition.models.iter().map(loaded).collect(),
        gpus_absent: gpus_absent(&condition),
        yields: condition.yields.map(|reason| reason.to_string()),
    }
}

fn membership(view: &MeshView) -> MembershipCounts {
    let count =
        |state| u32::try_from(view.members.values().filter(|m| m.state == state).count()).unwrap_or(u32::MAX);
    MembershipCounts {
        alive: count(MemberState::Alive),
        suspect: count(MemberState::Suspect),
        dead: count(MemberState::Down),
        left: count(MemberState::Left),
        total_seen: u32::try_from(view.members.len()).unwrap_or(u32::MAX),
    }
}

pub(super) fn nodes(view: &MeshView) -> NodesReply {
    let mut members: Vec<_> = view.members.values().collect();
    members.sort_by_key(|m| (!view.is_me(m.node), m.name.clone()));
    NodesReply { nodes: members.into_iter().map(|m| entry(view, m)).collect() }
}

fn entry(view: &MeshView, member: &Member) -> NodeEntry {
    let advert = member.advert.as_deref();
    let told = advert.map(|a| &a.circumstances);
    // What a node that is gone did when it was last heard says nothing about now.
    let load = advert.filter(|_| member.state.is_present()).map(|a| a.load).unwrap_or_default();
    let rtt_ms = member.rtt.map(|r| (r.as_secs_f64() * 100_000.0).round() / 100.0);
    NodeEntry {
        node_id: member.node.to_string(),
        name: view.shown(member),
        state: member.state.to_string(),
        addr: member.direct_address.clone().or_else(|| member.addresses.first().cloned()),
        relay: network_view::relay(view, member),
        region: advert.map(|a| a.region.clone()).unwrap_or_default(),
        tags: advert.map(|a| a.tags.clone()).unwrap_or_default(),
        load_ratio: ratio(load.running, load.queued, load.slots),
        slots: advert.map_or(0, |a| u32::from(a.load.slots)),
        running: u32::from(load.running),
        queued: u32::from(load.queued),
        rtt_ms,
        latency_ms: rtt_ms,
        capabilities: member.tools.keys().map(ToString::to_string).collect(),
        last_seen: member.last_seen.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_secs()),
        incarnation: advert.map_or(0, |a| a.incarnation),
        is_self: view.is_me(member.node),
        draining: load.draining,
        sandbox: advert.map(|a| a.sandbox),
        gpus: gpus(member),
        models: advert.map(|a| a.models.clone()).unwrap_or_default(),
        tools: u32::try_from(member.tools.len()).unwrap_or(u32::MAX),
        suite: member.suite.map(str::to_owned),
        version: advert.map(|a| a.version.clone()).unwrap_or_default(),
        problem: member.problem.clone().or_else(|| unproven(member)),
        ready: load.ready,
        step: network_view::step(view, member),
        heard_from: member.reach.heard_from().iter().map(ToString::to_string).collect(),
        no_gpu: told.map(|c| c.no_gpu.clone()).filter(|why| !why.is_empty()),
        yields: told.and_then(|c| c.yields).map(|reason| reason.to_string()),
        macs: told.map(|c| c.macs.iter().map(ToString::to_string).collect()).unwrap_or_default(),
    }
}

/// A member that is there and takes no steps, because its executor does not work.
fn unproven(member: &Member) -> Option<String> {
    let told = member.advert.as_ref().filter(|_| member.state.is_present())?;
    (!told.load.ready).then(|| {
        "not_ready: its executor does not bring its self-calls to an end; `octomesh status` there says why"
            .to_owned()
    })
}

/// Tools with their cards, by name: those of this node, or of the whole mesh. Variants of one name are entries of their own.
pub(super) fn tools(node: &Node, view: &MeshView, all: bool) -> Vec<(Arc<ToolCard>, ToolEntry)> {
    let snapshot = node.registry.snapshot();
    let mut entries: BTreeMap<(ToolName, CardHash), (Arc<ToolCard>, ToolEntry)> = BTreeMap::new();
    for own in snapshot.entries.values() {
        let state = match &own.state {
            EntryState::Available if own.loaded => "loaded",
            EntryState::Available => "available",
            EntryState::Unavailable { .. } => "unavailable",
            EntryState::Quarantined { .. } => "quarantined",
        };
        let mut entry = tool_entry(&own.card, own.hash, own.tier, state);
        entry.reason = own.state.reason().map(str::to_owned);
        if own.state.is_available() {
            entry.nodes.push(node.name().to_string());
        }
        entries.insert((own.card.name.clone(), own.hash), (Arc::clone(&own.card), entry));
    }
    let mesh = CatalogueView::new(view);
    if all {
        for (name, variants) in &mesh.tools {
            for variant in variants {
                let tier = if octomesh_tools::registry::CORE_TOOLS.contains(&name.as_str()) {
                    Tier::Core
                } else {
                    Tier::Deferred
                };
                let (_, entry) = entries.entry((name.clone(), variant.hash)).or_insert_with(|| {
                    let entry = tool_entry(&variant.card, variant.hash, tier, "available");
                    (Arc::clone(&variant.card), entry)
                });
                for holder in variant.nodes.iter().filter_map(|n| view.get(*n)) {
                    let holder = view.shown(holder);
                    if !entry.nodes.contains(&holder) {
                        entry.nodes.push(holder);
                    }
                }
            }
        }
    }
    let names = mesh.model_names();
    for ((name, hash), (_, entry)) in &mut entries {
        entry.model_name = names.name(name.as_str(), *hash).map(str::to_owned);
        if mesh.variants(name).len() > 1 {
            let own = Some(node.name().to_string()).filter(|own| entry.nodes.contains(own));
            // The same one whoever came last.
            let holder = own.or_else(|| entry.nodes.iter().min().cloned());
            entry.listed_as = holder.map_or_else(|| name.to_string(), |holder| format!("{name}@{holder}"));
        }
    }
    entries.into_values().collect()
}

fn tool_entry(card: &ToolCard, hash: CardHash, tier: Tier, state: &str) -> ToolEntry {
    ToolEntry {
        name: card.name.to_string(),
        listed_as: card.name.to_string(),
        model_name: None,
        version: card.version.clone(),
        card_hash: hash.to_string(),
        source: card.source,
        tier: tier.to_string(),
        state: state.to_owned(),
        reason: None,
        effect: card.effect,
        needs: card.needs.clone(),
        nodes: Vec::new(),
    }
}

/// 404 with the names that look most like it.
pub(super) fn unknown_tool(name: &str, view: &MeshView) -> ApiError {
    let short: String = name.chars().take(80).collect();
    let mut near: Vec<(usize, String)> = CatalogueView::new(view)
        .tools
        .keys()
        .map(|known| (strsim::levenshtein(&short, known.as_str()), known.to_string()))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 3)
        .collect();
    near.sort();
    near.truncate(SUGGESTED);
    let error = ApiError::not_found("unknown_tool", format!("no node of this mesh has a tool {short:?}"));
    match near.as_slice() {
        [] => error.hint("`octomesh tools --all` lists the tools of the mesh"),
        near => {
            let names: Vec<&str> = near.iter().map(|(_, n)| n.as_str()).collect();
            error.hint(format!("did you mean {}?", names.join(" or ")))
        }
    }
}

#[cfg(test)]
mod tests;
