//! A node is thrown out: everybody closes its sessions, for good, whoever was away meanwhile and whatever tickets it still has.
//! The attacks are those of item 11 of the list that a reviewer will try.
use std::{
    fs,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh,
    process::processes_with,
    wait::{PATIENCE, wait, wait_within, when},
};
use serde_json::Value;

/// PROTOCOL 2: sessions close within this time on every node that hears of it.
const LIMIT: Duration = Duration::from_secs(2);
/// What asking the nodes takes by itself: each question is a process of a debug build on a machine that does other things.
const ASKING: Duration = Duration::from_secs(3);

fn entry(machine: &Machine, name: &str) -> Option<Value> {
    let nodes = machine.json(&["nodes"]);
    nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).cloned()
}

fn has_session(machine: &Machine, name: &str) -> bool {
    let sessions = machine.json(&["sessions"]);
    sessions["sessions"].as_array().unwrap().iter().any(|s| s["name"] == name)
}

fn works(from: &Machine, to: &str) {
    wait(&format!("{} calls {to}", from.name), || {
        let done = from.run(&["--json", "call", "echo", "text=hello", "--node", to]);
        when(done.code == 0 && done.json()["output"]["text"] == "hello", &done)
    });
}

/// Its call fails, and says that it was revoked.
fn fails_with_revoked(from: &Machine, to: &str) {
    wait(&format!("a call of {} fails with `revoked`", from.name), || {
        let done = from.run(&["--json", "call", "echo", "text=hello", "--node", to]);
        assert_ne!(done.code, 0, "a revoked node's call succeeded: {done:?}");
        when(done.json()["error"]["code"] == "revoked", &done)
    });
}

fn knows_revoked(machine: &Machine, name: &str) {
    wait(&format!("{} knows that {name} is out", machine.name), || {
        let seen = entry(machine, name);
        let out = seen.as_ref().is_none_or(|n| {
            n["state"] == "left" && n["problem"].as_str().is_some_and(|p| p.starts_with("revoked"))
        });
        when(out && !has_session(machine, name), seen)
    });
}

#[test]
fn a_revoked_node_that_calls() {
    let names = ["pi", "attic", "tower", "shed", "loft"];
    let others = ["pi", "attic", "shed", "loft"];
    let mut mesh = Mesh::up(&names, |machine| {
        if machine.name == "pi" {
            machine.tool(
                "sleeper",
                "effect = \"once\"\ntypical_ms = 60000\n[input_schema]\ntype = \"object\"",
                "sleep 300",
            );
        }
    });
    // Nobody is thrown out by mistake.
    let unsure = mesh["pi"].run(&["--json", "revoke", "tower"]).with_code(3);
    assert_eq!(unsure.json()["error"]["code"], "needs_confirmation");
    let itself = mesh["pi"].run(&["--json", "--yes", "revoke", "pi"]).with_code(2);
    assert_eq!(itself.json()["error"]["code"], "itself");
    let worker = mesh["attic"].run(&["--json", "--yes", "revoke", "tower"]).with_code(1);
    assert_eq!(worker.json()["error"]["code"], "not_admin");

    // A step of the node, which would run on by itself when its coordinator is lost: its effect is `once`.
    mesh["tower"].wait_for_tool("sleeper", "pi");
    let _step = mesh["tower"].start(&["--json", "call", "sleeper", "--node", "pi", "--timeout", "250"]);
    let workspace = mesh["pi"].workspace().to_str().unwrap().to_owned();
    let running = || processes_with(&workspace).into_iter().any(|line| line.contains("run.sh"));
    wait("its step runs", || when(running(), processes_with(&workspace)));

    let reply = mesh["pi"].json(&["--yes", "revoke", "tower", "--reason", "stolen"]);
    let began = Instant::now();
    let id = reply["node_id"].as_str().unwrap().to_owned();
    assert!(reply["revoked_at"].as_u64().unwrap() > 1_700_000_000, "{reply}");
    for name in others {
        wait_within(LIMIT + ASKING, &format!("{name} has no session with tower"), || {
            when(!has_session(&mesh[name], "tower"), began.elapsed())
        });
    }
    println!("sessions closed and seen so on all nodes {} ms after the answer", began.elapsed().as_millis());
    wait("its step is stopped", || when(!running(), processes_with(&workspace)));
    for name in others {
        let seen = entry(&mesh[name], "tower").unwrap();
        assert_eq!((&seen["state"], &seen["problem"]), (&"left".into(), &"revoked: stolen".into()), "{name}");
        // What the log says of the close itself, without the time that asking takes.
        assert!(mesh[name].node().err().contains("revoked"), "{name}");
    }

    // It knows by a signed word, and says so.
    fails_with_revoked(&mesh["tower"], "pi");
    let status = mesh["tower"].json(&["status"]);
    assert_eq!(status["state"], "revoked", "{status}");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("revoked by the root") && warnings.contains("stolen"), "{warnings}");
    let local = mesh["tower"].json(&["call", "echo", "text=own", "--node", "tower"]);
    assert_eq!(local["output"]["text"], "own", "its own tools are its own");
    // Again is no error, and says when it was.
    assert_eq!(mesh["pi"].json(&["--yes", "revoke", &id])["revoked_at"], reply["revoked_at"]);

    // For good: also after a restart of every node.
    for name in names {
        mesh[name].stop();
    }
    for name in names {
        mesh[name].up();
    }
    for name in others {
        mesh[name].wait_for(PATIENCE, &others);
        knows_revoked(&mesh[name], "tower");
    }
    fails_with_revoked(&mesh["tower"], "attic");
    works(&mesh["attic"], "loft");
    for name in others {
        assert!(!has_session(&mesh[name], "tower"), "{name}");
    }
}

#[test]
fn a_revoked_node_that_joins_again_with_an_old_ticket() {
    let mut mesh = Mesh::furnished(&["pi", "tower", "again", "fresh"], |_| {});
    mesh["pi"].init();
    mesh["pi"].up();
    let ticket = mesh["pi"].json(&["invite", "--uses", "5"])["ticket"].as_str().unwrap().to_owned();
    mesh["tower"].join(&ticket);
    mesh["tower"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "tower"]);
    mesh["pi"].json(&["--yes", "revoke", "tower"]);
    mesh["tower"].stop();

    // Its own keys in a home without certificate: the ticket would have given it the same certificate again.
    let pending = mesh["again"].home.join("identity.pending");
    fs::create_dir_all(&pending).unwrap();
    fs::copy(mesh["tower"].home.join("identity/node.key"), pending.join("node.key")).unwrap();
    let refused = mesh["again"].run(&["--json", "join", &ticket, "--name", "tower"]).with_code(1);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("revoked"), "{message}");
    // The machine that takes its place may have its name.
    mesh["fresh"].json(&["join", &ticket, "--name", "tower"]);
    mesh["fresh"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "tower"]);
}

#[test]
fn a_revoked_node_that_calls_one_that_was_away() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |_| {});
    mesh["attic"].stop();
    mesh["pi"].json(&["--yes", "revoke", "tower"]);
    knows_revoked(&mesh["pi"], "tower");
    // Both reach it at once; whoever is first, no step of the revoked one is taken.
    mesh["attic"].up();
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let done =
            mesh["tower"].run(&["--json", "call", "echo", "text=hello", "--node", "attic", "--timeout", "2"]);
        assert_ne!(done.code, 0, "a step of the revoked node was taken: {done:?}");
    }
    knows_revoked(&mesh["attic"], "tower");
    works(&mesh["pi"], "attic");

    // Alone with it nobody can know (docs/security.md), and it ends when somebody comes who does.
    mesh["attic"].stop();
    fs::remove_dir_all(mesh["attic"].home.join("identity/revocations")).unwrap();
    mesh["pi"].stop();
    mesh["attic"].up();
    wait("attic serves whom it has no reason to distrust, or is not spoken to by who knows better", || {
        let done =
            mesh["tower"].run(&["--json", "call", "echo", "text=hello", "--node", "attic", "--timeout", "2"]);
        when(done.code == 0 || done.json()["error"]["code"] == "revoked", &done)
    });
    mesh["pi"].up();
    knows_revoked(&mesh["attic"], "tower");
    works(&mesh["pi"], "attic");
}

#[test]
fn a_revoked_admin_that_issues() {
    let mut mesh = Mesh::furnished(&["pi", "attic", "shed", "loft", "late"], |_| {});
    mesh["pi"].init();
    mesh["pi"].up();
    let admin = mesh["pi"].json(&["invite", "--role", "admin"])["ticket"].as_str().unwrap().to_owned();
    mesh["attic"].join(&admin);
    mesh["attic"].up();
    mesh["attic"].wait_for(PATIENCE, &["pi", "attic"]);
    let ticket = mesh["attic"].json(&["invite", "--uses", "5"])["ticket"].as_str().unwrap().to_owned();
    for name in ["shed", "loft"] {
        mesh[name].join(&ticket);
        mesh[name].up();
    }
    for name in ["pi", "attic", "shed", "loft"] {
        mesh[name].wait_for(PATIENCE, &["pi", "attic", "shed", "loft"]);
    }
    // One of the two is away, and so is the admin itself: it will not hear of it.
    mesh["loft"].stop();
    mesh["attic"].stop();
    let reply = mesh["pi"].json(&["--yes", "revoke", "attic"]);
    assert_eq!(reply["reissued"], serde_json::json!(["shed"]), "{reply}");
    assert_eq!(reply["void_certificates"], serde_json::json!(["loft"]), "{reply}");
    mesh["pi"].wait_for(PATIENCE, &["pi", "shed"]);
    works(&mesh["shed"], "pi");

    // Alone it goes on issuing; nobody who knows better takes what it issued.
    mesh["shed"].stop();
    mesh["pi"].stop();
    mesh["attic"].up();
    mesh["late"].join(&ticket);
    mesh["late"].up();
    mesh["attic"].wait_for(PATIENCE, &["attic", "late"]);
    mesh["pi"].up();
    mesh["shed"].up();
    mesh["loft"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "shed"]);
    for name in ["late", "attic", "loft"] {
        fails_with_revoked(&mesh[name], "pi");
    }
    for name in ["late", "attic", "loft"] {
        assert!(!has_session(&mesh["pi"], name), "{name}");
    }
    // By now it knows, and says no.
    let refused = mesh["attic"].run(&["--json", "invite"]);
    if refused.code == 0 {
        // It was told, and has no signed word of it: what it issues is void all the same.
        assert!(mesh["attic"].json(&["status"])["warnings"].to_string().contains("revoked"));
    } else {
        assert_eq!(refused.json()["error"]["code"], "revoked");
    }
}

#[test]
fn a_rotated_secret_shuts_the_revoked_node_out_before_its_identity() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |_| {});
    let before = fs::read_to_string(mesh["pi"].home.join("identity/mesh.secret")).unwrap();
    let reply = mesh["pi"].json(&["--yes", "revoke", "tower", "--rotate-secret"]);
    assert_eq!(reply["secret_generation"], 1, "{reply}");
    for name in ["pi", "attic"] {
        wait(&format!("{name} has the new secret"), || {
            let now = fs::read_to_string(mesh[name].home.join("identity/mesh.secret")).unwrap();
            when(now != before, "the old one")
        });
    }
    let secret = |machine: &Machine| fs::read_to_string(machine.home.join("identity/mesh.secret")).unwrap();
    assert_eq!(secret(&mesh["pi"]), secret(&mesh["attic"]));
    assert_eq!(secret(&mesh["tower"]), before, "the revoked node never gets it");

    // The window is over: its end is moved into the past where it is written down.
    for name in ["pi", "attic", "tower"] {
        mesh[name].stop();
    }
    for name in ["pi", "attic"] {
        let path = mesh[name].home.join("identity/secrets.json");
        let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for previous in file["previous"].as_array_mut().unwrap() {
            previous["until"] = 1.into();
        }
        fs::write(&path, file.to_string()).unwrap();
    }
    for name in ["pi", "attic", "tower"] {
        mesh[name].up();
    }
    for name in ["pi", "attic"] {
        mesh[name].wait_for(PATIENCE, &["pi", "attic"]);
    }
    works(&mesh["attic"], "pi");
    wait("its first message is refused", || {
        let log = mesh["pi"].node().err();
        when(log.contains("has another mesh secret or is no member"), log)
    });
    assert!(!has_session(&mesh["pi"], "tower"));
    // Who joins now gets the secret of now.
    let newcomer = Machine::new(mesh.folder(), "shed");
    let mut newcomer = newcomer;
    newcomer.join(&mesh["pi"].invite());
    newcomer.up();
    newcomer.wait_for(PATIENCE, &["attic", "pi", "shed"]);
    mesh["attic"].wait_for(PATIENCE, &["attic", "pi", "shed"]);
}
