//! Gauges, and counts of rooms that know no metrics, that are read from snapshots once a second: what a scrape shows is never older than that.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use octomesh_protocol::{
    advert::{LoadState, YieldReason},
    card::Source,
};
use octomesh_tools::{
    registry::{EntryState, Registry},
    sandbox::Sandbox,
};
use strum::IntoEnumIterator;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    executor::ExecutorHandle,
    load::{Hardware, gpu::GpuProblem},
    membership::{MemberState, MeshView},
    metrics::NodeMetrics,
};

const EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Gauges {
    pub(crate) metrics: NodeMetrics,
    pub(crate) executor: ExecutorHandle,
    pub(crate) view: watch::Receiver<Arc<MeshView>>,
    pub(crate) registry: Registry,
    pub(crate) sandbox: Sandbox,
    pub(crate) hardware: Hardware,
}

impl Gauges {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => self.read(),
            }
        }
    }

    fn read(&self) {
        let load: LoadState = *self.executor.load().borrow();
        let executor = &self.metrics.executor;
        executor.sandbox_level.set(self.sandbox.level().as_metric());
        for (reason, total) in self.sandbox.kills() {
            let counter = executor.sandbox_kills.with_label_values(&[reason]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        executor.running.set(i64::from(load.running));
        executor.queued.set(i64::from(load.queued));
        executor.slots.set(i64::from(load.slots));
        executor.draining.set(i64::from(load.draining));
        executor.leases_active.set(i64::try_from(self.executor.remaining()).unwrap_or(i64::MAX));
        let view = self.view.borrow().clone();
        for state in MemberState::iter() {
            let others = view.members.values().filter(|m| m.state == state && !view.is_me(m.node)).count();
            let gauge = self.metrics.membership.peers.with_label_values(&[<&str>::from(state)]);
            gauge.set(i64::try_from(others).unwrap_or(i64::MAX));
        }
        self.tools();
        self.hardware();
    }

    /// What is not known is not shown: an old number would look like a new one.
    fn hardware(&self) {
        let m = &self.metrics.hardware;
        let now = Instant::now();
        for (index, state) in self.hardware.cards().iter().enumerate() {
            let index = index.to_string();
            let card = &state.card;
            for (kind, bytes) in
                [("total", Some(card.total)), ("free", state.free), ("reserved", Some(state.reserved))]
            {
                match bytes {
                    Some(bytes) => m
                        .vram
                        .with_label_values(&[&*index, kind])
                        .set(i64::try_from(bytes).unwrap_or(i64::MAX)),
                    // silent-ok: it was not there before
                    None => drop(m.vram.remove_label_values(&[&*index, kind])),
                }
            }
            match card.free {
                Some((_, read)) => {
                    let age = now.saturating_duration_since(read).as_secs();
                    m.reading_age.with_label_values(&[&*index]).set(i64::try_from(age).unwrap_or(i64::MAX));
                }
                // silent-ok: the same
                None => drop(m.reading_age.remove_label_values(&[&*index])),
            }
        }
        let condition = self.hardware.condition();
        m.absent.reset();
        // A switched-off probe is no absence that anybody wonders about.
        for absence in condition.absent.iter().filter(|a| a.problem != GpuProblem::Off) {
            let vendor: &'static str = absence.vendor.into();
            m.absent.with_label_values(&[vendor, absence.problem.code()]).set(1);
        }
        for reason in YieldReason::iter() {
            let name: &'static str = reason.into();
            m.yields.with_label_values(&[name]).set(i64::from(condition.yields == Some(reason)));
        }
    }

    fn tools(&self) {
        let mut counts: BTreeMap<(&'static str, &'static str), i64> = BTreeMap::new();
        for source in [Source::Builtin, Source::Process] {
            for state in ["available", "unavailable", "quarantined"] {
                counts.insert((source.into(), state), 0);
            }
        }
        for entry in self.registry.snapshot().entries.values() {
            let state: &EntryState = &entry.state;
            *counts.entry((entry.card.source.into(), state.into())).or_default() += 1;
        }
        for ((source, state), count) in counts {
            self.metrics.tools.with_label_values(&[source, state]).set(count);
        }
    }
}
