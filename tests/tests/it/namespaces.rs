//! Three machines with networks of their own: no loopback between them, only their addresses and TCP.
use octomesh_tests::{
    Machine, Mesh, SUITE,
    machine::free_port,
    namespace::Lab,
    wait::{PATIENCE, wait, when},
};

/// Why it can't be shown here; a failure where it must be.
fn lab(count: usize) -> Option<Lab> {
    match Lab::new(count) {
        Ok(lab) => Some(lab),
        Err(why) if std::env::var_os("OCTOMESH_REQUIRE_NETNS").is_some_and(|v| v == "1") => panic!("{why}"),
        Err(why) => {
            println!("skipped, this machine makes no network namespaces (it takes root and `ip`): {why}");
            None
        }
    }
}

fn node<'a>(nodes: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).unwrap()
}

#[test]
fn three_homes_in_three_networks_join_by_ticket_and_work_for_each_other() {
    let Some(lab) = lab(3) else { return };
    let names = ["pi", "attic", "tower"];
    let folder = tempfile::Builder::new().prefix("octomesh-lab-").tempdir().unwrap();
    let machines: Vec<Machine> = (0..3)
        .map(|at| Machine::at(folder.path(), names[at], &lab.address(at), free_port(), &lab.prefix(at)))
        .collect();
    for machine in &machines {
        machine.write("where.txt", &format!("this is {}\n", machine.name));
    }
    let mut mesh = Mesh::of(folder, machines);
    mesh.start();

    for (from, to) in [("pi", "attic"), ("attic", "tower"), ("tower", "pi")] {
        let nodes = mesh[from].json(&["nodes"]);
        assert_eq!(nodes["nodes"].as_array().unwrap().len(), 3);
        for name in names {
            assert_eq!(node(&nodes, name)["state"], "alive", "{nodes}");
        }
        let call = mesh[from].json(&["call", "file_read", "path=where.txt", "--node", to]);
        assert_eq!(call["node"], to);
        assert!(call["output"].to_string().contains(&format!("this is {to}")), "{call}");
        let sessions = mesh[from].json(&["sessions"]);
        let sessions = sessions["sessions"].as_array().unwrap();
        let peers: std::collections::BTreeSet<&str> =
            sessions.iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(peers.len(), 2, "{sessions:?}");
        for session in sessions {
            assert_eq!(session["suite"], SUITE);
            assert!(session["addr"].as_str().unwrap().starts_with("10.99.7."), "{session}");
        }
    }

    // A cable is pulled: no reset, just silence. The others notice, and it comes back by itself.
    lab.cable(1, false);
    wait("pi misses attic", || {
        let nodes = mesh["pi"].json(&["nodes"]);
        when(node(&nodes, "attic")["state"] != "alive", &nodes)
    });
    let refused =
        mesh["pi"].run(&["--json", "call", "file_read", "path=where.txt", "--node", "attic"]).with_code(4);
    assert!(refused.error().contains("attic"), "{}", refused.out);
    lab.cable(1, true);
    mesh["pi"].wait_for(PATIENCE * 2, &names);
    mesh["pi"].json(&["call", "file_read", "path=where.txt", "--node", "attic"]);
}
