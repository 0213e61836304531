//! Random kills and freezes of real nodes while runs go on: what may repeat takes effect at least once when it is reported done,
//! a step with a side effect takes effect at most once, and no step that was done is ever reported failed. A schedule follows from
//! its seed; a failure prints both. See docs/delivery.md.
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh,
    wait::{PATIENCE, wait_within},
};
use rustix::process::Signal;
use serde_json::Value;

/// To the end of a run whose nodes were all healed: members come back, lost steps are asked for, slow ones end.
const RUN: Duration = Duration::from_secs(90);
const EFFECTS: [&str; 3] = ["pure", "idempotent", "once"];
const COORDINATOR: &str = "pi";
const EXECUTORS: [&str; 2] = ["attic", "shed"];
/// Points of the coordinator with a step, those without, and those of an executor.
const OF_STEPS: [&str; 4] = ["granted", "start_sent", "started", "outcome_stored"];
const OF_RUNS: [&str; 4] = ["run_row -", "plan_stored -", "step_stored -", "final -"];
const OF_EXECUTORS: [&str; 3] = ["executor_started", "executor_ran", "executor_done"];

/// Splitmix64: the same schedule for the same seed, everywhere.
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

#[derive(Debug, Clone)]
enum Fault {
    /// Dies when it comes by this point.
    DieAt(String),
    /// `kill -9` so long after the run began.
    Kill(Duration),
    /// Stopped after the first time, goes on after the second.
    Freeze(Duration, Duration),
}

/// What is to happen in the run of a seed.
#[derive(Debug)]
struct Schedule {
    /// Tools in the order of the steps, and whether each takes a second.
    steps: Vec<(&'static str, bool)>,
    faults: Vec<(&'static str, Fault)>,
    /// How long a node that died stays away.
    away: Duration,
}

impl Schedule {
    fn of(seed: u64) -> Self {
        let mut choices = Choices(seed);
        let steps: Vec<_> =
            (0..3 + choices.below(2)).map(|_| (choices.of(&EFFECTS), choices.below(3) == 0)).collect();
        let mut faults: Vec<(&str, Fault)> = Vec::new();
        for _ in 0..=choices.below(3) {
            let node = if choices.below(2) == 0 { COORDINATOR } else { choices.of(&EXECUTORS) };
            let ms = |choices: &mut Choices, end| Duration::from_millis(choices.below(end));
            let step = format!("s{:03}", 1 + choices.below(steps.len() as u64));
            let fault = match choices.below(5) {
                0 => Fault::Kill(ms(&mut choices, 3000)),
                1 => {
                    let from = ms(&mut choices, 2000);
                    Fault::Freeze(from, from + Duration::from_millis(100) + ms(&mut choices, 5000))
                }
                _ if node != COORDINATOR => Fault::DieAt(format!("{} {step}", choices.of(&OF_EXECUTORS))),
                2 => Fault::DieAt(choices.of(&OF_RUNS).to_owned()),
                _ => Fault::DieAt(format!("{} {step}", choices.of(&OF_STEPS))),
            };
            // A node has one point, and is not killed while it is frozen by somebody else's doing.
            if !faults.iter().any(|(other, _)| *other == node) {
                faults.push((node, fault));
            }
        }
        Self { steps, faults, away: Duration::from_millis(choices.below(3000)) }
    }
}

fn furnish(machine: &Machine) {
    if machine.name == COORDINATOR {
        return;
    }
    for effect in EFFECTS {
        for (name, seconds) in [(format!("count_{effect}"), 0), (format!("slow_{effect}"), 1)] {
            let manifest =
                format!("effect = \"{effect}\"\ntypical_ms = 100\n[input_schema]\ntype = \"object\"");
            // One write of one line, which is there or is not.
            let script =
                format!("read -r line\necho \"$line\" >> effects.log\nsleep {seconds}\necho counted");
            machine.tool(&name, &manifest, &script);
        }
    }
}

/// A mesh on which one schedule after the other happens.
struct House {
    mesh: Mesh,
    runs: BTreeSet<String>,
    /// How runs ended.
    ends: BTreeMap<String, u32>,
}

/// What the record of a run says of a step.
#[derive(Debug)]
struct Step {
    done: bool,
    outcome: String,
}

impl House {
    fn new() -> Self {
        let mesh = Mesh::up(&[COORDINATOR, EXECUTORS[0], EXECUTORS[1]], furnish);
        Self { mesh, runs: BTreeSet::new(), ends: BTreeMap::new() }
    }

    /// How often each step of all runs took effect, by the name that its arguments give it.
    fn effects(&self) -> BTreeMap<String, u32> {
        let mut effects = BTreeMap::new();
        for name in EXECUTORS {
            let text =
                fs::read_to_string(self.mesh[name].workspace().join("effects.log")).unwrap_or_default();
            for line in text.lines() {
                let arguments: Value = serde_json::from_str(line).unwrap();
                *effects.entry(arguments["id"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        effects
    }

    /// Steps as the record on the disk has them, by the name that their arguments give them.
    fn record(&self, run: &str) -> BTreeMap<String, Step> {
        let path = self.mesh[COORDINATOR].home.join("runs").join(run).join("solve_memory.json");
        let Ok(text) = fs::read_to_string(path) else { return BTreeMap::new() };
        let record: Value = serde_json::from_str(&text).unwrap();
        let blocks = record["plan"]["blocks"].as_array().cloned().unwrap_or_default();
        let steps = blocks.iter().flat_map(|block| block["steps"].as_array().cloned().unwrap_or_default());
        steps
            .map(|step| {
                let outcome = step["outcome"].as_str().unwrap_or("none").to_owned();
                let step_is = Step { done: step["status"] == "completed", outcome };
                (step["arguments"]["id"].as_str().unwrap().to_owned(), step_is)
            })
            .collect()
    }

    /// The run of this schedule, when it came so far as to have a row.
    fn run_of(&self) -> Option<String> {
        let runs = self.mesh[COORDINATOR].json(&["runs"]);
        let newest = runs["runs"][0]["run_id"].as_str()?.to_owned();
        (!self.runs.contains(&newest)).then_some(newest)
    }

    /// Lets the schedule happen, heals everything, and judges.
    fn tell(&mut self, seed: u64) {
        let schedule = Schedule::of(seed);
        let story = format!("DELIVERY_SEED={seed}: {schedule:?}");
        println!("{story}");
        let ids: Vec<String> = (0..schedule.steps.len()).map(|at| format!("{seed}-{at}")).collect();
        for (node, fault) in &schedule.faults {
            if let Fault::DieAt(point) = fault {
                self.mesh[node].die_at(point);
            }
        }
        let mut plan = "blocks:\n- id: all\n  goal: count\n  steps:\n".to_owned();
        for ((effect, slow), id) in schedule.steps.iter().zip(&ids) {
            let pace = if *slow { "slow" } else { "count" };
            plan += &format!("  - {{tool: {pace}_{effect}, args: {{id: \"{id}\"}}}}\n");
        }
        let path = self.mesh.folder().join("plan.yaml");
        fs::write(&path, plan).unwrap();
        let mut client = self.mesh[COORDINATOR].start(&["--json", "solve", "--plan", path.to_str().unwrap()]);
        let (mut before, revived) = self.happen(&schedule, || client.ended().is_some());
        for (node, fault) in &schedule.faults {
            // One that came by its point only now still dies of it.
            if matches!(fault, Fault::DieAt(_)) && !self.mesh[node].spare() && !revived.contains(node) {
                self.mesh[node].node().wait(PATIENCE);
                if *node == COORDINATOR {
                    before = self.newest_record();
                }
                self.mesh[node].up();
            }
        }
        client.wait(RUN);
        self.mesh.settled();
        let Some(run) = self.run_of() else {
            // It died before the run had a row, so nothing was ever started.
            let effects = self.effects();
            assert!(ids.iter().all(|id| !effects.contains_key(id)), "{story}\nwithout a run: {effects:?}");
            *self.ends.entry("no run".to_owned()).or_default() += 1;
            return;
        };
        let done = self.mesh[COORDINATOR].start(&["--json", "runs", "resume", &run]).wait(RUN);
        self.runs.insert(run.clone());
        let shown = self.mesh[COORDINATOR].json(&["runs", "show", &run]);
        let record = self.record(&run);
        let told = format!("{story}\nexit {}: {}\n{record:?}\n{shown}", done.code, done.out);
        assert!([0, 1, 3, 5].contains(&done.code), "a run has an end: {told}\n{}", done.err);
        let end =
            if done.code == 3 { "uncertain" } else { ["completed", "failed"][usize::from(done.code != 0)] };
        *self.ends.entry(end.to_owned()).or_default() += 1;
        let effects = self.effects();
        for ((effect, _), id) in schedule.steps.iter().zip(&ids) {
            let times = effects.get(id).copied().unwrap_or_default();
            let step = record.get(id);
            judge(effect, times, step, before.get(id)).unwrap_or_else(|law| {
                panic!("{law}: {id} ({effect}) took effect {times} times, {step:?}\n{told}\n{effects:?}")
            });
        }
        let lost: Vec<&str> = match end {
            "uncertain" => {
                record.values().map(|s| s.outcome.as_str()).filter(|o| *o == "uncertain").collect()
            }
            _ => vec!["-"],
        };
        assert!(!lost.is_empty(), "an uncertain run has a step that is: {told}");
    }

    /// Until the run is over for whoever began it and everybody is up again. What was done when the coordinator died, and who was
    /// started again.
    fn happen(
        &mut self,
        schedule: &Schedule,
        mut over: impl FnMut() -> bool,
    ) -> (BTreeMap<String, Step>, BTreeSet<&'static str>) {
        let begun = Instant::now();
        let mut down: BTreeMap<&str, Instant> = BTreeMap::new();
        let mut frozen: BTreeSet<&str> = BTreeSet::new();
        let mut told: BTreeSet<&str> = BTreeSet::new();
        let (mut before, mut revived) = (BTreeMap::new(), BTreeSet::new());
        wait_within(RUN, "everything of the schedule happened", || {
            for (node, fault) in &schedule.faults {
                let now = begun.elapsed();
                match fault {
                    Fault::Kill(at) if now >= *at && told.insert(node) => {
                        self.mesh[node].node().signal(Signal::KILL);
                        down.insert(node, Instant::now());
                    }
                    Fault::Freeze(from, _) if now >= *from && told.insert(node) => {
                        self.mesh[node].node().signal(Signal::STOP);
                        frozen.insert(node);
                    }
                    Fault::Freeze(_, until) if now >= *until && frozen.remove(node) => {
                        self.mesh[node].node().signal(Signal::CONT);
                    }
                    _ => {}
                }
            }
            for node in [COORDINATOR, EXECUTORS[0], EXECUTORS[1]] {
                if self.mesh[node].node().ended().is_none() {
                    continue;
                }
                let died = *down.entry(node).or_insert_with(Instant::now);
                if died.elapsed() >= schedule.away {
                    if node == COORDINATOR {
                        before = self.newest_record();
                    }
                    self.mesh[node].up();
                    revived.insert(node);
                    down.remove(node);
                }
            }
            let timed = schedule.faults.iter().filter(|(_, fault)| !matches!(fault, Fault::DieAt(_))).count();
            let calm = down.is_empty() && frozen.is_empty() && told.len() == timed;
            if calm && over() {
                Ok(())
            } else {
                Err(format!("down {down:?}, frozen {frozen:?}, told {told:?}"))
            }
        });
        (before, revived)
    }

    /// The record that the coordinator left when it died.
    fn newest_record(&self) -> BTreeMap<String, Step> {
        let Ok(runs) = fs::read_dir(self.mesh[COORDINATOR].home.join("runs")) else { return BTreeMap::new() };
        let names = runs.map(|run| run.unwrap().file_name().into_string().unwrap());
        names.filter(|run| !self.runs.contains(run)).flat_map(|run| self.record(&run)).collect()
    }
}

/// The laws, for one step: how often it took effect, what is reported of it, and what the record said before a crash.
fn judge(effect: &str, times: u32, step: Option<&Step>, before: Option<&Step>) -> Result<(), &'static str> {
    let outcome = step.map_or("none", |step| step.outcome.as_str());
    if before.is_some_and(|step| step.done && step.outcome == "ok") && outcome != "ok" {
        return Err("what was done is done no more");
    }
    if outcome == "ok" && times == 0 {
        return Err("reported done, and never ran");
    }
    if effect == "once" {
        if times > 1 {
            return Err("a side effect twice");
        }
        if times == 1 && !["ok", "uncertain"].contains(&outcome) {
            return Err("a side effect that is reported as none");
        }
    }
    if times > 0 && outcome == "error" {
        return Err("it ran to its end and is reported failed");
    }
    Ok(())
}

/// Runs the schedules of these seeds, or of `DELIVERY_SEED` alone, in several meshes: they mostly wait.
fn schedules(seeds: std::ops::RangeInclusive<u64>, meshes: usize) {
    let chosen = env::var("DELIVERY_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds: Vec<u64> = chosen.map_or_else(|| seeds.collect(), |seed| vec![seed]);
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let work = || {
        let mut house = House::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            house.tell(*seed);
            println!("{seed} took {:?}", begun.elapsed());
        }
        house.ends
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..meshes.min(seeds.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    println!("{ends:?} in {:?}", begun.elapsed());
}

#[test]
fn a_few_random_schedules() {
    schedules(1..=5, 2);
}

#[test]
#[ignore = "minutes: fifty schedules"]
fn fifty_random_schedules() {
    schedules(101..=150, 4);
}

/// The laws can fail.
#[test]
fn what_must_not_be_is_found() {
    let step = |done, outcome: &str| Step { done, outcome: outcome.to_owned() };
    let found = [
        ("once", 2, step(true, "ok"), None),
        ("once", 1, step(true, "refused"), None),
        ("once", 1, step(false, "none"), None),
        ("pure", 0, step(true, "ok"), None),
        ("idempotent", 0, step(true, "ok"), None),
        ("pure", 1, step(true, "error"), None),
        ("pure", 1, step(true, "refused"), Some(step(true, "ok"))),
    ];
    for (effect, times, after, before) in found {
        assert!(judge(effect, times, Some(&after), before.as_ref()).is_err(), "{effect} {times} {after:?}");
    }
    for (effect, times, outcome) in
        [("once", 1, "ok"), ("once", 0, "refused"), ("once", 0, "uncertain"), ("pure", 3, "ok")]
    {
        assert_eq!(judge(effect, times, Some(&step(true, outcome)), None), Ok(()));
    }
}
