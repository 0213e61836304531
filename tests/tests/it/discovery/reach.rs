//! Nodes that can't be dialled.
use super::*;

/// Directions of the sessions with `name`.
fn directions(machine: &Machine, name: &str) -> Vec<String> {
    let sessions = machine.json(&["sessions"]);
    let with = sessions["sessions"].as_array().unwrap().iter().filter(|s| s["name"] == name);
    with.map(|s| s["direction"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_node_behind_nat_works_for_the_others() {
    let Some(network) = Network::new(&["pi", "router", "tower"], &["inside", "outside"], &["nft"]) else {
        return;
    };
    network.plug("pi", "eth0", "inside", &["10.99.1.2/24"]);
    network.plug("router", "in0", "inside", &["10.99.1.1/24"]);
    network.plug("router", "out0", "outside", &["192.0.2.1/24"]);
    network.plug("tower", "eth0", "outside", &["192.0.2.2/24"]);
    network.ip("pi", "route add default via 10.99.1.1");
    network.set("router", "net/ipv4/ip_forward", "1");
    network.nft(
        "router",
        "table ip nat {\n chain out {\n type nat hook postrouting priority 100\n oifname \"out0\" masquerade\n }\n}\n",
    );
    let folder = folder();
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    tower.init();
    tower.up();
    pi.join(&tower.invite());
    pi.up();
    see_each_other(&[&tower, &pi]);
    assert_eq!(directions(&tower, "pi"), ["in"]);
    call(&tower, &pi);
    call(&pi, &tower);
    let address = node(&tower, "pi")["addr"].as_str().unwrap().to_owned();
    assert!(address.starts_with("192.0.2.1:"), "seen at the router: {address}");

    // The router is switched off and on; the one inside comes back by itself.
    network.ip("router", "link set out0 down");
    wait("tower misses pi", || {
        let pi = node(&tower, "pi");
        when(pi["state"] != "alive", &pi)
    });
    network.ip("router", "link set out0 up");
    tower.wait_for(PATIENCE * 2, &["pi", "tower"]);
    call(&tower, &pi);
}

#[test]
fn a_firewall_that_lets_nobody_in() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &["nft"]) else { return };
    network.plug("pi", "eth0", "lan", &["10.99.1.1/24"]);
    network.plug("tower", "eth0", "lan", &["10.99.1.2/24"]);
    network.nft(
        "pi",
        "table inet one_way {\n chain in {\n type filter hook input priority 0\n iifname \"eth0\" tcp flags & (syn|ack) == syn drop\n }\n}\n",
    );
    let folder = folder();
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    strangers(&mut tower, &mut [&mut pi]);
    for _ in 0..2 {
        pi.up();
        tower.up();
        see_each_other(&[&tower, &pi]);
        assert_eq!(directions(&tower, "pi"), ["in"]);
        let seen = node(&tower, "pi");
        assert_eq!(seen["problem"], Value::Null);
        // Not from the port that it listens on: tower dials that one at the same time, and both would be the dialer.
        assert!(!seen["addr"].as_str().unwrap().ends_with(":9400"), "{seen}");
        call(&tower, &pi);
        pi.stop();
        tower.stop();
    }
}
