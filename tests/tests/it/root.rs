//! The mesh's root key: under a passphrase, moved offline and back, and what goes on without it.
use std::path::Path;

use octomesh_tests::{Machine, Mesh, wait::PATIENCE};

const PHRASE: &[u8] = b"a phrase of several words\n";

fn place(machine: &Machine) -> String {
    machine.json(&["root", "status"])["place"].as_str().unwrap().to_owned()
}

fn ticket(machine: &Machine, role: &str) -> String {
    machine.json(&["invite", "--role", role])["ticket"].as_str().unwrap().to_owned()
}

/// Makes no admin, and says what is missing and how it comes.
fn makes_no_admin(machine: &Machine, how: &str) {
    let refused = machine.run(&["--json", "invite", "--role", "admin"]).with_code(1);
    let message = refused.error();
    assert!(message.contains("only the root key makes admins") && message.contains(how), "{message}");
}

fn file_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_sealed_root_is_opened_moved_offline_and_brought_back() {
    let mut mesh = Mesh::furnished(&["pi", "attic", "tower"], |_| {});
    let copy = mesh.folder().join("copy");
    let pi = &mut mesh["pi"];
    pi.run_with(&["--json", "init", "--name", "pi", "--passphrase"], Some(b"short\n")).with_code(1);
    pi.run_with(&["--json", "init", "--name", "pi", "--passphrase"], Some(PHRASE)).with_code(0);
    let key = std::fs::read_to_string(pi.home.join("identity/root.key")).unwrap();
    assert!(key.starts_with("6f63746f6d6573682d726f6f74"), "{key}");
    pi.up();
    assert_eq!(place(pi), "locked");
    makes_no_admin(pi, "octomesh root unlock");

    // Workers come without it: the first node is an admin.
    let worker = ticket(&mesh["pi"], "worker");
    mesh["attic"].join(&worker);
    mesh["attic"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "attic"]);

    let pi = &mesh["pi"];
    let wrong = pi.run_with(&["--json", "root", "unlock"], Some(b"another phrase, wrong\n")).with_code(1);
    assert!(wrong.error().contains("passphrase is wrong"), "{}", wrong.out);
    assert_eq!(place(pi), "locked");
    pi.run_with(&["--json", "root", "unlock", "--for", "5m"], Some(PHRASE)).with_code(0);
    assert_eq!(place(pi), "unlocked");
    let admin = ticket(pi, "admin");
    mesh["tower"].join(&admin);
    mesh["pi"].json(&["root", "lock"]);
    makes_no_admin(&mesh["pi"], "octomesh root unlock");

    // Offline: only with a copy that opens, and only when it is confirmed.
    let pi = &mesh["pi"];
    let line = ["--json", "root", "remove", "--copy", file_of(&copy)];
    pi.run_with(&["--json", "root", "export", file_of(&copy)], Some(PHRASE)).with_code(0);
    pi.run_with(&["--json", "root", "export", file_of(&copy)], Some(PHRASE)).with_code(1);
    assert_eq!(pi.run_with(&line, Some(b"")).with_code(3).json()["error"]["code"], "needs_confirmation");
    let sure = [&["--yes"], &line[..]].concat();
    pi.run_with(&sure, Some(b"not the right phrase\n")).with_code(1);
    assert_eq!(place(pi), "locked");
    pi.run_with(&sure, Some(PHRASE)).with_code(0);
    assert_eq!(place(pi), "away");
    assert!(!pi.home.join("identity/root.key").exists());
    makes_no_admin(pi, "octomesh root import");
    pi.json(&["invite", "--role", "client"]);
    let doctor = pi.run(&["--json", "doctor"]).json();
    let root = doctor["checks"].as_array().unwrap().iter().find(|c| c["name"] == "root").unwrap().clone();
    assert!(root["detail"].as_str().unwrap().contains("not on this node"), "{root}");

    pi.run_with(&["--json", "root", "import", file_of(&copy)], Some(PHRASE)).with_code(0);
    assert_eq!(place(pi), "locked");
}

#[test]
fn another_meshs_root_is_neither_a_copy_nor_an_import() {
    let mesh = Mesh::furnished(&["pi", "other"], |_| {});
    for name in ["pi", "other"] {
        mesh[name].init();
    }
    let (own, foreign) = (mesh.folder().join("own"), mesh.folder().join("foreign"));
    mesh["pi"].json(&["root", "export", file_of(&own)]);
    mesh["other"].json(&["root", "export", file_of(&foreign)]);
    let pi = &mesh["pi"];
    let refused = pi.run(&["--json", "--yes", "root", "remove", "--copy", file_of(&foreign)]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "other_mesh");
    pi.json(&["--yes", "root", "remove", "--copy", file_of(&own)]);
    let refused = pi.run(&["--json", "root", "import", file_of(&foreign)]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "other_mesh");
    pi.json(&["root", "import", file_of(&own)]);
    assert_eq!(place(pi), "here");
}

/// A worker whose certificate the root signed by way of an admin is a member everywhere, also where only the root is known.
#[test]
fn a_second_admin_invites_while_the_first_is_away() {
    let mut mesh = Mesh::furnished(&["pi", "attic", "tower"], |_| {});
    mesh["pi"].init();
    mesh["pi"].up();
    let admin = ticket(&mesh["pi"], "admin");
    mesh["attic"].join(&admin);
    mesh["attic"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "attic"]);
    mesh["attic"].wait_for(PATIENCE, &["pi", "attic"]);
    mesh["pi"].stop().with_code(0);

    makes_no_admin(&mesh["attic"], "octomesh root import");
    let worker = mesh["attic"].invite();
    mesh["tower"].join(&worker);
    mesh["tower"].up();
    mesh["attic"].wait_for(PATIENCE, &["attic", "tower"]);
    let call = mesh["attic"].json(&["call", "echo", "text=hello", "--node", "tower"]);
    assert_eq!(call["node"], "tower");

    mesh["pi"].up();
    mesh.settled();
    for (from, to) in [("pi", "tower"), ("tower", "pi"), ("tower", "attic")] {
        assert_eq!(mesh[from].json(&["call", "echo", "text=hello", "--node", to])["node"], to);
    }
    // A worker invites nobody.
    let refused = mesh["tower"].run(&["--json", "invite"]).with_code(1);
    assert_eq!(refused.json()["error"]["code"], "not_admin");
}
