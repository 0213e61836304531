//! What calls took before, how fast bytes travel and how often a node lost a step. All of it is bounded, and all of it fades.
use std::{collections::BTreeMap, time::Duration};

use octomesh_protocol::id::{NodeId, ToolName};
use tokio::time::Instant;

use crate::journal::{ESTIMATES, KeptEstimate};

/// Weight of the prior, in observations: three measured calls weigh as much as what the card says.
const PRIOR_WEIGHT: f64 = 3.0;
/// Natural logarithms of durations and factors stay below this: a kept one beyond it is damage.
const LONGEST_LOG: f64 = 100.0;
/// Weight of the newest observation in the moving averages.
const NEWEST: f64 = 0.25;
/// Nodes with a measured bandwidth or a failure rate: the design target of a mesh.
const NODES: usize = 1024;
/// Bandwidth until it is measured, in bytes per millisecond: 50 MB/s, a wired home network with room to spare.
const BANDWIDTH: f64 = 50_000.0;
/// Transfers below this say more about the round trip than about the bandwidth.
const BANDWIDTH_SAMPLE_BYTES: u64 = 64 * 1024;
/// A failure counts half after this time without another: a node that was repaired gets work again.
const FAILURE_HALF_LIFE: Duration = Duration::from_secs(60);
/// A lazily started tool that this node did not use there for this long has probably been stopped again.
const WARM: Duration = Duration::from_secs(300);

/// Natural logarithm of how far off an estimate may be: a factor of three. Beyond it the prior takes over, if it is better.
const FAR_OFF: f64 = 1.098_612_288_668_109_8;

#[derive(Debug, Clone, Copy)]
struct Estimate {
    /// Moving average of the natural logarithm of the duration in milliseconds.
    log_ms: f64,
    /// Moving average of how far that average was off, as a factor in natural logarithms, before each observation.
    miss: f64,
    /// The same of the prior.
    prior_miss: f64,
    observations: u32,
    at: Instant,
}

impl Estimate {
    /// Durations jump about so much that their average says less than the card.
    fn is_useless(&self) -> bool {
        self.miss > FAR_OFF && self.prior_miss < self.miss
    }
}

/// A call that ended with a result of its tool.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// Where it ran.
    pub node: NodeId,
    /// The tool.
    pub tool: &'a ToolName,
    /// Bytes that it worked on.
    pub work_bytes: u64,
    /// What the card made of it, in milliseconds.
    pub prior_ms: f64,
    /// How long it ran, in milliseconds.
    pub elapsed_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    rate: f64,
    at: Instant,
}

/// Measurements of this node; only it writes them.
#[derive(Debug, Clone, Default)]
pub struct History {
    estimates: BTreeMap<ToolName, BTreeMap<(NodeId, u8), Estimate>>,
    /// Estimates of all tools.
    kept: usize,
    bandwidth: BTreeMap<NodeId, (f64, Instant)>,
    failures: BTreeMap<NodeId, Failures>,
}

/// Sizes of one bucket differ by up to a factor of 16; finer ones would never fill.
fn size_bucket(bytes: u64) -> u8 {
    u8::try_from(bytes.checked_ilog2().map_or(0, |log| log / 4 + 1)).unwrap_or(u8::MAX)
}

/// Makes room for one entry by dropping the oldest.
fn make_room<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>, key: &K, most: usize, at: impl Fn(&V) -> Instant) {
    if map.len() >= most && !map.contains_key(key) {
        let oldest = map.iter().min_by_key(|(_, v)| at(v)).map(|(k, _)| k.clone());
        oldest.and_then(|k| map.remove(&k));
    }
}

/// A tenth of a millisecond is as short as anything gets.
fn log(ms: f64) -> f64 {
    ms.max(0.1).ln()
}

impl History {
    /// A call ended with a result of the tool.
    ///
    /// Returns what is known of such calls now, to be kept over a restart.
    pub fn record(&mut self, call: Observation<'_>, now: Instant) -> KeptEstimate {
        #[expect(clippy::cast_precision_loss, reason = "a duration, not an identity")]
        let log_ms = log(call.elapsed_ms as f64);
        let key = (call.node, size_bucket(call.work_bytes));
        let prior_miss = (log(call.prior_ms) - log_ms).abs();
        let first = Estimate { log_ms, miss: 0.0, prior_miss, observations: 0, at: now };
        let estimate = self.entry(call.tool, key, first);
        estimate.miss += NEWEST * ((estimate.log_ms - log_ms).abs() - estimate.miss);
        estimate.prior_miss += NEWEST * (prior_miss - estimate.prior_miss);
        estimate.log_ms += NEWEST * (log_ms - estimate.log_ms);
        estimate.observations = estimate.observations.saturating_add(1);
        estimate.at = now;
        let kept = *estimate;
        self.settle(call.node, 0.0, now);
        KeptEstimate {
            node: call.node,
            tool: call.tool.clone(),
            size_bucket: key.1,
            log_ms: kept.log_ms,
            miss: kept.miss,
            prior_miss: kept.prior_miss,
            observations: kept.observations,
            age: Duration::ZERO,
        }
    }

    /// Takes what was kept over a restart. What is no number is left out: a file of this machine is input too.
    pub fn restore(&mut self, kept: impl IntoIterator<Item = KeptEstimate>, now: Instant) {
        for one in kept.into_iter().take(ESTIMATES) {
            if ![one.log_ms, one.miss, one.prior_miss].iter().all(|x| x.is_finite() && x.abs() < LONGEST_LOG)
            {
                continue;
            }
            // The clock of a machine that has just started knows no time so long ago; nothing is warm then.
            let Some(at) = now.checked_sub(one.age.min(WARM)) else { continue };
            let first = Estimate {
                log_ms: one.log_ms,
                miss: one.miss.max(0.0),
                prior_miss: one.prior_miss.max(0.0),
                observations: one.observations,
                at,
            };
            self.entry(&one.tool, (one.node, one.size_bucket), first);
        }
    }

    fn entry(&mut self, tool: &ToolName, key: (NodeId, u8), first: Estimate) -> &mut Estimate {
        let known = self.estimates.get(tool).is_some_and(|t| t.contains_key(&key));
        if !known {
            if self.kept >= ESTIMATES {
                self.forget_oldest();
            }
            self.kept += 1;
        }
        self.estimates.entry(tool.clone()).or_default().entry(key).or_insert(first)
    }

    fn forget_oldest(&mut self) {
        let all =
            self.estimates.iter().flat_map(|(tool, e)| e.iter().map(move |(key, e)| (e.at, tool, *key)));
        let Some((_, tool, key)) = all.min_by_key(|(at, ..)| *at) else { return };
        let tool = tool.clone();
        if let Some(of_tool) = self.estimates.get_mut(&tool) {
            if of_tool.remove(&key).is_some() {
                self.kept -= 1;
            }
            if of_tool.is_empty() {
                self.estimates.remove(&tool);
            }
        }
    }

    /// The node lost a step, did not answer, or could not start a tool it offers. A tool's own error is no failure.
    pub fn record_failure(&mut self, node: NodeId, now: Instant) {
        self.settle(node, 1.0, now);
    }

    /// A transfer of `bytes` took `took`.
    pub fn record_transfer(&mut self, node: NodeId, bytes: u64, took: Duration, now: Instant) {
        if bytes < BANDWIDTH_SAMPLE_BYTES {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate, not an identity")]
        let rate = bytes as f64 / (took.as_secs_f64() * 1000.0).max(0.001);
        make_room(&mut self.bandwidth, &node, NODES, |(_, at)| *at);
        let entry = self.bandwidth.entry(node).or_insert((rate, now));
        *entry = (entry.0 + NEWEST * (rate - entry.0), now);
    }

    fn settle(&mut self, node: NodeId, outcome: f64, now: Instant) {
        let rate = self.failure_rate(node, now);
        // A node that never failed needs no entry.
        if outcome == 0.0 && rate == 0.0 {
            return;
        }
        make_room(&mut self.failures, &node, NODES, |f| f.at);
        self.failures.insert(node, Failures { rate: rate + NEWEST * (outcome - rate), at: now });
    }

    /// Share of steps that this node lost lately, 0 to 1.
    #[must_use]
    pub fn failure_rate(&self, node: NodeId, now: Instant) -> f64 {
        self.failures.get(&node).map_or(0.0, |f| {
            let age = now.saturating_duration_since(f.at).as_secs_f64() / FAILURE_HALF_LIFE.as_secs_f64();
            let rate = f.rate * 0.5f64.powf(age);
            if rate < 0.001 { 0.0 } else { rate }
        })
    }

    /// Bytes per millisecond to that node.
    pub(super) fn bandwidth(&self, node: NodeId) -> f64 {
        self.bandwidth.get(&node).map_or(BANDWIDTH, |(rate, _)| rate.max(1.0))
    }

    /// Expected duration of a call, in milliseconds: what was measured, pulled towards `prior_ms` while there is little of it; the
    /// prior alone when measurements are of no use.
    pub(super) fn exec_ms(&self, node: NodeId, tool: &ToolName, work_bytes: u64, prior_ms: f64) -> f64 {
        match self.estimates.get(tool).and_then(|e| e.get(&(node, size_bucket(work_bytes)))) {
            Some(e) if !e.is_useless() => {
                let n = f64::from(e.observations);
                (PRIOR_WEIGHT * prior_ms + n * e.log_ms.exp()) / (PRIOR_WEIGHT + n)
            }
            _ => prior_ms,
        }
    }

    /// Whether this node used the tool there a short while ago, so that it is still loaded.
    pub(super) fn is_warm(&self, node: NodeId, tool: &ToolName, now: Instant) -> bool {
        let Some(of_tool) = self.estimates.get(tool) else { return false };
        let mut there = of_tool.range((node, 0)..=(node, u8::MAX));
        there.any(|(_, e)| now.saturating_duration_since(e.at) < WARM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &ToolName, node: NodeId, work_bytes: u64, elapsed_ms: u64) -> Observation<'_> {
        Observation { node, tool, work_bytes, prior_ms: 100.0, elapsed_ms }
    }

    fn node() -> NodeId {
        NodeId::from_bytes([1; 32])
    }

    fn tool() -> ToolName {
        ToolName::parse("echo").unwrap()
    }

    #[test]
    fn an_estimate_moves_from_the_prior_to_what_is_measured() {
        let mut h = History::default();
        let now = Instant::now();
        assert_eq!(h.exec_ms(node(), &tool(), 0, 100.0), 100.0);
        h.record(call(&tool(), node(), 0, 1000), now);
        let after_one = h.exec_ms(node(), &tool(), 0, 100.0);
        assert!((after_one - 325.0).abs() < 1e-6, "(3 * 100 + 1 * 1000) / 4, got {after_one}");
        for _ in 0..100 {
            h.record(call(&tool(), node(), 0, 1000), now);
        }
        assert!(h.exec_ms(node(), &tool(), 0, 100.0) > 950.0);
        assert_eq!(h.exec_ms(node(), &tool(), 1 << 20, 100.0), 100.0, "another size is another estimate");
    }

    #[test]
    fn buckets() {
        let buckets: Vec<u8> = [0, 1, 15, 16, 255, 256, u64::MAX].map(size_bucket).into();
        assert_eq!(buckets, [0, 1, 1, 2, 2, 3, 16]);
    }

    #[test]
    fn failures_fade_and_are_made_good() {
        let mut h = History::default();
        let now = Instant::now();
        assert_eq!(h.failure_rate(node(), now), 0.0);
        h.record_failure(node(), now);
        let rate = h.failure_rate(node(), now);
        assert!((rate - 0.25).abs() < 1e-9);
        assert!((h.failure_rate(node(), now + FAILURE_HALF_LIFE) - rate / 2.0).abs() < 1e-9);
        h.record(call(&tool(), node(), 0, 1), now);
        assert!(h.failure_rate(node(), now) < rate);
        assert_eq!(h.failure_rate(node(), now + 20 * FAILURE_HALF_LIFE), 0.0);
    }

    #[test]
    fn small_transfers_say_nothing_about_bandwidth() {
        let mut h = History::default();
        let now = Instant::now();
        h.record_transfer(node(), 100, Duration::from_secs(1), now);
        assert_eq!(h.bandwidth(node()), BANDWIDTH);
        h.record_transfer(node(), 10_000_000, Duration::from_secs(1), now);
        assert!((h.bandwidth(node()) - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn warm_for_a_while() {
        let mut h = History::default();
        let now = Instant::now();
        assert!(!h.is_warm(node(), &tool(), now));
        h.record(call(&tool(), node(), 100, 1), now);
        assert!(h.is_warm(node(), &tool(), now));
        assert!(!h.is_warm(node(), &tool(), now + WARM));
    }

    #[test]
    fn it_stays_bounded() {
        let mut h = History::default();
        let now = Instant::now();
        for n in 0..2000u16 {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&n.to_be_bytes());
            let node = NodeId::from_bytes(bytes);
            h.record_failure(node, now);
            h.record_transfer(node, 1 << 20, Duration::from_millis(1), now);
            for size in 0..5 {
                h.record(call(&tool(), node, 1 << (size * 4), 1), now);
            }
        }
        assert_eq!((h.failures.len(), h.bandwidth.len(), h.kept), (NODES, NODES, ESTIMATES));
    }

    #[test]
    fn the_prior_takes_over_when_measurements_jump_about() {
        let mut h = History::default();
        let now = Instant::now();
        for n in 0..40 {
            h.record(call(&tool(), node(), 0, if n % 2 == 0 { 10 } else { 1000 }), now);
        }
        assert_eq!(h.exec_ms(node(), &tool(), 0, 100.0), 100.0, "a factor of ten in turn");
        // The same measurements, with a card that is even further off.
        let mut h = History::default();
        for n in 0..40 {
            let elapsed_ms = if n % 2 == 0 { 10 } else { 1000 };
            h.record(Observation { prior_ms: 1e6, ..call(&tool(), node(), 0, elapsed_ms) }, now);
        }
        assert!(h.exec_ms(node(), &tool(), 0, 1e6) < 1e5, "a bad average is better than a worse card");
        // A steady duration far from the card's: what is measured counts.
        let mut h = History::default();
        for _ in 0..40 {
            h.record(call(&tool(), node(), 0, 20_000), now);
        }
        assert!(h.exec_ms(node(), &tool(), 0, 100.0) > 18_000.0);
    }

    #[test]
    fn what_is_kept_is_what_was_known() {
        let (mut before, now) = (History::default(), Instant::now());
        let mut kept = Vec::new();
        for n in 0..9 {
            kept = vec![before.record(call(&tool(), node(), 5000, 300 + n), now)];
        }
        let later = now + Duration::from_secs(3600);
        kept[0].age = Duration::from_secs(3600);
        let mut after = History::default();
        after.restore(kept.clone(), later);
        assert_eq!(after.exec_ms(node(), &tool(), 5000, 7.0), before.exec_ms(node(), &tool(), 5000, 7.0));
        assert!(!after.is_warm(node(), &tool(), later), "an hour ago");
        kept[0].age = Duration::from_secs(1);
        for broken in [f64::NAN, f64::INFINITY, 1e300] {
            let damaged = KeptEstimate { log_ms: broken, ..kept[0].clone() };
            let mut after = History::default();
            after.restore([damaged], later);
            assert_eq!(after.exec_ms(node(), &tool(), 5000, 7.0), 7.0);
        }
        let mut after = History::default();
        after.restore(kept, later);
        assert!(after.is_warm(node(), &tool(), later));
    }
}
