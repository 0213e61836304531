//! Whether one GPU of a node has room, by what the node said of it last.
use std::time::Duration;

use octomesh_protocol::advert::{Advert, GpuAdvert};

use super::{
    FilterReason,
    filter::{Out, size},
    reservation::Unseen,
};

/// A reading of GPU memory older than this is no reading.
pub(crate) const VRAM_TTL: Duration = Duration::from_secs(60);

/// How old a card's reading is, `since` its advert came; `None` when it could not be read.
pub(crate) fn reading_age(gpu: &GpuAdvert, since: Duration) -> Option<Duration> {
    let at = Duration::from_millis(u64::from(gpu.age_ms));
    (gpu.age_ms != u32::MAX).then(|| since.saturating_add(at))
}

/// What is free on a card; `None` when what is known is too old. What the owner declared needs no reading.
pub(crate) fn known_free(gpu: &GpuAdvert, since: Duration) -> Option<u64> {
    let fresh = gpu.declared || reading_age(gpu, since).is_some_and(|age| age <= VRAM_TTL);
    fresh.then_some(gpu.vram_free)
}

/// Free memory of each card, when `reserved` bytes that its advert does not show yet went where they go: to the emptiest first.
fn left(advert: &Advert, since: Duration, reserved: u64) -> Vec<(usize, &GpuAdvert, Option<u64>)> {
    let mut cards: Vec<_> =
        advert.gpus.iter().enumerate().map(|(place, gpu)| (place, gpu, known_free(gpu, since))).collect();
    let mut emptiest: Vec<&mut Option<u64>> = cards.iter_mut().map(|(_, _, free)| free).collect();
    emptiest.sort_by_key(|free| std::cmp::Reverse(**free));
    let mut reserved = reserved;
    for free in emptiest.into_iter().flatten() {
        let taken = reserved.min(*free);
        *free -= taken;
        reserved -= taken;
    }
    cards
}

/// The card on which `need` bytes would go, in words. Never the sum of several.
///
/// What steps of ours held that have ended is free again, though the advert may not say so yet; where that makes the difference the node
/// is asked, which knows.
pub(super) fn check(need: u64, advert: &Advert, since: Duration, own: Unseen) -> Result<String, Out> {
    if advert.gpus.is_empty() {
        let why = &advert.circumstances.no_gpu;
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        return Err((FilterReason::NoGpu, format!("has no GPU{why}")));
    }
    let cards = left(advert, since, own.vram);
    let best = cards.iter().filter_map(|(place, gpu, free)| Some((*place, *gpu, (*free)?)));
    let best = best.max_by_key(|(place, _, free)| (*free, std::cmp::Reverse(*place)));
    let back = |(_, gpu, free): &(usize, &GpuAdvert, u64)| {
        free.saturating_add(own.vram_ended).min(gpu.vram_total) >= need
    };
    if let Some((place, gpu, free)) = best.filter(|card| card.2 >= need || back(card)) {
        let of = match reading_age(gpu, since) {
            _ if gpu.declared => "declared".to_owned(),
            age => format!("read {} s ago", age.unwrap_or_default().as_secs()),
        };
        let name = if gpu.name.is_empty() { "GPU" } else { &gpu.name };
        let soon = if free < need { ", and what a step that has ended held" } else { "" };
        let total = size(gpu.vram_total);
        return Ok(format!("GPU {place} ({name}, {} of {total} free{soon}, {of})", size(free)));
    }
    let unknown = cards.iter().filter(|(_, gpu, free)| free.is_none() && gpu.vram_total >= need);
    let ages: Vec<_> = unknown.map(|(_, gpu, _)| reading_age(gpu, since)).collect();
    match ages.iter().flatten().min() {
        Some(age) => Err((FilterReason::Stale, format!("read its GPU memory {} s ago", age.as_secs()))),
        None if !ages.is_empty() => {
            Err((FilterReason::Stale, "does not know how much of its GPU memory is free".into()))
        }
        None => {
            let free = best.map_or(0, |(_, _, free)| free);
            let detail = format!("has {} of GPU memory free on one card, needs {}", size(free), size(need));
            Err((FilterReason::Vram, detail))
        }
    }
}
