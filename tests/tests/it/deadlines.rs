//! A deadline is a promise about the whole: queueing counts, and what overruns is gone to the last grandchild.
use std::{
    fs,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh,
    process::processes_with,
    wait::{PATIENCE, wait, wait_within, when},
};

/// How long after its deadline a step may still be seen.
const OVERRUN: Duration = Duration::from_secs(1);

fn furnish(machine: &Machine) {
    if machine.name == "attic" {
        machine.configure("slots = 1");
        let tree = "sh -c 'sleep 1000; true' &\n(setsid sh -c '(sleep 1000; true) &' &)\nsleep 1000\n";
        machine.tool("endless", "effect = \"pure\"\ntypical_ms = 100", tree);
        machine.tool("hold", "effect = \"pure\"\ntypical_ms = 100", "echo x >> held.log\nsleep 6\necho done");
        machine.tool("mark", "effect = \"once\"\ntypical_ms = 100", "echo x >> marks.log\necho done");
    }
}

#[test]
fn a_step_that_overruns_is_gone_a_second_later_to_the_last_grandchild() {
    let mesh = Mesh::up(&["pi", "attic"], furnish);
    mesh["pi"].wait_for_tool("endless", "attic");
    let workspace = mesh["attic"].workspace();
    let tree = || processes_with(workspace.to_str().unwrap());
    let begun = Instant::now();
    let mut call = mesh["pi"].start(&["--json", "call", "endless", "--timeout", "3"]);
    wait("the tree runs", || {
        let tree = tree();
        when(tree.iter().filter(|line| line.contains("sleep 1000")).count() >= 3, tree)
    });
    let left = (Duration::from_secs(3) + OVERRUN).saturating_sub(begun.elapsed());
    wait_within(left, "nothing is left", || {
        let tree = tree();
        when(tree.is_empty(), tree)
    });
    println!("gone after {:.2?}", begun.elapsed());
    let done = call.wait(PATIENCE).with_code(1).json();
    assert!(begun.elapsed() < Duration::from_secs(3) + 2 * OVERRUN, "{:?}", begun.elapsed());
    assert_eq!(done["status"], "timeout", "{done}");
}

/// The slot is taken for longer than the second step has: it ends at its deadline, in the queue, and never begins.
#[test]
fn the_deadline_includes_the_queue() {
    let mesh = Mesh::up(&["pi", "attic"], furnish);
    mesh["pi"].wait_for_tool("mark", "attic");
    let held = mesh["attic"].workspace().join("held.log");
    let mut hold = mesh["pi"].start(&["--json", "call", "hold"]);
    wait("the slot is taken", || when(held.exists(), hold.ended()));
    let begun = Instant::now();
    let done = mesh["pi"].run(&["--json", "call", "mark", "--timeout", "2"]);
    let took = begun.elapsed();
    println!("ended after {took:.2?} with {} {}", done.code, done.out);
    assert!((Duration::from_millis(1900)..Duration::from_secs(2) + OVERRUN).contains(&took), "{took:?}");
    let done = done.with_code(1).json();
    assert_eq!(done["status"], "timeout", "{done}");
    hold.wait(PATIENCE).with_code(0);
    wait("attic is idle", || {
        let status = mesh["attic"].json(&["status"]);
        when(status["running"] == 0 && status["queued"] == 0, status)
    });
    assert!(!mesh["attic"].workspace().join("marks.log").exists(), "{:?}", fs::read_to_string(held));
}
