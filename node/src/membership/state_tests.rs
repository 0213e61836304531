use octomesh_protocol::{
    advert::{LoadState, ManifestEntry},
    card::{self, Needs, SandboxLevel, Source, ToolCard},
};

use super::*;

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

struct Mesh {
    state: MembershipState,
    now: Instant,
}

impl Mesh {
    /// Node 5 of a mesh.
    fn new() -> Self {
        let me = Member::new(id(5), name("me"), Role::Admin, Grants::default());
        Self { state: MembershipState::new(me), now: Instant::now() }
    }

    fn give(&mut self, input: Input) -> Vec<Effect> {
        self.state.handle(input, self.now, SystemTime::UNIX_EPOCH)
    }

    fn later(&mut self, ms: u64) -> Vec<Effect> {
        self.now += Duration::from_millis(ms);
        self.give(Input::Tick)
    }

    fn connect(&mut self, byte: u8) -> Vec<Effect> {
        self.give(Input::Connected {
            relay: None,
            node: id(byte),
            name: name(&format!("n{byte}")),
            role: Role::Worker,
            grants: Grants::default(),
            certificate: None,
            address: Some(format!("192.0.2.{byte}:9400")),
            dialled: Some(format!("192.0.2.{byte}:9400")),
        })
    }

    fn told(&mut self, byte: u8) -> Vec<Effect> {
        let told = MemberAddress {
            node: id(byte),
            name: name(&format!("n{byte}")),
            addresses: vec![format!("192.0.2.{byte}:9400")],
        };
        self.give(Input::Members { from: None, members: vec![told] })
    }

    fn member(&self, byte: u8) -> Arc<Member> {
        Arc::clone(self.state.view().get(id(byte)).unwrap())
    }
}

fn dials(effects: &[Effect]) -> Vec<NodeId> {
    effects
        .iter()
        .filter_map(|e| match e {
            Effect::Dial { node, .. } => *node,
            _ => None,
        })
        .collect()
}

fn tool(text: &str) -> Arc<RemoteTool> {
    let card = ToolCard {
        name: ToolName::parse(text).unwrap(),
        version: "1".into(),
        description: String::new(),
        keywords: vec![],
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        examples: vec![],
        effect: card::Effect::Pure,
        needs: Needs::default(),
        typical_ms: 1,
        data: vec![],
        demo_calls: vec![],
        limitations: vec![],
        best_practice: vec![],
        requires_llm: false,
        source: Source::Builtin,
    };
    Arc::new(RemoteTool { hash: card.hash().unwrap(), card: Arc::new(card) })
}

fn manifest(tools: &[Arc<RemoteTool>]) -> Manifest {
    Manifest::new(
        tools
            .iter()
            .map(|t| ManifestEntry { name: t.card.name.clone(), version: "1".into(), card: t.hash })
            .collect(),
    )
}

fn advert(byte: u8, incarnation: u64, seq: u64, tools: &Manifest) -> Advert {
    Advert {
        node: id(byte),
        incarnation,
        seq,
        load: LoadState { slots: 2, ready: true, ..LoadState::default() },
        memory_total: 0,
        gpus: vec![],
        models: vec![],
        tool_set: tools.hash().unwrap(),
        speed_percent: 100,
        sandbox: SandboxLevel::None,
        region: String::new(),
        tags: vec![],
        version: String::new(),
        circumstances: Default::default(),
    }
}

#[test]
fn the_smaller_id_dials_first() {
    let mut mesh = Mesh::new();
    mesh.told(3);
    mesh.told(9);
    assert_eq!(dials(&mesh.later(0)), [id(9)]);
    assert_eq!(dials(&mesh.later(1_500)), [id(3)]);
    assert!(dials(&mesh.later(3_000)).is_empty(), "both dials go on");
    let mut again = dials(&mesh.later(3_000));
    again.sort();
    assert_eq!(again, [id(3), id(9)], "nothing came of them");
}

#[test]
fn dials_back_off_and_say_why_they_fail() {
    let mut mesh = Mesh::new();
    mesh.told(9);
    let mut at = Vec::new();
    for tick in 0..200 {
        if !dials(&mesh.later(500)).is_empty() {
            at.push(tick);
            mesh.give(Input::DialFailed { node: Some(id(9)), address: None, reason: "no route".into() });
        }
    }
    let gaps: Vec<i32> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.is_sorted() && gaps.last() == Some(&60), "every 30 s in the end: {gaps:?}");
    assert_eq!(
        mesh.member(9).problem.as_deref(),
        Some("dialled, but: no route (heard of from the ticket or an earlier run)")
    );
    assert_eq!(mesh.member(9).state, MemberState::Down);
}

#[test]
fn hundreds_of_dead_addresses_do_not_crowd_out_the_rest() {
    let mut mesh = Mesh::new();
    for n in 0..500u16 {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        let told = MemberAddress {
            node: NodeId::from_bytes(bytes),
            name: name("x"),
            addresses: vec!["192.0.2.1:1".into()],
        };
        mesh.give(Input::Members { from: None, members: vec![told] });
    }
    let first = dials(&mesh.later(1_500));
    assert_eq!(first.len(), DIALS_PER_TICK);
    let mut seen: BTreeSet<NodeId> = first.into_iter().collect();
    for _ in 0..60 {
        for node in dials(&mesh.later(500)) {
            seen.insert(node);
            mesh.give(Input::DialFailed { node: Some(node), address: None, reason: "dead".into() });
        }
    }
    assert_eq!(seen.len(), 500, "each gets its turn within 30 s");
}

#[test]
fn a_closed_session_is_suspect_at_once_and_down_later() {
    let mut mesh = Mesh::new();
    let effects = mesh.connect(9);
    assert!(effects.contains(&Effect::Sync { node: id(9) }));
    assert!(effects.contains(&Effect::Persist));
    assert_eq!(mesh.member(9).state, MemberState::Alive);
    mesh.give(Input::Disconnected {
        node: id(9),
        last: false,
        path: Path::default(),
        reason: "surplus".into(),
    });
    assert_eq!(mesh.member(9).state, MemberState::Alive, "another session is open");
    mesh.give(Input::Disconnected { node: id(9), last: true, path: Path::default(), reason: "reset".into() });
    assert_eq!(mesh.member(9).state, MemberState::Suspect);
    assert_eq!(dials(&mesh.later(0)), [id(9)], "dialled at once");
    mesh.later(60_000);
    assert_eq!(mesh.member(9).state, MemberState::Suspect, "SWIM decides");
    let effects = mesh.give(Input::Liveness { node: id(9), to: MemberState::Down });
    assert_eq!(mesh.member(9).problem.as_deref(), Some("connected, then lost: reset"));
    assert_eq!(mesh.member(9).state, MemberState::Down);
    assert!(effects.contains(&Effect::Transition { node: id(9), name: name("n9"), to: MemberState::Down }));
    mesh.connect(9);
    assert_eq!(mesh.member(9).state, MemberState::Alive);
    assert_eq!(mesh.member(9).problem, None);
}

#[test]
fn an_old_advert_changes_nothing_and_gossip_is_no_contact() {
    let mut mesh = Mesh::new();
    let tools = manifest(&[]);
    mesh.give(Input::Advert { advert: advert(9, 1, 1, &tools), direct: false });
    assert!(mesh.state.view().get(id(9)).is_none(), "a stranger's advert makes no member");
    mesh.connect(9);
    mesh.give(Input::Advert { advert: advert(9, 10, 5, &tools), direct: true });
    let heard = mesh.member(9).last_contact;
    mesh.now += Duration::from_secs(5);
    mesh.give(Input::Advert { advert: advert(9, 10, 4, &tools), direct: false });
    mesh.give(Input::Advert { advert: advert(9, 9, 99, &tools), direct: false });
    assert_eq!(mesh.member(9).advert.as_ref().unwrap().seq, 5);
    mesh.give(Input::Advert { advert: advert(9, 10, 6, &tools), direct: false });
    assert_eq!(mesh.member(9).advert.as_ref().unwrap().seq, 6);
    assert_eq!(mesh.member(9).last_contact, heard);
}

#[test]
fn cards_are_fetched_by_hash_once() {
    let mut mesh = Mesh::new();
    mesh.connect(8);
    mesh.connect(9);
    let (a, b) = (tool("a"), tool("b"));
    let both = manifest(&[Arc::clone(&a), Arc::clone(&b)]);
    let hash = both.hash().unwrap();
    let effects = mesh.give(Input::Advert { advert: advert(9, 1, 1, &both), direct: true });
    assert_eq!(effects, [Effect::FetchManifest { node: id(9), hash }]);
    assert!(mesh.later(500).is_empty(), "not asked again while the first answer may come");
    let mut wanted = vec![a.hash, b.hash];
    wanted.sort();
    let effects = mesh.give(Input::Manifest { node: id(9), hash, manifest: both });
    assert_eq!(effects, [Effect::FetchCards { node: id(9), hashes: wanted }]);
    mesh.give(Input::Cards { cards: vec![Arc::clone(&a)] });
    assert!(!mesh.member(9).tools_complete);
    mesh.give(Input::Cards { cards: vec![Arc::clone(&b)] });
    assert!(mesh.member(9).tools_complete);
    assert_eq!(mesh.member(9).tools.len(), 2);
    // Another node with the same cards needs only its manifest.
    let one = manifest(&[Arc::clone(&a)]);
    mesh.give(Input::Advert { advert: advert(8, 1, 1, &one), direct: true });
    let effects = mesh.give(Input::Manifest { node: id(8), hash: one.hash().unwrap(), manifest: one });
    assert!(effects.is_empty());
    assert!(mesh.member(8).tools_complete);
}

#[test]
fn a_fetch_that_brought_nothing_is_tried_again() {
    let mut mesh = Mesh::new();
    mesh.connect(9);
    let tools = manifest(&[tool("a")]);
    mesh.give(Input::Advert { advert: advert(9, 1, 1, &tools), direct: true });
    assert!(mesh.later(2_000).is_empty());
    let effects = mesh.later(1_500);
    assert_eq!(effects, [Effect::FetchManifest { node: id(9), hash: tools.hash().unwrap() }]);
}

#[test]
fn only_members_with_a_certificate_are_passed_on() {
    let mut mesh = Mesh::new();
    mesh.told(3);
    assert!(mesh.state.addresses().is_empty());
    mesh.give(Input::Members { from: Some(id(9)), members: vec![rumour(1)] });
    mesh.connect(9);
    let kept: BTreeSet<NodeId> = mesh.state.remembered().iter().map(|m| m.node).collect();
    assert_eq!(kept, BTreeSet::from([id(3), id(9)]), "one of the file that is switched off is not forgotten");
    let told: Vec<NodeId> = mesh.state.addresses().iter().map(|m| m.node).collect();
    assert_eq!(told, [id(9)]);
}

#[test]
fn the_address_book_grows_by_hearsay_and_loses_nobody_who_is_away() {
    let mut mesh = Mesh::new();
    assert_eq!(mesh.told(3), [Effect::Persist]);
    assert!(mesh.told(3).is_empty(), "nothing new");
    let book = |mesh: &Mesh| -> Vec<NodeId> { mesh.state.remembered().iter().map(|m| m.node).collect() };
    assert_eq!(book(&mesh), [id(3)]);
    assert!(mesh.connect(9).contains(&Effect::Persist));
    assert_eq!(book(&mesh), [id(9), id(3)], "who was met stands first");
    // A node that dialled us: where it is reached is told later.
    mesh.give(Input::Connected {
        node: id(8),
        name: name("n8"),
        role: Role::Worker,
        grants: Grants::default(),
        certificate: None,
        address: Some("192.0.2.8:50000".into()),
        dialled: None,
        relay: None,
    });
    assert_eq!(book(&mesh), [id(9), id(3)]);
    assert_eq!(mesh.told(8), [Effect::Persist]);
    assert_eq!(book(&mesh), [id(8), id(9), id(3)]);
}

#[test]
fn what_a_hostile_member_tells_is_bounded() {
    let mut mesh = Mesh::new();
    for n in 0..3000u16 {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        let node = NodeId::from_bytes(bytes);
        let addresses = (0..20).map(|p| format!("192.0.2.1:{p}")).collect();
        mesh.give(Input::Members {
            from: None,
            members: vec![MemberAddress { node, name: name("x"), addresses }],
        });
    }
    let view = mesh.state.view();
    assert_eq!(view.members.len(), MEMBERS + 1);
    assert!(view.members.values().all(|m| m.addresses.len() <= limits::MEMBER_ADDRESSES));
}

/// A member that is only told of, with that number.
fn rumour(n: u16) -> MemberAddress {
    let mut bytes = [7; 32];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    MemberAddress { node: NodeId::from_bytes(bytes), name: name("x"), addresses: vec!["192.0.2.1:1".into()] }
}

#[test]
fn rumours_do_not_lock_members_out_and_are_forgotten() {
    let mut mesh = Mesh::new();
    mesh.give(Input::Members { from: Some(id(9)), members: (0..3000).map(rumour).collect() });
    assert_eq!(mesh.state.view().members.len(), MEMBERS + 1);
    mesh.connect(9);
    assert_eq!(mesh.member(9).state, MemberState::Alive);
    assert_eq!(mesh.state.view().members.len(), MEMBERS + 1, "in the place of a rumour");
    for n in 0..3000 {
        for _ in 0..HEARSAY_DIALS {
            mesh.give(Input::DialFailed { node: Some(rumour(n).node), address: None, reason: "x".into() });
        }
    }
    assert_eq!(mesh.state.view().members.len(), 2);
    for _ in 0..200 {
        mesh.give(Input::Disconnected { node: id(9), last: true, path: Path::default(), reason: "x".into() });
        mesh.give(Input::DialFailed { node: Some(id(9)), address: None, reason: "x".into() });
    }
    assert_eq!(mesh.state.view().members.len(), 2, "a member that was seen is never forgotten");
}

#[test]
fn certified_members_are_not_put_out_by_others() {
    let mut mesh = Mesh::new();
    let connected = |n: u16| Input::Connected {
        node: rumour(n).node,
        name: name("x"),
        role: Role::Worker,
        grants: Grants::default(),
        certificate: None,
        address: None,
        dialled: None,
        relay: None,
    };
    for n in 0..1100 {
        mesh.give(connected(n));
    }
    assert_eq!(mesh.state.view().members.len(), MEMBERS + 1);
    assert!(mesh.state.view().get(rumour(0).node).is_some());
}

#[test]
fn what_others_tell_does_not_crowd_out_what_a_member_says_of_itself() {
    let mut mesh = Mesh::new();
    mesh.connect(9);
    let told = |addresses: Vec<String>| MemberAddress { node: id(9), name: name("n9"), addresses };
    let lies = (0..20).map(|n| format!("203.0.113.{n}:1")).chain(["not an address".into()]).collect();
    mesh.give(Input::Members { from: Some(id(8)), members: vec![told(lies)] });
    assert_eq!(mesh.member(9).addresses.len(), limits::MEMBER_ADDRESSES);
    let own = vec!["198.51.100.9:9400".to_owned(), "junk".into()];
    mesh.give(Input::Members { from: Some(id(9)), members: vec![told(own)] });
    assert_eq!(mesh.member(9).addresses, ["198.51.100.9:9400", "192.0.2.9:9400"], "its own, and where it is");
    // A dial that works counts although the list is full.
    let lies = (0..20).map(|n| format!("203.0.113.{n}:1")).collect();
    mesh.give(Input::Members { from: Some(id(8)), members: vec![told(lies)] });
    mesh.give(Input::Connected {
        node: id(9),
        name: name("n9"),
        role: Role::Worker,
        grants: Grants::default(),
        certificate: None,
        address: Some("198.51.100.77:9400".into()),
        dialled: Some("198.51.100.77:9400".into()),
        relay: None,
    });
    assert_eq!(mesh.member(9).addresses[0], "198.51.100.77:9400");
    assert_eq!(mesh.member(9).addresses.len(), limits::MEMBER_ADDRESSES);
}

#[test]
fn whoever_lives_at_a_configured_address_now_is_found() {
    let mut mesh = Mesh::new();
    mesh.give(Input::Static { addresses: vec!["192.0.2.9:9400".into()] });
    let dialled = |effects: &[Effect]| {
        effects.iter().find_map(|e| match e {
            Effect::Dial { node, addresses } if addresses == &["192.0.2.9:9400"] => Some(*node),
            _ => None,
        })
    };
    assert_eq!(dialled(&mesh.later(0)), Some(None));
    mesh.connect(9);
    mesh.give(Input::Disconnected {
        node: id(9),
        last: true,
        path: Path::default(),
        reason: "reinstalled".into(),
    });
    let first = mesh.later(40_000);
    assert!(dialled(&first).is_some());
    // The other node that answers there is not the one that was asked for: no address comes with that failure.
    mesh.give(Input::DialFailed { node: Some(id(9)), address: None, reason: "another node".into() });
    let mut next = None;
    for _ in 0..100 {
        let effects = mesh.later(500);
        next = effects.iter().any(|e| matches!(e, Effect::Dial { node: None, .. })).then_some(()).or(next);
    }
    assert!(next.is_some(), "dialled without a name");
}

#[test]
fn a_card_that_is_not_what_its_manifest_says_is_left_out_and_not_asked_for_for_ever() {
    let mut mesh = Mesh::new();
    mesh.connect(9);
    let (a, b) = (tool("a"), tool("b"));
    let entry =
        |n: &str, card| ManifestEntry { name: ToolName::parse(n).unwrap(), version: "1".into(), card };
    // `c` is said to be the card of `b`.
    let lie = Manifest::new(vec![entry("a", a.hash), entry("b", b.hash), entry("c", b.hash)]);
    let hash = lie.hash().unwrap();
    mesh.give(Input::Advert { advert: advert(9, 1, 1, &lie), direct: true });
    mesh.give(Input::Manifest { node: id(9), hash, manifest: lie });
    mesh.give(Input::Cards { cards: vec![a, b] });
    let names: Vec<String> = mesh.member(9).tools.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "b"]);
    for _ in 0..20 {
        let effects = mesh.later(1_000);
        assert!(!effects.iter().any(|e| matches!(e, Effect::FetchCards { .. })), "{effects:?}");
    }
}

proptest::proptest! {
    /// Any order of connects, disconnects, adverts and ticks: nobody is connected and down, and this node is always alive.
    #[test]
    fn states_agree(script in proptest::collection::vec((0u8..6, 6u8..10, 0u64..5_000), 1..80)) {
        let mut mesh = Mesh::new();
        let tools = manifest(&[]);
        for (what, who, ms) in script {
            match what {
                0 => drop(mesh.connect(who)),
                1 => drop(mesh.give(Input::Disconnected { node: id(who), last: true, path: Path::default(), reason: "x".into() })),
                2 => drop(mesh.give(Input::Advert { advert: advert(who, 1, ms, &tools), direct: false })),
                3 => drop(mesh.told(who)),
                4 => drop(mesh.give(Input::DialFailed { node: Some(id(who)), address: None, reason: "x".into() })),
                _ => drop(mesh.later(ms)),
            }
            let view = mesh.state.view();
            for member in view.members.values() {
                proptest::prop_assert!(!member.connected || member.state == MemberState::Alive);
                proptest::prop_assert!(member.connected == member.suite.is_some());
            }
            proptest::prop_assert_eq!(view.own().unwrap().state, MemberState::Alive);
        }
    }
}

#[test]
fn a_configured_host_name_is_resolved_dialled_and_known_by_its_addresses() {
    let mut mesh = Mesh::new();
    mesh.give(Input::Static { addresses: vec!["tower.lan:9400".into()] });
    assert_eq!(mesh.later(0), [Effect::Resolve { name: "tower.lan:9400".into() }]);
    let found = vec!["192.0.2.8:9400".to_owned(), "192.0.2.9:9400".to_owned()];
    let resolved = |mesh: &mut Mesh| {
        mesh.give(Input::Resolved { name: "tower.lan:9400".into(), addresses: found.clone() })
    };
    let dial = |address: &str| Effect::Dial { node: None, addresses: vec![address.to_owned()] };
    assert_eq!(resolved(&mut mesh), [dial("192.0.2.8:9400")]);
    mesh.give(Input::DialFailed { node: None, address: Some(found[0].clone()), reason: "refused".into() });
    assert_eq!(resolved(&mut mesh), [dial("192.0.2.9:9400")], "the next address has its turn");
    mesh.connect(9);
    assert!(mesh.later(60_000).iter().all(|e| !matches!(e, Effect::Resolve { .. })), "it is reached");
}

#[path = "state_tests/standing.rs"]
mod standing;

#[path = "state_tests/silence.rs"]
mod silence;
