//! What is free when reservations are counted.
//!
//! Of a card: its total, minus what others hold of it, minus everything that leases reserved. What others hold is what is used and not
//! accounted to a lease: by the driver, when it tells who uses the card, else by what was used before the first lease came. So memory that
//! a step reserved and has not taken yet is never given away a second time, however long it waits.
use std::time::Duration;

use tokio::time::Instant;

use super::Resources;
use crate::load::{
    CardState,
    gpu::{Card, CardId, CardUser},
};

/// A step needs this long to really take the main memory it reserved: until then a measurement may not show it.
const SETTLE: Duration = Duration::from_secs(30);

/// What one lease holds of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VramHold {
    pub(super) card: CardId,
    /// Bytes.
    pub(super) bytes: u64,
    /// What others held of the card when it was reserved, in bytes.
    pub(super) others: u64,
    /// The step as its processes have it in their environment.
    pub(super) call: String,
}

/// Memory that one lease holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) vram: Option<VramHold>,
    /// Bytes of main memory.
    pub(super) memory: u64,
    /// When it was reserved.
    pub(super) at: Instant,
    /// When its lease ended. It holds nothing since; a reading from before may show its memory still.
    pub(super) ended: Option<Instant>,
}

impl Held {
    /// Whether a measurement from `read` may not contain it.
    fn is_unseen(&self, read: Instant, now: Instant) -> bool {
        self.at > read || now.saturating_duration_since(self.at) < SETTLE
    }
}

/// A place on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Picked {
    pub(super) card: CardId,
    pub(super) others: u64,
}

/// Why no card has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// There is no card.
    NoCard,
    /// None that would be large enough could be read lately.
    Unknown,
    /// The best one has this many bytes.
    Free(u64),
}

impl NoRoom {
    /// For people; `need` in bytes.
    pub(super) fn sentence(&self, need: u64) -> String {
        match self {
            Self::NoCard => "this node has no GPU".to_owned(),
            Self::Unknown => {
                "nobody knows how much GPU memory is free: the driver does not answer".to_owned()
            }
            Self::Free(free) => format!("{free} bytes of GPU memory are free on one card, {need} are needed"),
        }
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// What of the memory in use belongs to the leases in `holds`, as far as that can be known.
fn accounted(card: &Card, used: u64, read: Instant, holds: &[(&VramHold, Instant)]) -> u64 {
    let reserved = |holds: &[(&VramHold, Instant)]| sum(holds.iter().map(|(h, _)| h.bytes));
    let bytes_of = |users: &[CardUser], whose: &dyn Fn(&CardUser) -> bool| {
        sum(users.iter().filter(|u| whose(u)).filter_map(|u| u.bytes))
    };
    match &card.users {
        Some(users) if users.iter().filter(|u| u.ours).all(|u| u.bytes.is_some()) => {
            // What a step takes over its reservation is not its own.
            let of_calls = sum(holds.iter().map(|(hold, _)| {
                bytes_of(users, &|u| u.ours && u.call.as_deref() == Some(&hold.call)).min(hold.bytes)
            }));
            // Ours, and nobody can say for which step: for those that were not seen with anything.
            let nameless = bytes_of(users, &|u| u.ours && u.call.is_none());
            let seen = |hold: &VramHold| users.iter().any(|u| u.call.as_deref() == Some(&hold.call));
            let unseen = sum(holds.iter().filter(|(hold, _)| !seen(hold)).map(|(hold, _)| hold.bytes));
            of_calls.saturating_add(nameless.min(unseen))
        }
        _ => {
            let before = holds.iter().max_by_key(|(_, at)| *at).map_or(used, |(hold, _)| hold.others);
            let known: Vec<_> = holds.iter().filter(|(_, at)| *at <= read).copied().collect();
            used.saturating_sub(before).min(reserved(&known))
        }
    }
}

/// What one more step could have of a card, and what others hold of it; `None` when nobody knows.
fn free_of<'a>(card: &Card, held: impl Iterator<Item = &'a Held>) -> Option<(u64, u64)> {
    let on_card = held.filter_map(|h| Some((h, h.vram.as_ref().filter(|v| v.card == card.id)?)));
    let all: Vec<(&Held, &VramHold)> = on_card.collect();
    let reserved = sum(all.iter().filter(|(h, _)| h.ended.is_none()).map(|(_, hold)| hold.bytes));
    let others = if card.is_declared() {
        0
    } else {
        let (free, read) = card.free?;
        let used = card.total.saturating_sub(free);
        // All that a step had is gone with it.
        let shown = all.iter().filter(|(h, _)| h.ended.is_none_or(|ended| ended > read));
        let holds: Vec<(&VramHold, Instant)> = shown.map(|(h, hold)| (*hold, h.at)).collect();
        used.saturating_sub(accounted(card, used, read, &holds))
    };
    Some((card.total.saturating_sub(others).saturating_sub(reserved), others))
}

/// The cards with what leases hold of them.
pub(super) fn cards<'a, I: Iterator<Item = &'a Held>>(
    resources: &Resources,
    held: impl Fn() -> I,
) -> Vec<CardState> {
    let state = |card: &Card| CardState {
        card: card.clone(),
        reserved: sum(held()
            .filter(|h| h.ended.is_none())
            .filter_map(|h| h.vram.as_ref())
            .filter(|v| v.card == card.id)
            .map(|v| v.bytes)),
        free: free_of(card, held()).map(|(free, _)| free),
    };
    resources.gpus.iter().map(state).collect()
}

/// The card with the most free memory that has `need` bytes. Never the sum of several.
pub(super) fn pick_gpu<'a, I: Iterator<Item = &'a Held>>(
    need: u64,
    resources: &Resources,
    held: impl Fn() -> I,
) -> Result<Picked, NoRoom> {
    if resources.gpus.is_empty() {
        return Err(NoRoom::NoCard);
    }
    let known = resources.gpus.iter().enumerate();
    let known = known.filter_map(|(place, card)| Some((place, card, free_of(card, held())?)));
    match known.max_by_key(|(place, _, (free, _))| (*free, std::cmp::Reverse(*place))) {
        Some((_, card, (free, others))) if free >= need => Ok(Picked { card: card.id.clone(), others }),
        best => {
            let could = |card: &&Card| card.total >= need && free_of(card, held()).is_none();
            match best {
                _ if resources.gpus.iter().any(|card| could(&card)) => Err(NoRoom::Unknown),
                Some((_, _, (free, _))) => Err(NoRoom::Free(free)),
                None => Err(NoRoom::Free(0)),
            }
        }
    }
}

/// Free main memory; `None` when it was never read.
pub(super) fn free_memory<'a>(
    resources: &Resources,
    held: impl Iterator<Item = &'a Held>,
    now: Instant,
) -> Option<u64> {
    let (free, read) = resources.memory_free?;
    let unseen = sum(held.filter(|h| h.is_unseen(read, now)).map(|h| h.memory));
    Some(free.saturating_sub(unseen))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::load::gpu::Vendor;

    const GIB: u64 = 1 << 30;

    pub(in crate::executor) fn card(id: &str, total: u64, free: Option<(u64, Instant)>) -> Card {
        Card {
            id: CardId::new(id),
            vendor: Vendor::Nvidia,
            index: 0,
            name: id.to_owned(),
            total,
            free,
            busy_percent: None,
            users: None,
        }
    }

    pub(in crate::executor) fn declared(id: &str, total: u64) -> Card {
        Card { vendor: Vendor::Declared, ..card(id, total, None) }
    }

    fn gpus(gpus: Vec<Card>) -> Resources {
        Resources { gpus, ..Resources::default() }
    }

    fn hold(card: &str, bytes: u64, others: u64, at: Instant) -> Held {
        let vram = VramHold { card: CardId::new(card), bytes, others, call: format!("call-{bytes}/s001") };
        Held { vram: Some(vram), memory: 0, at, ended: None }
    }

    fn pick(need: u64, resources: &Resources, held: &[Held]) -> Result<String, NoRoom> {
        pick_gpu(need, resources, || held.iter()).map(|p| p.card.to_string())
    }

    #[test]
    fn a_declared_card_counts_all_reservations() {
        let resources = gpus(vec![declared("a", 24 * GIB)]);
        let held = [hold("a", 20 * GIB, 0, Instant::now())];
        assert_eq!(pick(4 * GIB, &resources, &held), Ok("a".into()));
        assert_eq!(pick(8 * GIB, &resources, &held), Err(NoRoom::Free(4 * GIB)));
    }

    #[test]
    fn cards_are_kept_apart() {
        let now = Instant::now();
        let two = gpus(vec![
            card("small", 8 * GIB, Some((8 * GIB, now))),
            card("large", 24 * GIB, Some((24 * GIB, now))),
        ]);
        assert_eq!(pick(12 * GIB, &two, &[]), Ok("large".into()));
        let held = [hold("large", 12 * GIB, 0, now)];
        assert_eq!(pick(12 * GIB, &two, &held), Ok("large".into()));
        let held = [hold("large", 13 * GIB, 0, now)];
        assert_eq!(pick(12 * GIB, &two, &held), Err(NoRoom::Free(11 * GIB)), "the sum does not count");
        let held = [hold("gone", 13 * GIB, 0, now)];
        assert_eq!(pick(24 * GIB, &two, &held), Ok("large".into()), "that is another card's");
    }

    #[test]
    fn what_is_not_known_is_not_free() {
        let now = Instant::now();
        let one = |free| card("a", 24 * GIB, free);
        assert_eq!(pick(1, &gpus(vec![]), &[]), Err(NoRoom::NoCard));
        assert_eq!(pick(1, &gpus(vec![one(None)]), &[]), Err(NoRoom::Unknown));
        let small = card("b", 8 * GIB, Some((8 * GIB, now)));
        let both = gpus(vec![one(None), small]);
        assert_eq!(pick(2 * GIB, &both, &[]), Ok("b".into()));
        assert_eq!(pick(12 * GIB, &both, &[]), Err(NoRoom::Unknown));
        assert_eq!(pick(25 * GIB, &both, &[]), Err(NoRoom::Free(8 * GIB)), "too much for either");
    }

    #[test]
    fn without_the_driver_s_word_the_use_before_the_first_lease_is_the_others() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3600);
        // 4 GiB are the owner's; the lease holds 10 and has taken nothing of them.
        let untouched = gpus(vec![card("a", 24 * GIB, Some((20 * GIB, later)))]);
        let held = [hold("a", 10 * GIB, 4 * GIB, start)];
        assert_eq!(pick(11 * GIB, &untouched, &held), Err(NoRoom::Free(10 * GIB)));
        let taken = gpus(vec![card("a", 24 * GIB, Some((10 * GIB, later)))]);
        assert_eq!(pick(11 * GIB, &taken, &held), Err(NoRoom::Free(10 * GIB)), "not counted twice");
        let more = gpus(vec![card("a", 24 * GIB, Some((7 * GIB, later)))]);
        assert_eq!(pick(11 * GIB, &more, &held), Err(NoRoom::Free(7 * GIB)), "the owner took 3 more");
        let before = gpus(vec![card("a", 24 * GIB, Some((20 * GIB, start)))]);
        let newer = [hold("a", 10 * GIB, 4 * GIB, later)];
        assert_eq!(pick(11 * GIB, &before, &newer), Err(NoRoom::Free(10 * GIB)), "made after the reading");
    }

    #[test]
    fn with_the_driver_s_word_each_use_is_its_own() {
        let now = Instant::now();
        let user = |pid, bytes, call: Option<&str>, ours| CardUser {
            pid,
            bytes: Some(bytes),
            call: call.map(str::to_owned),
            ours,
        };
        let held = [hold("a", 10 * GIB, 0, now)];
        let key = format!("call-{}/s001", 10 * GIB);
        let free = |free: u64, users| {
            let card = Card { users: Some(users), ..card("a", 24 * GIB, Some((free, now))) };
            free_of(&card, held.iter())
        };
        let own = |bytes| user(1, bytes, Some(&key), true);
        assert_eq!(free(20 * GIB, vec![own(4 * GIB)]), Some((14 * GIB, 0)));
        assert_eq!(
            free(17 * GIB, vec![own(4 * GIB), user(2, 3 * GIB, None, false)]),
            Some((11 * GIB, 3 * GIB))
        );
        assert_eq!(free(12 * GIB, vec![own(12 * GIB)]), Some((12 * GIB, 2 * GIB)), "more than it reserved");
        let pretender = user(3, 10 * GIB, Some(&key), false);
        assert_eq!(free(14 * GIB, vec![pretender]), Some((4 * GIB, 10 * GIB)));
        assert_eq!(free(14 * GIB, vec![user(4, 10 * GIB, None, true)]), Some((14 * GIB, 0)), "ours, no name");
        let other_step = user(5, 6 * GIB, Some("call-1/s001"), true);
        assert_eq!(free(18 * GIB, vec![other_step]), Some((8 * GIB, 6 * GIB)), "a step that has ended");
    }

    #[test]
    fn what_a_step_held_is_free_when_it_ends_not_at_the_next_reading() {
        let read = Instant::now();
        let full = card("a", 24 * GIB, Some((2 * GIB, read)));
        let gone = |after_ms: u64| Held {
            ended: Some(read + Duration::from_millis(after_ms)),
            ..hold("a", 20 * GIB, 2 * GIB, read - Duration::from_secs(60))
        };
        assert_eq!(free_of(&full, [gone(1)].iter()), Some((22 * GIB, 2 * GIB)));
        assert_eq!(
            free_of(&full, [gone(0)].iter()),
            Some((2 * GIB, 22 * GIB)),
            "read after its end: somebody else"
        );
        let call = format!("call-{}/s001", 20 * GIB);
        let user = CardUser { pid: 1, bytes: Some(20 * GIB), call: Some(call), ours: true };
        let told = Card { users: Some(vec![user]), ..full };
        assert_eq!(free_of(&told, [gone(1)].iter()), Some((22 * GIB, 2 * GIB)));
        assert_eq!(free_of(&told, [gone(0)].iter()), Some((2 * GIB, 22 * GIB)));
    }

    #[test]
    fn the_emptiest_card_is_taken() {
        let now = Instant::now();
        let one = |id, free| card(id, 24 * GIB, Some((free, now)));
        let resources = gpus(vec![one("a", 4 * GIB), one("b", 9 * GIB), card("c", 24 * GIB, None)]);
        assert_eq!(pick(2 * GIB, &resources, &[]), Ok("b".into()));
        let states = cards(&resources, || [].iter());
        assert_eq!(states.iter().map(|s| s.free).collect::<Vec<_>>(), [Some(4 * GIB), Some(9 * GIB), None]);
    }

    #[test]
    fn memory() {
        let now = Instant::now();
        let resources = Resources { memory_free: Some((8 * GIB, now)), ..Resources::default() };
        let held = [Held { vram: None, memory: 3 * GIB, at: now, ended: None }];
        assert_eq!(free_memory(&resources, held.iter(), now), Some(5 * GIB));
        assert_eq!(free_memory(&Resources::default(), held.iter(), now), None);
    }
}
