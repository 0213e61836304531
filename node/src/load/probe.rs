//! Asks a driver again and again on a thread of its own. A driver may hang for ever; then that thread does, and nobody else.
use std::{sync::Arc, thread, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::gpu::{CARDS, Card, GpuProblem, Probed, Vendor};

/// Memory of a card that is used changes from second to second.
const EVERY: Duration = Duration::from_secs(2);
/// A driver that is not there is rarely installed while the node runs.
const EVERY_ABSENT: Duration = Duration::from_secs(30);
/// The thread looks this often whether anybody still listens.
const NAP: Duration = Duration::from_millis(500);

/// What one look came to.
pub(super) struct Reading {
    pub(super) cards: Vec<Card>,
    pub(super) problem: Option<GpuProblem>,
    pub(super) present: bool,
}

/// Something that can be asked for cards. Every call may take for ever.
pub(super) trait Probe: Send + 'static {
    fn vendor(&self) -> Vendor;
    fn read(&mut self) -> Reading;
}

/// Starts the thread. It ends when nobody listens any more; one that hangs in its driver ends with the program.
pub(super) fn start(mut probe: impl Probe) -> watch::Receiver<Arc<Probed>> {
    let vendor = probe.vendor();
    let (out, reader) = watch::channel(Arc::new(Probed::new(vendor, GpuProblem::Starting)));
    let name: &'static str = vendor.into();
    let started = thread::Builder::new().name(format!("gpu-{name}")).spawn(move || {
        while !out.is_closed() {
            look(&mut probe, &out);
            let absent = out.borrow().cards.is_empty();
            let until = Instant::now() + if absent { EVERY_ABSENT } else { EVERY };
            while Instant::now() < until && !out.is_closed() {
                thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, vendor = name, "no thread for asking the driver; its cards are not known");
    }
    reader
}

fn look(probe: &mut impl Probe, out: &watch::Sender<Arc<Probed>>) {
    let old = Arc::clone(&out.borrow());
    let mut asking = Probed::clone(&old);
    asking.asking = Some(Instant::now());
    out.send_replace(Arc::new(asking));
    let Reading { mut cards, mut problem, present } = probe.read();
    // A card that was there stays known, with its last reading as old as it is: leases may hold it.
    let gone = old.cards.iter().filter(|known| !cards.iter().any(|card| card.id == known.id)).cloned();
    let gone: Vec<Card> = gone.collect();
    if !gone.is_empty() {
        problem = problem.or(Some(GpuProblem::Lost));
        cards.extend(gone);
        // A driver that gives a card another name each time does not fill the memory.
        cards.truncate(CARDS);
    }
    if problem != old.problem {
        let vendor: &'static str = old.vendor.into();
        match &problem {
            Some(problem) => tracing::info!(vendor, reason = problem.code(), "{problem}"),
            None => tracing::info!(vendor, cards = cards.len(), "the driver's cards are read"),
        }
    }
    out.send_replace(Arc::new(Probed { vendor: old.vendor, cards, problem, present, asking: None }));
}
