//! What ends a program, and that the result says it; what a tool of anybody's code gives back.
use octomesh_protocol::{
    card::SandboxLevel::{self, BwrapLandlockSeccomp, LandlockSeccomp, Rlimits, UsernsLandlockSeccomp},
    step::StepStatus,
    trust::Role,
};
use octomesh_tools::{
    builtin,
    sandbox::{Quota, Sandbox},
    tool::CallContext,
};
use serde_json::{Value, json};

use crate::support::{Node, error, sandbox_at};

async fn node_at(level: SandboxLevel) -> Node {
    with(&sandbox_at(level, |_| {}).await)
}

fn with(sandbox: &Sandbox) -> Node {
    let node = Node::new();
    builtin::register_code(&node.registry, sandbox).unwrap();
    node
}

async fn shell(node: &Node, command: &str) -> Value {
    node.ok("shell", json!({"command": command, "timeout_s": 20})).await
}

#[tokio::test]
async fn exit_codes_streams_and_stdin() {
    let node = node_at(BwrapLandlockSeccomp).await;
    let out = node.ok("shell", json!({"command": "cat; echo problem >&2; exit 3", "stdin": "given"})).await;
    assert_eq!(
        out,
        json!({"exit_code": 3, "stdout": "given", "stderr": "problem\n", "sandbox": "bwrap+landlock+seccomp"})
    );
    assert_eq!(shell(&node, "kill -SEGV $$").await["exit_code"], 139);
    assert_eq!(shell(&node, "no-such-program").await["exit_code"], 127);
    assert_eq!(shell(&node, "pwd; echo $HOME; id -un").await["stdout"], "/workspace\n/workspace\nsandbox\n");
    // Files stay from call to call, also for the node itself.
    shell(&node, "mkdir -p a; echo kept > a/b").await;
    assert_eq!(std::fs::read_to_string(node.inside("a/b")).unwrap(), "kept\n");
    node.put("a/c", "from the node");
    assert_eq!(
        shell(&node, "cat a/b; echo more >> a/c && cat a/c").await["stdout"],
        "kept\nfrom the nodemore\n"
    );
}

#[tokio::test]
async fn a_flood_keeps_head_and_tail_and_tells_its_length() {
    let sandbox = sandbox_at(UsernsLandlockSeccomp, |_| {}).await;
    let node = with(&sandbox);
    let out = shell(&node, "printf BEGIN; head -c 300000000 /dev/zero | tr '\\0' x; printf END").await;
    assert_eq!((&out["stdout_bytes"], &out["limit"]), (&json!(300_000_008), &json!("output")));
    let text = out["stdout"].as_str().unwrap();
    assert!(text.starts_with("BEGINxx") && text.ends_with("xxEND"));
    assert!(text.len() > 60_000, "{}", text.len());
    assert!(sandbox.kills().contains(&("output", 1)));
}

#[tokio::test]
async fn the_limit_that_ended_it() {
    for level in [BwrapLandlockSeccomp, UsernsLandlockSeccomp, LandlockSeccomp] {
        let sandbox = sandbox_at(level, |_| {}).await;
        assert!(sandbox.kills().iter().all(|(_, count)| *count == 0), "the self-test counts");
        let node = with(&sandbox);
        let out = node.ok("shell", json!({"command": "while :; do :; done", "timeout_s": 1})).await;
        assert_eq!((&out["limit"], &out["exit_code"]), (&json!("timeout"), &Value::Null));
        let out = shell(&node, "python3 -c 'bytearray(3 << 30)'").await;
        assert_eq!((&out["limit"], &out["exit_code"]), (&json!("memory"), &json!(1)), "{out}");
        let out = shell(&node, "truncate -s 300M big").await;
        assert_eq!((&out["limit"], &out["exit_code"]), (&json!("file_size"), &json!(153)), "{out}");
        if level > LandlockSeccomp || rustix::process::geteuid().is_root() {
            let bomb = "import os, time\nn = 0\ntry:\n  while n < 1000:\n    if os.fork() == 0: time.sleep(100)\n    n += 1\n\
                        finally: print(n)";
            let out = node.ok("run_python_code", json!({"code": bomb})).await;
            let started: u64 = out["stdout"].as_str().unwrap().trim().parse().unwrap();
            assert!((10..200).contains(&started), "{out}");
            assert_eq!(out["limit"], "pids", "{out}");
        }
        assert_eq!(shell(&node, "echo still there").await["stdout"], "still there\n");
        for limit in ["timeout", "memory", "file_size"] {
            assert!(sandbox.kills().contains(&(limit, 1)), "{limit}: {:?}", sandbox.kills());
        }
        for limit in ["cpu", "quota", "output"] {
            assert!(sandbox.kills().contains(&(limit, 0)), "{limit}: {:?}", sandbox.kills());
        }
    }
}

#[tokio::test]
async fn private_memory_file_systems_are_small() {
    for level in [BwrapLandlockSeccomp, UsernsLandlockSeccomp] {
        let node = node_at(level).await;
        for folder in ["/tmp", "/dev/shm"] {
            let fill = format!(
                "cd {folder} && fallocate -l 200M a && echo first; fallocate -l 200M b && echo second; rm -f a b"
            );
            assert_eq!(shell(&node, &fill).await["stdout"], "first\n", "{folder}");
        }
        // No other place is writable.
        let all = "for d in / /usr /etc /run /dev /proc /proc/sys /opt /var; do touch $d/x 2>/dev/null && echo $d; done; true";
        assert_eq!(shell(&node, all).await["stdout"], "");
    }
}

#[tokio::test]
async fn a_full_workspace() {
    let sandbox =
        sandbox_at(BwrapLandlockSeccomp, |c| c.quota = Quota { bytes: 20 << 20, entries: 500 }).await;
    let node = with(&sandbox);
    let afar = |command: &str| {
        let (context, arguments) = (from_afar(&node, Role::Worker), json!({ "command": command }));
        let node = &node;
        async move {
            let report = node.call_with("shell", arguments, &context).await;
            (error(&report), serde_json::from_slice::<Value>(&report.output).unwrap())
        }
    };
    let many = "mkdir d; i=0; while [ $i -lt 5000 ]; do : > d/$i; i=$((i+1)); done; sleep 30";
    let (_, out) = afar(many).await;
    assert_eq!((&out["limit"], &out["exit_code"]), (&json!("quota"), &Value::Null), "{out}");
    let ((code, message), _) = afar("rm -r d").await;
    assert_eq!(code, "quota");
    assert!(message.contains("500"), "{message}");
    // The owner may, also to clean up.
    assert_eq!(shell(&node, "rm -r d && echo ok").await["stdout"], "ok\n");
    assert_eq!(afar("head -c 30000000 /dev/zero > large").await.1["limit"], "quota");
    assert_eq!(shell(&node, "rm large").await["exit_code"], 0);
    assert_eq!(afar("echo ok").await.1["stdout"], "ok\n");
    assert!(sandbox.kills().contains(&("quota", 2)), "{:?}", sandbox.kills());
}

#[tokio::test]
async fn python() {
    let node = node_at(BwrapLandlockSeccomp).await;
    let code = "import os\nopen('made.txt', 'w').write('x')\nprint(sum(range(10)), os.getcwd())";
    let out = node.ok("run_python_code", json!({"code": code})).await;
    assert_eq!((&out["stdout"], &out["files"]), (&json!("45 /workspace\n"), &json!(["made.txt"])));
    let out = node.ok("run_python_code", json!({"code": "print('before')\n1/0"})).await;
    assert_eq!(
        (&out["stdout"], &out["exit_code"], &out["files"]),
        (&json!("before\n"), &json!(1), &json!([]))
    );
    let stderr = out["stderr"].as_str().unwrap();
    assert!(
        stderr.contains("line 2") && stderr.contains("1/0") && stderr.contains("ZeroDivisionError"),
        "{stderr}"
    );
    let code = "import os\nif os.fork() == 0: os.setsid()\nwhile True: pass";
    let begun = tokio::time::Instant::now();
    let out = node.ok("run_python_code", json!({"code": code})).await;
    assert_eq!((&out["limit"], &out["exit_code"]), (&json!("timeout"), &Value::Null));
    let took = begun.elapsed().as_secs();
    assert!((10..15).contains(&took), "{took} s");
    let code = "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9480')";
    let out = node.ok("run_python_code", json!({"code": code})).await;
    assert!(out["stderr"].as_str().unwrap().contains("not permitted"), "{out}");
}

/// Figures come back as files; the module stands in for Matplotlib, which is not everywhere.
#[tokio::test]
async fn open_figures_are_saved() {
    let node = node_at(BwrapLandlockSeccomp).await;
    node.put(
        "matplotlib/pyplot.py",
        "class F:\n  def savefig(self, name): open(name, 'w').write('png')\ndef get_fignums(): return [1, 2]\ndef figure(n): return F()\n",
    );
    node.put("matplotlib/__init__.py", "");
    let out = node
        .ok(
            "run_python_code",
            json!({"code": "import matplotlib.pyplot, os\nprint(os.environ['MPLBACKEND'])"}),
        )
        .await;
    assert_eq!(out["stdout"], "Agg\n", "{out}");
    let files: Vec<&str> = out["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert_eq!(
        files.iter().filter(|f| f.starts_with("figure-") && f.ends_with(".png")).count(),
        2,
        "{files:?}"
    );
}

fn from_afar(node: &Node, role: Role) -> CallContext {
    let mut context = node.context();
    context.caller.local = false;
    context.caller.role = role;
    context
}

#[tokio::test]
async fn weak_nodes_refuse_code_of_others() {
    for (level, allowed) in [
        (BwrapLandlockSeccomp, true),
        (UsernsLandlockSeccomp, true),
        (LandlockSeccomp, false),
        (Rlimits, false),
    ] {
        let node = node_at(level).await;
        for (tool, arguments) in
            [("shell", json!({"command": "echo ok"})), ("run_python_code", json!({"code": "print('ok')"}))]
        {
            // The owner's own call is the positive control.
            let own = node.ok(tool, arguments.clone()).await;
            assert_eq!((&own["stdout"], &own["sandbox"]), (&json!("ok\n"), &json!(level.as_str())));
            let report = node.call_with(tool, arguments.clone(), &from_afar(&node, Role::Worker)).await;
            assert_eq!(report.status == StepStatus::Ok, allowed, "{tool} at {level}");
            if !allowed {
                let (code, message) = error(&report);
                assert_eq!(code, "forbidden");
                assert!(message.contains(level.as_str()), "{message}");
            }
            let report = node.call_with(tool, arguments, &from_afar(&node, Role::Client)).await;
            assert_eq!(error(&report).0, "forbidden");
        }
    }
}

#[tokio::test]
async fn a_configured_minimum_stops_the_tool_and_not_the_node() {
    let sandbox = sandbox_at(LandlockSeccomp, |c| c.min_level = Some(BwrapLandlockSeccomp)).await;
    let node = with(&sandbox);
    let (code, message) = node.err("shell", json!({"command": "echo ok"})).await;
    assert_eq!(code, "unavailable");
    assert!(message.contains("bwrap+landlock+seccomp is not reached"), "{message}");
    assert_eq!(node.ok("echo", json!({"text": "x"})).await["text"], "x");
    assert!(sandbox.self_test().proved.iter().all(|p| p.name != "outside_unreadable" || p.ok));
}
