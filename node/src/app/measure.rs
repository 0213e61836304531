//! Measures the machine once a second: for reservations, for the owner's rules, and for what others are told of it.
use std::time::{Duration, SystemTime};

use octomesh_tools::tool::WallClock;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::NodeConfig,
    executor::Resources,
    load::{
        CardState, Condition, GpuSources, Gpus, MemoryReader,
        models::Model,
        wake, watch_battery,
        yields::{Facts, Yields},
    },
};

const EVERY: Duration = Duration::from_secs(1);

pub(super) struct Measuring {
    memory: MemoryReader,
    gpus: Gpus,
    yields: Yields,
    battery: Option<watch::Receiver<Option<bool>>>,
    wall: WallClock,
    models: watch::Receiver<Vec<Model>>,
    resources: watch::Sender<Resources>,
    condition: watch::Sender<Condition>,
}

impl Measuring {
    /// The first measurement, and where the next ones will be.
    pub(super) fn new(
        config: &NodeConfig,
        memory: MemoryReader,
        gpus: Gpus,
        wall: &WallClock,
        models: watch::Receiver<Vec<Model>>,
    ) -> (Self, watch::Receiver<Resources>, watch::Receiver<Condition>) {
        let sources = GpuSources::of(config);
        let macs = if config.wake.offer { wake::own(&sources.sysfs) } else { Vec::new() };
        let (resources, resources_reader) = watch::channel(Resources::default());
        let (condition, condition_reader) = watch::channel(Condition { macs, ..Condition::default() });
        let mut new = Self {
            memory,
            gpus,
            yields: Yields::new(config.yields.clone()),
            battery: config.yields.battery.then(|| watch_battery(&sources)),
            wall: wall.clone(),
            models,
            resources,
            condition,
        };
        new.measure(&[]);
        (new, resources_reader, condition_reader)
    }

    fn measure(&mut self, cards: &[CardState]) {
        let now = Instant::now();
        let board = self.gpus.board(now);
        let facts = Facts {
            on_battery: self.battery.as_ref().and_then(|battery| *battery.borrow()),
            cards,
            minute: minute_of_day((self.wall)()),
        };
        let yields = self.yields.decide(facts, now);
        let was = self.resources.borrow().yields;
        if yields != was {
            match yields {
                Some(reason) => {
                    tracing::info!(reason = reason.words(), "this machine is its owner's alone for now")
                }
                None => tracing::info!("this machine takes steps of other nodes again"),
            }
        }
        self.condition.send_if_modified(|condition| {
            let (no_gpu, absent) = (board.why_none(), board.absent.clone());
            let (macs, models) = (condition.macs.clone(), self.models.borrow().clone());
            let new = Condition { no_gpu, absent, yields, macs, models };
            let changed = new != *condition;
            *condition = new;
            changed
        });
        let memory_free = Some((self.memory.free(), now));
        self.resources.send_replace(Resources { memory_free, gpus: board.cards, yields });
    }

    pub(super) async fn run(mut self, cards: watch::Receiver<Vec<CardState>>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {
                    let cards = cards.borrow().clone();
                    self.measure(&cards);
                }
            }
        }
    }
}

/// In the time zone of the machine; `None` when the clock is out of all bounds.
fn minute_of_day(now: SystemTime) -> Option<u16> {
    let local = jiff::Timestamp::try_from(now).ok()?.to_zoned_datetime(jiff::tz::TimeZone::system());
    let minute = i64::from(local.hour()) * 60 + i64::from(local.minute());
    u16::try_from(minute).ok()
}
