//! Metrics: one registry; each module gets a clone of its own group of handles.
//!
//! Labels are bounded: no ids, addresses or text of users, and names of tools only up to [`TOOL_LABELS`].
use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use octomesh_protocol::step::StepStatus;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

/// Tools that are labels of their own; all others count under `other`. With more, a node whose tools all fail in all ways
/// would have over 1,500 series.
pub const TOOL_LABELS: usize = 48;
/// The label of a tool that is not known or one too many.
const OTHER: &str = "other";

/// Seconds a step takes: from a lookup to the longest wait of a run. Few, because there is a row of them per tool.
const STEP_SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0];
/// Seconds for work that is over within a moment.
const SHORT_SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0];
/// Seconds for waiting.
const WAIT_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];
/// Predicted over real; 1 is a perfect guess.
const RATIOS: [f64; 9] = [0.1, 0.2, 0.33, 0.5, 0.8, 1.25, 2.0, 5.0, 10.0];

/// What the router counts.
#[derive(Debug, Clone)]
pub struct RouterMetrics {
    /// By result: `local`, `remote`, `no_capacity`.
    pub decisions: IntCounterVec,
    /// By reason code.
    pub filtered: IntCounterVec,
    /// By result: `granted` or the reason of the refusal.
    pub reservations: IntCounterVec,
    /// Time of one decision.
    pub decision_seconds: Histogram,
    /// Predicted over real duration.
    pub estimate_ratio: Histogram,
}

/// What the executor counts.
#[derive(Debug, Clone)]
pub struct ExecutorMetrics {
    steps: IntCounterVec,
    tool_calls: IntCounterVec,
    step_seconds: HistogramVec,
    /// Time in the queue.
    pub queue_wait_seconds: Histogram,
    /// Steps running now.
    pub running: IntGauge,
    /// Steps waiting now.
    pub queued: IntGauge,
    /// Steps that can run at once.
    pub slots: IntGauge,
    /// Leases granted and not over.
    pub leases_active: IntGauge,
    /// 1 while the node takes no new steps.
    pub draining: IntGauge,
    /// 0 (none) to 4 (bwrap).
    pub sandbox_level: IntGauge,
    /// Programs that a limit has ended, by limit.
    pub sandbox_kills: IntCounterVec,
    labels: ToolLabels,
}

impl ExecutorMetrics {
    /// A step that ran here is over.
    pub fn step_over(&self, tool: &str, status: StepStatus, elapsed: Duration) {
        let label = self.labels.of(tool);
        self.steps.with_label_values(&[&*label, status.into()]).inc();
        if status != StepStatus::Refused {
            self.step_seconds.with_label_values(&[&*label]).observe(elapsed.as_secs_f64());
        }
    }

    /// A tool was called here. `source` is where it comes from, `ok` whether it returned a result.
    pub fn tool_called(&self, tool: &str, source: octomesh_protocol::card::Source, ok: bool) {
        let label = self.labels.of(tool);
        let outcome = if ok { "ok" } else { "error" };
        self.tool_calls.with_label_values(&[&*label, source.into(), outcome]).inc();
    }
}

/// What the network counts.
#[derive(Debug, Clone)]
pub struct NetMetrics {
    /// By direction (`in`, `out`) and result.
    pub handshakes: IntCounterVec,
    /// Connections turned away before a byte was read, by reason.
    pub turned_away: IntCounterVec,
    /// Duration of a handshake.
    pub handshake_seconds: Histogram,
    /// Sessions that got fresh secrets while they lasted.
    pub rekeys: IntCounter,
    /// Open sessions by suite.
    pub sessions: IntGaugeVec,
    /// Those of them that go over a relay.
    pub relayed_sessions: IntGauge,
    /// Circuits of other members that go over this node.
    pub relay_circuits: IntGauge,
    /// What members asked of this node as a relay, by kind and result.
    pub relay_requests: IntCounterVec,
    /// By direction and kind.
    pub gossip_messages: IntCounterVec,
    /// By direction and kind.
    pub gossip_bytes: IntCounterVec,
    /// Round trips to peers.
    pub peer_rtt_seconds: Histogram,
}

/// GPUs and the owner's rules.
#[derive(Debug, Clone)]
pub struct HardwareMetrics {
    /// GPU memory in bytes, by GPU and kind (`total`, `free`, `reserved`).
    pub vram: IntGaugeVec,
    /// Seconds since each GPU was read.
    pub reading_age: IntGaugeVec,
    /// Vendors whose cards can't be read, with the reason.
    pub absent: IntGaugeVec,
    /// Why the owner keeps the machine.
    pub yields: IntGaugeVec,
}

/// What membership counts.
#[derive(Debug, Clone)]
pub struct MembershipMetrics {
    /// Other members by state.
    pub peers: IntGaugeVec,
    /// Changes of state, by the new one.
    pub transitions: IntCounterVec,
}

/// What the journal counts.
#[derive(Debug, Clone)]
pub struct JournalMetrics {
    /// Committed transactions.
    pub writes: IntCounter,
    /// Duration of a commit.
    pub commit_seconds: Histogram,
}

/// What the solve loop counts.
#[derive(Debug, Clone)]
pub struct SolveMetrics {
    /// Runs that are over, by status.
    pub runs: IntCounterVec,
    /// Runs going on.
    pub active: IntGauge,
}

/// Everything that the node counts.
#[derive(Debug, Clone)]
pub struct NodeMetrics {
    registry: Registry,
    labels: ToolLabels,
    /// For the router and dispatch.
    pub router: RouterMetrics,
    /// For the executor.
    pub executor: ExecutorMetrics,
    /// For net.
    pub net: NetMetrics,
    /// For membership.
    pub membership: MembershipMetrics,
    /// For the journal.
    pub journal: JournalMetrics,
    /// For the solve loop.
    pub solve: SolveMetrics,
    /// Tools by source and state.
    pub tools: IntGaugeVec,
    /// GPUs and the owner's rules.
    pub hardware: HardwareMetrics,
    /// Things dropped because their reader was slow, by queue.
    pub dropped: IntCounterVec,
}

impl NodeMetrics {
    /// Registers everything.
    ///
    /// # Errors
    /// When two metrics have one name: a fault of the program.
    pub fn new(version: &str) -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("octomesh".to_owned()), None)?;
        let r = Registrar(&registry);
        let labels = ToolLabels::default();
        r.gauges("build_info", "1, with the version as a label.", &["version"])?
            .with_label_values(&[version])
            .set(1);
        Ok(Self {
            router: router(&r)?,
            executor: executor(&r, labels.clone())?,
            net: net(&r)?,
            membership: MembershipMetrics {
                peers: r.gauges("peers", "Other members of the mesh by state.", &["state"])?,
                transitions: r.counters(
                    "peer_transitions_total",
                    "Changes of a member's state, by the new state.",
                    &["to"],
                )?,
            },
            journal: JournalMetrics {
                writes: r.counter("journal_writes_total", "Transactions committed to the journal.")?,
                commit_seconds: r.histogram(
                    "journal_commit_seconds",
                    "Time to commit a transaction to the journal.",
                    &SHORT_SECONDS,
                )?,
            },
            solve: SolveMetrics {
                runs: r.counters("runs_total", "Runs that ended, by status.", &["outcome"])?,
                active: r.gauge("runs_active", "Runs that go on now.")?,
            },
            tools: r.gauges("tools", "Tools of this node by source and state.", &["source", "state"])?,
            hardware: hardware(&r)?,
            dropped: r.counters(
                "dropped_total",
                "Entries dropped because the reader of a queue was slow, by queue.",
                &["queue"],
            )?,
            labels,
            registry,
        })
    }

    /// Makes names of tools labels of their own, while there is room. Call it with the node's own tools first.
    pub fn learn_tools<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        self.labels.learn(names);
    }

    /// The text format that Prometheus scrapes.
    ///
    /// # Errors
    /// When a metric can't be encoded.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        prometheus::TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

fn hardware(r: &Registrar<'_>) -> Result<HardwareMetrics, prometheus::Error> {
    Ok(HardwareMetrics {
        vram: r.gauges(
            "gpu_vram_bytes",
            "Memory of each GPU of this node: total, free for one more step, reserved by steps. No free where it can't be read.",
            &["gpu", "kind"],
        )?,
        reading_age: r.gauges(
            "gpu_reading_age_seconds",
            "Age of the last reading of each GPU; absent for declared ones and where it can't be read.",
            &["gpu"],
        )?,
        absent: r.gauges(
            "gpu_absent",
            "1 for each vendor of which no card, or not each card, can be read, with the reason.",
            &["vendor", "reason"],
        )?,
        yields: r.gauges(
            "yields",
            "1 while the owner keeps this machine for that reason, else 0.",
            &["reason"],
        )?,
    })
}

fn router(r: &Registrar<'_>) -> Result<RouterMetrics, prometheus::Error> {
    Ok(RouterMetrics {
        decisions: r.counters(
            "route_decisions_total",
            "Placements decided by the router, by result.",
            &["result"],
        )?,
        filtered: r.counters(
            "route_filtered_total",
            "Nodes that a placement could not use, by reason.",
            &["reason"],
        )?,
        reservations: r.counters(
            "reservations_total",
            "Reservations asked for by this node, by result.",
            &["result"],
        )?,
        decision_seconds: r.histogram(
            "route_decision_seconds",
            "Time to decide one placement.",
            &SHORT_SECONDS,
        )?,
        estimate_ratio: r.histogram(
            "route_estimate_ratio",
            "Predicted duration of a step over its real one; 1 is a perfect prediction.",
            &RATIOS,
        )?,
    })
}

fn executor(r: &Registrar<'_>, labels: ToolLabels) -> Result<ExecutorMetrics, prometheus::Error> {
    Ok(ExecutorMetrics {
        steps: r.counters(
            "steps_total",
            "Steps that ended on this node, by tool and outcome.",
            &["tool", "outcome"],
        )?,
        tool_calls: r.counters(
            "tool_calls_total",
            "Calls of tools on this node, by tool, source and outcome.",
            &["tool", "source", "outcome"],
        )?,
        step_seconds: r.histograms(
            "step_duration_seconds",
            "Time that steps ran on this node, by tool.",
            &["tool"],
            &STEP_SECONDS,
        )?,
        queue_wait_seconds: r.histogram(
            "queue_wait_seconds",
            "Time that steps waited for a slot of this node.",
            &WAIT_SECONDS,
        )?,
        running: r.gauge("steps_running", "Steps running on this node.")?,
        queued: r.gauge("steps_queued", "Steps waiting for a slot of this node.")?,
        slots: r.gauge("slots", "Steps that this node can run at once.")?,
        leases_active: r.gauge("leases_active", "Leases that this node granted and that are not over.")?,
        draining: r.gauge("draining", "1 while this node takes no new steps, else 0.")?,
        sandbox_level: r.gauge(
            "sandbox_level",
            "Confinement of process tools: 0 none, 1 rlimits, 2 landlock, 3 own namespaces, 4 bwrap.",
        )?,
        sandbox_kills: r.counters(
            "sandbox_kills_total",
            "Programs that a limit of the sandbox has ended, by limit; output: the middle of it was dropped.",
            &["reason"],
        )?,
        labels,
    })
}

fn net(r: &Registrar<'_>) -> Result<NetMetrics, prometheus::Error> {
    Ok(NetMetrics {
        handshakes: r.counters(
            "handshakes_total",
            "Session handshakes that ended, by direction and result.",
            &["direction", "result"],
        )?,
        turned_away: r.counters(
            "connections_turned_away_total",
            "Connections from outside that were closed before a byte was read, by reason.",
            &["reason"],
        )?,
        handshake_seconds: r.histogram(
            "handshake_seconds",
            "Time from the first byte of a handshake to its end.",
            &SHORT_SECONDS,
        )?,
        rekeys: r.counter("rekeys_total", "Rekeys of sessions that ended well.")?,
        sessions: r.gauges("sessions", "Open sessions by suite.", &["suite"])?,
        relayed_sessions: r.gauge("relayed_sessions", "Open sessions that go over a relay.")?,
        relay_circuits: r.gauge("relay_circuits", "Circuits of other members that this node carries.")?,
        relay_requests: r.counters(
            "relay_requests_total",
            "What members asked of this node as a relay, by kind and result.",
            &["kind", "result"],
        )?,
        gossip_messages: r.counters(
            "gossip_messages_total",
            "Gossip messages by direction and kind.",
            &["direction", "kind"],
        )?,
        gossip_bytes: r.counters(
            "gossip_bytes_total",
            "Bytes of gossip messages by direction and kind.",
            &["direction", "kind"],
        )?,
        peer_rtt_seconds: r.histogram("peer_rtt_seconds", "Round trips to peers.", &SHORT_SECONDS)?,
    })
}

/// Builds and registers in one go.
struct Registrar<'a>(&'a Registry);

impl Registrar<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::with_opts(Opts::new(name, help))?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::with_opts(Opts::new(name, help))?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }
}

/// Names of tools that are labels. Only names that this node learned itself: a peer can't mint label values by asking for
/// tools that do not exist.
#[derive(Debug, Clone, Default)]
struct ToolLabels(Arc<RwLock<BTreeSet<Arc<str>>>>);

impl ToolLabels {
    fn learn<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if known.len() >= TOOL_LABELS {
                break;
            }
            known.insert(name.into());
        }
    }

    fn of(&self, name: &str) -> Arc<str> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(name).cloned().unwrap_or_else(|| OTHER.into())
    }
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::card::Source;

    use super::*;

    const STATUSES: [StepStatus; 6] = [
        StepStatus::Ok,
        StepStatus::Error,
        StepStatus::Uncertain,
        StepStatus::Cancelled,
        StepStatus::Timeout,
        StepStatus::Refused,
    ];

    /// A node where everything that can have a label has every label.
    fn worst_case() -> NodeMetrics {
        let m = NodeMetrics::new("0.1.0").unwrap();
        let names: Vec<String> = (0..1000).map(|i| format!("tool_{i}")).collect();
        m.learn_tools(names.iter().map(String::as_str));
        for name in &names {
            for status in STATUSES {
                m.executor.step_over(name, status, Duration::from_millis(3));
            }
            m.executor.tool_called(name, Source::Builtin, true);
            m.executor.tool_called(name, Source::Builtin, false);
        }
        for i in 0..20 {
            let label = format!("label_{i}");
            for counter in
                [&m.router.decisions, &m.router.filtered, &m.router.reservations, &m.dropped, &m.solve.runs]
            {
                counter.with_label_values(&[&label]).inc();
            }
            m.membership.transitions.with_label_values(&[&label]).inc();
            m.membership.peers.with_label_values(&[&label]).set(1);
            m.net.sessions.with_label_values(&[&label]).set(1);
            m.net.handshakes.with_label_values(&["in", &label]).inc();
            m.net.turned_away.with_label_values(&[&label]).inc();
            m.net.gossip_messages.with_label_values(&["in", &label]).inc();
            m.net.gossip_bytes.with_label_values(&["in", &label]).inc();
            m.hardware.vram.with_label_values(&[&label, "total"]).set(1);
            m.tools.with_label_values(&[&label, "available"]).set(1);
        }
        m
    }

    #[test]
    fn every_family_has_help_and_type_and_our_prefix() {
        let text = worst_case().text().unwrap();
        let mut described = BTreeSet::new();
        let mut typed = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(help.len() > 10, "{line}");
                described.insert(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                typed.insert(name);
            } else {
                let name = line.split(['{', ' ']).next().unwrap();
                let family =
                    ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
                assert!(name.starts_with("octomesh_"), "{line}");
                assert!(typed.contains(family) && described.contains(family), "{line}");
                assert!(!name.contains("_ms"), "{line}");
            }
        }
        assert_eq!(described, typed);
        assert_eq!(described.len(), 35, "{described:?}");
    }

    #[test]
    fn the_worst_node_stays_within_its_series() {
        let text = worst_case().text().unwrap();
        assert!(text.lines().count() < 1500, "{} lines", text.lines().count());
    }

    #[test]
    fn an_unknown_tool_counts_under_other() {
        let m = NodeMetrics::new("x").unwrap();
        m.learn_tools(["echo"]);
        m.executor.step_over("echo", StepStatus::Ok, Duration::from_secs(1));
        m.executor.step_over("made-up-by-a-peer", StepStatus::Refused, Duration::ZERO);
        let text = m.text().unwrap();
        assert!(text.contains("octomesh_steps_total{outcome=\"ok\",tool=\"echo\"} 1"), "{text}");
        assert!(text.contains("octomesh_steps_total{outcome=\"refused\",tool=\"other\"} 1"), "{text}");
        assert!(!text.contains("made-up"), "{text}");
        assert!(text.contains("octomesh_build_info{version=\"x\"} 1"), "{text}");
    }
}
