//! Which addresses a node tells, and dead ones that it was told.
use super::*;

/// Addresses in a ticket are those that a node tells.
fn told(machine: &Machine, by: &Machine) -> Vec<String> {
    let text = fs::read_to_string(by.home.join("peers.json")).unwrap_or_default();
    let peers: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let members = peers["members"].as_array().cloned().unwrap_or_default();
    let row = members.into_iter().find(|m| m["name"] == machine.name.as_str()).unwrap_or(Value::Null);
    row["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn twenty_bridges_of_containers_are_told_to_nobody() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    let prefixes = ["docker", "virbr", "br-0c0ffee", "cni-podman", "lxcbr", "lab"];
    for n in 0..20 {
        let bridge = format!("{}{n}", prefixes[n % prefixes.len()]);
        network.ip("pi", &format!("link add {bridge} type bridge"));
        network.ip("pi", &format!("addr add 172.{}.0.1/16 dev {bridge}", 16 + n));
        network.ip("pi", &format!("link set {bridge} up"));
    }
    // One has a container on it.
    network.ip("pi", "link add veth0 type veth peer name veth1");
    network.ip("pi", "link set veth0 master docker0 up");
    network.ip("pi", "link set veth1 up");
    network.plug("pi", "eth0", "lan", &["10.99.1.1/24", "169.254.7.7/16"]);
    network.plug("pi", "eth1", "lan", &["10.98.1.1/24"]);
    network.plug("tower", "eth0", "lan", &["10.99.1.2/24"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    strangers(&mut pi, &mut [&mut tower]);
    tower.up();
    let real = ["10.98.1.1:9400", "10.99.1.1:9400"];
    for start in 0..3 {
        pi.up();
        see_each_other(&[&pi, &tower]);
        wait(&format!("what tower is told at start {start}"), || {
            let told = told(&pi, &tower);
            when(told == real, &told)
        });
        assert_eq!(pi.json(&["status"])["transport"]["advertise_addr"], real[0]);
        pi.stop();
    }
    // Asked for, a bridge's address is told.
    pi.configure("advertise = [\"172.16.0.1:9400\"]");
    pi.up();
    wait("tower is told what pi was asked to tell", || {
        let told = told(&pi, &tower);
        when(told.first().is_some_and(|a| a == "172.16.0.1:9400"), &told)
    });
}

/// Seconds of processor time that a process has used.
fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let ticks: Vec<u64> = after.split_whitespace().skip(11).take(2).map(|t| t.parse().unwrap()).collect();
    // Linux counts in hundredths for programs.
    (ticks[0] + ticks[1]) as f64 / 100.0
}

#[test]
fn five_hundred_dead_addresses_keep_nobody_waiting() {
    let Some(network) = Network::new(&["pi", "tower"], &["lan"], &[]) else { return };
    network.plug("pi", "eth0", "lan", &["10.99.0.1/16"]);
    network.plug("tower", "eth0", "lan", &["10.99.0.2/16"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    let mut tower = machine(&folder, &network, "tower", "0.0.0.0");
    for machine in [&pi, &tower] {
        machine.configure("mdns = false");
    }
    strangers(&mut pi, &mut [&mut tower]);
    pi.up();
    let pi_id = node(&pi, "pi")["node_id"].as_str().unwrap().to_owned();
    // Nobody answers there, so that each dial takes its whole time. The one who lives comes last.
    let mut members: Vec<Value> = (0..500u32)
        .map(|n| {
            let mut key = [9; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            json!({
                "node_id": octomesh_protocol::id::NodeId::from_bytes(key).to_string(), "name": format!("dead{n}"),
                "addresses": [format!("10.99.{}.{}:9400", 1 + n / 250, 1 + n % 250)],
            })
        })
        .collect();
    members.push(json!({"node_id": pi_id, "name": "pi", "addresses": ["10.99.0.1:9400"]}));
    let text = json!({ "members": members }).to_string();
    fs::write(tower.home.join("peers.json"), &text).unwrap();
    let begun = std::time::Instant::now();
    tower.up();
    let started = begun.elapsed();
    wait_within(Duration::from_secs(5), "the one who lives is reached", || {
        let pi = node(&tower, "pi");
        when(pi["state"] == "alive", &pi)
    });
    let reached = begun.elapsed();
    wait_within(FOUND, "each dead one has its reason", || {
        let nodes = tower.json(&["nodes"]);
        let nodes = nodes["nodes"].as_array().unwrap();
        let told = nodes.iter().filter(|n| n["step"] == "dialled").count();
        assert_eq!(nodes.len(), 502);
        when(told == 500, told)
    });
    let used = processor_seconds(tower.node().pid());
    println!(
        "started after {started:?}, reached after {reached:?}, {used} s of processor time after {:?}",
        begun.elapsed()
    );
    assert!(used < 0.6 * begun.elapsed().as_secs_f64(), "{used} s of processor time");

    // Whoever was there lately comes first at the next start.
    tower.stop();
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(tower.home.join("peers.json")).unwrap()).unwrap();
    assert_eq!(kept["members"][0]["name"], "pi");
    assert_eq!(kept["members"].as_array().unwrap().len(), 501, "nobody is forgotten");
}
