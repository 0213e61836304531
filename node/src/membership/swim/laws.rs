//! What one node takes from another, and what not.
use std::{collections::BTreeMap, time::Duration};

use foca::{Header, Member, Message as Word, State};
use octomesh_protocol::{
    id::NodeId,
    limits,
    swim::{Liveness, MemberRecord, Message, Page},
};
use tokio::time::Instant;

use super::{
    codec::Packet,
    config,
    core::{At, Effect, Input, Swim},
    identity::Identity,
};
use crate::membership::view::MemberState::{self, Alive, Down, Left, Suspect};

const UNIX: u64 = 1_700_000_000;
const LIFE: u64 = UNIX - 1000;

fn id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn life(byte: u8, incarnation: u64) -> Identity {
    Identity::new(id(byte), incarnation)
}

/// One node under test; the others are played.
struct Table {
    swim: Swim,
    begin: Instant,
    now: Duration,
    asleep: Duration,
}

impl Table {
    fn new() -> Self {
        Self {
            swim: Swim::new(id(0), LIFE, [7; 32]),
            begin: Instant::now(),
            now: Duration::ZERO,
            asleep: Duration::ZERO,
        }
    }

    /// With sessions to these, who are alive.
    fn with(others: &[u8]) -> Self {
        let mut table = Self::new();
        for other in others {
            table.give(Input::Connected { node: id(*other) });
            table.says(life(*other, LIFE), Word::Gossip, &[]);
            assert_eq!(table.state(*other), Alive);
        }
        table
    }

    fn give(&mut self, input: Input) -> Vec<Effect> {
        let at = At {
            now: self.begin + self.now,
            boot: Some(self.now + self.asleep),
            unix: UNIX + self.now.as_secs(),
        };
        self.swim.handle(input, at)
    }

    /// Time passes in small steps.
    fn later(&mut self, ms: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..ms / 50 {
            self.now += Duration::from_millis(50);
            effects.extend(self.give(Input::Tick));
        }
        effects
    }

    fn packet(
        &mut self,
        from: u8,
        src: Identity,
        word: Word<Identity>,
        members: &[Member<Identity>],
    ) -> Vec<Effect> {
        let dst = *self.swim.foca.identity();
        let header = Header { src, src_incarnation: 0, dst, message: word };
        let bytes = Packet { header, members: members.to_vec() }.write().unwrap();
        self.give(Input::Message { from: id(from), message: Message::Packet(bytes) })
    }

    fn says(&mut self, who: Identity, word: Word<Identity>, members: &[Member<Identity>]) -> Vec<Effect> {
        let from = who.node.as_bytes()[0];
        self.packet(from, who, word, members)
    }

    fn tells(&mut self, from: u8, of: Identity, state: State) -> Vec<Effect> {
        self.says(life(from, LIFE), Word::Gossip, &[Member::new(of, 0, state)])
    }

    fn state(&self, of: u8) -> MemberState {
        self.swim.peers.get(&id(of)).map_or(Down, |p| p.shown)
    }
}

/// The packets that go to a node.
fn to(effects: &[Effect], node: u8) -> Vec<Packet> {
    let sent = effects.iter().filter_map(|e| match e {
        Effect::Send { to, message: Message::Packet(bytes) } if *to == id(node) => Packet::read(bytes).ok(),
        _ => None,
    });
    sent.collect()
}

fn refused(effects: &[Effect]) -> Option<&'static str> {
    effects.iter().find_map(|e| match e {
        Effect::Refused { why, .. } => Some(*why),
        _ => None,
    })
}

#[test]
fn nobody_speaks_for_somebody_else() {
    let mut table = Table::with(&[1, 2]);
    let effects = table.packet(1, life(2, LIFE + 5), Word::Gossip, &[]);
    assert_eq!(refused(&effects), Some("foreign_sender"));
    let effects = table.give(Input::Message { from: id(1), message: Message::Packet(vec![1, 2, 3]) });
    assert_eq!(refused(&effects), Some("short"));
}

#[test]
fn a_relayed_old_record_resurrects_nobody() {
    let mut table = Table::with(&[1, 2]);
    table.give(Input::Closed { node: id(2) });
    table.give(Input::DialFailed { node: id(2), refused: true });
    table.later(600);
    assert_eq!(table.state(2), Down);
    for old in [life(2, LIFE), life(2, LIFE - 1)] {
        table.tells(1, old, State::Alive);
        assert_eq!(table.state(2), Down);
    }
    // A later life of it is news.
    table.tells(1, life(2, LIFE + 1), State::Alive);
    assert_eq!(table.state(2), Alive);
}

#[test]
fn a_restarted_node_replaces_the_old_one_at_once() {
    let mut table = Table::with(&[1, 2]);
    table.give(Input::Closed { node: id(1) });
    assert_eq!(table.state(1), Suspect);
    table.give(Input::Connected { node: id(1) });
    assert_eq!(table.state(1), Alive);
    table.says(life(1, LIFE + 7), Word::Announce, &[]);
    // News of the old life are no news.
    table.tells(2, life(1, LIFE), State::Down);
    table.tells(2, life(1, LIFE).after_leaving(), State::Down);
    table.later(5_000);
    assert_ne!(table.state(1), Down);
    assert_ne!(table.state(1), Left);
}

#[test]
fn a_closed_session_is_suspect_at_once_and_asked_for() {
    let mut table = Table::with(&[1, 2, 3]);
    let effects = table.give(Input::Closed { node: id(1) });
    assert!(effects.contains(&Effect::State { node: id(1), to: Suspect }));
    assert!(effects.contains(&Effect::Dial { node: id(1) }));
    let asked = to(&effects, 2).into_iter().chain(to(&effects, 3));
    let asked =
        asked.filter(|p| matches!(p.header.message, Word::PingReq { target, .. } if target.node == id(1)));
    assert_eq!(asked.count(), 2);
    // Somebody hears it: it is alive, and nobody was told otherwise.
    table.says(life(2, LIFE), Word::ForwardedAck { origin: life(1, LIFE), probe_number: 0 }, &[]);
    assert_eq!(table.state(1), Alive);
    let effects = table.give(Input::DialFailed { node: id(1), refused: true });
    assert_eq!(effects, []);
    table.later(900);
    assert_eq!(table.state(1), Alive);
}

#[test]
fn a_port_that_refuses_confirms_and_a_silent_one_takes_longer() {
    let mut alone = Table::with(&[1]);
    alone.give(Input::Closed { node: id(1) });
    alone.give(Input::DialFailed { node: id(1), refused: true });
    assert_eq!(alone.state(1), Down, "there is nobody to ask");

    let mut table = Table::with(&[1, 2]);
    table.give(Input::Closed { node: id(1) });
    table.give(Input::DialFailed { node: id(1), refused: true });
    table.later(300);
    assert_eq!(table.state(1), Suspect, "the other may hear it");
    table.later(300);
    assert_eq!(table.state(1), Down);

    let mut table = Table::with(&[1, 2]);
    table.give(Input::Closed { node: id(1) });
    table.give(Input::DialFailed { node: id(1), refused: false });
    table.says(life(2, LIFE), Word::Gossip, &[]);
    table.later(1_500);
    assert_eq!(table.state(1), Suspect);
    table.later(5_000);
    assert_eq!(table.state(1), Down);
}

#[test]
fn whoever_is_connected_is_asked_before_others_are_believed() {
    let mut table = Table::with(&[1, 2]);
    table.tells(1, life(2, LIFE), State::Down);
    assert_eq!(table.state(2), Suspect);
    let asked = to(&table.later(100), 2);
    assert!(
        asked.iter().any(|p| matches!(p.header.message, Word::Ping(_))
            && p.members.iter().any(|m| m.id().node == id(2) && m.state() == State::Suspect)),
        "{asked:?}"
    );
    // It refutes.
    let header = Header {
        src: life(2, LIFE),
        src_incarnation: 1,
        dst: *table.swim.foca.identity(),
        message: Word::Ack(0),
    };
    let bytes = Packet { header, members: Vec::new() }.write().unwrap();
    table.give(Input::Message { from: id(2), message: Message::Packet(bytes) });
    assert_eq!(table.state(2), Alive);

    // It does not.
    let mut table = Table::with(&[1, 2]);
    table.tells(1, life(2, LIFE), State::Down);
    table.later(1_100);
    assert_eq!(table.state(2), Down);
    // Others do not say good-bye for it either.
    let mut table = Table::with(&[1, 2]);
    table.tells(1, life(2, LIFE).after_leaving(), State::Down);
    assert_eq!(table.state(2), Alive);
}

#[test]
fn a_good_bye_is_believed_of_the_node_itself() {
    let mut table = Table::with(&[1, 2]);
    let last_word = Member::new(life(2, LIFE).after_leaving(), 0, State::Down);
    table.says(life(2, LIFE), Word::Gossip, &[last_word]);
    assert_eq!(table.state(2), Left);
    table.give(Input::Closed { node: id(2) });
    table.tells(1, life(2, LIFE), State::Alive);
    assert_eq!(table.state(2), Left);
    table.give(Input::Connected { node: id(2) });
    table.says(life(2, LIFE + 1), Word::Announce, &[]);
    assert_eq!(table.state(2), Alive);
}

#[test]
fn leaving_is_said_to_everybody_who_is_connected() {
    let mut table = Table::with(&[1, 2]);
    let effects = table.give(Input::Leave);
    for other in [1, 2] {
        let said = to(&effects, other);
        assert!(
            said.iter().any(|p| p.members.iter().any(|m| m.id().left && m.id().node == id(0))),
            "{said:?}"
        );
    }
    assert_eq!(table.give(Input::Connected { node: id(3) }), [], "it is gone");
}

#[test]
fn what_was_forgotten_comes_back_by_its_own_session_only() {
    let mut table = Table::with(&[1, 2]);
    let effects = table.give(Input::Forget { node: id(2) });
    assert!(effects.contains(&Effect::State { node: id(2), to: Down }));
    for incarnation in [LIFE, LIFE + 1, LIFE + 100] {
        table.tells(1, life(2, incarnation), State::Alive);
        assert!(!table.swim.peers.contains_key(&id(2)));
    }
    let said = table.says(life(2, LIFE + 1), Word::Ping(1), &[]);
    assert_eq!(to(&said, 2), []);
    table.give(Input::Connected { node: id(2) });
    assert_eq!(table.state(2), Alive);
}

#[test]
fn a_made_up_future_is_not_believed() {
    let mut table = Table::with(&[1]);
    table.tells(1, life(9, UNIX + 2 * config::INCARNATION_AHEAD), State::Alive);
    assert!(!table.swim.peers.contains_key(&id(9)));
    let before = *table.swim.foca.identity();
    table.tells(1, life(0, u64::MAX), State::Alive);
    assert_eq!(*table.swim.foca.identity(), before);
}

#[test]
fn a_node_whose_disk_was_set_back_steps_ahead_of_its_own_past() {
    let mut table = Table::with(&[1, 2]);
    let past = Identity { bump: 4, ..life(0, LIFE + 50) };
    table.tells(1, past, State::Down);
    let now = *table.swim.foca.identity();
    assert!(now.version() > past.version(), "{now:?}");
    // It was declared down while it lived: the same.
    table.tells(1, now, State::Down);
    assert!(table.swim.foca.identity().version() > now.version());
    assert_eq!(table.state(2), Alive);
}

#[test]
fn rumours_have_a_bound_and_do_not_lock_members_out() {
    let mut table = Table::with(&[1]);
    let stranger = |n: u16| {
        let mut bytes = [0xee; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        Identity::new(NodeId::from_bytes(bytes), LIFE)
    };
    for n in 0..2_000u16 {
        table.tells(1, stranger(n), State::Alive);
    }
    assert_eq!(table.swim.peers.len(), config::MEMBERS);
    assert!(table.swim.foca.num_members() <= config::MEMBERS);
    table.give(Input::Connected { node: id(2) });
    table.says(life(2, LIFE), Word::Gossip, &[]);
    assert_eq!(table.state(2), Alive);
    assert_eq!(table.swim.peers.len(), config::MEMBERS);
    assert_eq!(table.state(1), Alive, "and nobody who was met made room for them");
}

#[test]
fn the_member_list_comes_in_pages_to_whoever_asks() {
    let mut table = Table::with(&[1]);
    let record = |n: u8| MemberRecord {
        node: id(n),
        incarnation: LIFE,
        bump: 0,
        left: false,
        refutations: 0,
        state: if n.is_multiple_of(2) { Liveness::Alive } else { Liveness::Down },
    };
    let page = |range: std::ops::Range<u8>, more| Page { members: range.map(record).collect(), more };
    let give =
        |t: &mut Table, from, page| t.give(Input::Message { from: id(from), message: Message::Page(page) });
    // The session with node 1 was the first: its list was asked for, and is once more when nothing comes.
    let asked =
        |effects: &[Effect]| effects.contains(&Effect::Send { to: id(1), message: Message::Ask(None) });
    assert!(!asked(&table.later(900)));
    assert!(asked(&table.later(200)));
    let effects = give(&mut table, 1, page(10..30, true));
    assert!(effects.contains(&Effect::Send { to: id(1), message: Message::Ask(Some(id(29))) }));
    let effects = give(&mut table, 1, page(30..40, false));
    assert!(
        !effects.iter().any(|e| matches!(e, Effect::Send { .. })),
        "the last page, and no word about strangers"
    );
    assert_eq!((table.state(10), table.state(11)), (Alive, Down));
    assert_eq!(give(&mut table, 1, page(50..60, false)), [], "nobody asked");
    assert!(!table.swim.peers.contains_key(&id(50)));

    // And what is known is given.
    let (mut after, mut got) = (None, Vec::new());
    loop {
        let effects = table.give(Input::Message { from: id(1), message: Message::Ask(after) });
        let [Effect::Send { message: Message::Page(page), .. }] = &effects[..] else { panic!("{effects:?}") };
        assert!(page.members.len() <= limits::SWIM_PAGE_MEMBERS);
        got.extend(page.members.iter().map(|m| m.node));
        after = got.last().copied();
        if !page.more {
            break;
        }
    }
    assert_eq!(got.len(), 31);
    assert!(got.is_sorted());
    let asks = (0..200).map(|_| table.give(Input::Message { from: id(1), message: Message::Ask(None) }));
    assert!(asks.collect::<Vec<_>>().iter().any(|e| refused(e) == Some("too_many_pages")));
}

#[test]
fn a_gap_in_time_is_our_own_pause_by_either_clock() {
    for asleep in [false, true] {
        let mut table = Table::with(&[1, 2, 3]);
        table.later(200);
        table.give(Input::Closed { node: id(1) });
        table.give(Input::DialFailed { node: id(1), refused: true });
        let gap = Duration::from_secs(30);
        if asleep {
            table.asleep += gap
        } else {
            table.now += gap
        }
        let effects = table.give(Input::Tick);
        assert!(matches!(effects[0], Effect::Paused { gap: seen } if seen >= gap), "{effects:?}");
        // The others are asked whether they still know us.
        let announced =
            [2, 3].iter().all(|n| to(&effects, *n).iter().any(|p| p.header.message == Word::Announce));
        assert!(announced, "{effects:?}");
        // Not even a port that refuses is believed at once.
        table.later(2_000);
        assert_eq!(table.state(1), Suspect);
        assert_eq!((table.state(2), table.state(3)), (Alive, Alive));
        table.later(2_000);
        assert_eq!(table.state(1), Down);
    }
}

#[test]
fn ordinary_delays_are_no_pause() {
    let mut table = Table::with(&[1]);
    for _ in 0..20 {
        table.now += Duration::from_millis(1_400);
        let effects = table.give(Input::Tick);
        assert!(!effects.iter().any(|e| matches!(e, Effect::Paused { .. })));
        table.says(life(1, LIFE), Word::Gossip, &[]);
    }
}

#[test]
fn who_is_not_connected_is_dialled_for_a_probe_that_waits_for_the_session() {
    let mut table = Table::with(&[1]);
    table.tells(1, life(2, LIFE), State::Alive);
    let mut effects = Vec::new();
    while !effects.contains(&Effect::Dial { node: id(2) }) {
        effects = table.later(50);
        table.says(life(1, LIFE), Word::Gossip, &[]);
        assert!(table.now < Duration::from_secs(10), "nobody was dialled");
    }
    let effects = table.give(Input::Connected { node: id(2) });
    let sent = to(&effects, 2);
    assert_eq!(sent.len(), 2, "a greeting, and what had to wait: {sent:?}");
    assert!(matches!(sent[0].header.message, Word::Ping(_)), "{sent:?}");
    assert!(matches!(sent[1].header.message, Word::Ping(_) | Word::PingReq { .. }), "{sent:?}");
}

#[test]
fn no_session_is_opened_for_news() {
    let mut table = Table::with(&[1]);
    for other in 10..60 {
        table.tells(1, life(other, LIFE), State::Alive);
    }
    let (mut told, mut dialled) = (0, 0);
    for _ in 0..20 {
        let effects = table.later(50);
        told += to(&effects, 1).iter().filter(|p| p.header.message == Word::Gossip).count();
        dialled += effects.iter().filter(|e| matches!(e, Effect::Dial { .. })).count();
    }
    assert!(told >= 4, "{told}");
    assert!(dialled <= 2, "{dialled}: one probe a second");
}

#[test]
fn a_suspicion_of_this_node_is_refuted() {
    let mut table = Table::with(&[1, 2]);
    let me = *table.swim.foca.identity();
    table.tells(1, me, State::Suspect);
    let effects = table.later(500);
    let mut said = to(&effects, 1).into_iter().chain(to(&effects, 2));
    // A packet of its own says that it lives; this one, that it heard of the suspicion.
    assert!(said.any(|p| p.header.src == me && p.header.src_incarnation == 1), "{effects:?}");
    // In what it writes itself, too.
    let effects = table.give(Input::Closed { node: id(2) });
    assert_eq!(to(&effects, 1)[0].header.src_incarnation, 1);
    assert_eq!(*table.swim.foca.identity(), me, "the same life");
}

#[test]
fn a_missed_answer_is_asked_for_through_others() {
    let mut table = Table::with(&[1, 2, 3]);
    let mut pinged = None;
    while pinged.is_none() {
        let effects = table.later(50);
        pinged = [1, 2, 3]
            .into_iter()
            .find(|n| to(&effects, *n).iter().any(|p| matches!(p.header.message, Word::Ping(_))));
        assert!(table.now < Duration::from_secs(5), "nobody was probed: {effects:?}");
    }
    let silent = pinged.unwrap();
    let effects = table.later(600);
    let others = [1, 2, 3].into_iter().filter(|n| *n != silent);
    let asked = |n: u8| {
        to(&effects, n).into_iter().find_map(|p| match p.header.message {
            Word::PingReq { target, probe_number } if target.node == id(silent) => Some(probe_number),
            _ => None,
        })
    };
    let asked: Vec<_> = others.filter_map(|n| Some((n, asked(n)?))).collect();
    assert_eq!(asked.len(), 2, "{effects:?}");
    let (helper, probe_number) = asked[0];
    table.says(life(helper, LIFE), Word::ForwardedAck { origin: life(silent, LIFE), probe_number }, &[]);
    table.later(600);
    assert_eq!(table.state(silent), Alive, "one of them hears it");
}

#[test]
fn a_silent_member_is_suspected_before_it_is_down() {
    let mut table = Table::with(&[1]);
    let mut since = BTreeMap::new();
    while table.state(1) != Down {
        table.later(50);
        since.entry(table.state(1)).or_insert(table.now);
        assert!(table.now < Duration::from_secs(20), "{since:?}");
    }
    let suspected = since[&Down] - since[&Suspect];
    assert!(suspected >= Duration::from_secs(4), "it had {suspected:?} to refute");
}
