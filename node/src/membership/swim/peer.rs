//! What is remembered of one other member, beside what foca knows of it.
use foca::State;
use tokio::time::Instant;

use super::{config, identity::Identity};
use crate::membership::view::MemberState;

/// A member as foca has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) id: Identity,
    pub(super) refutations: u16,
    pub(super) state: State,
}

impl Known {
    /// Orders what a member said of itself.
    pub(super) const fn version(&self) -> ((u64, u32, bool), u16) {
        (self.id.version(), self.refutations)
    }
}

/// The last connection closed, and nobody has heard of the member since.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    pub(super) since: Instant,
    /// Its port refused a dial.
    pub(super) refused: bool,
    /// How many others were asked.
    pub(super) asked: usize,
    /// The mesh was asked to suspect it.
    pub(super) told: bool,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) known: Option<Known>,
    pub(super) connected: bool,
    /// It had a session with us in this run: only then it has a state that others are told of.
    pub(super) met: bool,
    pub(super) doubt: Option<Doubt>,
    /// Without a packet of its own it can't be declared down to others; it is down for us.
    pub(super) gone: bool,
    pub(super) suspect_since: Option<Instant>,
    /// Somebody said that it is down; it has until then to show that it is not.
    pub(super) verdict: Option<Instant>,
    pub(super) next_confront: Option<Instant>,
    pub(super) provisional_until: Option<Instant>,
    /// The newest packet that waits for a session.
    pub(super) held: Option<(Instant, Vec<u8>)>,
    pub(super) next_dial: Option<Instant>,
    /// Pages of the member list that it may ask for, and when that was last counted.
    pub(super) pages: (u32, Option<Instant>),
    pub(super) shown: MemberState,
}

impl Peer {
    pub(super) const fn new() -> Self {
        Self {
            known: None,
            connected: false,
            met: false,
            doubt: None,
            gone: false,
            suspect_since: None,
            verdict: None,
            next_confront: None,
            provisional_until: None,
            held: None,
            next_dial: None,
            pages: (config::PAGES, None),
            shown: MemberState::Down,
        }
    }

    /// What foca thinks of it; `None` when it knows nothing.
    pub(super) fn state(&self) -> Option<State> {
        self.known.map(|k| k.state)
    }

    /// Whether probes and news go to it.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.state(), Some(State::Alive | State::Suspect))
    }

    /// What it is to everybody else in this process.
    pub(super) fn liveness(&self, now: Instant) -> MemberState {
        if self.doubt.is_some() {
            return MemberState::Suspect;
        }
        let fresh = self.connected && self.provisional_until.is_some_and(|until| now < until);
        match self.known {
            None if self.connected && !self.gone => MemberState::Alive,
            None => MemberState::Down,
            Some(Known { state: State::Alive, .. }) => MemberState::Alive,
            Some(Known { state: State::Suspect, .. }) => MemberState::Suspect,
            // A new session proves more than an old tombstone.
            Some(Known { state: State::Down, .. }) if fresh => MemberState::Alive,
            Some(Known { id, .. }) if id.left => MemberState::Left,
            Some(_) => MemberState::Down,
        }
    }

    /// Whether the clock alone can change something about it.
    pub(super) fn needs_watching(&self) -> bool {
        self.doubt.is_some()
            || self.verdict.is_some()
            || self.provisional_until.is_some()
            || self.held.is_some()
            || self.state() == Some(State::Suspect)
    }

    /// Takes one page off what it may ask for; false when there is none left.
    pub(super) fn take_page(&mut self, now: Instant) -> bool {
        let (left, counted) = self.pages;
        let since = counted.map_or(0, |at| now.saturating_duration_since(at).as_secs());
        let more = u32::try_from(since).unwrap_or(u32::MAX).saturating_mul(config::PAGES_PER_SECOND);
        let left = left.saturating_add(more).min(config::PAGES);
        let counted = if since > 0 || counted.is_none() { Some(now) } else { counted };
        self.pages = (left.saturating_sub(1), counted);
        left > 0
    }
}
