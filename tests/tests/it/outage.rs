//! Ten machines with cables of their own: power cuts, bad radio, and one that stands still while the others work.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh, api,
    namespace::Lab,
    process::processes_with,
    wait::{PATIENCE, wait_within, when},
};
use rustix::process::Signal;
use serde_json::{Value, json};

const COUNT: usize = 10;
/// A machine without power says nothing; all others know by then.
const SEEN: Duration = Duration::from_secs(10);
/// A session that is of no use any more ends; its last words are waited for a second.
const ENDED: Duration = Duration::from_secs(2);
/// Everybody is back: a dial may just have failed, and the next one waits.
const BACK: Duration = Duration::from_secs(45);
/// A step on a node that stands still: its session ends when it is down, then the node has 3 s to come back, then another one runs it.
const FAIL_OVER: Duration = Duration::from_secs(10 + 2 + 3 + 3);
/// A call that has nothing to do with that node; a busy machine takes its time.
const UNCONCERNED: Duration = Duration::from_secs(4);

/// Ten nodes, each in a network of its own on one switch.
struct House {
    // Before the networks that they live in.
    mesh: Mesh,
    lab: Lab,
}

fn names() -> Vec<String> {
    (0..COUNT).map(|at| format!("n{at}")).collect()
}

fn unless_impossible<T>(made: Result<T, String>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(why) if std::env::var_os("OCTOMESH_REQUIRE_NETNS").is_some_and(|v| v == "1") => panic!("{why}"),
        Err(why) => {
            println!("skipped, this machine makes no such networks (it takes root, `ip` and `tc`): {why}");
            None
        }
    }
}

impl House {
    /// `None` where there are no such networks; a failure where there must be.
    fn up(furnish: impl Fn(&Machine)) -> Option<Self> {
        let lab = unless_impossible(Lab::new(COUNT))?;
        let folder = tempfile::Builder::new().prefix("octomesh-house-").tempdir().unwrap();
        let machine =
            |(at, name): (usize, &String)| Machine::at(folder.path(), name, "0.0.0.0", 9400, &lab.prefix(at));
        let machines: Vec<Machine> = names().iter().enumerate().map(machine).collect();
        machines.iter().for_each(furnish);
        let mut mesh = Mesh::of(folder, machines);
        let all = mesh.machines_mut();
        all[0].init();
        all[0].up();
        let ticket = all[0].json(&["invite", "--uses", "9"])["ticket"].as_str().unwrap().to_owned();
        all[1..].iter().for_each(|machine| machine.join(&ticket));
        all[1..].iter_mut().for_each(Machine::up);
        let house = Self { mesh, lab };
        house.all_alive();
        Some(house)
    }

    fn machine(&self, at: usize) -> &Machine {
        &self.mesh[format!("n{at}").as_str()]
    }

    fn node(&mut self, at: usize) -> &mut octomesh_tests::Running {
        self.mesh.machines_mut()[at].node()
    }

    fn text(&self, at: usize, path: &str) -> String {
        self.lab.inside(at, || api::request(self.machine(at), "GET", path, "").unwrap())
    }

    fn get(&self, at: usize, path: &str) -> Value {
        serde_json::from_str(&self.text(at, path)).unwrap()
    }

    /// The state of every member as a node shows it.
    fn states(&self, at: usize) -> BTreeMap<String, String> {
        let nodes = self.get(at, "/api/mesh/nodes");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        nodes["nodes"].as_array().unwrap().iter().map(|n| (text(&n["name"]), text(&n["state"]))).collect()
    }

    /// With whom a node has sessions.
    fn sessions(&self, at: usize) -> Vec<String> {
        let sessions = self.get(at, "/api/mesh/sessions");
        let names = sessions["sessions"].as_array().unwrap().iter();
        names.map(|s| s["name"].as_str().unwrap().to_owned()).collect()
    }

    /// How many times a node saw somebody in another state.
    fn transitions(&self, at: usize, to: &str) -> u64 {
        let (text, metric) = (self.text(at, "/metrics"), "octomesh_peer_transitions_total");
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("{metric}{{to=\"{to}\"}} ")));
        line.map_or(0, |number| number.trim().parse().unwrap())
    }

    fn downs(&self, at: usize) -> u64 {
        self.transitions(at, "down")
    }

    fn all_alive(&self) {
        for at in 0..COUNT {
            wait_within(BACK, &format!("n{at} shows {COUNT} nodes alive"), || {
                let seen = self.states(at);
                when(seen.len() == COUNT && seen.values().all(|s| s == "alive"), seen)
            });
        }
    }

    /// Waits until all others show this node down; gives how long that took.
    fn down_for_all(&self, victim: usize, patience: Duration) -> Duration {
        let (began, name) = (Instant::now(), format!("n{victim}"));
        for at in (0..COUNT).filter(|at| *at != victim) {
            let left = patience.saturating_sub(began.elapsed());
            wait_within(left, &format!("n{at} shows {name} down"), || {
                let seen = self.states(at);
                when(seen.get(&name).is_some_and(|s| s == "down"), seen)
            });
        }
        began.elapsed()
    }

    /// Whom a node saw go down so far.
    fn buried(&mut self, at: usize) -> BTreeSet<String> {
        let out = self.node(at).out();
        let events = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let down = events.filter(|e| e["event"] == "member" && e["state"] == "down");
        down.map(|e| e["node"].as_str().unwrap().to_owned()).collect()
    }

    /// Those who had nothing to do with it saw nobody down but `blamed`.
    fn nobody_else_was_down(&mut self, blamed: &[usize]) {
        let blamed: BTreeSet<String> = blamed.iter().map(|at| format!("n{at}")).collect();
        for at in (0..COUNT).filter(|at| !blamed.contains(&format!("n{at}"))) {
            let buried = self.buried(at);
            assert!(buried.is_subset(&blamed), "n{at} saw {buried:?} go down");
        }
    }
}

#[test]
fn a_machine_without_power_is_seen_by_all_within_ten_seconds_and_its_sessions_end() {
    let Some(mut house) = House::up(|_| {}) else { return };
    for victim in [4, 0] {
        let name = format!("n{victim}");
        house.lab.cable(victim, false);
        let began = Instant::now();
        let took = house.down_for_all(victim, SEEN);
        for at in (0..COUNT).filter(|at| *at != victim) {
            wait_within(ENDED, &format!("n{at} ends its session with {name}"), || {
                let open = house.sessions(at);
                when(!open.contains(&name), open)
            });
        }
        // For itself the others are gone, and it says so no later than they do.
        let left = (SEEN + ENDED).saturating_sub(began.elapsed());
        wait_within(left, &format!("{name} ends its sessions"), || {
            let open = house.sessions(victim);
            when(open.is_empty(), open)
        });
        println!("{name}: down for all after {took:.1?}, sessions ended after {:.1?}", began.elapsed());
        // What a node that was cut off tells of the others when it is back is another matter.
        if victim == 4 {
            house.nobody_else_was_down(&[4]);
        }
        house.lab.cable(victim, true);
        house.all_alive();
    }
}

/// What TCP of the namespace that this thread is in sent again.
fn sent_again() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let lines: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("Tcp: ")).collect();
    let at = lines[0].split(' ').position(|name| name == "RetransSegs").unwrap();
    lines[1].split(' ').nth(at).unwrap().parse().unwrap()
}

/// Watches ten nodes of which every packet is lost with one chance in ten; nobody may be seen down.
fn nobody_goes_down_on_bad_radio(watched: Duration) {
    let Some(house) = House::up(|_| {}) else { return };
    let bad = (0..COUNT).try_for_each(|at| house.lab.degrade(at, 1500, 10));
    if unless_impossible(bad).is_none() {
        return;
    }
    let before: Vec<u64> = (0..COUNT).map(|at| house.downs(at)).collect();
    let until = Instant::now() + watched;
    let mut suspected = 0;
    while Instant::now() < until {
        for at in 0..COUNT {
            let seen = house.states(at);
            suspected += seen.values().filter(|s| *s == "suspect").count();
            let fine = seen.len() == COUNT && seen.values().all(|s| s == "alive" || s == "suspect");
            assert!(fine, "n{at}: {seen:?}");
        }
        sleep(Duration::from_millis(500));
    }
    let after: Vec<u64> = (0..COUNT).map(|at| house.downs(at)).collect();
    let transitions: u64 = (0..COUNT).map(|at| house.transitions(at, "suspect")).sum();
    println!(
        "{watched:?} at 10 % loss: suspected {transitions} times ({suspected} at a look), downs {after:?}"
    );
    assert_eq!(before, after, "false alarms");
    let again: u64 = (0..COUNT).map(|at| house.lab.inside(at, sent_again)).sum();
    println!("{again} packets were sent again");
    assert!(again > 0, "nothing was lost, so this shows nothing");
    house.all_alive();
}

#[test]
fn a_minute_of_bad_radio_buries_nobody() {
    nobody_goes_down_on_bad_radio(Duration::from_secs(60));
}

/// `cargo test -p octomesh-tests --test it -- --ignored --nocapture ten_minutes`.
#[test]
#[ignore = "ten minutes"]
fn ten_minutes_of_bad_radio_bury_nobody() {
    nobody_goes_down_on_bad_radio(Duration::from_secs(600));
}

/// A pure tool that takes a moment, on three of the ten.
const SHARED: [usize; 3] = [3, 4, 5];

fn furnish(machine: &Machine) {
    if SHARED.iter().any(|at| machine.name == format!("n{at}")) {
        let manifest = "effect = \"pure\"\ntypical_ms = 300\n[input_schema]\ntype = \"object\"";
        machine.tool("nap", manifest, "sleep 0.3\necho '{}'");
    }
}

/// What came of the calls while somebody stood still.
#[derive(Default, Debug)]
struct Load {
    failed: Vec<String>,
    /// The slowest call between two nodes that run.
    unconcerned: Duration,
    /// The slowest call that any of three nodes could take, one of them standing still.
    shared: Duration,
    calls: usize,
}

/// Stops the calls also when a test fails, or it would wait for them for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls from three nodes until told to stop; two at once from each, as many as the three that have the tool can run, so that each of
/// them has work.
fn load(house: &House, stop: &AtomicBool) -> Load {
    let one = |from: usize, to: usize| {
        let mut load = Load::default();
        let machine = house.machine(from);
        house.lab.inside(from, || {
            while !stop.load(Ordering::Relaxed) {
                match api::timed_echo(machine, &format!("n{to}")) {
                    Ok(took) => load.unconcerned = load.unconcerned.max(took),
                    Err(error) => load.failed.push(error),
                }
                let began = Instant::now();
                let body = json!({"tool": "nap", "arguments": {}, "timeout_s": 60});
                match api::post_patiently(machine, "/api/call", &body, Duration::from_secs(60)) {
                    Ok(answer) if answer["status"] == "ok" => load.shared = load.shared.max(began.elapsed()),
                    other => load.failed.push(format!("{other:?}")),
                }
                load.calls += 2;
            }
        });
        load
    };
    thread::scope(|scope| {
        let all = [(0, 6), (1, 7), (2, 8), (0, 7), (1, 8), (2, 6)]
            .map(|(from, to)| scope.spawn(move || one(from, to)));
        all.into_iter().map(|one| one.join().unwrap()).fold(Load::default(), |mut sum, load| {
            sum.failed.extend(load.failed);
            sum.unconcerned = sum.unconcerned.max(load.unconcerned);
            sum.shared = sum.shared.max(load.shared);
            sum.calls += load.calls;
            sum
        })
    })
}

/// Stops a node's process while the others work; `meanwhile` is what happens before it goes on.
fn stand_still(house: &mut House, victim: usize, meanwhile: impl FnOnce(&House) + Send) -> Load {
    let pid = house.node(victim).pid();
    let signal = |signal: Signal| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let (stop, house) = (AtomicBool::new(false), &*house);
    thread::scope(|scope| {
        let working = scope.spawn(|| load(house, &stop));
        let stops = Stops(&stop);
        // Under way on all three.
        let script = house.machine(victim).workspace();
        wait_within(PATIENCE, "the tool runs on the victim", || {
            let running = processes_with(script.to_str().unwrap());
            when(running.iter().any(|line| line.contains("run.sh")), running)
        });
        signal(Signal::STOP);
        meanwhile(house);
        signal(Signal::CONT);
        house.all_alive();
        drop(stops);
        working.join().unwrap()
    })
}

fn unharmed(load: &Load) {
    println!("{} calls, slowest {:.2?} and {:.2?}", load.calls, load.unconcerned, load.shared);
    assert!(load.failed.is_empty(), "{:?}", load.failed);
    assert!(load.unconcerned < UNCONCERNED && load.shared < FAIL_OVER, "{load:?}");
}

/// In a mesh of its own each time: nodes that saw one slow call give that node no other for a while.
fn who_stands_still_for(time: Duration) {
    let Some(mut house) = House::up(furnish) else { return };
    let load = stand_still(&mut house, 4, |_| sleep(time));
    unharmed(&load);
    house.nobody_else_was_down(&[4]);
    assert_eq!(house.downs(4), 0, "it doubted itself");
}

#[test]
fn who_stands_still_for_three_seconds_stops_nobody_elses_work() {
    who_stands_still_for(Duration::from_secs(3));
}

#[test]
fn who_stands_still_for_ten_seconds_stops_nobody_elses_work() {
    who_stands_still_for(Duration::from_secs(10));
}

#[test]
fn who_wakes_up_with_another_address_is_found_again() {
    let Some(mut house) = House::up(furnish) else { return };
    let load = stand_still(&mut house, 4, |house| {
        house.down_for_all(4, SEEN);
        // As a laptop that was carried elsewhere.
        house.lab.readdress(4, "10.99.7.104");
    });
    unharmed(&load);
    house.nobody_else_was_down(&[4]);
    // That it lives, others tell; a session with its new address may take another dial.
    wait_within(PATIENCE, "n0 reaches it", || {
        house.lab.inside(0, || api::timed_echo(house.machine(0), "n4"))
    });
    let kept = || fs::read_to_string(house.machine(0).home.join("peers.json")).unwrap_or_default();
    wait_within(PATIENCE, "its new address is kept", || when(kept().contains("10.99.7.104:9400"), kept()));
}
