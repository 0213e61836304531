use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use octomesh_protocol::{card::SandboxLevel, step::StepStatus};
use octomesh_tools::registry::EntryState;
use serde_json::{Value, json};

use crate::support::{Node, error, events, eventually, launcher, name};

async fn with(script: &str) -> Node {
    let node = Node::new();
    node.script("tool", script, "");
    node.scan().await;
    node
}

fn pid_in(path: &Path) -> Option<i32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A zombie counts as gone: it does nothing any more.
fn alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !matches!(stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]), Some(b'Z' | b'X') | None)
}

/// Writes pids of processes that get away by all known means: a new session, a double fork, deaf to signals.
const RUNAWAYS: &str = r#"
trap '' TERM HUP INT
setsid sh -c 'trap "" TERM HUP; echo $$ > one; while :; do sleep 1; done' >/dev/null 2>&1 &
( ( setsid sh -c 'trap "" TERM HUP; echo $$ > two; while :; do sleep 1; done' & ) & )
sh -c 'trap "" TERM; echo $$ > three; while :; do sleep 1; done' &
echo $$ > zero
while :; do sleep 1; done
"#;
const PIDS: [&str; 4] = ["zero", "one", "two", "three"];

async fn all_started(node: &Node) -> Vec<i32> {
    eventually("four processes", || PIDS.iter().all(|p| pid_in(&node.inside(p)).is_some())).await;
    let pids: Vec<i32> = PIDS.iter().map(|p| pid_in(&node.inside(p)).unwrap()).collect();
    assert!(pids.iter().all(|p| alive(*p)), "{pids:?}");
    pids
}

#[tokio::test]
async fn json_in_json_out() {
    let node = with("cat").await;
    let context = node.context();
    let report = node.call_with("tool", json!({"a": [1, 2]}), &context).await;
    assert_eq!((report.status, report.sandbox), (StepStatus::Ok, SandboxLevel::Rlimits));
    assert_eq!(serde_json::from_slice::<Value>(&report.output).unwrap(), json!({"a": [1, 2]}));
}

#[tokio::test]
async fn text_out_and_input_that_nobody_reads() {
    let node = with("echo 'hello there'").await;
    assert_eq!(
        node.ok("tool", json!({"ignored": "x".repeat(200_000)})).await,
        json!({"text": "hello there\n"})
    );
}

#[tokio::test]
async fn the_environment_is_clean_and_the_limits_are_set() {
    let node = Node::new();
    node.script(
        "tool",
        "env | sort > env.txt; grep NoNewPrivs /proc/self/status > nnp; ulimit -c > core; ulimit -n > files; pwd",
        "env = { COLOUR = \"blue\" }",
    );
    node.scan().await;
    let out = node.ok("tool", json!({})).await;
    assert_eq!(out["text"].as_str().unwrap().trim(), node.workspace.path().display().to_string());
    let read = |path: &str| std::fs::read_to_string(node.inside(path)).unwrap();
    let env = read("env.txt");
    let mut names: Vec<&str> = env.lines().filter_map(|l| l.split_once('=')).map(|(n, _)| n).collect();
    names.retain(|n| !["PWD", "_", "SHLVL", "OLDPWD"].contains(n));
    assert_eq!(names, ["COLOUR", "HOME", "LANG", "OCTOMESH_CALL", "PATH", "TMPDIR"]);
    assert!(env.contains("OCTOMESH_CALL=call-0101010101010101/s001"));
    assert_eq!(read("nnp").split_whitespace().last(), Some("1"));
    assert_eq!((read("core").trim(), read("files").trim()), ("0", "256"));
}

#[tokio::test]
async fn invalid_utf8_is_flagged() {
    let node = with(r"printf 'caf\351 \377'").await;
    assert_eq!(
        node.ok("tool", json!({})).await,
        json!({"text": "caf\u{fffd} \u{fffd}", "invalid_utf8": true})
    );
}

#[tokio::test]
async fn fifty_megabytes_are_drained_and_counted() {
    let node = with("printf BEGIN; head -c 50000000 /dev/zero | tr '\\0' x; printf END").await;
    let report = node.call("tool", json!({})).await;
    assert!(report.output.len() <= octomesh_protocol::limits::RESULT_BYTES);
    let out: Value = serde_json::from_slice(&report.output).unwrap();
    assert_eq!((&out["truncated"], &out["total_bytes"]), (&json!(true), &json!(50_000_008)));
    let text = out["text"].as_str().unwrap();
    assert!(text.starts_with("BEGINxxx") && text.ends_with("xEND") && text.contains("bytes left out"));
}

#[tokio::test]
async fn zero_bytes_fit_too() {
    let node = with("head -c 4000000 /dev/zero").await;
    let out = node.ok("tool", json!({})).await;
    assert_eq!((&out["truncated"], &out["total_bytes"]), (&json!(true), &json!(4_000_000)));
}

#[tokio::test]
async fn an_exit_code_and_the_tail_of_stderr_are_told() {
    let node = with("echo first >&2; echo 'no such planet' >&2; exit 3").await;
    let mut context = node.context();
    let (sink, mut lines) = events();
    context.events = sink;
    let report = node.call_with("tool", json!({}), &context).await;
    assert_eq!((report.status, report.sandbox), (StepStatus::Error, SandboxLevel::Rlimits));
    assert_eq!(error(&report), ("failed".into(), "ended with exit code 3: first\nno such planet".into()));
    assert_eq!(lines.try_recv().unwrap().1, "first");
    assert_eq!(lines.try_recv().unwrap().1, "no such planet");
    let node = with("kill -SEGV $$").await;
    assert_eq!(node.err("tool", json!({})).await, ("failed".into(), "ended by SIGSEGV".into()));
}

#[tokio::test]
async fn a_flood_on_stderr_is_bounded() {
    let node = with("yes 'a line of the flood' | head -c 20000000 >&2; echo last words >&2; exit 1").await;
    let mut context = node.context();
    let (sink, mut lines) = events();
    context.events = sink;
    let report = node.call_with("tool", json!({}), &context).await;
    let (_, message) = error(&report);
    assert!(message.ends_with("last words") && message.len() < 2100, "{message}");
    let mut count = 0;
    while lines.try_recv().is_ok() {
        count += 1;
    }
    assert_eq!(count, 1001);
}

#[tokio::test]
async fn a_program_without_end_meets_its_own_limit() {
    let node = Node::new();
    node.script("tool", RUNAWAYS, "timeout_s = 2");
    node.scan().await;
    let (report, pids) = tokio::join!(node.call("tool", json!({})), all_started(&node));
    assert_eq!(report.status, StepStatus::Timeout);
    assert!(!pids.iter().any(|p| alive(*p)), "all are gone when the call returns: {pids:?}");
}

#[tokio::test]
async fn a_cancel_ends_the_whole_tree() {
    let node = with(RUNAWAYS).await;
    let context = node.context();
    let cancel = async {
        let pids = all_started(&node).await;
        context.cancel.cancel();
        pids
    };
    let (report, pids) = tokio::join!(node.call_with("tool", json!({}), &context), cancel);
    assert_eq!(report.status, StepStatus::Cancelled);
    assert!(!pids.iter().any(|p| alive(*p)), "{pids:?}");
}

#[tokio::test]
async fn a_dropped_call_ends_the_whole_tree() {
    let node = with(RUNAWAYS).await;
    let call = node.call("tool", json!({}));
    let pids = tokio::select! {
        _ = call => panic!("it never ends"),
        pids = all_started(&node) => pids,
    };
    eventually("the tree is gone", || !pids.iter().any(|p| alive(*p))).await;
}

#[tokio::test]
async fn what_is_left_behind_ends_with_the_program() {
    let node =
        with("setsid sh -c 'echo $$ > one; exec sleep 1000' & while [ ! -s one ]; do :; done; echo done")
            .await;
    assert_eq!(node.ok("tool", json!({})).await["text"], "done\n");
    assert!(!alive(pid_in(&node.inside("one")).unwrap()));
}

/// The lifeline, without a node that could say goodbye: a stand-in for it is killed with SIGKILL.
#[tokio::test]
async fn a_killed_node_leaves_nothing_running() {
    let node = Node::new();
    let spec = json!({
        "program": "/bin/sh", "args": ["-c", RUNAWAYS], "env": {"PATH": "/usr/bin:/bin"}, "dir": node.workspace.path(),
        "limits": {"cpu_s": 60, "open_files": 256, "file_bytes": 1 << 20, "data_bytes": 1u64 << 31}, "input_bytes": 0,
    });
    // Holds the only writing end of the lifeline, as a node does.
    let mut stand_in = Command::new("sh")
        .args(["-c", "printf '%s\\n' \"$SPEC\"; exec sleep 1000"])
        .env("SPEC", spec.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let launcher = launcher();
    let mut launched = Command::new(launcher.program)
        .arg("run")
        .stdin(stand_in.stdout.take().unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pids = all_started(&node).await;
    stand_in.kill().unwrap();
    stand_in.wait().unwrap();
    eventually("the tree is gone", || !pids.iter().any(|p| alive(*p))).await;
    launched.wait().unwrap();
}

#[tokio::test]
async fn many_at_once_and_a_deadline() {
    let node = with("cat; sleep 0.05").await;
    let calls = (0..20).map(|i| node.ok("tool", json!({ "i": i })));
    for (i, out) in futures::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(out, json!({ "i": i }));
    }
    let node = with("sleep 1000").await;
    let mut context = node.context();
    context.deadline = tokio::time::Instant::now() + Duration::from_millis(300);
    let started = tokio::time::Instant::now();
    let report = node.call_with("tool", json!({}), &context).await;
    assert_eq!(report.status, StepStatus::Timeout);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn programs_that_cannot_start() {
    let node = Node::new();
    node.script("gone", "true", "");
    node.script("strict", "true", "[needs]\nmin_sandbox = \"bwrap+landlock+seccomp\"");
    node.script("broken", "true", "");
    std::fs::remove_file(node.tools().join("gone/run.sh")).unwrap();
    std::fs::write(node.tools().join("broken/run.sh"), "#!/no/such/interpreter\n").unwrap();
    node.scan().await;
    let snapshot = node.registry.snapshot();
    for (tool, word) in [("gone", "run.sh"), ("strict", "sandbox level")] {
        let state = &snapshot.get(&name(tool)).unwrap().state;
        assert!(matches!(state, EntryState::Unavailable { reason } if reason.contains(word)), "{state:?}");
        assert_eq!(node.err(tool, json!({})).await.0, "unavailable");
    }
    let (code, message) = node.err("broken", json!({})).await;
    assert!(code == "unavailable" && message.contains("could not be started"), "{message}");
}
