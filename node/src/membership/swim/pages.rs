//! The member list, in pages: whoever joins fetches it from the first members that it meets, so that it does not wait for gossip.
//! The next page is asked for when one has come, so that nothing piles up in a queue of eight.
use std::{collections::BTreeSet, ops::Bound};

use foca::{Member, State};
use octomesh_protocol::{
    id::NodeId,
    limits,
    swim::{Liveness, MemberRecord, Message, Page},
};
use tokio::time::Instant;

use super::{
    config,
    core::{At, Effect, Swim},
    identity::Identity,
    peer::Known,
};

/// A list that is being fetched.
#[derive(Debug)]
pub(super) struct Pull {
    from: NodeId,
    after: Option<NodeId>,
    asked_at: Instant,
    /// How often this page was asked for.
    tries: u8,
    /// Pages that came.
    came: u32,
}

fn record(id: &Identity, refutations: u16, state: State) -> MemberRecord {
    let state = match state {
        State::Alive => Liveness::Alive,
        State::Suspect => Liveness::Suspect,
        State::Down => Liveness::Down,
    };
    MemberRecord {
        node: id.node,
        incarnation: id.incarnation,
        bump: id.bump,
        left: id.left,
        refutations,
        state,
    }
}

fn member(record: &MemberRecord) -> Member<Identity> {
    let id =
        Identity { node: record.node, incarnation: record.incarnation, bump: record.bump, left: record.left };
    let state = match record.state {
        Liveness::Alive => State::Alive,
        Liveness::Suspect => State::Suspect,
        Liveness::Down => State::Down,
    };
    Member::new(id, record.refutations, state)
}

impl Swim {
    /// Begins to fetch the list of a random peer when it is time.
    pub(super) fn pull_when_due(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if let Some(pull) = &mut self.pull {
            if now < pull.asked_at + config::PULL_TIMEOUT {
                return;
            }
            // A page was lost, or the other side is gone.
            let connected = self.peers.get(&pull.from).is_some_and(|p| p.connected);
            if connected && pull.tries < config::PAGE_TRIES {
                (pull.asked_at, pull.tries) = (now, pull.tries + 1);
                let (to, after) = (pull.from, pull.after);
                return effects.push(Effect::Send { to, message: Message::Ask(after) });
            }
            self.pull = None;
        }
        if self.next_pull.is_none_or(|at| now < at) {
            return;
        }
        // The first is asked while nothing is known of it yet.
        let any = || self.peers.iter().find(|(_, p)| p.connected).map(|(n, _)| *n);
        let first = any();
        let Some(from) = self.some_connected(1, None).pop().or(first) else { return };
        self.pulls += 1;
        self.next_pull = Some(now + config::PULLS.get(self.pulls).copied().unwrap_or(config::PULL_EVERY));
        self.pull = Some(Pull { from, after: None, asked_at: now, tries: 1, came: 0 });
        effects.push(Effect::Send { to: from, message: Message::Ask(None) });
    }

    /// Answers with a page.
    pub(super) fn asked(
        &mut self,
        from: NodeId,
        after: Option<NodeId>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.peers.get_mut(&from).filter(|p| p.connected) else { return };
        if !peer.take_page(now) {
            return effects.push(Effect::Refused { from, why: "too_many_pages" });
        }
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut members = Vec::new();
        let mut more = false;
        for known in self.peers.range((begin, Bound::Unbounded)).filter_map(|(_, p)| p.known) {
            if members.len() == limits::SWIM_PAGE_MEMBERS {
                more = true;
                break;
            }
            members.push(record(&known.id, known.refutations, known.state));
        }
        effects.push(Effect::Send { to: from, message: Message::Page(Page { members, more }) });
    }

    /// Takes a page that was asked for.
    pub(super) fn page(&mut self, from: NodeId, page: &Page, at: At, effects: &mut Vec<Effect>) {
        // Not asked for, or not any more: it may be late.
        let Some(pull) = self.pull.as_ref().filter(|p| p.from == from) else { return };
        // A second answer to a question that was repeated. A list goes forward, or it would never end.
        if page.members.iter().any(|m| pull.after.is_some_and(|after| m.node <= after)) {
            return;
        }
        let came = pull.came + 1;
        let (mut strangers, mut news) = (Vec::new(), Vec::new());
        let mut about = BTreeSet::new();
        for told in page.members.iter().map(member) {
            let known = self.peers.get(&told.id().node).and_then(|p| p.known);
            let is = Known { id: *told.id(), refutations: told.incarnation(), state: told.state() };
            // Most of a second list is no news.
            if known == Some(is) {
                continue;
            }
            let known = known.is_some();
            let Some(vetted) = self.vet(from, &told, at, effects) else { continue };
            about.insert(vetted.id().node);
            if known { news.push(vetted) } else { strangers.push(vetted) }
        }
        self.run(at.now, effects, about, |foca, wants| {
            // The others know the strangers; to tell each of them again would cost the joining node dearly.
            foca.apply_many(strangers.into_iter(), false, &mut *wants)?;
            foca.apply_many(news.into_iter(), true, wants)
        });
        let last = page.members.last().filter(|_| page.more && came < config::PAGES).map(|m| m.node);
        match last {
            Some(last) => {
                self.pull = Some(Pull { from, after: Some(last), asked_at: at.now, tries: 1, came });
                effects.push(Effect::Send { to: from, message: Message::Ask(Some(last)) });
            }
            None => self.pull = None,
        }
    }
}
