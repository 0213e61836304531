//! Nodes of which neither can dial the other: a third one is between them.
use super::*;

/// A home behind a router of its own: `room` reaches the internet through `ROOM-gate`, and nobody reaches it.
fn behind_nat(network: &Network, room: &str, number: u8) {
    let (gate, inside) = (format!("{room}-gate"), format!("{room}-lan"));
    network.plug(room, "eth0", &inside, &[&format!("10.99.{number}.2/24")]);
    network.plug(&gate, "in0", &inside, &[&format!("10.99.{number}.1/24")]);
    network.plug(&gate, "out0", "internet", &[&format!("192.0.2.{number}/24")]);
    network.ip(room, &format!("route add default via 10.99.{number}.1"));
    network.set(&gate, "net/ipv4/ip_forward", "1");
    // As routers at home do it: out with another address, in only what belongs to that.
    network.nft(
        &gate,
        "table ip nat {\n chain out {\n type nat hook postrouting priority 100\n oifname \"out0\" masquerade\n }\n}\n\
         table ip guard {\n chain through {\n type filter hook forward priority 0\n iifname \"out0\" ct state new drop\n }\n}\n",
    );
}

fn relay_of(machine: &Machine, name: &str) -> Value {
    node(machine, name)["relay"].clone()
}

/// Both see each other, over `relay`.
fn wait_for_relay(machines: [&Machine; 2], relay: &[&str]) {
    let [a, b] = machines;
    for (from, to) in [(a, b), (b, a)] {
        wait_within(PATIENCE * 2, "a session over a relay", || {
            let seen = node(from, &to.name);
            let over = seen["relay"].as_str().unwrap_or_default();
            when(seen["state"] == "alive" && relay.contains(&over), &seen)
        });
        from.wait_for_tool("file_read", &to.name);
    }
}

#[test]
fn two_homes_behind_nat_work_together_over_a_third_node() {
    let rooms = ["attic", "attic-gate", "beach", "beach-gate", "cloud", "depot"];
    let switches = ["attic-lan", "beach-lan", "internet"];
    let Some(network) = Network::new(&rooms, &switches, &["nft"]) else { return };
    behind_nat(&network, "attic", 11);
    behind_nat(&network, "beach", 12);
    network.plug("cloud", "eth0", "internet", &["192.0.2.101/24"]);
    network.plug("depot", "eth0", "internet", &["192.0.2.102/24"]);
    let folder = folder();
    let mut cloud = machine(&folder, &network, "cloud", "0.0.0.0");
    let mut depot = machine(&folder, &network, "depot", "0.0.0.0");
    let mut attic = machine(&folder, &network, "attic", "0.0.0.0");
    let mut beach = machine(&folder, &network, "beach", "0.0.0.0");
    cloud.init();
    cloud.up();
    attic.join(&cloud.invite());
    beach.join(&cloud.invite());
    depot.join(&cloud.invite());
    attic.up();
    beach.up();
    wait_for_relay([&attic, &beach], &["cloud"]);
    call(&attic, &beach);
    call(&beach, &attic);

    // What people see.
    let sessions = attic.json(&["sessions"]);
    let with = sessions["sessions"].as_array().unwrap().iter().find(|s| s["name"] == "beach").unwrap();
    assert_eq!(
        (&with["relay"], &with["pq"], &with["certificate_name"]),
        (&json!("cloud"), &json!(true), &json!("beach"))
    );
    assert!(attic.run(&["sessions"]).with_code(0).out.contains("relayed via cloud"));
    assert!(attic.run(&["nodes"]).with_code(0).out.contains("relayed via cloud"));
    assert!(attic.run(&["status"]).with_code(0).out.contains("beach relayed via cloud"));
    let members = check(&attic, "members");
    assert_eq!(members["status"], "ok", "{members}");
    assert!(members["detail"].as_str().unwrap().contains("beach is relayed via cloud"), "{members}");
    assert!(relay_of(&attic, "cloud").is_null());
    wait("beach has a round trip", || {
        let rtt = node(&attic, "beach")["rtt_ms"].clone();
        when(rtt.as_f64() > Some(0.0), &rtt)
    });

    // A second one that could relay. The first is killed: the other takes over.
    depot.up();
    for home in [&attic, &beach] {
        home.wait_for(PATIENCE, &["attic", "beach", "cloud", "depot"]);
    }
    cloud.kill();
    wait_for_relay([&attic, &beach], &["depot"]);
    call(&attic, &beach);

    // Nobody is left that could: that is said, and in words.
    depot.kill();
    let problem = wait_within(PATIENCE * 2, "attic says why beach is away", || {
        let seen = node(&attic, "beach");
        let problem = seen["problem"].as_str().unwrap_or_default().to_owned();
        when(problem.contains("no member is left"), &seen).map(|()| problem)
    });
    assert!(problem.contains("connected, then lost"), "{problem}");
    let failed = attic.run(&["call", "file_read", "path=where.txt", "--node", "beach"]);
    assert_ne!(failed.code, 0, "{}", failed.out);
    let members = check(&attic, "members");
    assert!(members["detail"].as_str().unwrap().contains("no member is left"), "{members}");

    // One comes back.
    cloud.up();
    wait_for_relay([&attic, &beach], &["cloud"]);
    call(&beach, &attic);
}

#[test]
fn an_owner_switches_relaying_off() {
    let rooms = ["attic", "attic-gate", "beach", "beach-gate", "cloud"];
    let Some(network) = Network::new(&rooms, &["attic-lan", "beach-lan", "internet"], &["nft"]) else {
        return;
    };
    behind_nat(&network, "attic", 11);
    behind_nat(&network, "beach", 12);
    network.plug("cloud", "eth0", "internet", &["192.0.2.101/24"]);
    let folder = folder();
    let mut cloud = machine(&folder, &network, "cloud", "0.0.0.0");
    let mut attic = machine(&folder, &network, "attic", "0.0.0.0");
    let mut beach = machine(&folder, &network, "beach", "0.0.0.0");
    cloud.configure("relay = false");
    cloud.init();
    cloud.up();
    attic.join(&cloud.invite());
    beach.join(&cloud.invite());
    attic.up();
    beach.up();
    let problem = wait_within(PATIENCE * 2, "attic says that cloud does not relay", || {
        let seen = node(&attic, "beach");
        let problem = seen["problem"].as_str().unwrap_or_default().to_owned();
        when(problem.contains("carries no circuits"), &seen).map(|()| problem)
    });
    assert!(problem.contains("over cloud"), "{problem}");
    assert!(relay_of(&attic, "beach").is_null());
}
