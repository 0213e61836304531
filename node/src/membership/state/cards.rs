//! The tools of members: manifests and cards, which are asked for when an advert names others than those that are here.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use octomesh_protocol::{
    advert::Manifest,
    id::{CardHash, NodeId, ToolName, ToolSetHash},
    limits,
};
use tokio::time::Instant;

use super::{Effect, FETCH_RETRY, Member, MembershipState, RemoteTool};

/// Bytes of the cards of one member; it is asked for no more once it has so many. A card is usually 1 or 2 KiB, so that a member can
/// have all the 1,024 tools that a manifest may name; and what they cost in memory is a few times as much.
pub(super) const MEMBER_CARD_BYTES: usize = 4 * 1024 * 1024;
/// What such a member's problem begins with.
const OVER_LIMIT: &str = "cards_over_limit";

/// A card that is here, and how long it is.
#[derive(Debug)]
pub(super) struct Kept {
    tool: Arc<RemoteTool>,
    bytes: usize,
}

/// The cards of all members, each once.
pub(super) type Cards = BTreeMap<CardHash, Kept>;

fn left_out(member: &mut Member, bytes: usize) {
    if member.problem.is_none() {
        tracing::warn!(node = %member.name, code = OVER_LIMIT, bytes, "a member has more cards than are taken from one");
        member.problem = Some(format!(
            "{OVER_LIMIT}: its cards have over {} MiB, and the rest of its tools is not known here; let its owner shorten or remove some",
            MEMBER_CARD_BYTES >> 20
        ));
    }
}

impl MembershipState {
    /// Asks for what the newest advert names and is not here: the manifest first, then the unknown cards.
    pub(super) fn fetch(&mut self, node: NodeId, now: Instant, effects: &mut Vec<Effect>) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        let Some(wanted) = contact.member.advert.as_ref().map(|a| a.tool_set) else { return };
        let current = contact.manifest.as_ref().filter(|(hash, _)| *hash == wanted);
        if current.is_some() && contact.member.tools_complete {
            return;
        }
        if current.is_none() {
            contact.member.tools_complete = false;
        }
        if !contact.member.connected || contact.fetch_after.is_some_and(|after| now < after) {
            return;
        }
        contact.fetch_after = Some(now + FETCH_RETRY);
        match current {
            None => effects.push(Effect::FetchManifest { node, hash: wanted }),
            Some((_, manifest)) => {
                let bytes: usize =
                    manifest.entries().iter().filter_map(|e| self.cards.get(&e.card)).map(|c| c.bytes).sum();
                if bytes >= MEMBER_CARD_BYTES {
                    left_out(&mut contact.member, bytes);
                    return;
                }
                let hashes: BTreeSet<CardHash> = manifest
                    .entries()
                    .iter()
                    .map(|e| e.card)
                    .filter(|hash| !self.cards.contains_key(hash))
                    .take(limits::CARDS_PER_REPLY)
                    .collect();
                // All cards are here and one is not what the manifest says of it: asking again changes nothing.
                if hashes.is_empty() {
                    return;
                }
                effects.push(Effect::FetchCards { node, hashes: hashes.into_iter().collect() });
            }
        }
    }

    pub(super) fn manifest(
        &mut self,
        node: NodeId,
        hash: ToolSetHash,
        manifest: Manifest,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        contact.manifest = Some((hash, manifest));
        contact.fetch_after = None;
        self.forget_unused_cards();
        self.assemble(node);
        self.fetch(node, now, effects);
    }

    pub(super) fn cards_came(
        &mut self,
        cards: Vec<Arc<RemoteTool>>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let some = !cards.is_empty();
        self.cards.extend(cards.into_iter().map(|tool| {
            let bytes = tool.card.to_bytes().map_or(limits::CARD_BYTES, |bytes| bytes.len());
            (tool.hash, Kept { tool, bytes })
        }));
        let incomplete: Vec<NodeId> =
            self.contacts.iter().filter(|(_, c)| !c.member.tools_complete).map(|(id, _)| *id).collect();
        for node in incomplete {
            self.assemble(node);
            if let (true, Some(contact)) = (some, self.contacts.get_mut(&node)) {
                contact.fetch_after = None;
            }
            self.fetch(node, now, effects);
        }
    }

    /// Builds a member's tools from its manifest and the cards that are here.
    fn assemble(&mut self, node: NodeId) {
        let Some(contact) = self.contacts.get_mut(&node) else { return };
        let Some((hash, manifest)) = &contact.manifest else { return };
        let tools: BTreeMap<ToolName, Arc<RemoteTool>> = manifest
            .entries()
            .iter()
            .filter_map(|e| self.cards.get(&e.card).map(|kept| &kept.tool).filter(|c| c.card.name == e.name))
            .map(|tool| (tool.card.name.clone(), Arc::clone(tool)))
            .collect();
        let current = contact.member.advert.as_ref().is_some_and(|a| a.tool_set == *hash);
        contact.member.tools_complete = current && tools.len() == manifest.entries().len();
        contact.member.tools = Arc::new(tools);
    }

    pub(super) fn forget_unused_cards(&mut self) {
        let manifests = self.contacts.values().filter_map(|c| c.manifest.as_ref());
        let used: BTreeSet<CardHash> =
            manifests.flat_map(|(_, m)| m.entries().iter().map(|e| e.card)).collect();
        self.cards.retain(|hash, _| used.contains(hash));
    }
}
