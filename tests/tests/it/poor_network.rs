//! PROTOCOL 5.9: packets of 1,280 bytes, and one in twenty is lost, in both directions.
use std::time::Duration;

use octomesh_tests::{
    Machine, Mesh, attacker::target, machine::free_port, member::HandMade, namespace::Lab, wait::PATIENCE,
};

const HANDSHAKES: usize = 20;
const BOUND: Duration = Duration::from_secs(3);

/// What TCP of the namespace that this thread is in sent, and sent again.
fn segments() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|l| l.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let value = |name: &str| {
        let at = names.split(' ').position(|n| n == name).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    };
    (value("OutSegs"), value("RetransSegs"))
}

fn degraded() -> Result<Lab, String> {
    let lab = Lab::new(2)?;
    (0..2).try_for_each(|at| lab.degrade(at, 1280, 5))?;
    Ok(lab)
}

#[test]
fn mtu_1280_and_five_percent_loss() {
    let lab = match degraded() {
        Ok(lab) => lab,
        Err(why) if std::env::var_os("OCTOMESH_REQUIRE_NETNS").is_some_and(|v| v == "1") => panic!("{why}"),
        Err(why) => {
            println!("skipped, this machine makes no poor networks (it takes root, `ip` and `tc`): {why}");
            return;
        }
    };
    let folder = tempfile::Builder::new().prefix("octomesh-lab-").tempdir().unwrap();
    let machine =
        |at: usize, name| Machine::at(folder.path(), name, &lab.address(at), free_port(), &lab.prefix(at));
    let machines = vec![machine(0, "pi"), machine(1, "attic")];
    let mut mesh = Mesh::of(folder, machines);
    // Joining, sessions and calls.
    mesh.start();
    let call = mesh["attic"].json(&["call", "echo", "text=hello", "--node", "pi"]);
    assert_eq!(call["node"], "pi");

    // And attic's sessions by hand, to see how long each takes.
    mesh["attic"].stop().with_code(0);
    let (attic, pi) = (HandMade::of(&mesh["attic"].home), target(&mesh["pi"].listen));
    let (mut took, sent, again) = lab.inside(1, || {
        let before = segments();
        let took: Vec<_> = (0..HANDSHAKES).map(|_| attic.session(pi).map_err(|e| e.to_string())).collect();
        let after = segments();
        (took, after.0 - before.0, after.1 - before.1)
    });
    let pi_again = lab.inside(0, segments).1;
    took.sort();
    let ok: Vec<f64> = took.iter().flatten().map(Duration::as_secs_f64).collect();
    println!(
        "{} of {HANDSHAKES} handshakes; seconds: {ok:.2?}; attic sent {sent} segments and {again} again, pi {pi_again} again in all",
        ok.len()
    );
    assert!(again + pi_again > 0, "nothing was lost, so this shows nothing");
    // One whose first packet is lost three times in a row waits for TCP longer than anybody should; most never do.
    assert!(ok.len() >= HANDSHAKES - 2, "{took:?}");
    let within = took.iter().flatten().filter(|t| **t <= BOUND).count();
    assert!(within * 10 >= HANDSHAKES * 9, "{within} of {HANDSHAKES} within 3 s: {ok:.2?}");
    mesh["attic"].up();
    mesh["attic"].wait_for(PATIENCE * 2, &["attic", "pi"]);
}
