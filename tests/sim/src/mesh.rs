//! The simulated mesh: its nodes, the verbs that befall them, and the truth.
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use octomesh::{
    membership::MemberState,
    testing::simulated::{SimCounts, SimHome, SimMesh, SimNode},
};
use tokio::time::{Instant, sleep};

use crate::{
    oracle::{Fate, Messages, SETTLED, Seen, Truth, seen},
    wire::Network,
};

/// How often everybody's view is judged.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What the wall clock shows at the beginning; as in patch/web-time.
const UNIX: u64 = 1_800_000_000;
/// How long views must stay right to count as settled.
const STAYS: Duration = Duration::from_secs(5);
/// Tools of each node: the built-in ones that start no programs.
const TOOLS: usize = 11;

/// A law that was broken, or a fault of the simulation itself.
pub(crate) type Outcome<T = ()> = Result<T, String>;

pub(crate) struct Mesh {
    pub(crate) network: Network,
    pub(crate) truth: Truth,
    mesh: SimMesh,
    homes: BTreeMap<u64, SimHome>,
    nodes: BTreeMap<u64, SimNode>,
    /// Viewer and member: the viewer has seen the member's end since the member last ran.
    gone: BTreeSet<(u64, u64)>,
    /// Of lives that are over.
    counted: SimCounts,
    begin: Instant,
    pub(crate) story: Vec<String>,
    /// The longest time that views took to be right again after a fault.
    pub(crate) slowest: Duration,
}

impl Mesh {
    /// `nodes` homes; the first two are admins. `folder` is for what they write.
    pub(crate) fn new(seed: u64, nodes: u64, folder: &Path) -> Outcome<Self> {
        let mesh = SimMesh::new(seed, UNIX);
        let network = Network::new(seed);
        let home = |number| {
            let lines = network.lines(number);
            SimHome::new(&mesh, number, number <= 2, folder, lines).map(|home| (number, home))
        };
        let homes = (1..=nodes).map(home).collect::<Outcome<_>>()?;
        Ok(Self {
            homes,
            network,
            mesh,
            truth: Truth::default(),
            nodes: BTreeMap::new(),
            gone: BTreeSet::new(),
            counted: SimCounts::default(),
            begin: Instant::now(),
            story: Vec::new(),
            slowest: Duration::ZERO,
        })
    }

    fn tell(&mut self, text: &str) {
        let line = format!("{:>8} ms  {text}", self.begin.elapsed().as_millis());
        self.network.note(&line);
        self.story.push(line);
    }

    /// Numbers of those that run, in order.
    pub(crate) fn running(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Notes since when who can reach whom.
    fn reach_changed(&mut self) {
        let now = Instant::now();
        let running = self.running();
        let reachable = |a: u64, b: u64| {
            let fates = [a, b].map(|n| self.truth.fates.get(&n).is_some_and(|fate| fate.runs()));
            fates == [true, true] && !self.network.is_cut(a, b) && !self.network.is_cut(b, a)
        };
        let pairs = running.iter().flat_map(|a| running.iter().filter(move |b| a < b).map(move |b| (*a, *b)));
        let pairs: BTreeSet<(u64, u64)> = pairs.filter(|(a, b)| reachable(*a, *b)).collect();
        self.truth.reach.retain(|pair, _| pairs.contains(pair));
        for pair in pairs {
            self.truth.reach.entry(pair).or_insert(now);
        }
    }

    /// Starts a node, for the first time or again; it dials `peers`, besides whom it knows from before.
    pub(crate) async fn start(&mut self, number: u64, peers: &[u64]) -> Outcome {
        let home = self.homes.get_mut(&number).ok_or("no such node")?;
        let node = SimNode::start(&self.mesh, home, peers).await?;
        let incarnation = home.incarnation();
        self.nodes.insert(number, node);
        self.truth.fates.insert(number, Fate::Runs { since: Instant::now(), incarnation });
        self.gone.retain(|(viewer, other)| *viewer != number && *other != number);
        self.tell(&format!("n{number} starts, life {incarnation}, peers {peers:?}"));
        self.reach_changed();
        Ok(())
    }

    fn ended(&mut self, number: u64, fate: Fate) {
        self.truth.fates.insert(number, fate);
        self.reach_changed();
    }

    fn take(&mut self, number: u64) -> Outcome<SimNode> {
        let node = self.nodes.remove(&number).ok_or_else(|| format!("n{number} does not run"))?;
        self.count(node.counts());
        Ok(node)
    }

    fn count(&mut self, counts: SimCounts) {
        self.counted.swim_out += counts.swim_out;
        self.counted.swim_in += counts.swim_in;
        self.counted.dropped += counts.dropped;
    }

    /// Its process ends at once; its machine closes its connections.
    pub(crate) fn kill(&mut self, number: u64) -> Outcome {
        self.tell(&format!("n{number} is killed"));
        drop(self.take(number)?);
        self.ended(number, Fate::Killed { at: Instant::now() });
        Ok(())
    }

    /// It dies, and the truth is not told of it: to see that the laws can fail.
    pub(crate) fn die_unsaid(&mut self, number: u64) -> Outcome {
        self.tell(&format!("n{number} dies, and nobody says so"));
        self.take(number).map(drop)
    }

    /// It is said to be dead and lives: to see that the laws can fail.
    pub(crate) fn live_unsaid(&mut self, number: u64) {
        self.tell(&format!("n{number} is said to be dead, and lives"));
        self.ended(number, Fate::Killed { at: Instant::now() });
    }

    /// Its machine loses power: nobody hears anything of it.
    pub(crate) async fn unplug(&mut self, number: u64) -> Outcome {
        self.tell(&format!("n{number} is unplugged"));
        let all: Vec<u64> = self.homes.keys().copied().collect();
        self.cut_all(number, &all, true);
        drop(self.take(number)?);
        self.ended(number, Fate::Killed { at: Instant::now() });
        // Its tasks go when the runtime comes to them; until then nothing may pass.
        sleep(LOOK_EVERY).await;
        Ok(())
    }

    /// Its machine has power again, and may be started.
    pub(crate) fn plug_in(&mut self, number: u64) {
        self.tell(&format!("n{number} has power again"));
        let all: Vec<u64> = self.homes.keys().copied().collect();
        self.cut_all(number, &all, false);
    }

    fn cut_all(&self, number: u64, others: &[u64], cut: bool) {
        for other in others.iter().filter(|other| **other != number) {
            self.network.set_cut(number, *other, cut);
            self.network.set_cut(*other, number, cut);
        }
    }

    /// It is stopped in order.
    pub(crate) async fn stop(&mut self, number: u64) -> Outcome {
        self.tell(&format!("n{number} is stopped"));
        let node = self.nodes.remove(&number).ok_or("it does not run")?;
        self.ended(number, Fate::Stopped { at: Instant::now() });
        let counts = node.stop().await?;
        self.count(counts);
        Ok(())
    }

    /// It leaves for good.
    pub(crate) async fn leave(&mut self, number: u64) -> Outcome {
        self.tell(&format!("n{number} leaves for good"));
        let node = self.nodes.remove(&number).ok_or("it does not run")?;
        self.ended(number, Fate::Left { at: Instant::now() });
        let counts = node.leave().await?;
        self.count(counts);
        Ok(())
    }

    /// An admin throws it out. It runs on, and does not stop trying.
    pub(crate) async fn revoke(&mut self, admin: u64, number: u64) -> Outcome {
        self.tell(&format!("n{admin} revokes n{number}"));
        let id = self.homes.get(&number).and_then(SimHome::id).ok_or("no such node")?;
        self.truth.fates.insert(number, Fate::Revoked { at: Instant::now() });
        self.reach_changed();
        self.nodes.get(&admin).ok_or("the admin does not run")?.revoke(id).await
    }

    /// Nothing goes between the sides any more, or it does again.
    pub(crate) fn partition(&mut self, sides: [&[u64]; 2], cut: bool) {
        let [left, right] = sides;
        self.tell(&format!("{} {left:?} | {right:?}", if cut { "partition" } else { "heal" }));
        left.iter().for_each(|number| {
            right.iter().for_each(|other| {
                self.network.set_cut(*number, *other, cut);
                self.network.set_cut(*other, *number, cut);
            });
        });
        self.reach_changed();
    }

    /// Nothing goes from one to the other any more, or it does again; the way back stays.
    pub(crate) fn one_way(&mut self, from: u64, to: u64, cut: bool) {
        self.tell(&format!("n{from} -> n{to} {}", if cut { "cut" } else { "healed" }));
        self.network.set_cut(from, to, cut);
        self.reach_changed();
    }

    /// Everything to and from it takes longer.
    pub(crate) fn slow(&mut self, number: u64, by: Duration) {
        self.tell(&format!("n{number} is slower by {} ms", by.as_millis()));
        self.network.set_slow(number, by);
    }

    /// Time goes on, and the laws are judged.
    pub(crate) async fn go_on(&mut self, time: Duration) -> Outcome {
        let until = Instant::now() + time;
        while Instant::now() < until {
            sleep(LOOK_EVERY.min(until - Instant::now())).await;
            self.look()?;
        }
        Ok(())
    }

    pub(crate) fn view(&self, number: u64) -> BTreeMap<u64, Seen> {
        self.nodes.get(&number).map(|node| seen(&node.view())).unwrap_or_default()
    }

    /// What must hold at every moment.
    fn look(&mut self) -> Outcome {
        let now = Instant::now();
        let mut lines = Vec::new();
        for (viewer, node) in &mut self.nodes {
            if !node.is_whole() {
                return Err(format!("a task of n{viewer} has ended by itself"));
            }
            let changes = node.transitions().ok_or("changes of states were lost")?;
            let revoked = matches!(self.truth.fates.get(viewer), Some(Fate::Revoked { .. }));
            for (other, state) in changes {
                lines.push(format!("n{viewer} sees {other}: {state}"));
                let number = other.strip_prefix('n').and_then(|number| number.parse().ok()).unwrap_or(0);
                let to = state_of(&state)?;
                // What an outlaw believes is its own affair.
                if revoked {
                    continue;
                }
                let gone = self.gone.contains(&(*viewer, number));
                self.truth.changed(*viewer, number, to, gone, now)?;
                if !to.is_present() {
                    self.gone.insert((*viewer, number));
                }
            }
            self.truth.at_any_time(*viewer, &seen(&node.view()), now)?;
        }
        lines.iter().for_each(|line| self.tell(line));
        Ok(())
    }

    fn differences(&self) -> Vec<String> {
        let members = self.nodes.keys().filter(|n| self.truth.fates.get(n).is_some_and(|fate| fate.runs()));
        members.flat_map(|viewer| self.truth.differences(*viewer, &self.view(*viewer), TOOLS)).collect()
    }

    /// Waits until every view is the truth and stays so.
    pub(crate) async fn settle(&mut self) -> Outcome {
        let begun = Instant::now();
        let mut right_since = None;
        loop {
            self.go_on(LOOK_EVERY).await?;
            let differences = self.differences();
            let now = Instant::now();
            if differences.is_empty() {
                let since = *right_since.get_or_insert(now);
                if now >= since + STAYS {
                    let took = since - begun;
                    self.slowest = self.slowest.max(took);
                    self.tell(&format!("all views are right after {} ms", took.as_millis()));
                    return Ok(());
                }
            } else {
                right_since = None;
                if now > begun + SETTLED {
                    let shown: Vec<&str> = differences.iter().take(10).map(String::as_str).collect();
                    let all = differences.len();
                    return Err(format!(
                        "{all} views are wrong after {SETTLED:?}:\n  {}",
                        shown.join("\n  ")
                    ));
                }
            }
        }
    }

    /// Membership messages so far, at a moment when nothing is on its way.
    pub(crate) async fn messages(&mut self) -> Outcome<Messages> {
        for _ in 0..10_000 {
            let traffic = self.network.traffic();
            if traffic.flying == 0 {
                let mut all = Messages {
                    written: self.counted.swim_out,
                    read: self.counted.swim_in,
                    dropped: self.counted.dropped,
                    lost: traffic.lost,
                };
                for counts in self.nodes.values().map(SimNode::counts) {
                    all.written += counts.swim_out;
                    all.read += counts.swim_in;
                    all.dropped += counts.dropped;
                }
                return Ok(all);
            }
            sleep(Duration::from_millis(1)).await;
        }
        Err(format!("there was always something on its way: {:?}", self.network.traffic()))
    }
}

fn state_of(text: &str) -> Outcome<MemberState> {
    use MemberState::{Alive, Down, Left, Suspect};
    let found = [Alive, Suspect, Down, Left].into_iter().find(|state| <&str>::from(state) == text);
    found.ok_or_else(|| format!("no state {text}"))
}
