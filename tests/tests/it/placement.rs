//! Where steps go on real nodes: evenly between equals.
use std::{collections::BTreeMap, thread, time::Duration};

use octomesh_tests::{Machine, Mesh, api};
use serde_json::{Value, json};

/// A step of these tests ends long before.
const STEP: Duration = Duration::from_secs(120);

/// Calls a tool through a machine's API; gives the whole answer.
fn call(machine: &Machine, tool: &str, arguments: &Value, node: Option<&str>) -> Value {
    let body = json!({"tool": tool, "arguments": arguments, "node": node, "timeout_s": 100});
    api::post_patiently(machine, "/api/call", &body, STEP).unwrap()
}

/// How many of these answers came from each node; all must be fine.
fn by_node(answers: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        assert_eq!(answer["status"], "ok", "{answer}");
        *counts.entry(answer["node"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn at_once(machine: &Machine, tool: &str, count: usize) -> Vec<Value> {
    thread::scope(|scope| {
        let calls: Vec<_> =
            (0..count).map(|_| scope.spawn(|| call(machine, tool, &json!({}), None))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

/// Calls at once through the API, and the blocks of a plan, which depend on nothing.
#[test]
fn eight_independent_steps_are_split_between_two_warm_nodes() {
    for slots in [2, 4] {
        let mesh = Mesh::up(&["pi", "attic", "tower"], |machine| {
            machine.configure(&format!("slots = {slots}"));
            if machine.name != "pi" {
                machine.tool("nap", "effect = \"pure\"\ntypical_ms = 1000", "sleep 1\necho '{}'");
            }
        });
        for node in ["attic", "tower", "attic", "tower"] {
            assert_eq!(call(&mesh["pi"], "nap", &json!({}), Some(node))["node"], node);
        }
        let counts = by_node(&at_once(&mesh["pi"], "nap", 8));
        println!("{slots} slots, calls: {counts:?}");
        assert!((3..=5).contains(counts.get("attic").unwrap_or(&0)), "{counts:?}");

        let blocks: Vec<Value> = (0..8)
            .map(|n| json!({"id": format!("b{n}"), "goal": "nap", "steps": [{"tool": "nap", "args": {}}]}))
            .collect();
        let plan = mesh.folder().join("plan.json");
        std::fs::write(&plan, json!({"blocks": blocks}).to_string()).unwrap();
        let run = mesh["pi"].json(&["solve", "--plan", plan.to_str().unwrap()]);
        let blocks = run["blocks"].as_array().unwrap().iter();
        let steps: Vec<Value> = blocks.flat_map(|b| b["steps"].as_array().unwrap()).cloned().collect();
        assert_eq!((&run["status"], steps.len()), (&"completed".into(), 8), "{run}");
        let on_attic = steps.iter().filter(|s| s["node"] == "attic").count();
        println!("{slots} slots, a run: {on_attic} of 8 on attic");
        assert!((3..=5).contains(&on_attic), "{run}");
    }
}
