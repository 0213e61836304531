//! The vectors of `docs/protocol.md`: each is made anew and compared, so that the document can't say something else than the program does.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use octomesh_protocol::{
    advert::LoadState,
    card::{Effect, SandboxLevel},
    id::{CardHash, LeaseId, NodeName, RunId, StepId, StepKey, ToolName},
    join::JoinRequest,
    session::{
        handshake::{InitiatorRandom, ResponderRandom, Split, TranscriptHash},
        record::{CloseReason, RecordLimits, Sealer},
        rekey::{Opened, Session},
        secret::{MeshSecret, OneTimeSecret, RekeySecret, SessionKey},
    },
    step::{
        Cancel, Event, EventKind, Granted, Have, Message, Missing, Outcome, Probe, RefuseReason, Refused,
        Renew, Reserve, Start, StartIfFree, Started, StatusQuery, StatusReply, StepStatus,
    },
    trust::{
        CertificateRequest, Grants, MeshRoot, NodeIdentity, Role, Side, Ticket, certificate::LIFETIME_S,
        identity_payload, revocation::SignedRevocation, rotation::SignedRotation,
    },
};
use sha2::{Digest as _, Sha256};

mod support;

const NOW: u64 = 1_800_000_000;

#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn hex(&mut self, name: &str, bytes: &[u8]) {
        self.0.push(format!("{name} = {}", data_encoding::HEXLOWER.encode(bytes)));
    }

    /// Its length and hash, for what is too long to be read.
    fn long(&mut self, name: &str, bytes: &[u8]) {
        let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(bytes));
        self.0.push(format!("{name} = {} bytes, SHA-256 {hash}", bytes.len()));
    }
}

fn data(seal: impl FnOnce(&mut Vec<u8>), body: &[u8]) -> Vec<u8> {
    let mut record = [&[0; 3][..], body].concat();
    seal(&mut record);
    record
}

fn handshake(lines: &mut Lines) {
    let ran = support::run(7, 7, None).unwrap();
    let [first, second, third] = &ran.messages;
    lines.hex("handshake.e_initiator", &first[..32]);
    lines.hex("handshake.e_responder", &second[..32]);
    lines.long("handshake.message_1", first);
    lines.long("handshake.message_2", second);
    lines.hex("handshake.message_3", third);
    lines.hex("handshake.hash", ran.initiator.hash.as_bytes());
    lines.hex("handshake.key_to_responder", ran.initiator.send.expose());
    lines.hex("handshake.key_to_initiator", ran.initiator.receive.expose());
    lines.hex("handshake.rekey_secret", ran.initiator.rekey_secret.expose());
    let mut sealer = Sealer::new(&ran.initiator.send, RecordLimits::default());
    let record = data(|record| sealer.seal(record).unwrap(), b"hello");
    lines.hex("record.data", &record);
    lines.hex("record.close", &sealer.close(CloseReason::Done).unwrap());
}

fn rekey(lines: &mut Lines) {
    let session = |initiator: bool| {
        let (send, receive) = if initiator { (1, 2) } else { (2, 1) };
        let split = Split {
            send: SessionKey::from_bytes([send; 32]),
            receive: SessionKey::from_bytes([receive; 32]),
            rekey_secret: RekeySecret::from_bytes([3; 32]),
            hash: TranscriptHash::from_bytes([4; 32]),
            remote_static: [5; 32],
        };
        Session::new(&split, initiator, RecordLimits::default())
    };
    let (mut a, mut b) = (session(true), session(false));
    let init = a.start(&InitiatorRandom::from_bytes(&[7; InitiatorRandom::BYTES].into())).unwrap();
    assert_eq!(b.open(&mut init[2..].to_vec()).unwrap(), Opened::Asked);
    let answer = b.answer(&ResponderRandom::from_bytes(&[7; ResponderRandom::BYTES].into())).unwrap();
    let Opened::Send(done) = a.open(&mut answer[2..].to_vec()).unwrap() else { panic!("no done") };
    assert_eq!(b.open(&mut done[2..].to_vec()).unwrap(), Opened::Done);
    lines.long("rekey.init", &init);
    lines.long("rekey.answer", &answer);
    lines.hex("rekey.done", &done);
    lines.hex("rekey.data_to_responder", &data(|record| a.seal(record).unwrap(), b"hello"));
    lines.hex("rekey.data_to_initiator", &data(|record| b.seal(record).unwrap(), b"hello"));
}

fn trust(lines: &mut Lines) {
    let (root, admin) = (MeshRoot::from_seed([1; 64]), NodeIdentity::from_seed([2; 64]));
    let worker = NodeIdentity::from_seed([3; 64]);
    let request = |identity: &NodeIdentity, name: &str, role| CertificateRequest {
        keys: identity.public().clone(),
        name: NodeName::parse(name).unwrap(),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: LIFETIME_S,
    };
    let own = root.issue(request(&admin, "attic", Role::Admin)).unwrap();
    let chain = own.issue(&admin, request(&worker, "tower", Role::Worker)).unwrap();
    let h = TranscriptHash::from_bytes([0x11; 32]);
    lines.hex("trust.root_ed25519", root.public().ed25519());
    lines.long("trust.root_ml_dsa", root.public().ml_dsa().as_bytes());
    lines.hex("trust.mesh_id", root.mesh_id().as_bytes());
    lines.0.push(format!("trust.admin_id = {}", admin.node_id()));
    lines.long("trust.chain_of_one", &own.to_bytes().unwrap());
    lines.long("trust.chain_of_two", &chain.to_bytes().unwrap());
    let payload = identity_payload::build(&worker, &chain, Side::Initiator, h, NOW).unwrap();
    lines.long("trust.payload_of_initiator", &payload);
    let payload = identity_payload::build(&admin, &own, Side::Responder, h, NOW).unwrap();
    lines.long("trust.payload_of_responder", &payload);
    let joiner = NodeIdentity::from_seed([5; 64]);
    let request = JoinRequest::build(&joiner, &NodeName::parse("pi").unwrap(), NOW, h).unwrap();
    lines.long("join.request", &request);
    let revocation = SignedRevocation::by_root(&root, worker.node_id(), NOW, "stolen").unwrap();
    lines.hex("revocation.id", revocation.id().as_bytes());
    lines.long("revocation.statement", &revocation.to_bytes().unwrap());
    let secret = MeshSecret::from_bytes([6; 32]);
    let rotation = SignedRotation::by_admin(&admin, &own, 1, NOW, secret).unwrap();
    lines.hex("rotation.id", rotation.stamp().id.as_bytes());
    lines.long("rotation.statement", &rotation.to_bytes().unwrap());
    let ticket = Ticket {
        mesh: root.mesh_id(),
        issuer: admin.node_id(),
        addresses: vec!["192.168.1.20:7400".into(), "[fd00::1]:7400".into()],
        secret: OneTimeSecret::from_bytes([9; 32]),
        role: Role::Worker,
        expires: NOW + 3600,
    };
    lines.0.push(format!("ticket.id = {}", ticket.id()));
    lines.0.push(format!("ticket.text = {}", *ticket.to_text().unwrap()));
}

fn frames(lines: &mut Lines) {
    let key = || StepKey { run: RunId::run([1; 8]), step: StepId::parse("s001").unwrap() };
    let tool = || ToolName::parse("echo").unwrap();
    let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
    let outcome = || Outcome::new(StepStatus::Ok, b"1".to_vec(), 5, SandboxLevel::Rlimits);
    let reserve = Reserve {
        key: key(),
        tool: tool(),
        card: CardHash::from_bytes([5; 32]),
        effect: Effect::Pure,
        est_ms: 10,
        vram: 0,
        memory: 0,
        argument_bytes: 2,
        deadline_ms: 60_000,
        epoch: 1,
        longest_wait_ms: 300,
    };
    let messages: Vec<(&str, Message)> = vec![
        ("probe", Probe { tool: tool(), arguments: b"{}".to_vec() }.into()),
        ("have", Have { bytes: 300 }.into()),
        ("missing", Missing { detail: "no".into() }.into()),
        ("reserve", reserve.clone().into()),
        ("granted", Granted { lease: LeaseId(7), state }.into()),
        ("refused", Refused { reason: RefuseReason::Vram, detail: "x".into(), state }.into()),
        ("start", Start::new(LeaseId(7), 1, b"{}".to_vec()).into()),
        ("event", Event { seq: 1, kind: EventKind::Log, text: "t".into() }.into()),
        ("outcome", outcome().into()),
        ("renew", Renew { leases: vec![LeaseId(7)] }.into()),
        ("cancel", Cancel { key: key(), epoch: 1 }.into()),
        ("status", StatusQuery { key: key() }.into()),
        ("status_reply", StatusReply::Done(outcome()).into()),
        ("start_if_free", StartIfFree { reserve, arguments: b"{}".to_vec() }.into()),
        ("started", Started { lease: LeaseId(7), state }.into()),
    ];
    for (name, message) in messages {
        lines.hex(&format!("frame.{name}"), &message.to_frame().unwrap());
    }
}

#[test]
fn the_vectors_of_the_document() {
    let mut lines = Lines::default();
    handshake(&mut lines);
    rekey(&mut lines);
    trust(&mut lines);
    frames(&mut lines);
    let document = include_str!("../../docs/protocol.md");
    let (_, block) = document.split_once("```vectors\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let written: Vec<&str> = block.lines().collect();
    assert_eq!(written, lines.0, "the block should be:\n{}\n", lines.0.join("\n"));
}
