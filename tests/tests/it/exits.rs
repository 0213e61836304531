//! Exit codes, and the reasons that come with them.
use octomesh_tests::{
    Mesh,
    wait::{wait, when},
};

#[test]
fn a_call_says_where_it_would_go_where_it_went_and_why_not_elsewhere() {
    let mesh = Mesh::up(&["pi", "attic"], |machine| {
        if machine.name == "attic" {
            machine.tool("greet", "effect = \"pure\"", "echo hello");
        }
        machine.write("mine.txt", &machine.name);
    });
    let pi = &mesh["pi"];
    pi.wait_for_tool("greet", "attic");

    // A dry run and a real one come to the same decision; `why` knows the real one.
    let place = pi.json(&["place", "greet"]);
    assert_eq!(place["chosen"], "attic");
    let terms = place["candidates"][0]["terms"].as_object().unwrap();
    for term in ["rtt", "wait", "transfer", "exec", "cold", "risk"] {
        assert!(terms[term].as_f64().is_some_and(|ms| ms >= 0.0), "{terms:?}");
    }
    assert_eq!(place["filtered"][0]["node"], "pi");
    assert_eq!(place["filtered"][0]["reason"], "no_tool");
    let call = pi.json(&["call", "greet"]);
    assert_eq!(call["node"], "attic");
    assert_eq!(call["status"], "ok");
    assert_eq!(call["attempts"], 1);
    let why = pi.json(&["why", call["decision_id"].as_str().unwrap()]);
    assert_eq!(why["chosen"], "attic");
    assert_eq!(why["ran_on"], "attic");
    assert_eq!(why["filtered"], place["filtered"]);
    assert_eq!(why["refusals"], serde_json::json!([]));
    assert!(why["predicted_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{why}");
    let (took, elapsed) = (why["took_ms"].as_u64().unwrap(), call["elapsed_ms"].as_u64().unwrap());
    assert!(took.abs_diff(elapsed) <= 5, "{why}\n{call}");

    // Pinned to a node without the tool: no capacity, with that node's reason. Not a hint of it on stdout but the object.
    let pinned = pi.run(&["--json", "call", "greet", "--node", "pi"]).with_code(4);
    let message = pinned.error();
    assert!(message.contains("pi") && message.contains("no_tool"), "{message}");
    let people = pi.run(&["call", "greet", "--node", "pi"]).with_code(4);
    assert!(people.out.is_empty() && people.err.contains("no_tool"), "{people:?}");
    let nobody = pi.run(&["--json", "call", "greet", "--node", "cellar"]);
    assert_ne!(nobody.code, 0);
    assert!(nobody.error().contains("cellar"), "{}", nobody.out);

    // The same file name on two nodes: replicas. `node:path` chooses.
    for name in ["pi", "attic"] {
        let read = pi.json(&["call", "file_read", &format!("path={name}:mine.txt")]);
        assert_eq!(read["node"], name);
        assert!(read["output"].to_string().contains(name), "{read}");
    }
    let missing = pi.run(&["--json", "call", "file_read", "path=nowhere.txt"]).with_code(4);
    assert!(missing.error().contains("no_data"), "{}", missing.out);

    // A drained node takes nothing new, and says so.
    mesh["attic"].json(&["drain"]);
    let drained = pi.run(&["--json", "call", "greet"]).with_code(4);
    assert!(drained.error().contains("drain"), "{}", drained.out);
    mesh["attic"].json(&["undrain"]);
    wait("attic takes steps again", || {
        let done = pi.run(&["--json", "call", "greet"]);
        when(done.code == 0, done)
    });

    // A tool that fails is an answer with exit code 1.
    let failed = pi.run(&["--json", "call", "calc", "expression=1/0"]).with_code(1).json();
    assert_eq!(failed["status"], "error");
    assert!(failed["output"]["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{failed}");
}

#[test]
fn a_question_that_nothing_here_answers_gets_three_guesses() {
    let mesh = Mesh::up(&["pi"], |_| {});
    let done = mesh["pi"].run(&["--json", "solve", "make the notes about lines nicer"]).with_code(3);
    let run = done.json();
    assert_eq!(run["error"]["code"], "needs_confirmation");
    let guesses = run["error"]["guesses"].as_array().unwrap();
    assert_eq!(guesses.len(), 3, "{run}");
    for guess in guesses {
        assert!(guess["command"].as_str().is_some_and(|c| !c.is_empty()), "{guess}");
    }
    let people = mesh["pi"].run(&["solve", "make the notes about lines nicer"]).with_code(3);
    for number in ["1. ", "2. ", "3. "] {
        assert!(people.out.contains(number), "{people:?}");
    }

    // What can be planned is answered, and the run is remembered as it ended.
    let run = mesh["pi"].json(&["solve", "calculate 2^10"]);
    assert_eq!(run["status"], "completed");
    assert!(run["answer"].as_str().unwrap().contains("1024"), "{run}");
    let runs = mesh["pi"].json(&["runs"]);
    assert_eq!(runs["runs"][0]["run_id"], run["run_id"]);
    assert_eq!(runs["runs"][0]["status"], "completed");
    let shown = mesh["pi"].json(&["runs", "show", run["run_id"].as_str().unwrap()]);
    assert_eq!(shown["answer"], run["answer"]);
    let folder = mesh["pi"].home.join("runs").join(run["run_id"].as_str().unwrap());
    for name in ["solve_memory.json", "final_answer.md"] {
        assert!(folder.join(name).is_file(), "{name} is missing");
    }
}

#[test]
fn commands_without_a_node_say_so() {
    let mesh = Mesh::furnished(&["pi"], |_| {});
    let pi = &mesh["pi"];
    for args in
        [&["status"][..], &["nodes"], &["call", "echo", "text=hello"], &["solve", "calculate 1"], &["invite"]]
    {
        let done = pi.run(&[&["--json"], args].concat()).with_code(69);
        assert!(done.error().contains(&pi.api), "{}", done.out);
    }
    // Without an identity there is nothing to start.
    let up = pi.run(&["--json", "up"]).with_code(1);
    assert_eq!(up.json()["error"]["code"], "no_identity");
    assert!(up.json()["error"]["hint"].as_str().unwrap().contains("octomesh init"), "{}", up.out);

    let doctor = pi.run(&["--json", "doctor"]);
    assert_eq!(doctor.code, 1, "{doctor:?}");
    let checks = doctor.json();
    let checks = checks["checks"].as_array().unwrap();
    assert!(checks.len() >= 6, "{checks:?}");
    for check in checks {
        assert!(matches!(check["status"].as_str(), Some("ok" | "warn" | "fail")), "{check}");
        let wrong = check["status"] != "ok";
        assert_eq!(check["fix"].as_str().is_some(), wrong, "what is wrong has a fix, and only that: {check}");
    }
    assert!(checks.iter().any(|c| c["name"] == "identity" && c["status"] == "fail"), "{checks:?}");

    pi.init();
    let again = pi.run(&["--json", "init"]).with_code(1);
    assert_eq!(again.json()["error"]["code"], "exists");
    let checks = pi.run(&["--json", "doctor"]).json();
    let identity = checks["checks"].as_array().unwrap().iter().find(|c| c["name"] == "identity").unwrap();
    assert_eq!(identity["status"], "ok", "{checks}");

    // A usage error, in both forms.
    let usage = pi.run(&["--json", "call"]).with_code(2);
    assert_eq!(usage.json()["error"]["code"], "usage");
    let usage = pi.run(&["place", "echo", "a", "b"]).with_code(2);
    assert!(usage.out.is_empty() && !usage.err.is_empty());
    assert_eq!(pi.run(&["--version"]).with_code(0).out.split_whitespace().next(), Some("octomesh"));
}
