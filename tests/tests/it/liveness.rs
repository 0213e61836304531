//! `octomesh nodes` can be believed: who dies is seen soon by all, who only stood still is not buried, nobody haunts the list.
use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh, api,
    wait::{PATIENCE, wait_within, when},
};
use rustix::process::Signal;

/// The limit for a killed process; the kernel closes its connections.
const SEEN: Duration = Duration::from_secs(5);

/// The state of every member as a machine shows it.
fn states(machine: &Machine) -> BTreeMap<String, String> {
    let text = api::request(machine, "GET", "/api/mesh/nodes", "").unwrap();
    let nodes: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    nodes["nodes"].as_array().unwrap().iter().map(|n| (text(&n["name"]), text(&n["state"]))).collect()
}

/// Waits until all of `by` show `of` in this state; gives how long the last of them took.
fn all_show(mesh: &Mesh, by: &[&str], of: &str, state: &str, patience: Duration) -> Duration {
    let begin = Instant::now();
    wait_within(patience, &format!("{by:?} show {of} {state}"), || {
        let seen: Vec<_> = by.iter().map(|name| states(&mesh[name]).remove(of)).collect();
        when(seen.iter().all(|s| s.as_deref() == Some(state)), seen)
    });
    begin.elapsed()
}

/// Waits until all of `names` show exactly each other, alive.
fn all_alive(mesh: &Mesh, names: &[&str]) {
    for name in names {
        wait_within(PATIENCE, &format!("{name} shows {names:?}"), || {
            let seen = states(&mesh[name]);
            when(seen.len() == names.len() && seen.values().all(|s| s == "alive"), seen)
        });
    }
}

/// How many times a machine saw somebody go down.
fn downs(machine: &Machine) -> u64 {
    let text = api::request(machine, "GET", "/metrics", "").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("octomesh_peer_transitions_total{to=\"down\"} "));
    line.map_or(0, |number| number.trim().parse().unwrap())
}

fn without<'a>(names: &[&'a str], one: &str) -> Vec<&'a str> {
    names.iter().copied().filter(|n| *n != one).collect()
}

#[test]
fn a_killed_node_is_seen_by_all_and_the_first_node_is_like_any_other() {
    let names = ["pi", "attic", "tower", "cellar", "desk"];
    let mut mesh = Mesh::up(&names, |_| {});
    for victim in ["desk", "pi"] {
        let others = without(&names, victim);
        mesh[victim].kill();
        let took = all_show(&mesh, &others, victim, "down", SEEN);
        println!("{victim} killed: down for all after {took:?}");
        // The rest goes on.
        mesh["attic"].json(&["call", "echo", "text=still here", "--node", "tower"]);
        mesh[victim].up();
        all_alive(&mesh, &names);
    }
}

#[test]
fn a_node_that_is_stopped_says_good_bye() {
    let names = ["pi", "attic", "tower"];
    let mut mesh = Mesh::up(&names, |_| {});
    mesh["tower"].stop().with_code(0);
    for name in ["pi", "attic"] {
        assert_eq!(states(&mesh[name])["tower"], "left", "before its process had ended");
        assert_eq!(downs(&mesh[name]), 0);
    }
    mesh["tower"].up();
    all_alive(&mesh, &names);
}

#[test]
fn a_node_that_stands_still_for_three_seconds_is_not_buried() {
    let names = ["pi", "attic", "tower"];
    let mut mesh = Mesh::up(&names, |_| {});
    mesh["tower"].node().signal(Signal::STOP);
    sleep(Duration::from_secs(3));
    mesh["tower"].node().signal(Signal::CONT);
    all_alive(&mesh, &names);
    for name in names {
        assert_eq!(downs(&mesh[name]), 0, "{name}");
    }
    mesh["pi"].json(&["call", "echo", "text=hello", "--node", "tower"]);
}

#[test]
fn a_node_that_stands_still_for_long_is_down_and_comes_back_and_blames_nobody() {
    let names = ["pi", "attic", "tower"];
    let mut mesh = Mesh::up(&names, |_| {});
    mesh["tower"].node().signal(Signal::STOP);
    all_show(&mesh, &["pi", "attic"], "tower", "down", Duration::from_secs(20));
    mesh["pi"].json(&["call", "echo", "text=hello", "--node", "attic"]);
    mesh["tower"].node().signal(Signal::CONT);
    all_alive(&mesh, &names);
    assert_eq!(downs(&mesh["tower"]), 0, "it doubted itself");
    assert!(
        mesh["tower"].node().err().contains("stood still")
            || mesh["tower"].node().out().contains("stood still")
    );
    for name in ["pi", "attic"] {
        assert_eq!(downs(&mesh[name]), 1, "{name} saw only tower go");
    }
    mesh["pi"].json(&["call", "echo", "text=hello", "--node", "tower"]);
}

#[test]
fn twenty_kills_and_restarts_leave_exactly_the_members() {
    let names = ["pi", "attic", "tower", "desk"];
    let mut mesh = Mesh::up(&names, |_| {});
    for round in 0..20 {
        let victim = names[round % names.len()];
        mesh[victim].kill();
        if round % 4 == 0 {
            all_show(&mesh, &without(&names, victim), victim, "down", SEEN);
        }
        mesh[victim].up();
    }
    all_alive(&mesh, &names);
    // What is still told of old lives changes nothing.
    let before: Vec<u64> = names.iter().map(|n| downs(&mesh[n])).collect();
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        for name in names {
            let seen = states(&mesh[name]);
            assert!(seen.len() == names.len() && seen.values().all(|s| s == "alive"), "{name}: {seen:?}");
        }
        sleep(Duration::from_millis(200));
    }
    let after: Vec<u64> = names.iter().map(|n| downs(&mesh[n])).collect();
    assert_eq!(before, after);
}

/// `cargo test -p octomesh-tests --test it -- --ignored --nocapture the_median`.
#[test]
#[ignore = "ten nodes and twenty rounds; minutes, on a machine with nothing else to do"]
fn the_median_of_twenty_kills_among_ten_is_seen_within_two_seconds() {
    let names = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"];
    let mut mesh = Mesh::up(&names, |_| {});
    let mut took = Vec::new();
    for round in 0..20 {
        let victim = names[(round * 3) % names.len()];
        mesh[victim].kill();
        took.push(all_show(&mesh, &without(&names, victim), victim, "down", Duration::from_secs(10)));
        mesh[victim].up();
        all_alive(&mesh, &names);
    }
    took.sort();
    println!("seen by all: {took:?}");
    assert!(took[took.len() / 2] < Duration::from_secs(2));
}
