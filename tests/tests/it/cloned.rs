//! A copied home: two processes with one identity. The first keeps working; the second is told, and comes in when the first is gone.
use std::{fs, path::Path, time::Duration};

use octomesh_tests::{
    Machine, Mesh,
    machine::free_port,
    wait::{wait, wait_within, when},
};

/// Dials back off; the copy has failed a few times by then.
const SOME_SECONDS: Duration = Duration::from_secs(20);

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// Another machine with a copy of `original`'s identity and addresses, on ports of its own.
fn copy_of(original: &Machine, folder: &Path) -> Machine {
    let copy = Machine::at(folder, "copy", "127.0.0.1", free_port(), &[]);
    copy_folder(&original.home.join("identity"), &copy.home.join("identity"));
    fs::copy(original.home.join("peers.json"), copy.home.join("peers.json")).unwrap();
    copy
}

fn works(mesh: &Mesh) {
    for (from, to) in [("attic", "pi"), ("pi", "attic")] {
        let call = mesh[from].json(&["call", "echo", "text=hello", "--node", to]);
        assert_eq!(call["node"], to, "{call}");
    }
}

fn refusals_in_doctor(machine: &Machine) -> String {
    let report = machine.run(&["--json", "doctor"]).json();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().filter(|c| c["name"] == "refusals").map(ToString::to_string).collect()
}

#[test]
fn a_cloned_identity() {
    let mut mesh = Mesh::up(&["attic", "pi"], |_| {});
    let folder = mesh.folder().to_owned();
    let mut copy = copy_of(&mesh["pi"], &folder);
    copy.up();
    wait("the copy says that its identity is in use", || {
        let status = copy.json(&["status"]);
        when(status["warnings"].to_string().contains("identity_in_use"), &status["warnings"])
    });
    let log = copy.node().err();
    assert!(log.contains("identity_in_use") && log.contains("pi at 127.0.0.1"), "{log}");
    let nodes = copy.json(&["nodes"]);
    assert!(
        nodes.to_string().contains("identity_in_use"),
        "as the problem of the node that refuses: {nodes}"
    );
    assert!(copy.json(&["sessions"])["sessions"].as_array().unwrap().is_empty());
    for at in [&copy, &mesh["attic"]] {
        let told = refusals_in_doctor(at);
        assert!(told.contains("identity_in_use") && told.contains("runs twice"), "{told}");
    }
    let status = mesh["attic"].json(&["status"]);
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("identity_in_use"), "the node that refuses tells its owner, too: {warnings}");
    works(&mesh);

    mesh["pi"].kill();
    wait_within(SOME_SECONDS, "the copy takes the place of the first", || {
        let sessions = copy.json(&["sessions"]);
        when(sessions["sessions"][0]["name"] == "attic", sessions)
    });
    let call = mesh["attic"].json(&["call", "echo", "text=hello", "--node", "pi"]);
    assert_eq!(call["output"]["text"], "hello", "{call}");
}
