//! A node that is killed between one thing that must survive and the next, at every such point: runs go on when it is back, no
//! step that was done is done again, and a step with a side effect takes effect once, or nobody claims to know.
use std::{fs, path::PathBuf, time::Duration};

use octomesh_tests::{
    Machine, Mesh, Running,
    wait::{PATIENCE, wait_within, when},
};
use serde_json::Value;

/// A run that waits for members and for a step of a few seconds, on a busy machine.
const RUN: Duration = Duration::from_secs(60);
/// Tools of `attic`; each writes a line when it takes effect.
const EFFECTS: [&str; 3] = ["pure", "idempotent", "once"];

fn furnish(machine: &Machine) {
    if machine.name != "attic" {
        return;
    }
    for effect in EFFECTS {
        for (name, seconds) in [(format!("count_{effect}"), 0), (format!("slow_{effect}"), 4)] {
            let manifest =
                format!("effect = \"{effect}\"\ntypical_ms = 100\n[input_schema]\ntype = \"object\"");
            machine.tool(&name, &manifest, &format!("echo x >> {name}.log\nsleep {seconds}\necho counted"));
        }
    }
}

/// Three steps: one that is done before, the one that it is about, one that needs its result.
fn plan(mesh: &Mesh, tool: &str) -> PathBuf {
    let path = mesh.folder().join(format!("{tool}.yaml"));
    let text = format!(
        "blocks:\n- id: all\n  goal: count\n  steps:\n  - {{tool: count_idempotent, args: {{}}}}\n\
         \x20 - {{tool: {tool}, args: {{}}, save_as: middle}}\n  - {{tool: echo, args: {{text: \"${{middle.text}}\"}}}}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn solve(mesh: &Mesh, tool: &str) -> Running {
    let plan = plan(mesh, tool);
    mesh["pi"].start(&["--json", "solve", "--plan", plan.to_str().unwrap()])
}

/// Lines that a tool wrote since the last time this was asked.
fn count(mesh: &Mesh, tool: &str) -> usize {
    let path = mesh["attic"].workspace().join(format!("{tool}.log"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    text.lines().count()
}

fn newest_run(mesh: &Mesh) -> String {
    mesh["pi"].json(&["runs"])["runs"][0]["run_id"].as_str().unwrap().to_owned()
}

/// Follows the newest run to its end; whatever it is.
fn follow(mesh: &Mesh, flags: &[&str]) -> (i32, Value) {
    let run = newest_run(mesh);
    let mut resume = mesh["pi"].start(&[&["--json", "runs", "resume", &run], flags].concat());
    let done = resume.wait(RUN);
    (done.code, done.json())
}

/// What an undisturbed run answers, but for the name of the tool.
fn undisturbed(mesh: &Mesh, tool: &str) -> String {
    let done = solve(mesh, tool).wait(RUN).with_code(0).json();
    count(mesh, "count_idempotent");
    count(mesh, tool);
    done["answer"].as_str().unwrap().to_owned()
}

#[test]
fn a_killed_coordinator_goes_on_with_its_runs() {
    let mut mesh = Mesh::up(&["pi", "attic"], furnish);
    let cases = [
        ("run_row -", "count_pure"),
        ("plan_stored -", "count_once"),
        ("granted s002", "count_once"),
        ("start_sent s002", "count_pure"),
        ("start_sent s002", "count_once"),
        ("started s002", "slow_pure"),
        ("started s002", "slow_once"),
        ("outcome_stored s002", "count_idempotent"),
        ("outcome_stored s002", "count_once"),
        ("step_stored -", "count_once"),
        ("final -", "count_once"),
    ];
    let mut answers = std::collections::BTreeMap::new();
    for (point, tool) in cases {
        let answer = answers.entry(tool).or_insert_with(|| undisturbed(&mesh, tool)).clone();
        mesh["pi"].die_at(point);
        let mut run = solve(&mesh, tool);
        mesh["pi"].dies();
        run.wait(PATIENCE).with_code(69);
        mesh["pi"].up();
        let (code, done) = follow(&mesh, &[]);
        let case = format!("{point} {tool}: {done}");
        assert_eq!((code, &done["status"]), (0, &Value::from("completed")), "{case}");
        assert_eq!(done["answer"].as_str().unwrap(), answer, "{case}");
        if tool == "count_idempotent" {
            let both = count(&mesh, tool);
            assert!(both >= 2, "{both} times: {case}");
            continue;
        }
        assert_eq!(count(&mesh, "count_idempotent"), 1, "what was done is not done again: {case}");
        let times = count(&mesh, tool);
        assert!(if tool.ends_with("once") { times == 1 } else { times >= 1 }, "{times} times: {case}");
    }
}

#[test]
fn a_killed_executor_never_makes_a_step_run_twice_that_must_not() {
    let mut mesh = Mesh::up(&["pi", "attic"], furnish);
    let cases = [
        ("executor_started s002", "count_pure"),
        ("executor_ran s002", "count_pure"),
        ("executor_done s002", "count_pure"),
        ("executor_started s002", "count_once"),
        ("executor_ran s002", "count_once"),
        ("executor_done s002", "count_once"),
    ];
    for (point, tool) in cases {
        mesh["attic"].die_at(point);
        let mut run = solve(&mesh, tool);
        mesh["attic"].dies();
        mesh["attic"].up();
        let done = run.wait(RUN);
        let (code, outcome) = (done.code, done.json());
        let case = format!("{point} {tool}: {outcome}");
        let times = count(&mesh, tool);
        assert_eq!(count(&mesh, "count_idempotent"), 1, "{case}");
        if tool == "count_pure" {
            assert_eq!((code, &outcome["status"]), (0, &Value::from("completed")), "{case}");
            assert!(times >= 1, "{case}");
            continue;
        }
        assert_eq!(times, usize::from(point != "executor_started s002"), "{case}");
        if point == "executor_done s002" {
            // Its result is on the disk. A node that took too long to come back is asked once more, and nothing runs again.
            if code != 0 {
                assert_eq!((code, &outcome["status"]), (5, &Value::from("uncertain")), "{case}");
                mesh.settled();
                let (code, resumed) = follow(&mesh, &["--retry"]);
                assert_eq!((code, &resumed["status"]), (0, &Value::from("completed")), "{resumed}");
            }
            assert_eq!(count(&mesh, tool), 0, "{case}");
            continue;
        }
        assert_eq!((code, &outcome["status"]), (5, &Value::from("uncertain")), "{case}");
        assert!(outcome["reason"].as_str().unwrap().contains("s002"), "{case}");
        mesh.settled();
        // Nobody is at the terminal, so nothing is decided.
        let (code, asked) = follow(&mesh, &[]);
        assert_eq!((code, &asked["error"]["code"]), (3, &Value::from("needs_confirmation")), "{asked}");
        let retry = point == "executor_started s002";
        let (code, resumed) = follow(&mesh, &[if retry { "--retry" } else { "--skip" }]);
        let unresolved = resumed["unresolved"].to_string();
        if retry {
            assert_eq!((code, &resumed["status"]), (0, &Value::from("completed")), "{resumed}");
            assert_eq!(unresolved, "[]", "{resumed}");
        } else {
            // The last step needs what was left out.
            assert_eq!((code, &resumed["status"]), (1, &Value::from("failed")), "{resumed}");
            assert!(unresolved.contains("s002"), "{resumed}");
            assert!(resumed["reason"].as_str().unwrap().contains("s003"), "{resumed}");
        }
        assert_eq!(count(&mesh, tool), usize::from(retry), "{resumed}");
        assert_eq!(count(&mesh, "count_idempotent"), 0, "{resumed}");
    }
}

/// Ends that a second look by anybody finds: a run that is over is shown, one that is not there is not.
#[test]
fn what_can_not_be_resumed() {
    let mut mesh = Mesh::up(&["pi", "attic"], furnish);
    let done = solve(&mesh, "count_once").wait(RUN).with_code(0).json();
    let (code, shown) = follow(&mesh, &["--retry"]);
    assert_eq!((code, &shown["answer"]), (0, &done["answer"]), "{shown}");
    assert_eq!(count(&mesh, "count_once"), 1);
    let error = mesh["pi"].run(&["--json", "runs", "resume", "run-0000000000000000"]).with_code(1).error();
    assert!(error.contains("no run"), "{error}");

    // A single call whose node died: nobody waits for it, so it is stopped or over, and not done again.
    let mut call = mesh["pi"].start(&["--json", "call", "slow_once"]);
    wait_within(PATIENCE, "the call took effect", || {
        let log = mesh["attic"].workspace().join("slow_once.log");
        when(log.exists(), call.ended())
    });
    mesh["pi"].kill();
    call.wait(PATIENCE).with_code(69);
    mesh["pi"].up();
    wait_within(PATIENCE, "the old call has its end", || {
        when(mesh["pi"].node().err().contains("left open has its end"), mesh["pi"].node().err())
    });
    assert_eq!(count(&mesh, "slow_once"), 1);
}

#[test]
fn a_run_that_takes_its_node_down_each_time_is_given_up() {
    let mut mesh = Mesh::up(&["pi"], |_| {});
    let point = "granted s001";
    mesh["pi"].die_at(point);
    let mut run = mesh["pi"].start(&["--json", "solve", "echo text=x"]);
    mesh["pi"].dies();
    run.wait(PATIENCE).with_code(69);
    for time in 1..=5 {
        mesh["pi"].die_at(point);
        let done = mesh["pi"].start(&["--json", "up"]).wait(PATIENCE);
        assert!(done.code < 0, "start {time}: {} {}", done.code, done.err);
    }
    mesh["pi"].die_at(point);
    mesh["pi"].up();
    let (code, given_up) = follow(&mesh, &[]);
    assert_eq!((code, &given_up["status"]), (1, &Value::from("failed")), "{given_up}");
    assert!(given_up["reason"].as_str().unwrap().contains("given up"), "{given_up}");
}
