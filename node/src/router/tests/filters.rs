//! One test per reason code, each with the words that people read.
use super::*;

#[track_caller]
fn check(mesh: &Mesh, name: &str, reason: FilterReason, words: &str) {
    let (got, detail) = mesh.out(name);
    assert_eq!(got, reason, "{detail}");
    assert!(detail.contains(words), "{detail:?} does not say {words:?}");
    assert!(mesh.decide().chosen.is_none_or(|c| c.node != mesh.id(name)));
}

fn needs(change: impl FnOnce(&mut Needs)) -> Arc<RemoteTool> {
    card(|c| change(&mut c.needs))
}

#[test]
fn no_tool() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    check(&mesh, "pi", FilterReason::NoTool, "has no tool image_render");
    mesh.change("tower", |m| {
        m.tools = Arc::default();
        m.tools_complete = false;
    });
    check(&mesh, "tower", FilterReason::NoTool, "still on the way");
}

#[test]
fn a_missing_tool_is_said_before_a_missing_gpu() {
    let mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(8 * GIB)), &["attic"]);
    check(&mesh, "pi", FilterReason::NoTool, "");
    check(&mesh, "attic", FilterReason::NoGpu, "has no GPU");
}

#[test]
fn tool_version() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.ask.card = Some(card(|c| c.version = "2".into()).hash);
    check(&mesh, "tower", FilterReason::ToolVersion, "has another image_render");
    mesh.ask.card = Some(card(|_| {}).hash);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn vram() {
    let mut mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(8 * GIB)), &["tower"]);
    mesh.advert("tower", |a| a.gpus = vec![gpu(2 * GIB), gpu(7 * GIB)]);
    check(&mesh, "tower", FilterReason::Vram, "has 7.0 GiB of GPU memory free on one card, needs 8.0 GiB");
    mesh.advert("tower", |a| a.gpus = vec![gpu(12 * GIB)]);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
    let at = mesh.now + Duration::from_millis(1);
    let own = OwnReservation { node: mesh.id("tower"), est_ms: 1, vram: 8 * GIB, memory: 0, at };
    mesh.own.insert(StepKey { step: StepId::parse("s002").unwrap(), ..mesh.ask.key.clone() }, own);
    check(&mesh, "tower", FilterReason::Vram, "has 4.0 GiB");
}

#[test]
fn own_reservations_are_taken_off_one_card_not_off_all() {
    let mut mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(6 * GIB)), &["tower"]);
    mesh.advert("tower", |a| a.gpus = vec![gpu(8 * GIB), gpu(24 * GIB)]);
    let at = mesh.now + Duration::from_millis(1);
    let mut reserve = |step: &str, vram| {
        let own = OwnReservation { node: mesh.id("tower"), est_ms: 1, vram, memory: 0, at };
        mesh.own.insert(StepKey { step: StepId::parse(step).unwrap(), ..mesh.ask.key.clone() }, own);
        mesh.decide().chosen.and_then(|c| c.gpu)
    };
    assert!(reserve("s002", 12 * GIB).unwrap().starts_with("GPU 1 (GPU, 12.0 GiB of 24.0 GiB free"));
    assert!(reserve("s003", 10 * GIB).unwrap().starts_with("GPU 0 (GPU, 8.0 GiB"));
    assert!(reserve("s004", 8 * GIB).is_none());
}

#[test]
fn the_memory_of_an_own_step_that_has_ended_is_free_before_the_advert_says_so() {
    let mut mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(12 * GIB)), &["tower"]);
    mesh.advert("tower", |a| a.gpus = vec![gpu(11 * GIB)]);
    check(&mesh, "tower", FilterReason::Vram, "has 11.0 GiB");
    let (tower, key) =
        (mesh.id("tower"), StepKey { step: StepId::parse("s002").unwrap(), ..mesh.ask.key.clone() });
    let advert_at = mesh.view.get(tower).unwrap().advert_at.unwrap();
    let own = OwnReservation { node: tower, est_ms: 1, vram: 12 * GIB, memory: 0, at: advert_at };
    mesh.own.insert(key.clone(), own);
    mesh.own.observe(tower, LoadState { slots: 4, ready: true, ..LoadState::default() }, advert_at);
    check(&mesh, "tower", FilterReason::Vram, "has 11.0 GiB");
    mesh.own.ended(&key, advert_at + Duration::from_millis(1));
    let gpu = mesh.decide().chosen.and_then(|c| c.gpu).unwrap();
    assert!(gpu.contains("11.0 GiB of 24.0 GiB free, and what a step that has ended held"), "{gpu}");
}

#[test]
fn why_there_is_no_gpu_is_passed_on() {
    let mut mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(1)), &["tower"]);
    mesh.advert("tower", |a| {
        a.gpus.clear();
        a.circumstances.no_gpu = "nvidia: no_driver".into();
    });
    check(&mesh, "tower", FilterReason::NoGpu, "has no GPU (nvidia: no_driver)");
}

#[test]
fn a_machine_that_its_owner_keeps_is_no_candidate() {
    use octomesh_protocol::advert::YieldReason;
    let mut mesh = Mesh::new(&needs(|_| ()), &["tower"]);
    mesh.advert("tower", |a| a.circumstances.yields = Some(YieldReason::GpuBusy));
    check(&mesh, "tower", FilterReason::Yields, "is kept by its owner: a GPU is busy");
}

#[test]
fn an_old_reading_of_gpu_memory_is_no_reading() {
    let mut mesh = Mesh::new(&needs(|n| n.gpu_vram = Some(8 * GIB)), &["tower"]);
    mesh.advert("tower", |a| a.gpus = vec![GpuAdvert { age_ms: 61_000, ..gpu(20 * GIB) }]);
    check(&mesh, "tower", FilterReason::Stale, "read its GPU memory 61 s ago");
    mesh.advert("tower", |a| a.gpus = vec![GpuAdvert { age_ms: 61_000, declared: true, ..gpu(20 * GIB) }]);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"), "what is declared needs no reading");
    mesh.advert("tower", |a| {
        a.gpus = vec![GpuAdvert { age_ms: 61_000, vram_total: 4 * GIB, ..gpu(4 * GIB) }];
    });
    check(&mesh, "tower", FilterReason::Vram, "");
    mesh.advert("tower", |a| a.gpus = vec![GpuAdvert { age_ms: u32::MAX, ..gpu(0) }]);
    check(&mesh, "tower", FilterReason::Stale, "does not know how much of its GPU memory is free");
}

#[test]
fn memory() {
    let mut mesh = Mesh::new(&needs(|n| n.memory = Some(2 * GIB)), &["tower"]);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
    mesh.advert("tower", |a| a.load.memory_free = 300 << 20);
    check(&mesh, "tower", FilterReason::Memory, "has 300 MiB of memory free, needs 2.0 GiB");
}

#[test]
fn model_absent() {
    let mut mesh = Mesh::new(&needs(|n| n.model = Some("llama".into())), &["tower"]);
    check(&mesh, "tower", FilterReason::ModelAbsent, "does not have the model llama");
    mesh.advert("tower", |a| a.models = vec!["llama".into()]);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn sandbox() {
    let mesh = Mesh::new(&needs(|n| n.min_sandbox = Some(SandboxLevel::LandlockSeccomp)), &["tower"]);
    check(&mesh, "tower", FilterReason::Sandbox, "runs tools at rlimits, below landlock+seccomp");
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.change("pi", |m| m.grants.min_sandbox = Some(SandboxLevel::BwrapLandlockSeccomp));
    check(&mesh, "tower", FilterReason::Sandbox, "below bwrap+landlock+seccomp");
}

#[test]
fn policy() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.change("tower", |m| m.role = Role::Client);
    check(&mesh, "tower", FilterReason::Policy, "is a client");
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.change("pi", |m| m.grants.tools = Some(vec![ToolName::parse("echo").unwrap()]));
    check(&mesh, "tower", FilterReason::Policy, "does not grant image_render");
}

#[test]
fn draining_and_not_ready() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic", "shed"]);
    mesh.advert("tower", |a| a.load.draining = true);
    mesh.advert("attic", |a| a.load.ready = false);
    mesh.advert("shed", |a| a.load.slots = 0);
    check(&mesh, "tower", FilterReason::Draining, "is draining");
    check(&mesh, "attic", FilterReason::NotReady, "is not ready");
    check(&mesh, "shed", FilterReason::NotReady, "has no slots");
}

#[test]
fn suspect_down_and_left() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic", "shed"]);
    mesh.change("tower", |m| m.state = MemberState::Suspect);
    mesh.change("attic", |m| m.state = MemberState::Down);
    mesh.change("shed", |m| m.state = MemberState::Left);
    check(&mesh, "tower", FilterReason::Suspect, "may be down");
    check(&mesh, "attic", FilterReason::Down, "is down");
    check(&mesh, "shed", FilterReason::Down, "left the mesh");
}

#[test]
fn stale() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    let old = mesh.now - Duration::from_secs(91);
    mesh.change("tower", |m| m.advert_at = Some(old));
    assert_eq!(mesh.chosen().as_deref(), Some("tower"), "it was heard directly");
    mesh.change("tower", |m| m.last_contact = Some(old));
    check(&mesh, "tower", FilterReason::Stale, "was last heard 91 s ago");
    let load = LoadState { slots: 2, ready: true, ..LoadState::default() };
    let now = mesh.now;
    mesh.own.observe(mesh.id("tower"), load, now);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"), "it answered a reservation");
    let mut mesh = Mesh::new(&card(|_| {}), &["tower"]);
    mesh.change("tower", |m| (m.advert, m.advert_at) = (None, None));
    check(&mesh, "tower", FilterReason::Stale, "has sent no advert");
}

#[test]
fn deadline() {
    let mut mesh = Mesh::new(&card(|c| c.typical_ms = 10_000), &["tower"]);
    mesh.ask.deadline_ms = 1000;
    check(&mesh, "tower", FilterReason::Deadline, "needs at least 5002 ms, 1000 ms are left");
    mesh.ask.deadline_ms = 6000;
    assert_eq!(mesh.chosen().as_deref(), Some("tower"), "estimates may be off by a factor of two");
}

#[test]
fn tag() {
    let mut mesh = Mesh::new(&needs(|n| n.tags = vec!["camera".into()]), &["tower"]);
    check(&mesh, "tower", FilterReason::Tag, "lacks the tag camera");
    mesh.advert("tower", |a| a.tags = vec!["camera".into()]);
    assert_eq!(mesh.chosen().as_deref(), Some("tower"));
}

#[test]
fn pinned_is_one_more_filter() {
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    mesh.ask.pinned = Some(mesh.id("attic"));
    check(&mesh, "tower", FilterReason::Pinned, "is not the node asked for");
    assert_eq!(mesh.chosen().as_deref(), Some("attic"));
    mesh.advert("attic", |a| a.load.draining = true);
    assert_eq!(mesh.chosen(), None, "all other filters still hold");
    check(&mesh, "attic", FilterReason::Draining, "");
}

#[test]
fn no_data() {
    let mut mesh = Mesh::new(&card(|c| c.data = vec!["path".into()]), &["tower", "attic", "shed"]);
    let ids = ["tower", "attic", "shed"].map(|n| mesh.id(n));
    let ask = |mesh: &Mesh| mesh.decide().needs_probe;
    assert_eq!(ask(&mesh), ids, "all are asked at once");
    assert!(mesh.decide().is_nowhere());
    check(&mesh, "tower", FilterReason::NoData, "was not asked");
    mesh.probes.insert(ids[0], ProbeResult::Missing("no file note.txt".into()));
    mesh.probes.insert(ids[1], ProbeResult::Have(100));
    mesh.probes.insert(ids[2], ProbeResult::Silent);
    assert!(ask(&mesh).is_empty());
    check(&mesh, "tower", FilterReason::NoData, "does not have the data: no file note.txt");
    check(&mesh, "shed", FilterReason::NoData, "did not answer");
    assert_eq!(mesh.chosen().as_deref(), Some("attic"));
}

#[test]
fn only_nodes_that_pass_all_else_are_probed() {
    let mut mesh = Mesh::new(&card(|c| c.data = vec!["path".into()]), &["tower", "attic"]);
    mesh.advert("tower", |a| a.load.draining = true);
    assert_eq!(mesh.decide().needs_probe, [mesh.id("attic")]);
    let plain = Mesh::new(&card(|_| {}), &["tower"]);
    assert!(plain.decide().needs_probe.is_empty());
}

#[test]
fn excluded_nodes_say_why() {
    use octomesh_protocol::step::RefuseReason;
    let mut mesh = Mesh::new(&card(|_| {}), &["tower", "attic"]);
    for (name, reason, detail) in [
        ("tower", FilterReason::Lost, "lost the step"),
        ("attic", RefuseReason::Unavailable.into(), "refused: image_render does not work here"),
    ] {
        mesh.ask.exclude.insert(mesh.id(name), Exclusion { reason, detail: detail.into() });
    }
    check(&mesh, "tower", FilterReason::Lost, "lost the step");
    check(&mesh, "attic", FilterReason::Unavailable, "refused");
    assert_eq!(FilterReason::from(RefuseReason::Busy), FilterReason::Refused);
    assert_eq!(FilterReason::from(RefuseReason::Quota), FilterReason::Quota);
}

#[test]
fn codes_are_the_documented_ones() {
    use strum::IntoEnumIterator as _;
    let codes: Vec<&str> = FilterReason::iter().map(FilterReason::code).collect();
    let documented = "no_tool tool_version unavailable no_gpu vram memory model_absent sandbox policy draining yields \
                      not_ready suspect stale quota deadline tag pinned no_data down refused lost";
    assert_eq!(codes.join(" "), documented);
    for reason in FilterReason::iter() {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.code());
    }
}
