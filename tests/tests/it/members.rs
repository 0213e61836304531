//! The life of a member: limits that came with its ticket, renewal, another name, leaving, being forgotten.
use std::{fs, time::Duration};

use octomesh_protocol::trust::CertificateChain;
use octomesh_tests::{
    Machine, Mesh,
    api::post,
    wait::{PATIENCE, wait, wait_within, when},
};
use serde_json::json;

/// When the certificate in its home ends, unix seconds, and the name in it.
fn certificate(machine: &Machine) -> (u64, String) {
    let text = fs::read_to_string(machine.home.join("identity/certificate")).unwrap();
    let bytes: Vec<u8> = (0..text.trim().len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect();
    let chain = CertificateChain::from_bytes(&bytes).unwrap();
    (chain.ends().unwrap(), chain.leaf().unwrap().name.to_string())
}

/// What `machine` sees of the member `name`.
fn state(machine: &Machine, name: &str) -> Option<String> {
    let nodes = machine.json(&["nodes"]);
    let node = nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name)?;
    Some(node["state"].as_str().unwrap().to_owned())
}

fn shows(machine: &Machine, name: &str, wanted: Option<&str>) {
    wait(&format!("{} shows {name} as {wanted:?}", machine.name), || {
        let seen = state(machine, name);
        when(seen.as_deref() == wanted, &seen)
    });
}

#[test]
fn certificates_are_renewed_while_the_nodes_run() {
    let mut mesh = Mesh::furnished(&["pi", "attic"], |m| m.configure("certificate_lifetime = \"12s\""));
    mesh["pi"].init();
    mesh["pi"].up();
    let ticket = mesh["pi"].invite();
    mesh["attic"].join(&ticket);
    let first: Vec<u64> = ["pi", "attic"].map(|name| certificate(&mesh[name]).0).to_vec();
    mesh["attic"].up();
    mesh.settled();
    // Twice: the renewed certificate is one that can be renewed.
    for (name, first) in ["pi", "attic"].into_iter().zip(first) {
        let second = wait(&format!("{name} has another certificate"), || {
            let (ends, _) = certificate(&mesh[name]);
            if ends > first { Ok(ends) } else { Err(ends.to_string()) }
        });
        wait(&format!("{name} has a third certificate"), || {
            let (ends, _) = certificate(&mesh[name]);
            when(ends > second, ends)
        });
    }
    // New sessions begin with it.
    mesh["attic"].kill();
    mesh["attic"].up();
    mesh.settled();
    assert_eq!(mesh["pi"].json(&["call", "echo", "text=hello", "--node", "attic"])["node"], "attic");
}

/// The issuer is away when it is time: it is asked again, and as soon as it is back.
#[test]
fn a_renewal_waits_for_an_issuer() {
    let mut mesh = Mesh::furnished(&["pi", "attic"], |m| m.configure("certificate_lifetime = \"12s\""));
    mesh.start();
    mesh["pi"].kill();
    let before = certificate(&mesh["attic"]).0;
    let warned = |attic: &Machine| attic.json(&["status"])["warnings"].to_string();
    wait("attic warns", || {
        let warnings = warned(&mesh["attic"]);
        when(warnings.contains("certificate") && warnings.contains("was not renewed"), warnings)
    });
    mesh["pi"].up();
    wait("attic has another certificate", || {
        let ends = certificate(&mesh["attic"]).0;
        when(ends > before, ends)
    });
    wait("attic warns no more", || {
        let warnings = warned(&mesh["attic"]);
        when(!warnings.contains("was not renewed"), warnings)
    });
}

#[test]
fn a_renamed_node_is_known_by_its_new_name() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |_| {});
    let taken = mesh["attic"].run(&["--json", "rename", "tower"]).with_code(1);
    assert_eq!(taken.json()["error"]["code"], "name_taken", "{}", taken.out);
    assert_eq!(
        mesh["attic"].run(&["--json", "rename", "no name"]).with_code(2).json()["error"]["code"],
        "invalid_name"
    );

    let renamed = mesh["attic"].json(&["rename", "loft"]);
    assert_eq!(renamed["name"], "loft");
    for name in ["pi", "attic", "tower"] {
        wait_within(Duration::from_secs(10), &format!("{name} knows the new name"), || {
            let machine = &mesh[name];
            when(state(machine, "loft").as_deref() == Some("alive") && state(machine, "attic").is_none(), ())
        });
    }
    assert_eq!(mesh["attic"].json(&["status"])["name"], "loft");
    assert_eq!(certificate(&mesh["attic"]).1, "loft");
    assert_eq!(mesh["tower"].json(&["call", "echo", "text=hello", "--node", "loft"])["node"], "loft");
    // The first node renames itself with the root key; and the old name is free.
    assert_eq!(mesh["pi"].json(&["rename", "attic"])["name"], "attic");
    shows(&mesh["tower"], "attic", Some("alive"));

    mesh["attic"].kill();
    mesh["attic"].up();
    shows(&mesh["pi"], "loft", Some("alive"));
    assert_eq!(mesh["attic"].json(&["status"])["name"], "loft");
}

#[test]
fn a_node_that_leaves_is_shown_so_and_forgotten_when_asked() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |_| {});
    let unsure = mesh["attic"].run(&["--json", "leave"]).with_code(3);
    assert_eq!(unsure.json()["error"]["code"], "needs_confirmation");
    let there = mesh["pi"].run(&["--json", "nodes", "forget", "attic"]).with_code(1);
    assert!(there.error().contains("attic is alive"), "{}", there.out);
    // With the root key in its home a node does not go.
    let holds = mesh["pi"].run(&["--json", "--yes", "leave"]).with_code(1);
    assert_eq!(holds.json()["error"]["code"], "holds_root");

    let left = mesh["attic"].json(&["--yes", "leave"]);
    let mut told: Vec<&str> = left["told"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    told.sort_unstable();
    assert_eq!(told, ["pi", "tower"]);
    let done = mesh["attic"].node().wait(PATIENCE);
    assert!(done.code == 0 && done.out.contains("\"event\":\"left\""), "{}\n{}", done.out, done.err);
    assert!(
        !mesh["attic"].home.join("identity").exists() && !mesh["attic"].home.join("identity.left").exists()
    );
    for name in ["pi", "tower"] {
        shows(&mesh[name], "attic", Some("left"));
    }
    assert!(!fs::read_to_string(mesh["pi"].home.join("peers.json")).unwrap().contains("attic"));

    // Forgotten here, and not brought back by what the other one tells.
    assert_eq!(mesh["pi"].json(&["nodes", "forget", "attic"])["name"], "attic");
    assert_eq!(state(&mesh["pi"], "attic"), None);
    mesh["tower"].kill();
    mesh["tower"].up();
    mesh["pi"].wait_for(PATIENCE, &["pi", "tower"]);
    assert_eq!(state(&mesh["pi"], "attic"), None);
    // Its home is free for another membership.
    let ticket = mesh["pi"].invite();
    mesh["attic"].json(&["join", &ticket, "--name", "cellar"]);
}

/// The root key is away, so that nothing but this warning stands between one command and a mesh that nobody can change.
#[test]
fn the_last_admin_is_warned_before_it_leaves() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let pi = &mesh["pi"];
    let copy = pi.home.with_extension("root-copy");
    let copy = copy.to_str().unwrap();
    pi.json(&["root", "export", copy]);
    pi.json(&["--yes", "root", "remove", "--copy", copy]);
    let asked = post(pi, "/api/leave", &json!({ "last_admin": false })).unwrap();
    let hint = asked["error"]["hint"].as_str().unwrap_or_default();
    assert!(
        asked["error"]["code"] == "last_admin" && hint.contains("octomesh invite --role admin"),
        "{asked}"
    );
    assert_eq!(state(&mesh["attic"], "pi").as_deref(), Some("alive"), "it is still here");
    let left = pi.run(&["--json", "--yes", "leave"]).with_code(0);
    assert!(left.err.contains("last admin"), "{}", left.err);
    assert_eq!(left.json()["told"], json!(["attic"]));
    shows(&mesh["attic"], "pi", Some("left"));
}

/// A grant for a tool that nobody has may be meant, and may be a typing error.
#[test]
fn a_ticket_for_a_tool_that_nobody_has_is_warned_of() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let ticket = |tools| mesh["pi"].run(&["--json", "invite", "--tools", tools]).with_code(0);
    let odd = ticket("echo,eccho");
    assert!(
        odd.err.contains("no node of this mesh has a tool eccho") && !odd.err.contains("tool echo "),
        "{}",
        odd.err
    );
    assert!(odd.json()["ticket"].as_str().unwrap().starts_with("octo1"));
    let known = ticket("echo");
    assert!(!known.err.contains("warning"), "{}", known.err);
}

#[test]
fn a_node_that_does_not_run_leaves_without_a_word() {
    let mut mesh = Mesh::up(&["pi", "attic"], |_| {});
    mesh["attic"].stop().with_code(0);
    let left = mesh["attic"].json(&["--yes", "leave"]);
    assert_eq!(left["told"].as_array().unwrap().len(), 0);
    assert!(!mesh["attic"].home.join("identity").exists());
    shows(&mesh["pi"], "attic", Some("left"));
    mesh["pi"].json(&["nodes", "forget", "attic"]);
    shows(&mesh["pi"], "attic", None);
}

#[test]
fn grants_of_a_ticket_limit_what_a_member_may_call() {
    let mut mesh = Mesh::furnished(&["pi", "phone"], |_| {});
    mesh["pi"].init();
    mesh["pi"].up();
    let invited = mesh["pi"].json(&["invite", "--role", "client", "--tools", "calc,time"]);
    assert_eq!(invited["grants"]["tools"], serde_json::json!(["calc", "time"]));
    let listed = mesh["pi"].json(&["invite", "--list"]);
    assert_eq!(listed["invites"][0]["grants"]["tools"], serde_json::json!(["calc", "time"]));
    mesh["phone"].join(invited["ticket"].as_str().unwrap());
    mesh["phone"].up();
    mesh["phone"].wait_for_tool("calc", "pi");
    let call = mesh["phone"].json(&["call", "calc", "expression=6*7", "--node", "pi"]);
    assert_eq!(call["node"], "pi");
    let refused = mesh["phone"].run(&["--json", "call", "echo", "text=hello", "--node", "pi"]).with_code(4);
    assert!(refused.error().contains("does not grant echo"), "{}", refused.out);

    // What is no level, or does not fit a certificate, is said before there is a ticket.
    let bad = mesh["pi"].run(&["--json", "invite", "--min-sandbox", "strong"]).with_code(2);
    assert!(bad.error().contains("bwrap+landlock+seccomp"), "{}", bad.out);
    let many = (0..40).map(|n| format!("a-tool-with-a-long-name-{n}")).collect::<Vec<_>>().join(",");
    let large = mesh["pi"].run(&["--json", "invite", "--tools", &many]).with_code(2);
    assert_eq!(large.json()["error"]["code"], "grants");
}
