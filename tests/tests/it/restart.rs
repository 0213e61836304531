//! Nodes find each other again by what their homes remember: no flags, no tickets.
use octomesh_tests::{Mesh, wait::PATIENCE};

/// Both directions work, over the suite.
fn works(mesh: &Mesh) {
    for (from, to) in [("pi", "attic"), ("attic", "pi")] {
        let call = mesh[from].json(&["call", "echo", "text=hello", "--node", to]);
        assert_eq!(call["node"], to);
        assert_eq!(call["output"]["text"], "hello");
        let sessions = mesh[from].json(&["sessions"]);
        let session = &sessions["sessions"][0];
        assert_eq!(session["name"], to);
        assert_eq!(session["suite"], octomesh_tests::SUITE);
        assert_eq!(session["pq"], true);
    }
}

#[test]
fn restarted_nodes_find_each_other_without_flags() {
    let mut mesh = Mesh::up(&["pi", "attic"], |_| {});
    works(&mesh);

    for name in ["attic", "pi"] {
        let done = mesh[name].stop().with_code(0);
        assert!(
            done.out.contains("\"event\":\"stopped\"") && done.out.contains("\"orderly\":true"),
            "{}",
            done.out
        );
    }
    // In the order in which they were made, and the other way round.
    for order in [["pi", "attic"], ["attic", "pi"]] {
        for name in order {
            mesh[name].up();
        }
        mesh.settled();
        works(&mesh);
        for name in order {
            mesh[name].kill();
        }
    }
    // After two power cuts, and then each one alone.
    for name in ["pi", "attic"] {
        mesh[name].up();
    }
    mesh.settled();
    for name in ["pi", "attic"] {
        mesh[name].stop().with_code(0);
        mesh[name].up();
        mesh.settled();
        works(&mesh);
    }
}

#[test]
fn a_third_node_meets_those_that_its_ticket_did_not_name() {
    let mut mesh = Mesh::up(&["pi", "attic", "tower"], |_| {});
    // The issuer of all tickets is away; the other two know each other's addresses by now.
    mesh["pi"].stop().with_code(0);
    for name in ["attic", "tower"] {
        mesh[name].stop().with_code(0);
    }
    for name in ["attic", "tower"] {
        mesh[name].up();
    }
    mesh["attic"].wait_for(PATIENCE, &["attic", "tower"]);
    mesh["tower"].wait_for(PATIENCE, &["attic", "tower"]);
    let call = mesh["attic"].json(&["call", "echo", "text=hello", "--node", "tower"]);
    assert_eq!(call["node"], "tower");
}
