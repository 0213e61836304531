//! All nodes of a mesh are restarted, one after another, while it works: nobody who asks notices.
use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use octomesh_tests::{
    Machine, Mesh, api,
    wait::{PATIENCE, wait_within, when},
};
use serde_json::{Value, json};

const NAMES: [&str; 5] = ["pi", "attic", "tower", "cellar", "desk"];
/// A step of a second, on a machine that starts nodes meanwhile.
const STEP: Duration = Duration::from_secs(60);

fn furnish(machine: &Machine) {
    machine.configure("slots = 2");
    // Nobody asks the first one to do work: it coordinates, and is restarted last, when nothing is under way.
    if machine.name != "pi" {
        for effect in ["pure", "idempotent"] {
            let manifest = format!("effect = \"{effect}\"\ntypical_ms = 600");
            machine.tool(&format!("nap_{effect}"), &manifest, "sleep 0.6\necho '{}'");
        }
    }
}

/// Stops the callers also when the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn calls(pi: &Pi, tool: &str, stop: &AtomicBool, done: &AtomicUsize) -> Vec<String> {
    let mut failed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let body = json!({"tool": tool, "arguments": {}, "timeout_s": 50});
        match api::post_patiently(&pi.0, "/api/call", &body, STEP) {
            Ok(answer) if answer["status"] == "ok" => {
                done.fetch_add(1, Ordering::Relaxed);
            }
            other => failed.push(format!("{other:?}")),
        }
    }
    failed
}

/// Where the callers reach `pi` while the mesh is changed: a machine of the same home, without a node.
struct Pi(Machine);

fn runs(pi: &Pi, plan: &str, stop: &AtomicBool, done: &AtomicUsize) -> Vec<String> {
    let mut failed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let run = pi.0.run(&["--json", "solve", "--plan", plan]);
        if run.code == 0 && run.json()["status"] == "completed" {
            done.fetch_add(1, Ordering::Relaxed);
        } else {
            failed.push(format!("{} {} {}", run.code, run.out, run.err));
        }
    }
    failed
}

fn steps_left(machine: &Machine) -> Value {
    let status = machine.json(&["status"]);
    json!([status["running"], status["queued"]])
}

#[test]
fn a_rolling_restart_fails_no_step() {
    let mut mesh = Mesh::up(&NAMES, furnish);
    for name in &NAMES[1..] {
        mesh["pi"].wait_for_tool("nap_pure", name);
        mesh["pi"].wait_for_tool("nap_idempotent", name);
    }
    let blocks: Vec<Value> = (0..3)
        .map(|n| json!({"id": format!("b{n}"), "goal": "nap", "steps": [{"tool": "nap_pure", "args": {}}, {"tool": "nap_idempotent", "args": {}}]}))
        .collect();
    let plan = mesh.folder().join("plan.json");
    fs::write(&plan, json!({"blocks": blocks}).to_string()).unwrap();
    let pi = Pi(mesh["pi"].again());
    let (stop, steps, whole) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let failed: Vec<String> = thread::scope(|scope| {
        let stops = Stops(&stop);
        let (pi, stop, steps, whole, plan) = (&pi, &stop, &steps, &whole, plan.to_str().unwrap());
        let mut working: Vec<_> = ["nap_pure", "nap_idempotent", "nap_pure"]
            .map(|tool| scope.spawn(move || calls(pi, tool, stop, steps)))
            .into();
        working.push(scope.spawn(move || runs(pi, plan, stop, whole)));
        for name in &NAMES[1..] {
            mesh[name].json(&["drain"]);
            wait_within(PATIENCE, &format!("{name} has no steps left"), || {
                let left = steps_left(&mesh[name]);
                when(left == json!([0, 0]), left)
            });
            mesh[name].stop().with_code(0);
            mesh[name].up();
            mesh[name].json(&["undrain"]);
            // It works again before the next one goes.
            wait_within(2 * PATIENCE, &format!("pi sends steps to {name} again"), || {
                let body = json!({"tool": "nap_pure", "arguments": {}, "node": name, "timeout_s": 20});
                let answer = api::post_patiently(&pi.0, "/api/call", &body, STEP);
                when(answer.as_ref().is_ok_and(|a| a["status"] == "ok"), answer)
            });
        }
        drop(stops);
        working.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    println!("{} steps and {} runs went through", steps.into_inner(), whole.into_inner());
    assert!(failed.is_empty(), "{failed:#?}");
    // The coordinator itself.
    mesh["pi"].json(&["drain"]);
    mesh["pi"].stop().with_code(0);
    mesh["pi"].up();
    mesh["pi"].json(&["undrain"]);
    mesh.settled();
    assert_eq!(mesh["pi"].json(&["call", "nap_pure"])["status"], "ok");
}
