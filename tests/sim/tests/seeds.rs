//! Every run is a process of its own: libp2p counts connections and listeners for the whole process, and these numbers are keys of its
//! hash maps.
use std::{
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// The seeds of every commit. A seed that once failed is added here.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octomesh-sim")).args(arguments).output().expect("the simulation starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| {
        let output = run(&[seed, "--nodes", "7", "--story"]);
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| run("31"));
        (first.join().unwrap(), run("31"))
    });
    // The digest at the end is of every byte on every wire.
    assert_eq!(first, second);
    assert!(first.contains(" digest "), "{first}");
    let other = run("32");
    assert_ne!(first, other);
}

#[test]
fn a_law_that_does_not_hold_is_found() {
    for (lie, found) in [("lives", "a false death"), ("died", "after its end")] {
        let output = run(&["33", "--nodes", "7", "--lie", lie]);
        assert!(!output.status.success(), "{}", text(&output));
        assert!(text(&output).contains(found), "{}", text(&output));
    }
}

#[test]
fn every_law_holds_for_every_seed() {
    let next = AtomicU64::new(*SEEDS.start());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !SEEDS.contains(&seed) {
                return failed;
            }
            let output = run(&[&seed.to_string()]);
            print!("{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                failed.push(seed);
            }
        }
    };
    let failed: Vec<u64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "seeds {failed:?}; how to see one again is said above");
}
