//! The levels, each proven by its own self-test.
use octomesh_protocol::card::SandboxLevel::{
    self, BwrapLandlockSeccomp, LandlockSeccomp, UsernsLandlockSeccomp,
};
use octomesh_protocol::step::StepStatus;
use octomesh_tools::builtin;
use serde_json::json;

use crate::support::{Node, eventually, sandbox_at};

const NAMESPACES: [SandboxLevel; 2] = [BwrapLandlockSeccomp, UsernsLandlockSeccomp];
const LEVELS: [SandboxLevel; 3] = [BwrapLandlockSeccomp, UsernsLandlockSeccomp, LandlockSeccomp];

#[tokio::test]
async fn each_level_proves_itself() {
    for level in LEVELS {
        let sandbox = sandbox_at(level, |_| {}).await;
        let test = sandbox.self_test();
        assert_eq!(test.level, level, "{:#?}", test.missing);
        assert!(test.proved.len() > 20);
    }
}

#[tokio::test]
async fn echo_ok() {
    for level in LEVELS {
        let node = Node::new();
        node.script("tool", "echo ok", "");
        node.scan_with(&sandbox_at(level, |_| {}).await).await;
        let report = node.call("tool", json!({})).await;
        assert_eq!(report.sandbox, level);
        assert_eq!(node.ok("tool", json!({})).await["text"], "ok\n");
    }
}

/// Programs that get away by all known means; each writes into a file as long as it lives.
const RUNAWAYS: &str = r#"
trap '' TERM HUP INT
setsid sh -c 'trap "" TERM HUP; while :; do date +%N > one; sleep 0.05; done' >/dev/null 2>&1 &
( ( setsid sh -c 'trap "" TERM HUP; while :; do date +%N > two; sleep 0.05; done' >/dev/null 2>&1 & ) & )
python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        import time
        while True: open("three", "w").write(str(time.time())); time.sleep(0.05)
    os._exit(0)'
"#;
const TRACES: [&str; 3] = ["one", "two", "three"];

/// No file changes any more.
async fn still(node: &Node) {
    let read = || TRACES.map(|t| std::fs::read_to_string(node.inside(t)).unwrap());
    let first = read();
    // Ten times the time that each of them needs for a change.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(first, read(), "something has survived");
}

async fn nothing_survives_at(level: SandboxLevel) {
    let sandbox = sandbox_at(level, |_| {}).await;
    let node = Node::new();
    builtin::register_code(&node.registry, &sandbox).unwrap();
    let started = || TRACES.iter().all(|t| node.inside(t).exists());
    let clear = || TRACES.iter().for_each(|t| std::fs::remove_file(node.inside(t)).unwrap());
    // Its own time limit.
    let command = format!("{RUNAWAYS}\necho begun\nwhile :; do sleep 1; done");
    let out = node.ok("shell", json!({"command": command, "timeout_s": 3})).await;
    assert_eq!((&out["limit"], &out["exit_code"]), (&json!("timeout"), &json!(null)));
    assert_eq!((&out["stdout"], &out["sandbox"]), (&json!("begun\n"), &json!(level.as_str())));
    still(&node).await;
    clear();
    // A cancel.
    let context = node.context();
    let cancel = async {
        eventually("three runaways", started).await;
        context.cancel.cancel();
    };
    let (report, ()) = tokio::join!(node.call_with("shell", json!({"command": command}), &context), cancel);
    assert_eq!(report.status, StepStatus::Cancelled);
    still(&node).await;
    clear();
    // An ordinary end.
    let wait = "while [ ! -s one ] || [ ! -s two ] || [ ! -s three ]; do sleep 0.05; done";
    let out = node.ok("shell", json!({"command": format!("{RUNAWAYS}\n{wait}\necho over")})).await;
    assert_eq!((&out["stdout"], &out["exit_code"]), (&json!("over\n"), &json!(0)));
    still(&node).await;
}

#[tokio::test]
async fn nothing_survives_bwrap() {
    nothing_survives_at(BwrapLandlockSeccomp).await;
}

#[tokio::test]
async fn nothing_survives_userns() {
    nothing_survives_at(UsernsLandlockSeccomp).await;
}

#[tokio::test]
async fn nothing_survives_landlock() {
    nothing_survives_at(LandlockSeccomp).await;
}

/// Processes whose line in `/proc` satisfies `is`: parent and command line.
fn processes(is: impl Fn(u32, &str) -> bool) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        is(parent, &String::from_utf8_lossy(&line)).then_some(pid)
    })
    .collect()
}

/// Also when nobody is left who could end anything: SIGKILL of the node, and of the launcher.
#[tokio::test]
async fn nothing_survives_a_killed_node() {
    const INSIDE: &str = "OCTOMESH_TEST_NODE_TO_KILL";
    if let Ok(level) = std::env::var(INSIDE) {
        // The node of the test, until it is killed.
        let level = NAMESPACES.into_iter().find(|l| l.as_str() == level).unwrap();
        let node = Node::new();
        builtin::register_code(&node.registry, &sandbox_at(level, |_| {}).await).unwrap();
        let mark = std::env::temp_dir().display().to_string();
        let command = format!(
            "{}\nwhile :; do sleep 1; done # {mark}",
            RUNAWAYS.replace("setsid sh -c '", &format!("setsid sh -c ': {mark}; "))
        );
        node.call("shell", json!({"command": command, "timeout_s": 100})).await;
        // Its files stay to be looked at.
        return std::future::pending().await;
    }
    for level in NAMESPACES {
        for kills_launcher in [false, true] {
            let place = tempfile::tempdir().unwrap();
            std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
            let mark = place.path().display().to_string();
            let marked = || processes(|_, line| line.contains(&mark));
            let mut node = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sandbox::nothing_survives_a_killed_node"])
                .envs([(INSIDE, level.as_str()), ("TMPDIR", &mark)])
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let traces = || {
                let homes =
                    std::fs::read_dir(place.path()).unwrap().flatten().map(|e| e.path().join("workspace"));
                let all: Vec<_> =
                    homes.flat_map(|home| TRACES.map(|t| home.join(t))).filter(|t| t.exists()).collect();
                all
            };
            eventually("three runaways", || traces().len() == 3 && marked().len() >= 3).await;
            if kills_launcher {
                let launcher = processes(|parent, _| parent == node.id());
                let [launcher] = launcher[..] else { panic!("{launcher:?}") };
                let launcher = nix::unistd::Pid::from_raw(launcher.cast_signed());
                nix::sys::signal::kill(launcher, nix::sys::signal::Signal::SIGKILL).unwrap();
            } else {
                node.kill().unwrap();
            }
            eventually("the end of all", || marked().is_empty()).await;
            let read = || traces().iter().map(|t| std::fs::read_to_string(t).unwrap()).collect::<Vec<_>>();
            let first = read();
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            assert_eq!(first, read(), "something has survived at {level}");
            node.kill().unwrap();
            node.wait().unwrap();
        }
    }
}

/// What Docker's default profile does: no new namespaces, no mounts.
fn refuse_namespaces() {
    use nix::libc;
    use seccompiler::{
        SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };
    let flag = |flag: i32| {
        let flag = u64::from(flag.cast_unsigned());
        let set = SeccompCondition::new(0, Dword, SeccompCmpOp::MaskedEq(flag), flag).unwrap();
        SeccompRule::new(vec![set]).unwrap()
    };
    let kinds =
        [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWPID, libc::CLONE_NEWNET, libc::CLONE_NEWIPC];
    let denied =
        [libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_pivot_root].map(|c| (c, vec![]));
    let clone = (libc::SYS_clone, kinds.map(flag).to_vec());
    let absent = [(libc::SYS_clone3, vec![])];
    for (rules, errno) in [
        (denied.into_iter().chain([clone]).collect(), libc::EPERM),
        (absent.into_iter().collect(), libc::ENOSYS),
    ] {
        let action = SeccompAction::Errno(errno.cast_unsigned());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
        let program: seccompiler::BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter_all_threads(&program).unwrap();
    }
}

/// In a container that refuses namespaces the node says so, gives the lower level, and refuses shells of others.
#[test]
fn without_namespaces_the_level_is_lower() {
    const INSIDE: &str = "OCTOMESH_TEST_WITHOUT_NAMESPACES";
    if std::env::var_os(INSIDE).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::without_namespaces_the_level_is_lower", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    refuse_namespaces();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sandbox = sandbox_at(BwrapLandlockSeccomp, |_| {}).await;
        let test = sandbox.self_test();
        assert_eq!(test.level, LandlockSeccomp, "{:#?}", test.missing);
        assert!(
            test.missing.iter().all(|m| m.contains("Docker") && m.contains("AppArmor")),
            "{:?}",
            test.missing
        );
        assert_eq!(test.missing.len(), 2);
        let node = Node::new();
        builtin::register_code(&node.registry, &sandbox).unwrap();
        let command = json!({"command": "echo ok"});
        assert_eq!(node.ok("shell", command.clone()).await["stdout"], "ok\n");
        let mut afar = node.context();
        afar.caller.local = false;
        let report = node.call_with("shell", command, &afar).await;
        let (code, message) = crate::support::error(&report);
        assert_eq!(code, "forbidden");
        assert!(message.contains("landlock+seccomp here"), "{message}");
    });
}

/// A measurement, not a test: `cargo test -p octomesh-tools --release -- --ignored --nocapture cost`.
#[tokio::test]
#[ignore = "prints how long calls take"]
async fn cost() {
    let began = tokio::time::Instant::now();
    for _ in 0..50 {
        assert!(std::process::Command::new("sh").args(["-c", "true"]).status().unwrap().success());
    }
    println!("bare spawn: {:?}", began.elapsed() / 50);
    for level in [SandboxLevel::Rlimits, LandlockSeccomp, UsernsLandlockSeccomp, BwrapLandlockSeccomp] {
        let began = tokio::time::Instant::now();
        let sandbox = sandbox_at(level, |_| {}).await;
        println!("{level}: self-test {:?}", began.elapsed());
        let node = Node::new();
        builtin::register_code(&node.registry, &sandbox).unwrap();
        let mut all = Vec::new();
        for _ in 0..50 {
            let began = tokio::time::Instant::now();
            node.ok("shell", json!({"command": "true"})).await;
            all.push(began.elapsed());
        }
        all.sort();
        println!("{level}: median {:?}, worst {:?}", all[25], all[49]);
    }
}
