//! A node that dies in the middle of a run: another one with tool and data takes over, or the run ends soon and says what it lost.
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use octomesh_tests::{
    Machine, Mesh, Running,
    process::processes_with,
    wait::{PATIENCE, wait, when},
};
use rustix::process::Signal;
use serde_json::Value;

const LOG: &str = "06:00  calm\n07:00  storm\n";
/// The limit between the death of a node and the end of the run.
const LIMIT: Duration = Duration::from_secs(10);
/// From the death of an executor to the start of its step elsewhere, 1 s: the kernel closes the connection.
const AFTER_DEATH: Duration = Duration::from_millis(1000 + BUSY);
/// The same when it stands still, 2 s: nothing closes, only the answers to renewals stay away.
const AFTER_FREEZE: Duration = Duration::from_millis(2000 + BUSY);
/// What the start of the tool's processes may take on a busy machine; it is no part of the promise.
const BUSY: u64 = 500;

/// Sleeps, then prints the file that `path` names. Pure: it may run twice.
fn slow_cat(machine: &Machine, seconds: u32) {
    let manifest = "effect = \"pure\"\ndata = [\"path\"]\ntypical_ms = 2000\n\
         [input_schema]\ntype = \"object\"\nrequired = [\"path\"]\n[input_schema.properties.path]\ntype = \"string\"";
    machine.tool("slow_cat", manifest, &format!("sleep {seconds}\ncat log.txt"));
}

fn plan(mesh: &Mesh) -> PathBuf {
    let path = mesh.folder().join("plan.yaml");
    let text = "blocks:\n\
         - id: read\n  goal: read the log slowly\n  steps:\n  - {tool: slow_cat, args: {path: log.txt}, save_as: log}\n\
         - id: count\n  goal: count its lines\n  depends_on: [read]\n  steps:\n  - {tool: echo, args: {text: \"${log.text}\"}}\n";
    std::fs::write(&path, text).unwrap();
    path
}

fn solve(mesh: &Mesh) -> Running {
    let plan = plan(mesh);
    mesh["pi"].start(&["--json", "solve", "--plan", plan.to_str().unwrap()])
}

/// Waits until the tool's script runs on that machine.
fn wait_for_script(machine: &Machine, run: &mut Running) {
    let script = machine.home.join("tools/slow_cat").to_str().unwrap().to_owned();
    let workspace = machine.workspace().to_str().unwrap().to_owned();
    wait("the slow step runs", || {
        assert!(run.ended().is_none(), "{} {}", run.out(), run.err());
        let running = processes_with(&workspace);
        when(running.iter().any(|line| line.contains("run.sh") || line.contains(&script)), running)
    });
}

fn steps(run: &Value) -> Vec<&Value> {
    run["blocks"].as_array().unwrap().iter().flat_map(|b| b["steps"].as_array().unwrap()).collect()
}

#[test]
fn with_the_file_on_tower_too_the_run_completes() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |machine| {
        if machine.name != "pi" {
            slow_cat(machine, 3);
        }
        if machine.name == "attic" {
            machine.write("log.txt", LOG);
        }
    });
    let mut run = solve(&mesh);
    // Only attic has the file yet, so the step is there.
    wait_for_script(&mesh["attic"], &mut run);
    mesh["tower"].write("log.txt", LOG);
    mesh["attic"].kill();
    let done = run.wait(PATIENCE).with_code(0);
    let run = done.json();
    assert_eq!(run["status"], "completed");
    let steps = steps(&run);
    assert_eq!(steps[0]["tool"], "slow_cat");
    assert_eq!(steps[0]["node"], "tower", "{run}");
    assert!(run["answer"].as_str().unwrap().contains("storm"), "{run}");

    let refusals = steps[0]["why"]["refusals"].as_array().unwrap();
    assert!(refusals.iter().any(|r| r["node"] == "attic" && r["reason"] == "lost"), "{refusals:?}");
    let id = steps[0]["why"]["decision_id"].as_str().unwrap();
    let why = mesh["pi"].json(&["why", id]);
    assert_eq!(why["ran_on"], "tower");
    assert!(why["refusals"].as_array().unwrap().iter().any(|r| r["node"] == "attic"), "{why}");
    // What ran on attic ended with it.
    let workspace = mesh["attic"].workspace();
    wait("the script on attic ends", || {
        let left = processes_with(workspace.to_str().unwrap());
        when(left.is_empty(), left)
    });
}

#[test]
fn without_it_the_run_fails_soon_and_names_step_and_node() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |machine| {
        if machine.name != "pi" {
            slow_cat(machine, 60);
        }
        if machine.name == "attic" {
            machine.write("log.txt", LOG);
        }
    });
    let mut run = solve(&mesh);
    wait_for_script(&mesh["attic"], &mut run);
    let killed = Instant::now();
    mesh["attic"].kill();
    let done = run.wait(PATIENCE).with_code(1);
    let took = killed.elapsed();
    assert!(took < LIMIT, "{took:?}");
    let run = done.json();
    assert_eq!(run["status"], "failed");
    let reason = run["reason"].as_str().unwrap_or_else(|| panic!("{run}"));
    assert!(reason.contains("s001") && reason.contains("attic"), "{reason}");
    // The mesh knows it too, and goes on.
    let nodes = mesh["pi"].json(&["nodes"]);
    let attic = nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == "attic").unwrap();
    assert_ne!(attic["state"], "alive");
    mesh["pi"].json(&["call", "echo", "text=still here", "--node", "tower"]);
}

/// Writes down when each start of the step was, in nanoseconds of the wall clock, then takes its time.
fn dated(machine: &Machine, effect: &str) {
    if machine.name != "pi" {
        let manifest = format!("effect = \"{effect}\"\ntypical_ms = 3000");
        machine.tool(&format!("dated_{effect}"), &manifest, "date +%s%N >> starts.log\nsleep 3\necho done");
    }
}

fn starts(mesh: &Mesh, name: &str) -> Vec<Duration> {
    let text = fs::read_to_string(mesh[name].workspace().join("starts.log")).unwrap_or_default();
    // The last line may be on its way.
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| Duration::from_nanos(line.parse().unwrap())).collect()
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Starts a step on one of two nodes; gives the command, the node that has it, and the other.
fn begun(mesh: &Mesh, effect: &str) -> (Running, &'static str, &'static str) {
    let of = |name| starts(mesh, name).len();
    let before = (of("attic"), of("tower"));
    let mut call = mesh["pi"].start(&["--json", "call", &format!("dated_{effect}")]);
    let victim = wait("the step runs somewhere", || {
        assert!(call.ended().is_none(), "{} {}", call.out(), call.err());
        match (of("attic") > before.0, of("tower") > before.1) {
            (true, false) => Ok("attic"),
            (false, true) => Ok("tower"),
            seen => Err(format!("{seen:?}")),
        }
    });
    (call, victim, if victim == "attic" { "tower" } else { "attic" })
}

/// How long after `from` the step began on `other`.
fn began_again(mesh: &Mesh, other: &str, from: Duration) -> Duration {
    wait("the step begins on the other node", || {
        let later = starts(mesh, other).into_iter().find(|at| *at > from);
        later.map(|at| at - from).ok_or_else(|| format!("{:?}", starts(mesh, other)))
    })
}

#[test]
fn a_step_of_a_dead_executor_begins_elsewhere_within_a_second_and_of_a_frozen_one_within_two() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |machine| {
        dated(machine, "pure");
        dated(machine, "idempotent");
    });
    for effect in ["pure", "idempotent"] {
        let (mut call, victim, other) = begun(&mesh, effect);
        let killed = wall();
        mesh[victim].kill();
        let took = began_again(&mesh, other, killed);
        println!("{effect}: {victim} killed, begun on {other} after {took:.2?}");
        assert!(took <= AFTER_DEATH, "{took:?}");
        let done = call.wait(PATIENCE).with_code(0).json();
        assert_eq!((&done["node"], &done["attempts"]), (&other.into(), &2.into()), "{done}");
        mesh[victim].up();
        mesh.settled();

        let (mut call, victim, other) = begun(&mesh, effect);
        let stopped = wall();
        mesh[victim].node().signal(Signal::STOP);
        let took = began_again(&mesh, other, stopped);
        println!("{effect}: {victim} stopped, begun on {other} after {took:.2?}");
        let done = call.wait(PATIENCE).with_code(0).json();
        mesh[victim].node().signal(Signal::CONT);
        assert!(took <= AFTER_FREEZE, "{took:?}");
        assert_eq!((&done["node"], &done["attempts"]), (&other.into(), &2.into()), "{done}");
        mesh.settled();
    }
}

#[test]
fn a_step_with_a_side_effect_is_uncertain_then_and_never_doubled() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |machine| dated(machine, "once"));
    let mut begins = 0;
    let all = |mesh: &Mesh| starts(mesh, "attic").len() + starts(mesh, "tower").len();
    for kill in [false, true] {
        let (mut call, victim, other) = begun(&mesh, "once");
        begins += 1;
        if kill {
            mesh[victim].kill();
        } else {
            mesh[victim].node().signal(Signal::STOP);
        }
        let done = call.wait(PATIENCE).with_code(5).json();
        assert_eq!((&done["status"], &done["attempts"]), (&"uncertain".into(), &1.into()), "{done}");
        assert!(done["output"]["error"]["message"].as_str().unwrap().contains(victim), "{done}");
        assert_eq!(all(&mesh), begins, "{other} did not begin it");
        if kill {
            mesh[victim].up();
        } else {
            mesh[victim].node().signal(Signal::CONT);
        }
        mesh.settled();
        assert_eq!(all(&mesh), begins, "nor did {victim} when it was back");
    }
}
