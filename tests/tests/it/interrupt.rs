//! Ctrl-C, and worse: whoever asked goes away, and what runs for them on other nodes stops.
use std::time::{Duration, Instant};

use octomesh_tests::{
    Machine, Mesh, Running,
    machine::free_port,
    process::processes_with,
    wait::{PATIENCE, wait, wait_within, when},
};
use rustix::process::Signal;

/// From the loss of whoever asked to the end of the last process.
const STOPPED: Duration = Duration::from_secs(8);

/// A tree of processes that would run for minutes, part of it in sessions of its own.
fn slow_tree(machine: &Machine) {
    let script = "(sleep 300; true) &\nsetsid sh -c 'sleep 300; true' &\nsleep 300\n";
    machine.tool("slow_tree", "effect = \"pure\"", script);
}

fn mesh() -> Mesh {
    let mesh = Mesh::up(&["pi", "attic"], |machine| {
        if machine.name == "attic" {
            slow_tree(machine);
        }
    });
    mesh["pi"].wait_for_tool("slow_tree", "attic");
    mesh
}

/// Everything of the tool that runs in attic's workspace: the script, its two children, and their sleeps.
fn tree(mesh: &Mesh) -> Vec<String> {
    processes_with(mesh["attic"].workspace().to_str().unwrap())
}

fn wait_for_tree(mesh: &Mesh, command: &mut Running) {
    wait("the whole tree runs on attic", || {
        assert!(command.ended().is_none(), "{} {}", command.out(), command.err());
        let tree = tree(mesh);
        when(tree.iter().filter(|line| line.contains("sleep 300")).count() >= 4, tree)
    });
}

fn gone(mesh: &Mesh, patience: Duration) {
    wait_within(patience, "the whole tree is gone", || {
        let tree = tree(mesh);
        when(tree.is_empty(), tree)
    });
    let status = mesh["attic"].json(&["status"]);
    assert_eq!(status["queued"], 0);
    wait("attic is idle", || {
        let status = mesh["attic"].json(&["status"]);
        when(status["running"] == 0, status)
    });
}

#[test]
fn ctrl_c_stops_a_run_on_the_other_node() {
    let mesh = mesh();
    let plan = mesh.folder().join("plan.json");
    std::fs::write(&plan, r#"{"blocks": [{"id": "one", "goal": "wait", "steps": [{"tool": "slow_tree"}]}]}"#)
        .unwrap();
    let mut solve = mesh["pi"].start(&["--json", "solve", "--plan", plan.to_str().unwrap()]);
    wait_for_tree(&mesh, &mut solve);
    let runs = mesh["pi"].json(&["runs"]);
    assert_eq!(runs["runs"][0]["status"], "in_progress", "{runs}");

    solve.signal(Signal::INT);
    let done = solve.wait(PATIENCE).with_code(130);
    assert_eq!(done.json()["status"], "cancelled");
    // The command ended after the steps.
    gone(&mesh, Duration::from_secs(1));
    let runs = mesh["pi"].json(&["runs"]);
    assert_eq!(runs["runs"][0]["status"], "cancelled", "{runs}");
    // Both nodes go on.
    mesh["pi"].json(&["call", "echo", "text=next", "--node", "attic"]);
}

#[test]
fn a_call_ends_with_the_command_that_asked_for_it() {
    let mesh = mesh();
    for (signal, code) in [(Signal::INT, 130), (Signal::KILL, -9)] {
        let mut call = mesh["pi"].start(&["call", "slow_tree"]);
        wait_for_tree(&mesh, &mut call);
        call.signal(signal);
        assert_eq!(call.wait(PATIENCE).code, code);
        gone(&mesh, STOPPED);
    }
}

#[test]
fn a_run_goes_on_without_its_command_and_can_be_cancelled_from_another() {
    let mesh = mesh();
    let plan = mesh.folder().join("plan.json");
    std::fs::write(&plan, r#"{"blocks": [{"id": "one", "goal": "wait", "steps": [{"tool": "slow_tree"}]}]}"#)
        .unwrap();
    let mut solve = mesh["pi"].start(&["solve", "--plan", plan.to_str().unwrap()]);
    wait_for_tree(&mesh, &mut solve);
    solve.signal(Signal::KILL);
    assert_eq!(solve.wait(PATIENCE).code, -9);
    let runs = mesh["pi"].json(&["runs"]);
    assert_eq!(runs["runs"][0]["status"], "in_progress", "{runs}");
    assert!(!tree(&mesh).is_empty());

    let id = runs["runs"][0]["run_id"].as_str().unwrap();
    let cancelled = mesh["pi"].json(&["runs", "cancel", id]);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    gone(&mesh, Duration::from_secs(1));
}

#[test]
fn a_step_ends_when_its_coordinator_dies() {
    let mut mesh = mesh();
    let mut call = mesh["pi"].start(&["call", "slow_tree"]);
    wait_for_tree(&mesh, &mut call);
    mesh["pi"].kill();
    call.wait(PATIENCE);
    gone(&mesh, STOPPED);
}

#[test]
fn a_node_that_stops_takes_its_tools_with_it() {
    let mut mesh = mesh();
    let mut call = mesh["pi"].start(&["--json", "call", "slow_tree"]);
    wait_for_tree(&mesh, &mut call);
    // kill -9 of the node itself: nobody is left to stop the tree but its launcher.
    mesh["attic"].kill();
    wait_within(STOPPED, "the whole tree is gone", || {
        let tree = tree(&mesh);
        when(tree.is_empty(), tree)
    });
    assert_ne!(call.wait(PATIENCE).code, 0);
}

/// A shell that starts a shell, a child in a session of its own, and one whose parents have all ended.
fn deep_tree(machine: &Machine) {
    let script = "sh -c 'sleep 1000; true' &\nsetsid sh -c 'sleep 1000; true' &\n\
         (setsid sh -c '(sleep 1000; true) &' &)\nsleep 1000\n";
    machine.tool("deep_tree", "effect = \"pure\"", script);
}

/// From Ctrl-C to the end of the last process, on another node.
const AT_ONCE: Duration = Duration::from_secs(1);

/// At the best level and where namespaces are refused, a call and a run: nothing is left a second after Ctrl-C.
#[test]
fn ctrl_c_leaves_nothing_a_second_later_whatever_the_tool_started() {
    let folder = tempfile::Builder::new().prefix("octomesh-test-").tempdir().unwrap();
    let poor = [env!("CARGO_BIN_EXE_octomesh-without-namespaces").to_owned()];
    let machines = vec![
        Machine::new(folder.path(), "pi"),
        Machine::new(folder.path(), "attic"),
        Machine::at(folder.path(), "cellar", "127.0.0.1", free_port(), &poor),
    ];
    machines[1..].iter().for_each(deep_tree);
    let mut mesh = Mesh::of(folder, machines);
    mesh.start();
    let plan = mesh.folder().join("plan.json");
    let cancelled = |mesh: &Mesh, name: &str, mut command: Running, how: &str| {
        let workspace = mesh[name].workspace();
        let tree = || processes_with(workspace.to_str().unwrap());
        wait("the whole tree runs", || {
            assert!(command.ended().is_none(), "{} {}", command.out(), command.err());
            let tree = tree();
            when(tree.iter().filter(|line| line.contains("sleep 1000")).count() >= 5, tree)
        });
        let begun = Instant::now();
        command.signal(Signal::INT);
        wait_within(AT_ONCE, &format!("nothing is left of the {how} on {name}"), || {
            let tree = tree();
            when(tree.is_empty(), tree)
        });
        println!("{how} on {name}: all gone after {:.0?}", begun.elapsed());
        command.wait(PATIENCE).with_code(130);
        // Nor anywhere else.
        let left = processes_with("sleep 1000");
        let ours = left.iter().filter(|line| line.contains(mesh.folder().to_str().unwrap()));
        assert_eq!(ours.count(), 0, "{left:?}");
    };
    for (name, level) in [("attic", ""), ("cellar", "landlock+seccomp")] {
        let status = mesh[name].json(&["status"]);
        println!("{name} confines programs at {}", status["sandbox"]);
        assert!(status["sandbox"].as_str().unwrap().contains(level), "{status}");
        mesh["pi"].wait_for_tool("deep_tree", name);
        cancelled(&mesh, name, mesh["pi"].start(&["call", "deep_tree", "--node", name]), "call");
        // A plan names no node; the other one takes no steps meanwhile.
        let other = if name == "attic" { "cellar" } else { "attic" };
        mesh[other].json(&["drain"]);
        wait("the other one is left out", || {
            let place = mesh["pi"].json(&["place", "deep_tree"]);
            when(place["chosen"] == name, place)
        });
        std::fs::write(
            &plan,
            r#"{"blocks": [{"id": "one", "goal": "wait", "steps": [{"tool": "deep_tree"}]}]}"#,
        )
        .unwrap();
        cancelled(&mesh, name, mesh["pi"].start(&["solve", "--plan", plan.to_str().unwrap()]), "run");
        mesh[other].json(&["undrain"]);
    }
}
