//! Writes the first inputs of every target into `$SEEDS/TARGET/`: real messages, made by the program itself. It is built like a target,
//! because what it is made of is instrumented, and ends before anything is fuzzed.
#![no_main]
use std::{fs, path::PathBuf};

use octomesh_fuzz::{ADMIN, CHAIN, H, MESSAGES, NOW, ROOT, WORKER, name, node};
use octomesh_protocol::{
    advert::{Advert, CardsReply, CardsRequest, GpuAdvert, LoadState, Manifest, ManifestEntry},
    blob::{self, BlobMessage, BlobRef, BlobRefusal, End, Fetch, Offer, Ready, Sending, Source, Stored, Target},
    card::{Effect, SandboxLevel, ToolCard},
    codec,
    frame::LENGTH_BYTES,
    id::{BlobHash, CardHash, LeaseId, RevocationId, RunId, StepId, StepKey, ToolName, ToolSetHash},
    join::{JoinAnswer, JoinGrant, JoinRefusal, JoinRequest},
    session::secret::{MeshSecret, OneTimeSecret},
    step::{
        Cancel, Event, EventKind, Granted, Have, Message, Missing, Outcome, Probe, RefuseReason, Refused,
        Renew, Reserve, Start, StatusQuery, StatusReply, StepStatus,
    },
    swim::{Liveness, MemberRecord, Message as Swim, Page},
    sync::{MemberAddress, RenewRefusal, Renewal, Sync, SyncReply, SyncRequest},
    trust::{Role, SecretStamp, Side, SignedRevocation, SignedRotation, Ticket, identity_payload},
};

fn tool() -> ToolName {
    ToolName::parse("echo").unwrap()
}

fn key() -> StepKey {
    StepKey { run: RunId::run([1; 8]), step: StepId::parse("s001").unwrap() }
}

fn blob_messages() -> Vec<BlobMessage> {
    let hash = BlobHash::from_bytes([5; 32]);
    let blob = BlobRef { hash, bytes: 300 };
    vec![
        Fetch { source: Source::File("a/b".into()), offset: 300, expect: Some(hash) }.into(),
        Fetch { source: Source::Result(hash), offset: 0, expect: None }.into(),
        Sending { blob, offset: 7 }.into(),
        Offer { target: Target::Input, blob }.into(),
        Offer { target: Target::File("a".into()), blob }.into(),
        Ready { offset: 300 }.into(),
        BlobMessage::Chunk(vec![0, 251, 255]),
        End { hash }.into(),
        Stored { hash }.into(),
        blob::Refused { reason: BlobRefusal::Changed, detail: "x".into() }.into(),
    ]
}

fn step_messages() -> Vec<Message> {
    let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
    let outcome = || Outcome::new(StepStatus::Ok, b"1".to_vec(), 5, SandboxLevel::Rlimits);
    vec![
        Probe { tool: tool(), arguments: b"{}".to_vec() }.into(),
        Have { bytes: 300 }.into(),
        Missing { detail: "no".into() }.into(),
        Reserve {
            key: key(),
            tool: tool(),
            card: CardHash::from_bytes([5; 32]),
            effect: Effect::Once,
            est_ms: 10,
            vram: 0,
            memory: 0,
            argument_bytes: 2,
            deadline_ms: 60_000,
            epoch: 1,
 longest_wait_ms: 300,
        }
        .into(),
        Granted { lease: LeaseId(7), state }.into(),
        Refused { reason: RefuseReason::Vram, detail: "x".into(), state }.into(),
        Start::new(LeaseId(7), 1, b"{}".to_vec()).into(),
        Event { seq: 1, kind: EventKind::Log, text: "t".into() }.into(),
        outcome().into(),
        Renew { leases: vec![LeaseId(7)] }.into(),
        Cancel { key: key(), epoch: 1 }.into(),
        StatusQuery { key: key() }.into(),
        StatusReply::Interrupted.into(),
        StatusReply::Done(outcome()).into(),
    ]
}

fn advert() -> Vec<u8> {
    Advert {
        node: node(1),
        incarnation: NOW,
        seq: 2,
        load: LoadState::default(),
        memory_total: 2 << 30,
        gpus: vec![GpuAdvert {
            name: "RTX".into(),
            vram_total: 24,
            vram_free: 20,
            age_ms: 10,
            declared: true,
        }],
        models: vec!["m".into()],
        tool_set: ToolSetHash::from_bytes([2; 32]),
        speed_percent: 100,
        sandbox: SandboxLevel::Rlimits,
        region: String::new(),
        tags: vec!["gpu".into()],
        version: "0.1.0".into(),
        circumstances: Default::default(),
    }
    .to_bytes()
    .unwrap()
}

fn card() -> Vec<u8> {
    let card = serde_json::json!({
        "name": "echo", "version": "1.0.0", "description": "Says it again.", "keywords": ["say"],
        "input_schema": {"type": "object"}, "output_schema": null,
        "examples": [{"description": "one", "arguments": {"text": "hi"}}], "effect": "pure",
        "needs": {"tags": ["a"], "min_sandbox": "rlimits"}, "typical_ms": 5, "data": [], "demo_calls": [],
        "limitations": ["none"], "best_practice": [], "requires_llm": false, "source": "builtin",
    });
    serde_json::from_value::<ToolCard>(card).unwrap().to_bytes().unwrap()
}

fn ticket() -> Ticket {
    Ticket {
        mesh: ROOT.mesh_id(),
        issuer: ADMIN.node_id(),
        addresses: vec!["192.168.1.20:7400".into(), "[fd00::1]:7400".into()],
        secret: OneTimeSecret::from_bytes([9; 32]),
        role: Role::Worker,
        expires: NOW,
    }
}

fn members() -> Vec<MemberAddress> {
    vec![MemberAddress { node: node(1), name: name("tower"), addresses: vec!["10.0.0.1:7400".into()] }]
}

/// Version and content of the ticket, without its checksum.
fn ticket_content() -> Vec<u8> {
    [vec![1], codec::encode::<_, 2048>(&ticket()).unwrap()].concat()
}

fn revocation() -> Vec<u8> {
    SignedRevocation::by_root(&ROOT, node(9), NOW, "stolen").unwrap().to_bytes().unwrap()
}

fn rotation() -> Vec<u8> {
    SignedRotation::by_root(&ROOT, 1, NOW, MeshSecret::from_bytes([6; 32]))
        .unwrap()
        .to_bytes()
        .unwrap()
        .to_vec()
}

/// The target's first byte says whether it is a request.
fn sync() -> Vec<Vec<u8>> {
    let state = || Sync {
        advert: advert(),
        members: members(),
        revocations: vec![RevocationId::from_bytes([1; 32])],
        secret: SecretStamp::FIRST,
    };
    let renewal = Renewal { chain: CHAIN.clone(), name: Some(name("pi")) };
    let requests = [
        SyncRequest::State(state()),
        SyncRequest::Revocations(vec![RevocationId::from_bytes([1; 32])]),
        SyncRequest::Revoked(revocation()),
        SyncRequest::Secret,
        SyncRequest::Renew(Box::new(renewal)),
        SyncRequest::Shown(Box::new(CHAIN.clone())),
    ];
    let replies = [
        SyncReply::State(state()),
        SyncReply::Revocations(vec![revocation()]),
        SyncReply::Secret(Some(rotation())),
        SyncReply::Done,
        SyncReply::Renewed(Box::new(CHAIN.clone())),
        SyncReply::NotRenewed { why: RenewRefusal::Old, detail: "x".into() },
    ];
    let requests = requests.iter().map(|request| [vec![0], request.to_bytes().unwrap()].concat());
    requests.chain(replies.iter().map(|reply| [vec![1], reply.to_bytes().unwrap()].concat())).collect()
}

/// Frames without their length.
fn swim() -> Vec<Vec<u8>> {
    let record = |byte: u8, state| MemberRecord {
        node: node(byte),
        incarnation: NOW,
        bump: 1,
        left: byte == 2,
        refutations: 3,
        state,
    };
    let members = vec![record(1, Liveness::Alive), record(2, Liveness::Down), record(3, Liveness::Suspect)];
    let packet = swim_packets().pop().unwrap();
    let messages =
        [Swim::Packet(packet), Swim::Ask(None), Swim::Ask(Some(node(7))), Swim::Page(Page { members, more: true })];
    messages.iter().map(|message| message.to_frame().unwrap()[LENGTH_BYTES..].to_vec()).collect()
}

/// One of each kind, by hand: the types are the node's.
fn swim_packets() -> Vec<Vec<u8>> {
    let identity = |byte: u8| [&[byte; 32][..], &NOW.to_be_bytes(), &3u32.to_be_bytes(), &[byte & 1]].concat();
    let member = |byte: u8, state: u8| [&identity(byte)[..], &[0, 1, state]].concat();
    let packet = |kind: u8| {
        let mut bytes = [&identity(2)[..], &[0, 5], &identity(4), &[kind]].concat();
        if kind <= 6 {
            bytes.push(200);
        }
        if (3..=6).contains(&kind) {
            bytes.extend(identity(6));
        }
        // Neither an announcement nor its like carries members.
        if kind != 7 && kind != 11 {
            bytes.extend([0, 2]);
            bytes.extend([member(3, 2), member(8, 1)].concat());
        }
        bytes
    };
    [1, 2, 3, 4, 5, 6, 7, 8, 11, 9].map(packet).to_vec()
}

fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let edits = || vec![vec![], vec![0, 0, 0], vec![0, 40, 1], vec![5], vec![200]];
    let entry = |tool: &str| ManifestEntry {
        name: ToolName::parse(tool).unwrap(),
        version: "1".into(),
        card: CardHash::from_bytes([3; 32]),
    };
    let grant = JoinAnswer::Granted(JoinGrant {
        chain: CHAIN.clone(),
        mesh_secret: MeshSecret::from_bytes([6; 32]),
        members: members(),
        revocations: vec![revocation()],
    });
    let refused = JoinAnswer::Refused { reason: JoinRefusal::Used, detail: "x".into() };
    let cards = |request: &CardsRequest| codec::encode::<_, 4096>(request).unwrap();
    let reply = |reply: &CardsReply| codec::encode::<_, 8192>(reply).unwrap();
    let [first, second, third] = MESSAGES.clone();
    vec![
        ("handshake_1", [edits(), vec![first]].concat()),
        ("handshake_2", [edits(), vec![second]].concat()),
        ("handshake_3", [edits(), vec![third]].concat()),
        (
            "record_open",
            vec![vec![1, 3, 0, 1, 2, 1, 2, 4, 0], vec![1, 1, 3, 1, 2, 1, 9], vec![0, 3, 1, 1, 1]],
        ),
        (
            "rekey",
            vec![
                vec![2, 12, 13, 12, 0, 1, 12, 13],
                vec![0, 1, 2, 12, 13, 0xf4, 12, 13, 2],
                vec![0xe6, 1, 2, 3],
            ],
        ),
        ("frame", vec![vec![0, 0, 0, 4, 1, 9, 97, 98]]),
        (
            "step_message",
            step_messages().iter().map(|m| m.to_frame().unwrap()[LENGTH_BYTES..].to_vec()).collect(),
        ),
        (
            "blob_message",
            blob_messages().iter().map(|m| m.to_frame().unwrap()[LENGTH_BYTES..].to_vec()).collect(),
        ),
        ("ticket", vec![ticket().to_text().unwrap().as_bytes().to_vec(), ticket_content()]),
        ("certificate_chain", [edits(), vec![CHAIN.to_bytes().unwrap()]].concat()),
        ("chain_law", vec![vec![1, 1, 0, 4], vec![2, 5, 6, 4, 1, 0, 4], vec![3, 5, 6, 4, 1, 0, 4, 0, 0, 4]]),
        (
            "identity_payload",
            [edits(), vec![identity_payload::build(&WORKER, &CHAIN, Side::Responder, H, NOW).unwrap()]]
                .concat(),
        ),
        ("join_request", [edits(), vec![JoinRequest::build(&WORKER, &name("pi"), NOW, H).unwrap()]].concat()),
        ("join_answer", vec![grant.to_bytes().unwrap().to_vec(), refused.to_bytes().unwrap().to_vec()]),
        ("advert", vec![advert()]),
        ("manifest", vec![Manifest::new(vec![entry("a"), entry("b")]).to_bytes().unwrap()]),
        ("card", vec![card()]),
        (
            "cards",
            vec![
                cards(&CardsRequest::Manifest(ToolSetHash::from_bytes([1; 32]))),
                cards(&CardsRequest::Cards(vec![CardHash::from_bytes([1; 32]); 2])),
                reply(&CardsReply::Cards(vec![card(), card()])),
                reply(&CardsReply::Unknown),
            ],
        ),
        ("sync", sync()),
        ("swim", swim()),
        ("swim_packet", swim_packets()),
        ("revocation", vec![revocation()]),
        ("rotation", vec![rotation()]),
        (
            "identifiers",
            [
                "echo",
                "tower",
                "s001.2",
                "run-0101010101010101",
                "e10124b11f8e9069",
                &node(7).to_string(),
                &"ab".repeat(32),
            ]
            .map(|text| text.as_bytes().to_vec())
            .to_vec(),
        ),
    ]
}

fn write() {
    let folder = PathBuf::from(std::env::var_os("SEEDS").expect("SEEDS names a folder"));
    for (target, inputs) in seeds() {
        let folder = folder.join(target);
        fs::create_dir_all(&folder).unwrap();
        for (n, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("seed-{n:02}")), input).unwrap();
        }
    }
    std::process::exit(0);
}

libfuzzer_sys::fuzz_target!(init: write(), |_nothing: &[u8]| {});
