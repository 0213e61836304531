//! What is free when reservations are counted.
use std::time::Duration;

use tokio::time::Instant;

use super::{GpuReading, Resources};

/// A step needs this long to really take the memory it reserved: until then a measurement may not show it.
const SETTLE: Duration = Duration::from_secs(30);

/// Memory that one lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// GPU and bytes.
    pub(super) vram: Option<(usize, u64)>,
    /// Bytes of main memory.
    pub(super) memory: u64,
    /// When it was reserved.
    pub(super) at: Instant,
}

impl Held {
    /// Whether a measurement from `read` may not contain it.
    fn is_unseen(&self, read: Instant, now: Instant) -> bool {
        self.at > read || now.saturating_duration_since(self.at) < SETTLE
    }
}

/// Reserved on GPU `index`, in bytes.
pub(super) fn reserved_vram<'a>(index: usize, held: impl Iterator<Item = &'a Held>) -> u64 {
    held.filter_map(|h| h.vram).filter(|(gpu, _)| *gpu == index).map(|(_, bytes)| bytes).sum()
}

fn free_vram<'a>(index: usize, gpu: &GpuReading, held: impl Iterator<Item = &'a Held>, now: Instant) -> u64 {
    match gpu.free {
        _ if gpu.declared => gpu.total.saturating_sub(reserved_vram(index, held)),
        Some((free, read)) => {
            free.saturating_sub(reserved_vram(index, held.filter(|h| h.is_unseen(read, now))))
        }
        None => 0,
    }
}

/// The GPU with the most free memory that has `need` bytes; else the most that one has.
pub(super) fn pick_gpu<'a, I: Iterator<Item = &'a Held>>(
    need: u64,
    resources: &Resources,
    held: impl Fn() -> I,
    now: Instant,
) -> Result<usize, u64> {
    let free = resources.gpus.iter().enumerate().map(|(i, gpu)| (i, free_vram(i, gpu, held(), now)));
    match free.max_by_key(|(i, free)| (*free, std::cmp::Reverse(*i))) {
        Some((index, free)) if free >= need => Ok(index),
        best => Err(best.map_or(0, |(_, free)| free)),
    }
}

/// Free main memory; `None` when it was never read.
pub(super) fn free_memory<'a>(
    resources: &Resources,
    held: impl Iterator<Item = &'a Held>,
    now: Instant,
) -> Option<u64> {
    let (free, read) = resources.memory_free?;
    let unseen: u64 = held.filter(|h| h.is_unseen(read, now)).map(|h| h.memory).sum();
    Some(free.saturating_sub(unseen))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpus(gpus: Vec<GpuReading>) -> Resources {
        Resources { memory_free: None, gpus }
    }

    #[test]
    fn a_declared_gpu_counts_all_reservations() {
        let now = Instant::now();
        let resources = gpus(vec![GpuReading { total: 24 * GIB, free: None, declared: true }]);
        let held = [Held { vram: Some((0, 20 * GIB)), memory: 0, at: now }];
        let later = now + Duration::from_secs(3600);
        assert_eq!(pick_gpu(4 * GIB, &resources, || held.iter(), later), Ok(0));
        assert_eq!(pick_gpu(8 * GIB, &resources, || held.iter(), later), Err(4 * GIB));
    }

    #[test]
    fn a_measured_gpu_counts_what_the_measurement_can_not_show() {
        let start = Instant::now();
        let read = start + Duration::from_secs(60);
        let resources =
            gpus(vec![GpuReading { total: 24 * GIB, free: Some((10 * GIB, read)), declared: false }]);
        let old = [Held { vram: Some((0, 8 * GIB)), memory: 0, at: start }];
        assert_eq!(pick_gpu(10 * GIB, &resources, || old.iter(), read), Ok(0), "already in the measurement");
        let young = [Held { at: start + Duration::from_secs(50), ..old[0] }];
        assert_eq!(
            pick_gpu(10 * GIB, &resources, || young.iter(), read),
            Err(2 * GIB),
            "10 s are not enough to settle"
        );
        let newer = [Held { at: read + Duration::from_secs(1), ..old[0] }];
        let much_later = read + Duration::from_secs(100);
        assert_eq!(
            pick_gpu(10 * GIB, &resources, || newer.iter(), much_later),
            Err(2 * GIB),
            "made after the reading"
        );
    }

    #[test]
    fn the_emptiest_gpu_is_taken() {
        let now = Instant::now();
        let one = |free| GpuReading { total: 24 * GIB, free: Some((free, now)), declared: false };
        let resources = gpus(vec![one(4 * GIB), one(9 * GIB), GpuReading { free: None, ..one(0) }]);
        assert_eq!(pick_gpu(2 * GIB, &resources, || [].iter(), now), Ok(1));
        assert_eq!(pick_gpu(1, &gpus(vec![]), || [].iter(), now), Err(0));
    }

    #[test]
    fn memory() {
        let now = Instant::now();
        let resources = Resources { memory_free: Some((8 * GIB, now)), gpus: vec![] };
        let held = [Held { vram: None, memory: 3 * GIB, at: now }];
        assert_eq!(free_memory(&resources, held.iter(), now), Some(5 * GIB));
        assert_eq!(free_memory(&Resources::default(), held.iter(), now), None);
    }
}
