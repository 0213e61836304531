//! A shell on another machine: works in a sandbox that is proven, and nothing of the machine is to be seen from inside.
use octomesh_tests::mesh::Mesh;

#[test]
fn a_shell_on_another_node() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let pi = &mesh["pi"];
    let shell = |command: &str| {
        let call = pi.json(&["call", "shell", &format!("command={command}"), "--node", "attic"]);
        assert_eq!(call["node"], "attic");
        call
    };
    let ok = shell("echo ok");
    assert_eq!(ok["output"]["stdout"], "ok\n");
    let level = ok["sandbox"].as_str().unwrap();
    assert!(
        ["bwrap+landlock+seccomp", "userns+landlock+seccomp"].contains(&level),
        "{level}: {}",
        mesh["attic"].json(&["status"])["warnings"]
    );
    assert_eq!(ok["output"]["sandbox"], level);
    let home = mesh["attic"].home.display().to_string();
    for file in ["api.token", "journal.db", "identity"] {
        let call = shell(&format!("ls -d {home}/{file} || echo hidden"));
        assert_eq!(call["output"]["stdout"], "hidden\n", "{call}");
    }
    // Files stay, and the node's own tools use them.
    shell("echo kept > kept.txt");
    assert_eq!(shell("cat kept.txt")["output"]["stdout"], "kept\n");
    let read = pi.json(&["call", "file_read", "path=kept.txt", "--node", "attic"]);
    assert!(read["output"].to_string().contains("kept"), "{read}");
    pi.json(&["call", "file_write", "path=note.txt", "content=by the node", "--node", "attic"]);
    assert_eq!(shell("echo more >> note.txt && cat note.txt")["output"]["stdout"], "by the nodemore\n");
}

/// A measurement: `cargo test -p octomesh-tests --release -- --ignored --nocapture calls_beside_a_fork_bomb`.
#[test]
#[ignore = "takes half a minute and needs a machine that does nothing else"]
fn calls_beside_a_fork_bomb() {
    let mesh = Mesh::up(&["pi", "attic"], |machine| machine.configure("slots = 8\n"));
    let (pi, attic) = (&mesh["pi"], &mesh["attic"]);
    // The node's own time for a call that is routed, placed and run there; the command's start is not in it.
    let p99 = || {
        let mut all: Vec<u64> = (0..200)
            .map(|_| pi.json(&["call", "echo", "text=x", "--node", "attic"])["elapsed_ms"].as_u64().unwrap())
            .collect();
        all.sort_unstable();
        (all[100], all[197])
    };
    let quiet = p99();
    let bomb = "command=b() { b | b & }; while :; do b; done";
    let busy = "command=while :; do :; done";
    let mut running: Vec<_> = [bomb, busy, busy, busy]
        .iter()
        .map(|command| attic.start(&["--json", "call", "shell", command, "timeout_s=60", "--node", "attic"]))
        .collect();
    octomesh_tests::wait::wait("four shells run", || {
        let status = attic.json(&["status"]);
        octomesh_tests::wait::when(status["running"].as_u64() >= Some(4), status)
    });
    let loaded = p99();
    println!(
        "median and p99 of a call in ms: quiet {quiet:?}, beside four shells and a fork bomb {loaded:?}"
    );
    for call in &mut running {
        call.signal(rustix::process::Signal::INT);
    }
    assert!(loaded.1 <= 3 * quiet.1.max(10), "{quiet:?} {loaded:?}");
}
