//! What must hold, for meshes of 3 to 1,000 nodes.
use std::time::Duration;

use super::world::{FINE, Shown, Weather, World};
use crate::membership::view::MemberState::{Alive, Down, Left};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn lossy(loss: f64) -> Weather {
    Weather { loss, late: 0.0 }
}

/// A mesh in which everybody knows everybody.
fn settled(size: usize, seed: u64, weather: Weather) -> World {
    let mut world = World::new(size, seed, weather);
    let took = world.run_until(secs(60), World::converged);
    assert!(took.is_some(), "{size} nodes never became one mesh");
    world.run(secs(10));
    assert_eq!(world.refused, [""; 0]);
    world
}

/// How long after now each of the others shows `of` down, the first and the last.
fn seen_down(world: &mut World, of: usize, most: Duration) -> (Duration, Duration) {
    let begin = world.now;
    let all = world.run_until(most, |w| w.all_show(of, Down));
    let seen = world.downs(begin, |s| s.of == of);
    assert!(all.is_some(), "only {} saw it: {seen:?}", seen.len());
    let first = seen.iter().map(|s| s.at).min().unwrap();
    let last = seen.iter().map(|s| s.at).max().unwrap();
    (first - begin, last - begin)
}

#[test]
fn a_killed_process_is_seen_by_all_within_two_seconds() {
    for size in [2, 3, 10, 64] {
        for loss in [0.0, 0.1] {
            for seed in 0..if size == 64 { 1 } else { 5 } {
                let mut world = settled(size, seed, lossy(loss));
                world.kill(size - 1);
                let (first, last) = seen_down(&mut world, size - 1, secs(10));
                println!("{size} nodes, loss {loss}, killed: seen {first:.1?} to {last:.1?}");
                assert!(last < secs(2), "{last:?}");
                assert!(world.downs(Duration::ZERO, |s| s.of != size - 1).is_empty());
            }
        }
    }
}

#[test]
fn a_node_without_power_is_seen_by_all_in_time() {
    for size in [2, 3, 10, 64] {
        // Suspicion takes longer in a larger mesh.
        let most = secs(if size > 10 { 15 } else { 10 });
        for loss in [0.0, 0.1] {
            for seed in 0..if size == 64 { 1 } else { 10 } {
                let mut world = settled(size, seed, lossy(loss));
                world.cut(0, true);
                let begin = world.now;
                let (first, last) = seen_down(&mut world, 0, secs(30));
                println!("{size} nodes, loss {loss}, no power: seen {first:.1?} to {last:.1?}");
                assert!(last < most, "{last:?}");
                assert!(world.downs(begin, |s| s.of != 0 && s.by != 0).is_empty());
            }
        }
    }
}

/// False `down`s of a mesh that nothing happens to.
fn false_downs(size: usize, seed: u64, weather: Weather, time: Duration) -> (usize, usize) {
    let mut world = settled(size, seed, weather);
    let begin = world.now;
    world.run(time);
    let downs = world.downs(begin, |_| true);
    let suspected = world.log.iter().filter(|s| s.at >= begin && s.to != Alive).count();
    let days = time.as_secs_f64() * size as f64 / 86_400.0;
    println!(
        "{size} nodes, loss {}, late {}: {} false downs, {suspected} suspicions shown in {days:.2} node-days",
        weather.loss,
        weather.late,
        downs.len()
    );
    assert!(world.run_until(secs(10), World::converged).is_some());
    (downs.len(), suspected)
}

#[test]
fn nobody_is_falsely_down_on_a_bad_network() {
    assert_eq!(false_downs(10, 1, FINE, secs(600)), (0, 0));
    for (seed, weather) in [(2, lossy(0.1)), (3, lossy(0.02)), (4, Weather { loss: 0.0, late: 0.15 })] {
        for size in [3, 10] {
            assert_eq!(false_downs(size, seed, weather, secs(1200)).0, 0);
        }
    }
}

/// The same for a longer time, and in larger meshes: `cargo test --release -- --ignored core_simulation`.
#[test]
#[ignore = "minutes; for a release build"]
fn core_simulation_false_downs_for_days() {
    for (size, weather) in [(10, lossy(0.1)), (64, lossy(0.1)), (64, Weather { loss: 0.02, late: 0.1 })] {
        assert_eq!(false_downs(size, 7, weather, secs(2 * 3600)).0, 0);
    }
}

#[test]
fn a_pause_of_three_seconds_hurts_nobody() {
    for seed in 0..10 {
        let mut world = settled(10, seed, FINE);
        let begin = world.now;
        world.pause(4, secs(3));
        world.run(secs(20));
        assert_eq!(world.downs(begin, |_| true), []);
        assert!(world.converged());
        assert_eq!(world.pauses, 1);
    }
}

#[test]
fn a_long_pause_is_down_and_comes_back_and_blames_nobody() {
    for (seed, pause) in [(1, 10), (2, 10), (3, 40), (4, 300)] {
        let mut world = settled(10, seed, FINE);
        let begin = world.now;
        world.pause(4, secs(pause));
        let (_, last) = seen_down(&mut world, 4, secs(10));
        assert!(last < secs(10), "{last:?}");
        let wait = begin + secs(pause) - world.now;
        world.run(wait);
        let back = world.run_until(secs(10), World::converged);
        println!("paused for {pause} s, back after {back:?}");
        assert!(back.is_some());
        world.run(secs(20));
        assert_eq!(world.downs(begin, |s| s.of != 4), [], "the paused node blames others");
        assert!(world.converged());
    }
}

#[test]
fn a_mesh_in_two_halves_goes_on_and_becomes_one_again() {
    for seed in 0..3 {
        let mut world = settled(20, seed, lossy(0.02));
        let begin = world.now;
        (10..20).for_each(|n| world.move_to(n, 1));
        world.run(secs(60));
        let side = |n| n >= 10;
        for by in 0..20 {
            for of in (0..20).filter(|of| *of != by) {
                let expected = if side(by) == side(of) { Alive } else { Down };
                assert_eq!(world.state(by, of), expected, "{by} of {of}");
            }
        }
        (10..20).for_each(|n| world.move_to(n, 0));
        let healed = world.run_until(secs(60), World::converged);
        println!("partition of a minute, healed after {healed:?}");
        assert!(healed.is_some());
        world.run(secs(20));
        assert!(world.converged());
        // Nobody believes the other half that a member of the own one is down.
        assert_eq!(world.downs(begin, |s| side(s.by) == side(s.of)), []);
    }
}

#[test]
fn a_link_that_works_one_way_or_not_at_all_costs_no_member() {
    for seed in 0..5 {
        let mut world = settled(6, seed, FINE);
        let begin = world.now;
        world.block(0, 1);
        if seed % 2 == 0 {
            world.block(1, 0);
        }
        world.run(secs(120));
        assert_eq!(world.downs(begin, |_| true), [], "the others hear both");
        assert!(world.converged());
    }
}

#[test]
fn good_byes_are_told_apart_from_deaths() {
    let mut world = settled(10, 3, lossy(0.02));
    let begin = world.now;
    world.leave(9);
    let took = world.run_until(secs(5), |w| w.all_show(9, Left));
    println!("left after {took:?}");
    assert!(took.is_some_and(|t| t < secs(2)));
    world.run(secs(30));
    assert!(world.all_show(9, Left));
    assert_eq!(world.downs(begin, |_| true), []);
    world.restart(9);
    assert!(world.run_until(secs(10), World::converged).is_some());
}

#[test]
fn churn_leaves_exactly_the_members_that_live() {
    for seed in 0..3 {
        let mut world = settled(10, seed, lossy(0.05));
        for round in 0..20 {
            let victim = (round * 7 + usize::try_from(seed).unwrap()) % 10;
            world.kill(victim);
            // Sometimes it is back before anybody has judged.
            world.run(Duration::from_millis(if round % 3 == 0 { 150 } else { 2_500 }));
            let begin = world.now;
            world.restart(victim);
            world.run(secs(4));
            // Once its new life was seen, news of the old one change nothing.
            let back = world.log.iter().filter(|s| s.at >= begin && s.of == victim && s.to == Alive).count();
            assert!(back >= 1);
        }
        assert!(world.run_until(secs(20), World::converged).is_some());
        let (alive, begin) = ((0..9).filter(|n| world.state(9, *n) == Alive).count(), world.now);
        assert_eq!(alive, 9);
        world.run(secs(60));
        assert_eq!(world.downs(begin, |_| true), [], "a ghost");
    }
}

#[test]
fn the_first_node_is_like_any_other() {
    let mut world = settled(5, 9, FINE);
    world.kill(0);
    let (_, last) = seen_down(&mut world, 0, secs(5));
    assert!(last < secs(2));
    world.run(secs(30));
    assert!(world.converged());
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let run = |seed| -> (Vec<Shown>, u64) {
        let mut world = World::new(12, seed, Weather { loss: 0.1, late: 0.05 });
        world.run(secs(20));
        world.kill(3);
        world.run(secs(20));
        (world.log, world.bytes)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// Bytes per second and node of a mesh at rest, and while it loses a member.
fn traffic(size: usize) -> f64 {
    let mut world = settled(size, 11, lossy(0.01));
    // In a large mesh sessions are opened as they are needed.
    world.run(secs(if size > 64 { 30 } else { 0 }));
    let time = secs(if size > 64 { 30 } else { 60 });
    let (bytes, messages, dials) = (world.bytes, world.messages, world.dials);
    world.run(time);
    let per = |n: u64| n as f64 / size as f64 / time.as_secs_f64();
    let rate = per(world.bytes - bytes);
    println!(
        "{size} nodes at rest: {rate:.0} B/s per node with framing, {:.2} messages/s, {:.3} dials/s",
        per(world.messages - messages),
        per(world.dials - dials),
    );
    rate
}

#[test]
fn traffic_does_not_grow_with_the_mesh() {
    let (ten, sixty_four, many) = (traffic(10), traffic(64), traffic(160));
    assert!([ten, sixty_four, many].iter().all(|rate| *rate < 1000.0));
    assert!(sixty_four < ten * 2.0 && many < ten * 2.5, "much less than 16 times as much");
}

/// The design target. `cargo test --release -p octomesh --lib -- --ignored --nocapture core_simulation`.
#[test]
#[ignore = "two minutes in a release build, ten in a debug build"]
fn core_simulation_of_a_thousand_nodes() {
    let (ten, sixty_four, thousand) = (traffic(10), traffic(64), traffic(1000));
    assert!([ten, sixty_four, thousand].iter().all(|rate| *rate < 1000.0));
    assert!(thousand < ten * 10.0, "much less than 100 times as much");
    let mut world = settled(1000, 21, lossy(0.01));
    let begin = world.now;
    world.kill(500);
    let (first, last) = seen_down(&mut world, 500, secs(60));
    println!("1000 nodes, killed: seen {first:.1?} to {last:.1?}");
    world.cut(7, true);
    let (first, last) = seen_down(&mut world, 7, secs(60));
    println!("1000 nodes, no power: seen {first:.1?} to {last:.1?}");
    assert_eq!(world.downs(begin, |s| ![7, 500].contains(&s.of) && s.by != 7), []);
}
