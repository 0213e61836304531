//! Nodes find each other, or say why not: real networks made for the test.
use std::{fs, time::Duration};

use octomesh_tests::{
    Machine,
    network::Network,
    wait::{PATIENCE, wait, wait_within, when},
};
use serde_json::{Value, json};
use tempfile::TempDir;

mod addresses;
mod reach;
mod reasons;
mod relay;

/// From the start of a node to its sight of another one that is up: announced within 100 ms, a dial that yields waits 1.5 s.
const FOUND: Duration = Duration::from_secs(10);
/// What was sent over a session and is not answered for 8 s ends it; then a dial, and a command that may have begun before that.
const SILENT: Duration = Duration::from_secs(14);

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("octomesh-discovery-").tempdir().unwrap()
}

fn machine(folder: &TempDir, network: &Network, room: &str, listen: &str) -> Machine {
    Machine::at(folder.path(), room, listen, 9400, &network.prefix(room))
}

/// The member `name` as `machine` lists it; null when it does not.
fn node(machine: &Machine, name: &str) -> Value {
    let nodes = machine.json(&["nodes"]);
    nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).cloned().unwrap_or(Value::Null)
}

/// A check of `octomesh doctor`.
fn check(machine: &Machine, name: &str) -> Value {
    let done = machine.run(&["--json", "doctor"]);
    let checks = done.json();
    checks["checks"].as_array().unwrap().iter().find(|c| c["name"] == name).cloned().unwrap_or(Value::Null)
}

fn forget_addresses(machines: &[&Machine]) {
    for machine in machines {
        let _ = fs::remove_file(machine.home.join("peers.json"));
    }
}

/// `first` makes a mesh, the others join it; all are stopped, and no address is kept.
fn strangers(first: &mut Machine, others: &mut [&mut Machine]) {
    first.init();
    first.up();
    for other in others.iter() {
        other.join(&first.invite());
    }
    first.stop();
    forget_addresses(&[first]);
    others.iter().for_each(|m| forget_addresses(&[m]));
}

fn see_each_other(machines: &[&Machine]) {
    let names: Vec<&str> = machines.iter().map(|m| m.name.as_str()).collect();
    machines.iter().for_each(|m| m.wait_for(FOUND, &names));
}

fn call(from: &Machine, to: &Machine) {
    to.write("where.txt", &format!("this is {}\n", to.name));
    let call = from.json(&["call", "file_read", "path=where.txt", "--node", &to.name]);
    assert_eq!(call["node"], to.name.as_str());
    assert!(call["output"].to_string().contains(&to.name), "{call}");
}

#[test]
fn two_nodes_find_each_other_on_a_network_without_being_told() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    network.plug("pi", "eth0", "lan", &["10.99.1.1/24"]);
    network.plug("tower", "eth0", "lan", &["10.99.1.2/24"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    strangers(&mut pi, &mut [&mut tower]);
    pi.up();
    tower.up();
    see_each_other(&[&pi, &tower]);
    call(&pi, &tower);
    // The other one may have dialled before it was heard.
    let status = wait_within(PATIENCE, "tower hears pi", || {
        let status = tower.json(&["status"]);
        when(status["discovery"]["interfaces"][0]["heard"] == 1, &status).map(|()| status)
    });
    assert_eq!(status["discovery"]["interfaces"][0]["interface"], "eth0", "{status}");
    assert_eq!(status["unreached"], json!([]), "{status}");
    assert_eq!(check(&pi, "discovery")["status"], "ok");

    // Switched off on one side, they are strangers to each other.
    pi.stop();
    tower.stop();
    forget_addresses(&[&pi, &tower]);
    pi.configure("mdns = false");
    pi.up();
    tower.up();
    assert!(check(&pi, "discovery")["detail"].as_str().unwrap().contains("switched off"));
    wait("tower has listened for a while", || {
        let status = tower.json(&["status"]);
        let interface = &status["discovery"]["interfaces"][0];
        when(interface["listening_s"].as_u64() >= Some(5), &status)
    });
    assert_eq!(tower.sees(), ["tower"]);
    assert!(
        check(&tower, "discovery")["detail"].as_str().unwrap().contains("no node of this mesh was heard")
    );
}

#[test]
fn a_network_with_nothing_but_ipv6() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    network.plug("pi", "eth0", "lan", &["fd99::1/64"]);
    network.plug("tower", "eth0", "lan", &["fd99::2/64"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "[::]");
    let mut tower = machine(&folder, &network, "tower", "[::]");
    strangers(&mut pi, &mut [&mut tower]);
    pi.up();
    tower.up();
    see_each_other(&[&pi, &tower]);
    call(&tower, &pi);

    // Without a router there is nothing but link-local addresses. They are of no use to third ones, so nobody is told them.
    pi.stop();
    tower.stop();
    forget_addresses(&[&pi, &tower]);
    network.ip("pi", "addr del fd99::1/64 dev eth0");
    network.ip("tower", "addr del fd99::2/64 dev eth0");
    pi.up();
    tower.up();
    see_each_other(&[&pi, &tower]);
    call(&pi, &tower);
    assert!(node(&pi, "pi")["addr"].is_null());
    let addr = node(&pi, "tower")["addr"].to_string() + &node(&tower, "pi")["addr"].to_string();
    assert!(addr.contains("fe80::"), "{addr}");
}

#[test]
fn a_network_without_multicast_needs_to_be_told() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    for (room, address) in [("pi", "10.99.1.1/24"), ("tower", "10.99.1.2/24")] {
        let port = network.plug(room, "eth0", "lan", &[address]);
        network.ip("lan", &format!("link set {port} type bridge_slave mcast_flood off"));
    }
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    strangers(&mut pi, &mut [&mut tower]);
    tower.configure("peers = [\"10.99.1.1:9400\"]");
    pi.up();
    tower.up();
    see_each_other(&[&pi, &tower]);
    for (machine, other) in [(&pi, "tower"), (&tower, "pi")] {
        let found = wait_within(PATIENCE, "doctor misses multicast", || {
            let found = check(machine, "discovery");
            when(found["status"] == "warn", &found).map(|()| found)
        });
        let detail = found["detail"].as_str().unwrap();
        assert!(detail.contains("no node of this mesh was heard") && detail.contains(other), "{detail}");
        assert!(found["fix"].as_str().unwrap().contains("5353"), "{found}");
    }
}

#[test]
fn a_node_between_two_networks_finds_both() {
    let Some(network) = Network::new(&["pi", "tower", "attic"], &["upstairs", "cellar"], &[]) else { return };
    network.plug("tower", "eth0", "upstairs", &["10.99.1.2/24"]);
    network.plug("tower", "eth1", "cellar", &["10.99.2.2/24"]);
    network.plug("pi", "eth0", "upstairs", &["10.99.1.1/24"]);
    network.plug("attic", "eth0", "cellar", &["10.99.2.3/24"]);
    let folder = folder();
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut attic = machine(&folder, &network, "attic", "0.0.0.0");
    strangers(&mut tower, &mut [&mut pi, &mut attic]);
    pi.up();
    tower.up();
    attic.up();
    tower.wait_for(FOUND, &["tower", "pi", "attic"]);
    call(&pi, &tower);
    call(&attic, &tower);
    // The two others are told of each other and can't reach each other; both say so.
    let said = wait_within(PATIENCE * 2, "pi says why it has no way to attic", || {
        let attic = node(&pi, "attic");
        let problem = attic["problem"].as_str().unwrap_or_default().to_owned();
        when(problem.contains("10.99.2.3:9400"), &attic).map(|()| attic)
    });
    assert_eq!(said["step"], "dialled", "{said}");
    assert_eq!(said["heard_from"], json!(["member"]), "{said}");
}

#[test]
fn a_cable_that_is_plugged_in_later_and_an_address_that_changes() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    let port = network.plug("pi", "eth0", "lan", &["10.99.1.1/24"]);
    network.plug("tower", "eth0", "lan", &["10.99.1.2/24"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    strangers(&mut pi, &mut [&mut tower]);
    network.ip("lan", &format!("link del {port}"));
    // Without it, the first address takes the second one with it when it goes.
    network.set("pi", "net/ipv4/conf/all/promote_secondaries", "1");
    pi.up();
    tower.up();
    assert_eq!(pi.json(&["status"])["discovery"]["interfaces"], json!([]));
    network.plug("pi", "eth0", "lan", &["10.99.1.1/24"]);
    see_each_other(&[&pi, &tower]);

    // Another address, as from DHCP: the other one is told of it, and keeps it.
    let kept = || fs::read_to_string(tower.home.join("peers.json")).unwrap_or_default();
    wait("tower keeps pi's address", || when(kept().contains("10.99.1.1:9400"), kept()));
    network.ip("pi", "addr add 10.99.1.77/24 dev eth0");
    wait("tower keeps the new address", || when(kept().contains("10.99.1.77:9400"), kept()));
    network.ip("pi", "addr del 10.99.1.1/24 dev eth0");
    wait("pi tells the new address alone", || {
        let status = pi.json(&["status"]);
        when(status["transport"]["advertise_addr"] == "10.99.1.77:9400", &status)
    });
    // A session from the address that is gone is dead, and noticed by its silence.
    pi.write("where.txt", "this is pi\n");
    wait_within(SILENT, "tower reaches pi at its new address", || {
        let done = tower.run(&["--json", "call", "file_read", "path=where.txt", "--node", "pi"]);
        when(done.code == 0, &done)
    });
}
