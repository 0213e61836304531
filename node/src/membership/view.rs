//! The mesh as one node sees it at one moment: a snapshot of plain values, made by the membership task and read by everybody
//! else. A reader never waits and never sees half of a change.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use octomesh_protocol::{
    advert::Advert,
    card::ToolCard,
    id::{CardHash, NodeId, NodeName, ToolName},
    trust::{Certificate, Grants, Role},
};
use octomesh_tools::names::ModelNames;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::reach::{Reach, Unreached};

/// What is known of a member's health.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MemberState {
    /// It answers.
    Alive,
    /// Its last connection closed or a probe failed; it may still answer.
    Suspect,
    /// It does not answer.
    Down,
    /// It said good-bye.
    Left,
}

impl MemberState {
    /// Whether the member can still be expected to answer.
    #[must_use]
    pub const fn is_present(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect)
    }
}

/// A tool of a member, with its card.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteTool {
    /// The card, checked against its hash.
    pub card: Arc<ToolCard>,
    /// The hash.
    pub hash: CardHash,
}

/// One member of the mesh, this node included.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Who.
    pub node: NodeId,
    /// Its name, from its certificate.
    pub name: NodeName,
    /// Its role, from its certificate.
    pub role: Role,
    /// Its grants, from its certificate.
    pub grants: Grants,
    /// The certificate that it showed last; absent for hearsay.
    pub certificate: Option<Arc<Certificate>>,
    /// Health.
    pub state: MemberState,
    /// Where it can be dialled, `IP:PORT`.
    pub addresses: Vec<String>,
    /// Remote address of the open connection; absent over a relay.
    pub direct_address: Option<String>,
    /// The member over which the session goes, when neither side can dial the other.
    pub relay: Option<NodeId>,
    /// The newest advert.
    pub advert: Option<Arc<Advert>>,
    /// When that advert came.
    pub advert_at: Option<Instant>,
    /// The last time that the member itself was heard on a connection; gossip passed on by others does not count.
    pub last_contact: Option<Instant>,
    /// The same as wall-clock time, for people.
    pub last_seen: Option<SystemTime>,
    /// Tools whose cards are here, by name.
    pub tools: Arc<BTreeMap<ToolName, Arc<RemoteTool>>>,
    /// Whether `tools` is all of the manifest that the newest advert names.
    pub tools_complete: bool,
    /// Measured round-trip time; `None` is unknown, not zero.
    pub rtt: Option<Duration>,
    /// Whether a session is open.
    pub connected: bool,
    /// Cipher suite of that session.
    pub suite: Option<&'static str>,
    /// What is wrong with it, for people: not heard, heard but not dialled, refused and why.
    pub problem: Option<String>,
    /// How far it got on the way to it.
    pub reach: Reach,
    /// Its certificate was seen now or in an earlier run; others are hearsay.
    pub known: bool,
    /// The last dial of it failed, after this node last came back among others.
    pub tried: bool,
    /// Revocations were exchanged with it since this node last came back among others.
    pub exchanged: bool,
}

impl Member {
    /// A member of whom nothing but its certificate is known: down until it is heard.
    #[must_use]
    pub fn new(node: NodeId, name: NodeName, role: Role, grants: Grants) -> Self {
        Self {
            node,
            name,
            role,
            grants,
            certificate: None,
            state: MemberState::Down,
            addresses: Vec::new(),
            direct_address: None,
            relay: None,
            advert: None,
            advert_at: None,
            last_contact: None,
            last_seen: None,
            tools: Arc::default(),
            tools_complete: false,
            rtt: None,
            connected: false,
            suite: None,
            problem: None,
            reach: Reach::default(),
            known: false,
            tried: false,
            exchanged: false,
        }
    }

    /// Whether it left for good or was revoked. One that was only stopped is `left` too, but stays known.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state == MemberState::Left && !self.known
    }

    /// Its tool of that name, when the card is here.
    #[must_use]
    pub fn tool(&self, name: &ToolName) -> Option<&Arc<RemoteTool>> {
        self.tools.get(name)
    }

    /// How long ago its newest advert came or it was last heard directly, whichever is less; `None` when neither happened.
    #[must_use]
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.advert_at.max(self.last_contact).map(|at| now.saturating_duration_since(at))
    }
}

/// Why a text names no member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum ResolveError {
    /// No member has that name, id or prefix.
    #[error("no node {0:?} in this mesh")]
    UnknownNode(String),
    /// A prefix, or the end of an id, of several members.
    #[error("{text:?} could be {}", names.join(" or "))]
    AmbiguousNode {
        /// What was asked for.
        text: String,
        /// What the members that it fits are called; at most 8.
        names: Vec<String>,
    },
}

/// Between a name that several members have and the end of an id. No name has it.
const TWIN: char = '~';
/// Characters of an id's end that name its node: among a thousand nodes four are rarely those of two.
const SHORTEST_END: usize = 4;

/// Members stand before those that were only told, and those before members that have left.
fn rank(member: &Member) -> u8 {
    match member.state {
        MemberState::Left => 2,
        _ if member.state.is_present() || member.known || member.last_seen.is_some() => 0,
        _ => 1,
    }
}

fn tail(node: NodeId) -> String {
    let id = node.short();
    id.get(id.len().saturating_sub(SHORTEST_END)..).unwrap_or_default().to_owned()
}

/// Names shown for an ambiguous prefix: a mesh of a thousand nodes still gives a readable message.
const AMBIGUOUS_SHOWN: usize = 8;

/// The mesh at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshView {
    /// This node.
    pub me: NodeId,
    /// All members, this node included.
    pub members: BTreeMap<NodeId, Arc<Member>>,
    /// Addresses that lead to nobody known.
    pub unreached: Arc<[Unreached]>,
    /// Nodes that left for good or were forgotten here within a day, and have not come back.
    pub gone: Arc<BTreeSet<NodeId>>,
    /// Raised with every change.
    pub version: u64,
}

impl MeshView {
    /// A mesh of this node alone.
    #[must_use]
    pub fn alone(me: Member) -> Self {
        Self {
            me: me.node,
            members: BTreeMap::from([(me.node, Arc::new(me))]),
            unreached: Arc::default(),
            gone: Arc::default(),
            version: 0,
        }
    }

    /// Whether `node` is this node.
    #[must_use]
    pub fn is_me(&self, node: NodeId) -> bool {
        self.me == node
    }

    /// This node's own entry.
    #[must_use]
    pub fn own(&self) -> Option<&Arc<Member>> {
        self.get(self.me)
    }

    /// The member with that id.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&Arc<Member>> {
        self.members.get(&node)
    }

    /// The member with that name. Issuers keep names unique, but two of them can't see each other's work at once: of several members
    /// that of the least id has it, for every node and at all times, and the others are called as [`MeshView::shown`] says. A member
    /// stands before one that was only told, and that before one that has left.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<Member>> {
        let named = self.members.values().filter(|m| m.name.as_str() == name);
        named.min_by_key(|m| (rank(m), m.node))
    }

    /// What a member is called here: its name, or with a part of its id when another one has that name.
    #[must_use]
    pub fn shown(&self, member: &Member) -> String {
        match self.by_name(member.name.as_str()) {
            Some(first) if first.node != member.node && member.state != MemberState::Left => {
                format!("{}{TWIN}{}", member.name, tail(member.node))
            }
            _ => member.name.to_string(),
        }
    }

    /// Names that several members have, with those members, the one that is called by it first.
    #[must_use]
    pub fn twins(&self) -> Vec<Vec<&Arc<Member>>> {
        let mut by_name: BTreeMap<&NodeName, Vec<&Arc<Member>>> = BTreeMap::new();
        for member in self.members.values().filter(|m| rank(m) == 0) {
            by_name.entry(&member.name).or_default().push(member);
        }
        by_name.into_values().filter(|members| members.len() > 1).collect()
    }

    /// Whether this node can know if `caller` was revoked while it was away: it has exchanged revocations with another member; or with
    /// the caller, and every other member was looked for and not found. Alone with a revoked node nobody can know.
    #[must_use]
    pub fn may_trust(&self, caller: NodeId) -> bool {
        let others = || self.members.values().filter(|m| m.node != caller && m.node != self.me);
        if others().any(|m| m.exchanged) {
            return true;
        }
        let away = |m: &&Arc<Member>| !m.connected && (m.tried || m.addresses.is_empty());
        self.get(caller).is_some_and(|m| m.exchanged) && others().filter(|m| m.known).all(|m| away(&m))
    }

    /// Members that answer, this node included.
    pub fn alive(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values().filter(|m| m.state == MemberState::Alive)
    }

    /// The member that `text` names: its name, its id, a prefix of either, or the end of its id, as lists and logs shorten it; each but
    /// a whole name must fit only one. A name that several members have may be followed by `~` and the end of an id.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve(&self, text: &str) -> Result<&Arc<Member>, ResolveError> {
        let unknown = || ResolveError::UnknownNode(text.chars().take(80).collect());
        if text.is_empty() {
            return Err(unknown());
        }
        if let Some(member) = self.by_name(text) {
            return Ok(member);
        }
        let fits = |m: &&Arc<Member>| {
            let id = m.node.to_string();
            let twin = text.split_once(TWIN).is_some_and(|(name, end)| {
                m.name.as_str() == name && end.len() >= SHORTEST_END && id.ends_with(end)
            });
            let end = text.len() >= SHORTEST_END && id.ends_with(text);
            twin || end || m.name.as_str().starts_with(text) || id.starts_with(text)
        };
        let mut found = self.members.values().filter(fits);
        let first = found.next().ok_or_else(unknown)?;
        let mut names: Vec<String> = found.map(|m| self.shown(m)).take(AMBIGUOUS_SHOWN - 1).collect();
        if names.is_empty() {
            return Ok(first);
        }
        names.insert(0, self.shown(first));
        Err(ResolveError::AmbiguousNode { text: text.chars().take(80).collect(), names })
    }
}

/// One card and the nodes that carry it.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogueEntry {
    /// The card.
    pub card: Arc<ToolCard>,
    /// Its hash.
    pub hash: CardHash,
    /// Nodes that have exactly this card, in order of their ids; all are replicas of one tool.
    pub nodes: Vec<NodeId>,
}

/// The tools of the whole mesh by name. Several entries under one name are variants.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CatalogueView {
    /// Variants of each name, the one that most nodes carry first, then by hash.
    pub tools: BTreeMap<ToolName, Vec<CatalogueEntry>>,
}

impl CatalogueView {
    /// From all members that are alive or suspect.
    #[must_use]
    pub fn new(view: &MeshView) -> Self {
        let mut tools: BTreeMap<ToolName, Vec<CatalogueEntry>> = BTreeMap::new();
        for member in view.members.values().filter(|m| m.state.is_present()) {
            for (name, tool) in member.tools.iter() {
                let variants = tools.entry(name.clone()).or_default();
                match variants.iter_mut().find(|v| v.hash == tool.hash) {
                    Some(variant) => variant.nodes.push(member.node),
                    None => variants.push(CatalogueEntry {
                        card: Arc::clone(&tool.card),
                        hash: tool.hash,
                        nodes: vec![member.node],
                    }),
                }
            }
        }
        for variants in tools.values_mut() {
            variants.sort_by(|a, b| b.nodes.len().cmp(&a.nodes.len()).then(a.hash.cmp(&b.hash)));
        }
        Self { tools }
    }

    /// What models call each of them.
    #[must_use]
    pub fn model_names(&self) -> ModelNames {
        let all = self
            .tools
            .iter()
            .flat_map(|(name, variants)| variants.iter().map(move |v| (name.as_str(), v.hash)));
        ModelNames::new(all)
    }

    /// The variants of a name; empty when no node has it.
    #[must_use]
    pub fn variants(&self, name: &ToolName) -> &[CatalogueEntry] {
        self.tools.get(name).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::card::{Effect, Needs, Source};

    use super::*;

    fn card(name: &str, version: &str) -> Arc<RemoteTool> {
        let card = ToolCard {
            name: ToolName::parse(name).unwrap(),
            version: version.into(),
            description: String::new(),
            keywords: vec![],
            input_schema: serde_json::json!({"type": "object"}),
            output_schema: None,
            examples: vec![],
            effect: Effect::Pure,
            needs: Needs::default(),
            typical_ms: 1,
            data: vec![],
            demo_calls: vec![],
            limitations: vec![],
            best_practice: vec![],
            requires_llm: false,
            source: Source::Builtin,
        };
        let hash = card.hash().unwrap();
        Arc::new(RemoteTool { card: Arc::new(card), hash })
    }

    fn member(byte: u8, name: &str, tools: &[(&str, &str)]) -> Member {
        let mut m = Member::new(
            NodeId::from_bytes([byte; 32]),
            NodeName::parse(name).unwrap(),
            Role::Worker,
            Grants::default(),
        );
        m.state = MemberState::Alive;
        m.tools = Arc::new(tools.iter().map(|(n, v)| (ToolName::parse(n).unwrap(), card(n, v))).collect());
        m
    }

    fn view() -> MeshView {
        let mut view = MeshView::alone(member(1, "pi", &[("echo", "1")]));
        for m in [
            member(2, "tower", &[("echo", "2"), ("render", "1")]),
            member(3, "tablet", &[("echo", "2")]),
            Member { state: MemberState::Down, ..member(4, "attic", &[("attic-only", "1")]) },
        ] {
            view.members.insert(m.node, Arc::new(m));
        }
        view
    }

    #[test]
    fn names_ids_and_prefixes() {
        let view = view();
        let tower = NodeId::from_bytes([2; 32]);
        assert_eq!(view.resolve("tower").unwrap().node, tower);
        assert_eq!(view.resolve("to").unwrap().node, tower);
        assert_eq!(view.resolve(&tower.to_string()).unwrap().node, tower);
        assert_eq!(
            view.resolve("t"),
            Err(ResolveError::AmbiguousNode {
                text: "t".into(),
                names: vec!["tower".into(), "tablet".into()]
            })
        );
        assert!(matches!(view.resolve(""), Err(ResolveError::UnknownNode(_))));
        assert!(matches!(view.resolve("moon"), Err(ResolveError::UnknownNode(_))));
        assert_eq!(view.alive().count(), 3);
        assert!(view.is_me(view.own().unwrap().node));
    }

    #[test]
    fn a_name_that_was_only_told_does_not_stand_before_a_member() {
        let mut view = view();
        let rumour = Member { state: MemberState::Down, ..member(0, "tower", &[]) };
        view.members.insert(rumour.node, Arc::new(rumour));
        assert_eq!(view.by_name("tower").unwrap().node, NodeId::from_bytes([2; 32]));
        let mut tower = (**view.get(NodeId::from_bytes([2; 32])).unwrap()).clone();
        (tower.state, tower.last_seen) = (MemberState::Down, Some(SystemTime::UNIX_EPOCH));
        view.members.insert(tower.node, Arc::new(tower));
        assert_eq!(view.by_name("tower").unwrap().node, NodeId::from_bytes([2; 32]), "down, but real");
    }

    /// Two issuers gave it at one moment. Whatever state the two are in, it means the same one, and each can be named.
    #[test]
    fn one_name_of_two_members_is_of_one_of_them() {
        let mut view = view();
        let (first, second) = (NodeId::from_bytes([2; 32]), NodeId::from_bytes([7; 32]));
        let mut twin = member(7, "tower", &[]);
        assert_eq!(view.twins(), [] as [Vec<&Arc<Member>>; 0]);
        for (state, known) in
            [(MemberState::Alive, false), (MemberState::Suspect, true), (MemberState::Down, true)]
        {
            (twin.state, twin.known) = (state, known);
            view.members.insert(second, Arc::new(twin.clone()));
            assert_eq!(view.resolve("tower").unwrap().node, first);
            let shown = view.shown(&twin);
            assert!(shown.starts_with("tower~") && shown.len() == "tower~".len() + SHORTEST_END, "{shown}");
            assert_eq!(view.shown(view.get(first).unwrap()), "tower");
            for text in [&shown, &second.to_string(), &second.short()] {
                assert_eq!(view.resolve(text).unwrap().node, second, "{text}");
            }
            assert_eq!(view.twins().len(), 1);
            assert_eq!(view.twins()[0].iter().map(|m| m.node).collect::<Vec<_>>(), [first, second]);
            assert!(view.resolve("tower~").is_err() && view.resolve("attic~0000").is_err());
        }
        (twin.state, twin.last_seen) = (MemberState::Left, Some(SystemTime::UNIX_EPOCH));
        view.members.insert(second, Arc::new(twin.clone()));
        assert_eq!(view.resolve("tower").unwrap().node, first, "the other has left");
        assert_eq!((view.shown(&twin).as_str(), view.twins().len()), ("tower", 0));
    }

    #[test]
    fn a_whole_name_wins_over_a_prefix() {
        let mut view = view();
        let m = member(9, "to", &[]);
        view.members.insert(m.node, Arc::new(m));
        assert_eq!(view.resolve("to").unwrap().node, NodeId::from_bytes([9; 32]));
    }

    #[test]
    fn replicas_and_variants() {
        let catalogue = CatalogueView::new(&view());
        let echo = catalogue.variants(&ToolName::parse("echo").unwrap());
        assert_eq!(echo.len(), 2);
        assert_eq!(echo[0].nodes, [NodeId::from_bytes([2; 32]), NodeId::from_bytes([3; 32])]);
        assert_eq!(echo[1].nodes, [NodeId::from_bytes([1; 32])]);
        assert!(catalogue.variants(&ToolName::parse("attic-only").unwrap()).is_empty(), "its node is down");
    }
}
