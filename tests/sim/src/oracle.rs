//! What must hold, judged by what the simulation knows to be true. Nothing here looks at how the nodes came to their views.
use std::{collections::BTreeMap, fmt, time::Duration};

use octomesh::membership::{MemberState, MeshView};
use tokio::time::Instant;

/// Whoever does not run is no member that answers, in nobody's view, after this long. SWIM on a mesh of twenty suspects after a second or
/// two and gives 4 s to refute; a machine that vanished without closing its connections has pings of 2 s and 5 s besides.
pub(crate) const DEATH_SEEN: Duration = Duration::from_secs(25);
/// Two nodes that can reach each other, and could all this time, do not take each other for dead. Shorter than that, news of what was
/// before may still go round.
pub(crate) const CALM: Duration = Duration::from_secs(30);
/// All views are the truth this long after the last fault: a dial is tried again after 30 s at the latest, and the lists are compared
/// every 30 s.
pub(crate) const SETTLED: Duration = Duration::from_secs(90);

/// What is true of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It runs since then, in this life.
    Runs { since: Instant, incarnation: u64 },
    /// It was killed, or lost its power.
    Killed { at: Instant },
    /// It was stopped in order.
    Stopped { at: Instant },
    /// It left the mesh for good.
    Left { at: Instant },
    /// It was thrown out; whether it runs does not matter.
    Revoked { at: Instant },
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs { incarnation, .. } => write!(f, "it runs, life {incarnation}"),
            Self::Killed { .. } => f.write_str("it was killed"),
            Self::Stopped { .. } => f.write_str("it was stopped"),
            Self::Left { .. } => f.write_str("it left"),
            Self::Revoked { .. } => f.write_str("it was revoked"),
        }
    }
}

impl Fate {
    pub(crate) fn runs(self) -> bool {
        matches!(self, Self::Runs { .. })
    }

    /// Since when it is no member that answers.
    fn ended(self) -> Option<Instant> {
        match self {
            Self::Runs { .. } => None,
            Self::Killed { at } | Self::Stopped { at } | Self::Left { at } | Self::Revoked { at } => Some(at),
        }
    }
}

/// What a node sees of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: MemberState,
    pub(crate) connected: bool,
    pub(crate) tools: usize,
    pub(crate) complete: bool,
    /// The life that its newest advert is of.
    pub(crate) incarnation: Option<u64>,
}

/// A view by the numbers of members; the viewer itself is left out. What is no node of this simulation has the number 0.
pub(crate) fn seen(view: &MeshView) -> BTreeMap<u64, Seen> {
    let others = view.members.values().filter(|member| !view.is_me(member.node));
    others
        .map(|member| {
            let number = member.name.as_str().strip_prefix('n').and_then(|number| number.parse().ok());
            let seen = Seen {
                state: member.state,
                connected: member.connected,
                tools: member.tools.len(),
                complete: member.tools_complete,
                incarnation: member.advert.as_ref().map(|advert| advert.incarnation),
            };
            (number.unwrap_or(0), seen)
        })
        .collect()
}

/// The truth at a moment.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) fates: BTreeMap<u64, Fate>,
    /// Since when two running nodes can reach each other both ways, smaller number first.
    pub(crate) reach: BTreeMap<(u64, u64), Instant>,
}

impl Truth {
    pub(crate) fn reach_since(&self, a: u64, b: u64) -> Option<Instant> {
        self.reach.get(&(a.min(b), a.max(b))).copied()
    }

    /// What must hold at every moment of what `viewer` sees.
    pub(crate) fn at_any_time(
        &self,
        viewer: u64,
        view: &BTreeMap<u64, Seen>,
        now: Instant,
    ) -> Result<(), String> {
        let Some(Fate::Runs { since, .. }) = self.fates.get(&viewer) else { return Ok(()) };
        for (other, seen) in view {
            let Some(fate) = self.fates.get(other) else {
                return Err(format!("a ghost: n{viewer} sees n{other}, which never ran"));
            };
            let ended = fate.ended().filter(|at| now > (*at).max(*since) + DEATH_SEEN);
            if let (Some(at), true) = (ended, seen.state.is_present()) {
                let ago = (now - at).as_secs();
                return Err(format!(
                    "n{viewer} sees n{other} as {} {ago} s after its end: {fate}",
                    seen.state
                ));
            }
            let calm = self.reach_since(viewer, *other).filter(|since| now > *since + SETTLED);
            if calm.is_some() && seen.state != MemberState::Alive {
                // A suspicion that a lost probe raised is refuted within seconds; `changed` judges what becomes of it.
                if seen.state != MemberState::Suspect {
                    return Err(format!(
                        "n{viewer} sees n{other} as {}, and could reach it all the time",
                        seen.state
                    ));
                }
            }
        }
        Ok(())
    }

    /// What must hold of a change: `viewer` sees `other` in another state. `was_gone`: it had seen its end in this life of its.
    pub(crate) fn changed(
        &self,
        viewer: u64,
        other: u64,
        to: MemberState,
        was_gone: bool,
        now: Instant,
    ) -> Result<(), String> {
        let Some(fate) = self.fates.get(&other) else {
            return Err(format!("a ghost: n{viewer} sees n{other}, which never ran"));
        };
        if to == MemberState::Alive && was_gone && !fate.runs() {
            return Err(format!("resurrected: n{viewer} sees n{other} as alive again, but {fate}"));
        }
        let calm = self.reach_since(viewer, other).filter(|since| now > *since + CALM);
        if !to.is_present() && calm.is_some() {
            return Err(format!(
                "a false death: n{viewer} sees n{other} as {to}, and could reach it all the time"
            ));
        }
        Ok(())
    }

    /// What is not yet as it must be when all has settled; empty when the view is the truth.
    pub(crate) fn differences(&self, viewer: u64, view: &BTreeMap<u64, Seen>, tools: usize) -> Vec<String> {
        let mut differences = Vec::new();
        for (other, fate) in self.fates.iter().filter(|(other, _)| **other != viewer) {
            let seen = view.get(other);
            let right = match (fate, seen) {
                (Fate::Runs { incarnation, .. }, Some(seen)) => {
                    seen.state == MemberState::Alive
                        && seen.connected
                        && seen.complete
                        && seen.tools == tools
                        && seen.incarnation == Some(*incarnation)
                }
                (Fate::Runs { .. }, None) => false,
                (Fate::Killed { .. }, Some(seen)) => seen.state == MemberState::Down && !seen.connected,
                (Fate::Stopped { .. }, Some(seen)) => {
                    matches!(seen.state, MemberState::Left | MemberState::Down) && !seen.connected
                }
                (Fate::Left { .. } | Fate::Revoked { .. }, Some(seen)) => {
                    !seen.state.is_present() && !seen.connected && seen.tools == 0
                }
                // Whoever came later need not know of it.
                (_, None) => true,
            };
            if !right {
                differences.push(format!("n{viewer} sees n{other} as {seen:?}, but {fate}"));
            }
        }
        differences
    }
}

/// Membership messages of the whole run, over all lives of all nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Messages {
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Counted as dropped by the nodes.
    pub(crate) dropped: u64,
    /// Writes that the network lost, with the connections that broke.
    pub(crate) lost: u64,
}

impl Messages {
    /// Nothing is on its way. Whatever was written and not read was counted by a node, or lost with a connection.
    pub(crate) fn all_accounted_for(self) -> Result<(), String> {
        let missing = self.written.saturating_sub(self.read);
        if self.read > self.written || missing > self.dropped + self.lost {
            return Err(format!("messages are missing without a count: {self:?}"));
        }
        Ok(())
    }

    /// Since `before` there was no fault: everything arrived.
    pub(crate) fn all_arrived_since(self, before: Self) -> Result<(), String> {
        let (written, read) = (self.written - before.written, self.read - before.read);
        if written != read || self.dropped != before.dropped || written == 0 {
            return Err(format!("without a fault not every message arrives: {before:?}, later {self:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(100);

    fn alive(incarnation: u64) -> Seen {
        Seen {
            state: MemberState::Alive,
            connected: true,
            tools: 11,
            complete: true,
            incarnation: Some(incarnation),
        }
    }

    fn truth(begin: Instant, second: Fate) -> Truth {
        let mut truth = Truth::default();
        truth.fates.insert(1, Fate::Runs { since: begin, incarnation: 1 });
        truth.fates.insert(2, second);
        truth
    }

    #[test]
    fn a_right_view_is_right() {
        let begin = Instant::now();
        let mut truth = truth(begin, Fate::Runs { since: begin, incarnation: 7 });
        truth.reach.insert((1, 2), begin);
        let view = BTreeMap::from([(2, alive(7))]);
        assert_eq!(truth.at_any_time(1, &view, begin + LATER), Ok(()));
        assert!(truth.differences(1, &view, 11).is_empty());
        assert_eq!(truth.changed(1, 2, MemberState::Suspect, false, begin + LATER), Ok(()));
    }

    #[test]
    fn whoever_is_dead_is_not_seen_alive_for_long() {
        let begin = Instant::now();
        for fate in [
            Fate::Killed { at: begin },
            Fate::Stopped { at: begin },
            Fate::Left { at: begin },
            Fate::Revoked { at: begin },
        ] {
            let truth = truth(begin, fate);
            let view = BTreeMap::from([(2, alive(7))]);
            assert!(truth.at_any_time(1, &view, begin + LATER).is_err(), "{fate:?}");
            assert_eq!(truth.at_any_time(1, &view, begin + Duration::from_secs(1)), Ok(()));
            assert_eq!(truth.differences(1, &view, 11).len(), 1);
            assert!(truth.changed(1, 2, MemberState::Alive, true, begin).is_err());
        }
    }

    #[test]
    fn ghosts_false_deaths_and_old_lives_are_found() {
        let begin = Instant::now();
        let mut truth = truth(begin, Fate::Runs { since: begin, incarnation: 7 });
        truth.reach.insert((1, 2), begin);
        assert!(truth.at_any_time(1, &BTreeMap::from([(3, alive(1))]), begin).is_err());
        assert!(truth.changed(1, 2, MemberState::Down, false, begin + LATER).is_err());
        let down = Seen { state: MemberState::Down, ..alive(7) };
        assert!(truth.at_any_time(1, &BTreeMap::from([(2, down)]), begin + LATER).is_err());
        for wrong in
            [alive(6), down, Seen { complete: false, ..alive(7) }, Seen { connected: false, ..alive(7) }]
        {
            assert_eq!(truth.differences(1, &BTreeMap::from([(2, wrong)]), 11).len(), 1, "{wrong:?}");
        }
        assert_eq!(truth.differences(1, &BTreeMap::new(), 11).len(), 1);
    }

    #[test]
    fn a_message_that_nobody_counted_is_missed() {
        let before = Messages { written: 10, read: 8, dropped: 1, lost: 1 };
        assert_eq!(before.all_accounted_for(), Ok(()));
        assert!(Messages { lost: 0, ..before }.all_accounted_for().is_err());
        assert!(Messages { read: 11, ..before }.all_accounted_for().is_err());
        let after = Messages { written: 20, read: 18, ..before };
        assert_eq!(after.all_arrived_since(before), Ok(()));
        assert!(Messages { read: 17, ..after }.all_arrived_since(before).is_err());
        assert!(Messages { dropped: 2, ..after }.all_arrived_since(before).is_err());
    }
}
