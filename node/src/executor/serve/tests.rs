//! The executor's end of the step protocol against a member that does what it likes, over a real session.
use octomesh_protocol::{
    card::Effect,
    id::{CardHash, LeaseId, NodeName, ToolName},
    step::{
        Cancel, Granted, Outcome, Probe, RefuseReason, Renew, Reserve, StartIfFree, StatusQuery, StepStatus,
    },
    trust::{Grants, MeshRoot, Role, SignedRevocation},
};
use tokio::task::JoinSet;

use super::*;
use crate::{
    executor::tests::{House, key},
    membership::{Member, MemberState},
    net::{
        FrameReader, FrameWriter,
        tests::{PATIENCE, Peer, peer, trusting},
    },
    trust::Trust,
};

/// A node that serves steps, and two members that are connected to it.
struct Mesh {
    house: House,
    evil: Peer,
    honest: Peer,
    victim: NodeId,
    _tasks: JoinSet<()>,
    view: watch::Sender<Arc<MeshView>>,
    trust: watch::Sender<Arc<Trust>>,
}

fn member(node: NodeId, name: &str, role: Role, tools: Option<&[&str]>) -> Member {
    let tools = tools.map(|t| t.iter().map(|name| ToolName::parse(name).unwrap()).collect());
    let grants = Grants { tools, min_sandbox: None };
    let mut member = Member::new(node, NodeName::parse(name).unwrap(), role, grants);
    (member.connected, member.state, member.exchanged) = (true, MemberState::Alive, true);
    member
}

impl Mesh {
    /// `granted` are the tools that the evil member may use; all when absent.
    async fn new(granted: Option<&[&str]>) -> Self {
        Self::with(Role::Worker, granted).await
    }

    async fn with(role: Role, granted: Option<&[&str]>) -> Self {
        let (mut evil, mut honest) = (peer(2, "memory:0").await, peer(3, "memory:0").await);
        let mut victim = peer(4, "memory:0").await;
        evil.connect(&mut victim).await;
        honest.connect(&mut victim).await;
        let mut view = MeshView::alone(member(victim.node, "victim", Role::Worker, None));
        for m in [member(evil.node, "evil", role, granted), member(honest.node, "honest", Role::Worker, None)]
        {
            view.members.insert(m.node, Arc::new(m));
        }
        let (view_out, view) = watch::channel(Arc::new(view));
        let house = House::new(4);
        let node = victim.node;
        let (trust_out, trust) = watch::channel(Arc::clone(&trusting(&victim).borrow()));
        let mut tasks = JoinSet::new();
        let handle = house.handle.clone();
        tasks.spawn(async move {
            // All of it, not only the parts that are named below.
            let mut victim = victim;
            let steps = std::mem::replace(&mut victim.steps, StepListener::closed());
            let stop = CancellationToken::new();
            let parts = ServeParts {
                listener: steps,
                executor: handle,
                view,
                trust,
                supervisor: Supervisor::new(),
                started: Arc::default(),
            };
            let serving = serve(parts, stop);
            let drain = async { while victim.events.recv().await.is_some() {} };
            tokio::join!(serving, drain);
        });
        Self { house, evil, honest, victim: node, _tasks: tasks, view: view_out, trust: trust_out }
    }

    async fn open(&self, from: &Peer) -> (FrameReader, FrameWriter) {
        from.handle.open_step(self.victim).await.unwrap().split()
    }

    async fn ask(&self, from: &Peer, question: impl Into<Message>) -> Result<Message, StreamError> {
        let (mut reader, mut writer) = self.open(from).await;
        writer.send(question).await?;
        tokio::time::timeout(PATIENCE, reader.receive()).await.expect("an answer or an end")
    }

    async fn reserve(&self, from: &Peer, tool: &str, n: u64) -> (Message, FrameReader, FrameWriter) {
        let (mut reader, mut writer) = self.open(from).await;
        writer.send(reserve(tool, n)).await.unwrap();
        (reader.receive().await.unwrap(), reader, writer)
    }

    async fn granted(&self, from: &Peer, tool: &str, n: u64) -> (Granted, FrameReader, FrameWriter) {
        match self.reserve(from, tool, n).await {
            (Message::Granted(granted), reader, writer) => (granted, reader, writer),
            (other, ..) => panic!("{other:?}"),
        }
    }
}

fn reserve(tool: &str, n: u64) -> Reserve {
    Reserve {
        key: key(n),
        tool: ToolName::parse(tool).unwrap(),
        card: CardHash::from_bytes([5; 32]),
        effect: Effect::Pure,
        est_ms: 10,
        vram: 0,
        memory: 0,
        argument_bytes: 2,
        deadline_ms: 20_000,
        epoch: 1,
        longest_wait_ms: u32::MAX,
    }
}

fn start(lease: LeaseId) -> Start {
    Start::new(lease, 1, b"{}".to_vec())
}

/// Everything until the outcome.
async fn outcome(reader: &mut FrameReader) -> Result<Outcome, StreamError> {
    let wait = async {
        loop {
            match reader.receive().await? {
                Message::Outcome(outcome) => return Ok(outcome),
                // The latter answers a renewal.
                Message::Event(_) | Message::StatusReply(StatusReply::Running) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("an outcome or an end")
}

#[tokio::test]
async fn a_tool_that_is_not_granted_is_refused_and_not_probed() {
    let mesh = Mesh::new(Some(&["echo"])).await;
    let (answer, ..) = mesh.reserve(&mesh.evil, "wait_once", 1).await;
    assert!(matches!(&answer, Message::Refused(r) if r.reason == RefuseReason::Policy), "{answer:?}");
    let probe = Probe { tool: ToolName::parse("deaf").unwrap(), arguments: b"{}".to_vec() };
    let answer = mesh.ask(&mesh.evil, probe).await.unwrap();
    assert!(matches!(answer, Message::Missing(_)), "{answer:?}");
    mesh.granted(&mesh.evil, "echo", 2).await;
}

/// PROTOCOL 5.6. The client is sound otherwise: it may place other steps, and the shell is there for others.
#[tokio::test]
async fn a_client_that_reserves_shell() {
    let mesh = Mesh::with(Role::Client, None).await;
    let (answer, ..) = mesh.reserve(&mesh.evil, "shell", 1).await;
    let Message::Refused(refused) = &answer else { panic!("{answer:?}") };
    assert_eq!(refused.reason, RefuseReason::Policy);
    assert!(refused.detail.contains("evil is a client; shell has to be granted to it by name"), "{answer:?}");
    let probe = Probe { tool: ToolName::parse("shell").unwrap(), arguments: b"{}".to_vec() };
    assert!(matches!(mesh.ask(&mesh.evil, probe).await.unwrap(), Message::Missing(_)));
    // Without a lease there is no start, whatever number it names.
    let (_, mut reader, mut writer) = mesh.granted(&mesh.evil, "echo", 2).await;
    writer.send(start(LeaseId(u64::MAX - 1))).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Refused);
    assert_eq!(mesh.house.script.runs("shell"), 0);
}

/// A step of the honest member that runs, and the ends of its stream.
async fn running(mesh: &Mesh) -> (Granted, FrameReader, FrameWriter) {
    let (granted, reader, mut writer) = mesh.granted(&mesh.honest, "wait_once", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    while mesh.ask(&mesh.honest, StatusQuery { key: key(1) }).await.unwrap() != StatusReply::Running.into() {}
    (granted, reader, writer)
}

/// PROTOCOL 5.6.
#[tokio::test]
async fn a_status_for_somebody_elses_key() {
    let mesh = Mesh::with(Role::Client, None).await;
    let (_, mut honest, _writer) = running(&mesh).await;
    let ask = || mesh.ask(&mesh.evil, StatusQuery { key: key(1) });
    assert_eq!(ask().await.unwrap(), StatusReply::Unseen.into(), "while it runs");
    mesh.house.script.open_gate();
    assert_eq!(outcome(&mut honest).await.unwrap().status, StepStatus::Ok);
    assert_eq!(ask().await.unwrap(), StatusReply::Unseen.into(), "its result neither");
    let honest = mesh.ask(&mesh.honest, StatusQuery { key: key(1) }).await.unwrap();
    assert!(matches!(&honest, Message::StatusReply(StatusReply::Done(_))), "{honest:?}");
}

/// PROTOCOL 5.6.
#[tokio::test]
async fn a_cancel_of_somebody_elses_step() {
    let mesh = Mesh::with(Role::Client, None).await;
    let (_, mut honest, _writer) = running(&mesh).await;
    for epoch in [0, 1, u64::MAX] {
        let answer = mesh.ask(&mesh.evil, Cancel { key: key(1), epoch }).await.unwrap();
        assert_eq!(answer, StatusReply::Unseen.into());
    }
    let seen = mesh.ask(&mesh.honest, StatusQuery { key: key(1) }).await.unwrap();
    assert_eq!(seen, StatusReply::Running.into(), "it still runs");
    mesh.house.script.open_gate();
    assert_eq!(outcome(&mut honest).await.unwrap().status, StepStatus::Ok);
    assert_eq!(mesh.house.script.runs("wait_once"), 1);
}

/// Whoever ran one step of a run knows its name, and could reserve the steps that come: they are other keys, and say nothing.
#[tokio::test]
async fn a_key_that_somebody_else_has_taken() {
    let mesh = Mesh::new(None).await;
    let (_, mut squatter, mut evil) = mesh.granted(&mesh.evil, "echo", 1).await;
    let (granted, mut honest, mut writer) = mesh.granted(&mesh.honest, "wait_once", 1).await;
    // It is over before the honest step begins, and again later.
    drop(evil.send(Cancel { key: key(1), epoch: 1 }).await);
    drop(squatter.receive().await);
    writer.send(start(granted.lease)).await.unwrap();
    let status = |who| mesh.ask(who, StatusQuery { key: key(1) });
    while status(&mesh.honest).await.unwrap() != StatusReply::Running.into() {}
    let cancelled = mesh.ask(&mesh.evil, Cancel { key: key(1), epoch: 9 }).await.unwrap();
    assert_ne!(cancelled, StatusReply::Running.into(), "its own, not the honest one");
    mesh.house.script.open_gate();
    assert_eq!(outcome(&mut honest).await.unwrap().status, StepStatus::Ok);
    assert_eq!(mesh.house.script.runs("wait_once"), 1);
    let seen = status(&mesh.honest).await.unwrap();
    assert!(
        matches!(&seen, Message::StatusReply(StatusReply::Done(o)) if o.status == StepStatus::Ok),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_start_of_somebody_elses_lease() {
    let mesh = Mesh::new(None).await;
    let (granted, mut honest, mut writer) = mesh.granted(&mesh.honest, "wait_once", 1).await;
    // Started by the other one: refused, and the lease is as it was.
    let (_, mut reader, mut evil_writer) = mesh.granted(&mesh.evil, "echo", 2).await;
    evil_writer.send(start(granted.lease)).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Refused);
    assert_eq!(mesh.house.script.runs("wait_once"), 0);
    writer.send(start(granted.lease)).await.unwrap();
    mesh.house.script.open_gate();
    assert_eq!(outcome(&mut honest).await.unwrap().status, StepStatus::Ok);
    assert_eq!(mesh.house.script.runs("wait_once"), 1);
}

#[tokio::test]
async fn renewing_somebody_elses_lease_does_not_keep_it() {
    let mesh = Mesh::new(None).await;
    let (granted, mut honest, mut writer) = mesh.granted(&mesh.honest, "wait", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    let evil = async {
        loop {
            mesh.ask(&mesh.evil, Renew { leases: vec![granted.lease] }).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        ended = outcome(&mut honest) => assert_eq!(ended.unwrap().status, StepStatus::Cancelled),
        () = evil => unreachable!("it renews for ever"),
    }
}

#[tokio::test]
async fn a_start_is_taken_once() {
    let mesh = Mesh::new(None).await;
    let (granted, mut reader, mut writer) = mesh.granted(&mesh.evil, "echo_once", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    let first = outcome(&mut reader).await.unwrap();
    assert_eq!(first.status, StepStatus::Ok);
    // The same reservation and start again: the same outcome, no second run.
    let (again, mut reader, mut writer) = mesh.granted(&mesh.evil, "echo_once", 1).await;
    assert_eq!(again.lease, granted.lease);
    writer.send(start(again.lease)).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap(), first);
    assert_eq!(mesh.house.script.runs("echo_once"), 1);
    // A lease that never was.
    let (_, mut reader, mut writer) = mesh.granted(&mesh.evil, "echo", 2).await;
    writer.send(start(LeaseId(u64::MAX - 1))).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Refused);
}

#[tokio::test]
async fn messages_out_of_order_end_the_stream() {
    let mesh = Mesh::new(None).await;
    let stray: [Message; 3] = [
        start(LeaseId(1)).into(),
        StatusReply::Running.into(),
        Outcome::new(StepStatus::Ok, vec![], 1, octomesh_protocol::card::SandboxLevel::None).into(),
    ];
    for message in stray {
        assert!(mesh.ask(&mesh.evil, message).await.is_err());
    }
    let (granted, mut reader, mut writer) = mesh.granted(&mesh.evil, "wait", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    writer.send(start(granted.lease)).await.unwrap();
    assert!(outcome(&mut reader).await.is_err(), "a second start on the same stream");
}

#[tokio::test]
async fn silent_streams_of_one_node_leave_room_for_the_others() {
    let mesh = Mesh::new(None).await;
    let mut silent = Vec::new();
    for _ in 0..400 {
        match mesh.evil.handle.open_step(mesh.victim).await {
            Ok(stream) => silent.push(stream.split()),
            Err(_) => break,
        }
    }
    // A stream is negotiated by its first bytes.
    for (_, writer) in &mut silent {
        writer.send_part(&[0, 0]).await;
    }
    let answer = mesh.ask(&mesh.honest, StatusQuery { key: key(1) }).await;
    assert_eq!(answer.unwrap(), StatusReply::Unseen.into());
    // And they are given up on.
    for (reader, _) in &mut silent {
        let ended = tokio::time::timeout(PATIENCE, reader.receive()).await;
        assert!(ended.expect("the stream ends").is_err());
    }
    assert_eq!(mesh.ask(&mesh.evil, StatusQuery { key: key(1) }).await.unwrap(), StatusReply::Unseen.into());
}

/// By which its coordinator hears that this node lives, though the step says nothing.
#[tokio::test]
async fn a_renewal_is_answered() {
    let mesh = Mesh::new(None).await;
    let (granted, mut reader, mut writer) = mesh.granted(&mesh.evil, "wait_once", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    for _ in 0..3 {
        writer.send(Renew { leases: vec![granted.lease] }).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(10), reader.receive()).await;
        assert_eq!(answer.unwrap().unwrap(), StatusReply::Running.into());
    }
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_heard_all_the_same() {
    let mesh = Mesh::new(None).await;
    let (granted, mut reader, mut writer) = mesh.granted(&mesh.evil, "chat", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    // Far more events than the stream's window takes; meanwhile only renewals.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        writer.send(Renew { leases: vec![granted.lease] }).await.unwrap();
    }
    let status = mesh.ask(&mesh.evil, StatusQuery { key: key(1) }).await.unwrap();
    assert_eq!(status, StatusReply::Running.into(), "its lease was kept");
    writer.send(Cancel { key: key(1), epoch: 1 }).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Cancelled);
}

/// PROTOCOL 2: a node that was away takes no step before it has heard from another member who was revoked meanwhile.
#[tokio::test]
async fn a_node_that_was_away_takes_no_step() {
    let mesh = Mesh::new(None).await;
    let exchanged = |nodes: &[NodeId]| {
        let mut view = (**mesh.view.borrow()).clone();
        for (id, m) in &mut view.members {
            let mut changed = (**m).clone();
            (changed.exchanged, changed.known) = (nodes.contains(id), true);
            changed.addresses = vec!["192.0.2.1:9400".into()];
            *m = Arc::new(changed);
        }
        mesh.view.send_replace(Arc::new(view));
    };
    exchanged(&[mesh.evil.node]);
    let (answer, ..) = mesh.reserve(&mesh.evil, "echo", 1).await;
    let Message::Refused(refused) = answer else { panic!("{answer:?}") };
    assert_eq!(refused.reason, RefuseReason::CatchingUp);
    assert!(refused.detail.contains("asks other members who was revoked"), "{}", refused.detail);
    let probe = Probe { tool: ToolName::parse("echo").unwrap(), arguments: b"{}".to_vec() };
    let answer = mesh.ask(&mesh.evil, probe).await.unwrap();
    assert!(matches!(answer, Message::Missing(_)), "{answer:?}");
    // The other one can vouch for the first, and comes in time.
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        exchanged(&[mesh.evil.node, mesh.honest.node]);
    };
    let (answer, ()) = tokio::join!(mesh.reserve(&mesh.evil, "echo", 2), late);
    assert!(matches!(answer.0, Message::Granted(_)), "{:?}", answer.0);
}

#[tokio::test]
async fn a_revoked_node_that_calls_over_a_session_that_is_still_open() {
    let mesh = Mesh::new(None).await;
    let (granted, _reader, mut writer) = mesh.granted(&mesh.evil, "wait_once", 1).await;
    writer.send(start(granted.lease)).await.unwrap();
    let running = async {
        while mesh.house.script.runs("wait_once") == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, running).await.unwrap();
    mesh.trust.send_modify(|trust| {
        let mut next = (**trust).clone();
        let root = MeshRoot::from_seed([1; 64]);
        let signed = SignedRevocation::by_root(&root, mesh.evil.node, 1_800_000_000, "").unwrap();
        let mut set = (*next.revocations).clone();
        set.learn(Arc::new(signed));
        next.revocations = Arc::new(set);
        *trust = Arc::new(next);
    });
    let mut left = mesh.house.handle.watch_remaining();
    let stopped = left.wait_for(|left| *left == 0);
    tokio::time::timeout(PATIENCE, stopped).await.expect("its step is stopped").unwrap();
    let mut other = mesh.open(&mesh.evil).await;
    // silent-ok: the stream may be closed before the question is out
    let _ = other.1.send(reserve("echo", 2)).await;
    assert!(other.0.receive().await.is_err(), "it gets no answer any more");
    assert!(matches!(mesh.reserve(&mesh.honest, "echo", 3).await.0, Message::Granted(_)));
}

fn start_if_free(tool: &str, n: u64) -> StartIfFree {
    StartIfFree { reserve: reserve(tool, n), arguments: b"{}".to_vec() }
}

async fn next(reader: &mut FrameReader) -> Message {
    tokio::time::timeout(PATIENCE, reader.receive()).await.expect("an answer").unwrap()
}

#[tokio::test]
async fn one_exchange_after_the_other_on_one_stream() {
    let mesh = Mesh::new(None).await;
    let (mut reader, mut writer) = mesh.open(&mesh.honest).await;
    for n in 1..=3 {
        writer.send(start_if_free("echo", n)).await.unwrap();
        assert!(matches!(next(&mut reader).await, Message::Started(_)));
        assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Ok);
    }
    writer.send(reserve("echo", 4)).await.unwrap();
    let Message::Granted(granted) = next(&mut reader).await else { panic!("not granted") };
    writer.send(start(granted.lease)).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Ok);
    writer.send(Renew { leases: vec![] }).await.unwrap();
    assert_eq!(next(&mut reader).await, StatusReply::Running.into());
    writer.send(reserve("nothing", 5)).await.unwrap();
    assert!(matches!(next(&mut reader).await, Message::Refused(_)));
    assert_eq!(mesh.house.script.runs("echo"), 4);
}

/// The same key again, as after a lost answer: the step that runs, and then its outcome, but no second run.
#[tokio::test]
async fn a_start_with_its_reservation_is_taken_once() {
    let mesh = Mesh::new(None).await;
    let (mut reader, mut writer) = mesh.open(&mesh.honest).await;
    writer.send(start_if_free("wait", 1)).await.unwrap();
    let Message::Started(first) = next(&mut reader).await else { panic!("not started") };
    let (mut again, mut writer_again) = mesh.open(&mesh.honest).await;
    writer_again.send(start_if_free("wait", 1)).await.unwrap();
    let Message::Started(second) = next(&mut again).await else { panic!("not started") };
    assert_eq!(first.lease, second.lease);
    writer.send(Cancel { key: key(1), epoch: 1 }).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Cancelled);
    assert_eq!(outcome(&mut again).await.unwrap().status, StepStatus::Cancelled);
    assert_eq!(mesh.house.script.runs("wait"), 1);
}

/// Only what may repeat begins so, and only in a free slot.
#[tokio::test]
async fn what_must_not_run_twice_or_has_to_wait_is_granted_a_place_only() {
    let mesh = Mesh::new(None).await;
    let (mut reader, mut writer) = mesh.open(&mesh.honest).await;
    writer.send(start_if_free("echo_once", 1)).await.unwrap();
    let Message::Granted(granted) = next(&mut reader).await else { panic!("not granted") };
    assert_eq!(mesh.house.script.runs("echo_once"), 0);
    writer.send(start(granted.lease)).await.unwrap();
    assert_eq!(outcome(&mut reader).await.unwrap().status, StepStatus::Ok);
    let mut busy = Vec::new();
    for n in 2..6 {
        let (mut reader, mut writer) = mesh.open(&mesh.honest).await;
        writer.send(start_if_free("wait", n)).await.unwrap();
        assert!(matches!(next(&mut reader).await, Message::Started(_)));
        busy.push((reader, writer));
    }
    writer.send(start_if_free("echo", 6)).await.unwrap();
    assert!(matches!(next(&mut reader).await, Message::Granted(_)), "four slots, four steps");
    assert_eq!(mesh.house.script.runs("echo"), 0);
}

#[tokio::test]
async fn a_client_that_starts_shell_with_its_reservation() {
    let mesh = Mesh::with(Role::Client, None).await;
    let answer = mesh.ask(&mesh.evil, start_if_free("shell", 1)).await.unwrap();
    assert!(matches!(&answer, Message::Refused(r) if r.reason == RefuseReason::Policy), "{answer:?}");
    assert_eq!(mesh.house.script.runs("shell"), 0);
}
