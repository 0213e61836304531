//! A node that dies in the middle of a run: another one with tool and data takes over, or the run ends soon and says what it lost.
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh, Running,
    process::processes_with,
    wait::{PATIENCE, wait, when},
};
use serde_json::Value;

const LOG: &str = "06:00  calm\n07:00  storm\n";
/// The limit between the death of a node and the end of the run.
const LIMIT: Duration = Duration::from_secs(10);

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
