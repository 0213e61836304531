//! The shape of what `octomesh bench dispatch` prints, between nodes of its own and from a running one. How fast it is, no test of every
//! day says.
use std::process::Stdio;

use octomesh_tests::{Mesh, process::Done, program};
use serde_json::Value;

/// Figures that are there in both cases, each above zero.
const FIGURES: [&str; 10] = [
    "calls",
    "argument_bytes",
    "p50_us",
    "p99_us",
    "baseline_p50_us",
    "baseline_p99_us",
    "in_flight",
    "steps_per_s",
    "http_p50_us",
    "fsync_p50_us",
];

fn check(report: &Value, node: &str) {
    for figure in FIGURES {
        assert!(report[figure].as_f64().is_some_and(|f| f > 0.0), "{figure}: {report}");
    }
    assert_eq!((&report["node"], report["calls"].as_u64()), (&Value::from(node), Some(5)), "{report}");
    assert!(report["p99_us"].as_f64() >= report["p50_us"].as_f64(), "{report}");
}

#[test]
fn two_nodes_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program::command(&[]);
    command.env("TMPDIR", folder.path()).env("HOME", folder.path()).stdin(Stdio::null());
    command.args(["bench", "dispatch", "--json", "--calls", "5"]);
    let report = Done::of(command, folder.path(), "bench", None).with_code(0).json();
    check(&report, "far");
    assert!(report["once_p50_us"].as_f64().is_some_and(|f| f > 0.0), "{report}");
    // Its homes are gone.
    let left = std::fs::read_dir(folder.path()).unwrap().filter_map(Result::ok);
    let left: Vec<_> =
        left.map(|e| e.file_name()).filter(|n| n.to_string_lossy().contains("octomesh")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn from_a_running_node() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let pi = &mesh["pi"];
    let report = pi.json(&["bench", "dispatch", "--node", "attic", "--calls", "5"]);
    check(&report, "attic");
    assert_eq!(report["once_p50_us"], Value::Null, "no node has the tool of the bench: {report}");
    let own = pi.run(&["--json", "bench", "dispatch", "--node", "pi", "--calls", "5"]);
    assert!(own.code != 0 && own.error().contains("another node"), "{own:?}");
}
