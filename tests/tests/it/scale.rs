//! What a mesh of many real nodes costs and how soon it tells: figures for docs/benchmarks.md. Not for every day: minutes each, on a
//! machine with nothing else to do, with a release build.
//!
//! `OCTOMESH_BIN=target/release/octomesh cargo test -p octomesh-tests --test it -- --ignored --nocapture scale::`
use std::{
    collections::BTreeMap,
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh,
    api::{self, Spread},
    namespace,
    wait::{PATIENCE, wait_within, when},
};
use serde_json::{Value, json};

/// From the start of all nodes until each sees all; two processors share the handshakes of 2,016 sessions.
const FORMED: Duration = Duration::from_secs(180);
/// From `octomesh join` of one more machine to its first call of another one.
const JOINED: Duration = Duration::from_secs(10);
/// After everybody has seen everybody: the member lists are fetched again after 15 s, and sessions tell each other twice.
const SETTLED: Duration = Duration::from_secs(90);
/// How long idle nodes are watched.
const WATCHED: Duration = Duration::from_secs(120);
/// What one node may take on the average.
const MEMORY: f64 = 50.0 * 1024.0 * 1024.0;
const BYTES_PER_SECOND: f64 = 2000.0;

fn get(machine: &Machine, path: &str) -> Value {
    serde_json::from_str(&api::request(machine, "GET", path, "").unwrap()).unwrap()
}

/// How many members it sees alive with their tools.
fn alive(machine: &Machine) -> usize {
    let nodes = get(machine, "/api/mesh/nodes");
    let alive = |n: &&Value| n["state"] == "alive" && n["tools"].as_u64() > Some(0);
    nodes["nodes"].as_array().unwrap().iter().filter(alive).count()
}

fn open_sessions(machine: &Machine) -> usize {
    get(machine, "/api/mesh/sessions")["sessions"].as_array().unwrap().len()
}

/// What a process has used so far.
#[derive(Clone, Copy, Default)]
struct Used {
    /// User and system, in hundredths of a second.
    ticks: f64,
    resident: f64,
    /// Of that, what belongs to it alone.
    own: f64,
    threads: f64,
    switches: f64,
}

fn used(machine: &mut Machine) -> Used {
    let pid = machine.node().pid();
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let number = |at: usize| fields[at].parse::<f64>().unwrap();
    let of = |text: &str, label: &str| -> f64 {
        let line = text.lines().find_map(|l| l.strip_prefix(label)).unwrap_or("0");
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let rollup = read("smaps_rollup");
    let switches = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().map(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        of(&status, "voluntary_ctxt_switches:")
    });
    Used {
        ticks: number(11) + number(12),
        resident: of(&rollup, "Rss:") * 1024.0,
        own: (of(&rollup, "Private_Clean:") + of(&rollup, "Private_Dirty:")) * 1024.0,
        threads: number(17),
        switches: switches.sum(),
    }
}

/// Bytes and packets that loopback has carried in the network of this thread.
fn carried() -> (f64, f64) {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("lo:")).unwrap();
    let fields: Vec<f64> = line.split_whitespace().map(|f| f.parse().unwrap()).collect();
    (fields[0], fields[1])
}

/// Bytes inside of the sessions that all nodes have sent so far.
fn sent(machines: &[Machine]) -> f64 {
    let of = |machine: &Machine| -> f64 {
        let sessions = get(machine, "/api/mesh/sessions");
        sessions["sessions"].as_array().unwrap().iter().map(|s| s["bytes_out"].as_f64().unwrap()).sum()
    };
    machines.iter().map(of).sum()
}

/// So many nodes, named n0, n1 and so on.
fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("n{at}")).collect()
}

/// All join with one ticket and start at once, as after a power cut. Gives how long it took from the first start until each saw all.
fn form(mesh: &mut Mesh, count: usize) -> Duration {
    let machines = &mut mesh.machines_mut()[..count];
    machines[0].init();
    machines[0].up();
    let uses = (count - 1).to_string();
    let ticket = machines[0].json(&["invite", "--uses", &uses, "--ttl", "2h"]);
    for machine in &machines[1..] {
        machine.join(ticket["ticket"].as_str().unwrap());
    }
    let began = Instant::now();
    machines[1..].iter_mut().for_each(Machine::up);
    for machine in &*machines {
        wait_within(FORMED, &format!("{} sees {count}", machine.name), || {
            let seen = alive(machine);
            when(seen == count, seen)
        });
    }
    began.elapsed()
}

#[test]
#[ignore = "64 real nodes for five minutes, with a release build and nothing else on the machine"]
fn sixty_four_nodes_and_what_they_cost_when_idle() {
    namespace::alone().unwrap();
    let count: usize = std::env::var("OCTOMESH_SCALE").map_or(64, |n| n.parse().unwrap());
    let names = names(count);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut mesh = Mesh::furnished(&names, |_| {});
    let formed = form(&mut mesh, count - 1);
    println!("{} nodes: one mesh {formed:.1?} after the first start", count - 1);

    // One more.
    let ticket = mesh.machines_mut()[0].invite();
    let last = &mut mesh.machines_mut()[count - 1];
    let began = Instant::now();
    last.join(&ticket);
    last.up();
    let target = format!("n{}", count / 2);
    wait_within(PATIENCE, "the newcomer's first call", || api::timed_echo(last, &target));
    let joined = began.elapsed();
    println!("join to first call: {joined:.2?}");
    for machine in mesh.machines_mut() {
        wait_within(FORMED, &format!("{} sees {count}", machine.name), || {
            let seen = alive(machine);
            when(seen == count, seen)
        });
    }

    sleep(SETTLED);
    let machines = mesh.machines_mut();
    let sessions: usize = machines.iter().map(open_sessions).sum();
    let (began, (bytes, packets), inside) = (Instant::now(), carried(), sent(machines));
    let before: Vec<Used> = machines.iter_mut().map(used).collect();
    sleep(WATCHED);
    let after: Vec<Used> = machines.iter_mut().map(used).collect();
    let (seconds, (bytes_now, packets_now)) = (began.elapsed().as_secs_f64(), carried());
    let inside = (sent(machines) - inside) / began.elapsed().as_secs_f64() / count as f64;
    let per_node = |now: f64, then: f64| (now - then) / seconds / count as f64;
    let wire = per_node(bytes_now, bytes);
    let packets = per_node(packets_now, packets);
    let table = |of: &dyn Fn(&Used, &Used) -> f64| {
        let mut all: Vec<f64> = before.iter().zip(&after).map(|(then, now)| of(then, now)).collect();
        all.sort_by(f64::total_cmp);
        (all.iter().sum::<f64>() / all.len() as f64, all[all.len() - 1])
    };
    let cpu = table(&|then, now| (now.ticks - then.ticks) / seconds);
    let resident = table(&|_, now| now.resident);
    let own = table(&|_, now| now.own);
    let switches = table(&|then, now| (now.switches - then.switches) / seconds);
    let threads = table(&|_, now| now.threads);
    let mib = 1024.0 * 1024.0;
    println!("| {count} nodes, idle for {seconds:.0} s | mean | highest |");
    println!("| sessions per node | {:.1} | |", sessions as f64 / count as f64);
    println!("| CPU, percent of one core | {:.2} | {:.2} |", cpu.0, cpu.1);
    println!("| resident memory, MiB | {:.1} | {:.1} |", resident.0 / mib, resident.1 / mib);
    println!("| of that its own, MiB | {:.1} | {:.1} |", own.0 / mib, own.1 / mib);
    println!("| wake-ups per second | {:.0} | {:.0} |", switches.0, switches.1);
    println!("| threads | {:.0} | {:.0} |", threads.0, threads.1);
    println!("| bytes/s sent inside sessions | {inside:.0} | |");
    println!("| bytes/s sent with TCP and IP | {wire:.0} | |");
    println!("| packets/s sent | {packets:.1} | |");
    for machine in machines.iter() {
        assert_eq!(alive(machine), count, "{}", machine.name);
    }
    assert!(joined <= JOINED, "{joined:?}");
    assert!(resident.0 <= MEMORY);
    assert!(inside <= BYTES_PER_SECOND, "{inside}");
}

/// Waits until each of `machines` but the first has the tool, or has it no more, and until the last of them has called it; gives how
/// long that took.
fn all_know(machines: &[Machine], tool: &str, wanted: bool) -> Duration {
    let began = Instant::now();
    let until = began + PATIENCE;
    for machine in &machines[1..] {
        loop {
            let shown = get(machine, &format!("/api/tools/{tool}"));
            if shown["error"].is_null() == wanted {
                break;
            }
            assert!(Instant::now() < until, "{}: {shown}", machine.name);
            sleep(Duration::from_millis(2));
        }
    }
    let body = json!({"tool": tool, "arguments": {}, "timeout_s": 5});
    let answer = api::post(&machines[machines.len() - 1], "/api/call", &body).unwrap();
    assert_eq!(answer["status"] == "ok", wanted, "{answer}");
    began.elapsed()
}

#[test]
#[ignore = "ten real nodes, a hundred tools dropped and removed; minutes"]
fn a_dropped_tool_is_callable_from_everywhere_soon() {
    namespace::alone().unwrap();
    let rounds: usize = std::env::var("OCTOMESH_ROUNDS").map_or(100, |n| n.parse().unwrap());
    let names = names(10);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut mesh = Mesh::furnished(&names, |_| {});
    form(&mut mesh, 10);
    let machines = mesh.machines_mut();
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for round in 0..rounds {
        let name = format!("dropped_{round}");
        machines[0].tool(&name, "effect = \"pure\"\n[input_schema]\ntype = \"object\"", "echo '{}'");
        took.entry("dropped").or_default().push(all_know(machines, &name, true));
        fs::rename(
            machines[0].home.join("tools").join(&name),
            machines[0].home.join(format!("removed-{round}")),
        )
        .unwrap();
        took.entry("removed").or_default().push(all_know(machines, &name, false));
    }
    for (what, took) in took {
        let mut sorted = took.clone();
        sorted.sort_unstable();
        let p99 = sorted[sorted.len() * 99 / 100];
        let spread = Spread::of(took);
        println!(
            "{what}: median {:?}, p95 {:?}, p99 {p99:?}, worst {:?}",
            spread.median, spread.p95, spread.worst
        );
    }
}
