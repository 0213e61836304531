//! What calls took before, how fast bytes travel and how often a node lost a step. All of it is bounded, and all of it fades.
use std::{collections::BTreeMap, time::Duration};

use octomesh_protocol::id::{NodeId, ToolName};
use tokio::time::Instant;

/// Weight of the prior, in observations: three measured calls weigh as much as what the card says.
const PRIOR_WEIGHT: f64 = 3.0;
/// Weight of the newest observation in the moving averages.
const NEWEST: f64 = 0.25;
/// Estimates kept; the one that was not used for the longest time gives way.
const ESTIMATES: usize = 8192;
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

type EstimateKey = (NodeId, ToolName, u8);

#[derive(Debug, Clone, Copy)]
struct Estimate {
    /// Moving average of the natural logarithm of the duration in milliseconds.
    log_ms: f64,
    observations: u32,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    rate: f64,
    at: Instant,
}

/// Measurements of this node; only it writes them.
#[derive(Debug, Clone, Default)]
pub struct History {
    estimates: BTreeMap<EstimateKey, Estimate>,
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

impl History {
    /// A call ended with a result of the tool: how long it ran there, in milliseconds.
    pub fn record(&mut self, node: NodeId, tool: &ToolName, work_bytes: u64, elapsed_ms: u64, now: Instant) {
        #[expect(clippy::cast_precision_loss, reason = "a duration, not an identity")]
        let log_ms = (elapsed_ms as f64).max(0.1).ln();
        let key = (node, tool.clone(), size_bucket(work_bytes));
        make_room(&mut self.estimates, &key, ESTIMATES, |e| e.at);
        let estimate = self.estimates.entry(key).or_insert(Estimate { log_ms, observations: 0, at: now });
        estimate.log_ms += NEWEST * (log_ms - estimate.log_ms);
        estimate.observations = estimate.observations.saturating_add(1);
        estimate.at = now;
        self.settle(node, 0.0, now);
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

    /// Expected duration of a call, in milliseconds: what was measured, pulled towards `prior_ms` while there is little of it.
    pub(super) fn exec_ms(&self, node: NodeId, tool: &ToolName, work_bytes: u64, prior_ms: f64) -> f64 {
        match self.estimates.get(&(node, tool.clone(), size_bucket(work_bytes))) {
            None => prior_ms,
            Some(e) => {
                let n = f64::from(e.observations);
                (PRIOR_WEIGHT * prior_ms + n * e.log_ms.exp()) / (PRIOR_WEIGHT + n)
            }
        }
    }

    /// Whether this node used the tool there a short while ago, so that it is still loaded.
    pub(super) fn is_warm(&self, node: NodeId, tool: &ToolName, now: Instant) -> bool {
        let of_tool = (node, tool.clone(), 0)..=(node, tool.clone(), u8::MAX);
        self.estimates.range(of_tool).any(|(_, e)| now.saturating_duration_since(e.at) < WARM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        h.record(node(), &tool(), 0, 1000, now);
        let after_one = h.exec_ms(node(), &tool(), 0, 100.0);
        assert!((after_one - 325.0).abs() < 1e-6, "(3 * 100 + 1 * 1000) / 4, got {after_one}");
        for _ in 0..100 {
            h.record(node(), &tool(), 0, 1000, now);
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
        h.record(node(), &tool(), 0, 1, now);
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
        h.record(node(), &tool(), 100, 1, now);
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
                h.record(node, &tool(), 1 << (size * 4), 1, now);
            }
        }
        assert_eq!((h.failures.len(), h.bandwidth.len(), h.estimates.len()), (NODES, NODES, ESTIMATES));
    }
}
