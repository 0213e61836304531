//! Two handshakes at once with somebody between them who has recorded everything, an earlier session included, and may lose, repeat,
//! swap and send back every message. All of his schedules are tried. The laws: two ends never disagree about their keys while both
//! believe to be done, nobody ends with somebody else's session, and an end that failed takes nothing any more.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use octomesh_protocol::{
    id::{MeshId, NodeId, NodeName},
    session::{
        self,
        handshake::{AwaitHello, HandshakeError, Initiator, Params, Split, StaticKey, TranscriptHash},
        secret::PreSharedKey,
    },
    trust::{
        CertificateChain, CertificateRequest, Grants, IdentityError, MeshRoot, NodeIdentity, Role, Side,
        VerifiedLinks, certificate::LIFETIME_S, identity_payload,
    },
};

mod support;
use support::{initiator_random, responder_random};

const NOW: u64 = 1_800_000_000;

/// What can go wrong at an end; either ends it.
#[derive(Debug)]
enum Failed {
    Handshake,
    Identity,
}

impl From<HandshakeError> for Failed {
    fn from(_: HandshakeError) -> Self {
        Self::Handshake
    }
}

impl From<IdentityError> for Failed {
    fn from(_: IdentityError) -> Self {
        Self::Identity
    }
}

struct Node {
    identity: NodeIdentity,
    chain: CertificateChain,
    params: Params,
}

struct Lab {
    mesh: MeshId,
    links: VerifiedLinks,
    dialler: Node,
    listener: Node,
}

impl Lab {
    fn new() -> Self {
        let root = MeshRoot::from_seed([1; 64]);
        let node = |seed: u8, name: &str| {
            let identity = NodeIdentity::from_seed([seed; 64]);
            let chain = root
                .issue(CertificateRequest {
                    keys: identity.public().clone(),
                    name: NodeName::parse(name).unwrap(),
                    role: Role::Worker,
                    grants: Grants::default(),
                    serial: u64::from(seed),
                    now: NOW,
                    lifetime_s: LIFETIME_S,
                })
                .unwrap();
            let params = Params::new(
                PreSharedKey::from_bytes([7; 32]),
                session::prologue(root.mesh_id()),
                StaticKey::from_secret([seed; 32]),
            );
            Node { identity, chain, params }
        };
        Self {
            mesh: root.mesh_id(),
            links: VerifiedLinks::new(),
            dialler: node(2, "tower"),
            listener: node(3, "pi"),
        }
    }

    fn payload(&self, side: Side, h: TranscriptHash) -> Result<Vec<u8>, Failed> {
        let node = if side == Side::Initiator { &self.dialler } else { &self.listener };
        Ok(identity_payload::build(&node.identity, &node.chain, side, h, NOW)?)
    }

    fn verified(&self, side: Side, payload: &[u8], h: TranscriptHash) -> Result<NodeId, Failed> {
        Ok(identity_payload::verify(payload, side, h, self.mesh, NOW, 300, &self.links)?.node)
    }
}

/// One end: its role, and the fill of its randomness, which tells the sessions apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct End {
    side: Part,
    fill: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Part {
    Dials,
    Listens,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Done {
    hash: TranscriptHash,
    send: [u8; 32],
    receive: [u8; 32],
    rekey: [u8; 32],
    peer: NodeId,
}

impl Done {
    fn new(split: &Split, peer: NodeId) -> Self {
        Self {
            hash: split.hash,
            send: *split.send.expose(),
            receive: *split.receive.expose(),
            rekey: *split.rekey_secret.expose(),
            peer,
        }
    }
}

/// Where an end is after some inputs, and what it said last.
#[derive(Clone, Debug)]
enum Outcome {
    Waits { said: Option<Vec<u8>> },
    Done { done: Done, said: Option<Vec<u8>> },
    Dead,
}

/// Runs one end from its beginning over `inputs`.
fn play(lab: &Lab, end: End, inputs: &[Vec<u8>]) -> Outcome {
    let result = match end.side {
        Part::Dials => dial(lab, end.fill, inputs),
        Part::Listens => listen(lab, end.fill, inputs),
    };
    result.unwrap_or(Outcome::Dead)
}

fn dial(lab: &Lab, fill: u8, inputs: &[Vec<u8>]) -> Result<Outcome, Failed> {
    let (state, first) = Initiator::start(&lab.dialler.params, initiator_random(fill))?;
    let [second] = inputs else { return Ok(Outcome::Waits { said: Some(first) }) };
    let (state, received) = state.read(second)?;
    let peer = lab.verified(Side::Responder, &received.payload, received.transcript)?;
    let (third, split) = state.write(|h| lab.payload(Side::Initiator, h))?;
    Ok(Outcome::Done { done: Done::new(&split, peer), said: Some(third) })
}

fn listen(lab: &Lab, fill: u8, inputs: &[Vec<u8>]) -> Result<Outcome, Failed> {
    let state = AwaitHello::new(&lab.listener.params);
    let [first, rest @ ..] = inputs else { return Ok(Outcome::Waits { said: None }) };
    let (second, state) =
        state.read(first)?.write(responder_random(fill), |h| lab.payload(Side::Responder, h))?;
    let [third] = rest else { return Ok(Outcome::Waits { said: Some(second) }) };
    let (received, split) = state.read(third)?;
    let peer = lab.verified(Side::Initiator, &received.payload, received.transcript)?;
    Ok(Outcome::Done { done: Done::new(&split, peer), said: None })
}

/// What each end was given so far, as numbers of messages in the pool of everything that was ever said.
type World = Vec<Vec<usize>>;

/// An end and what it was given.
type Played = (usize, Vec<usize>);

struct Explorer {
    lab: Lab,
    ends: Vec<End>,
    pool: Vec<Vec<u8>>,
    /// Outcomes, and the number of what was said last.
    played: HashMap<Played, (Rc<Outcome>, Option<usize>)>,
}

impl Explorer {
    fn number(&mut self, message: Vec<u8>) -> usize {
        self.pool.iter().position(|known| *known == message).unwrap_or_else(|| {
            self.pool.push(message);
            self.pool.len() - 1
        })
    }

    fn outcome(&mut self, end: usize, inputs: &[usize]) -> (Rc<Outcome>, Option<usize>) {
        let key = (end, inputs.to_vec());
        if let Some(outcome) = self.played.get(&key) {
            return outcome.clone();
        }
        let messages: Vec<Vec<u8>> = inputs.iter().map(|n| self.pool[*n].clone()).collect();
        let outcome = play(&self.lab, self.ends[end], &messages);
        let said = match &outcome {
            Outcome::Waits { said } | Outcome::Done { said, .. } => said.clone(),
            Outcome::Dead => None,
        };
        let said = said.map(|said| self.number(said));
        self.played.insert(key, (Rc::new(outcome), said));
        self.outcome(end, inputs)
    }

    /// Messages that the one between has in `world`: the recorded ones, and all that the ends said on their way.
    fn known(&mut self, recorded: &[usize], world: &World) -> Vec<usize> {
        let mut known = recorded.to_vec();
        for (end, inputs) in world.iter().enumerate() {
            for length in 0..=inputs.len() {
                known.extend(self.outcome(end, &inputs[..length]).1);
            }
        }
        known.sort_unstable();
        known.dedup();
        known
    }

    fn check(&mut self, world: &World) -> usize {
        let mut finished = Vec::new();
        for (end, inputs) in world.iter().enumerate() {
            if let Outcome::Done { done, .. } = &*self.outcome(end, inputs).0 {
                finished.push((self.ends[end].side, done.clone()));
            }
        }
        for (side, done) in &finished {
            let expected = match side {
                Part::Dials => self.lab.listener.identity.node_id(),
                Part::Listens => self.lab.dialler.identity.node_id(),
            };
            assert_eq!(done.peer, expected);
            assert_ne!(done.send, done.receive);
            // Whoever else is done either is the other end of this session, in everything, or has nothing in common with it.
            let mut partners = 0;
            for (other_side, other) in finished.iter().filter(|(_, other)| other != done) {
                if other.hash == done.hash {
                    assert_ne!(side, other_side);
                    assert_eq!(
                        (other.send, other.receive, other.rekey),
                        (done.receive, done.send, done.rekey)
                    );
                    partners += 1;
                } else {
                    let keys = [done.send, done.receive, done.rekey];
                    assert!(![other.send, other.receive, other.rekey].iter().any(|key| keys.contains(key)));
                }
            }
            assert!(partners <= 1);
            // The listener is done last: the dialler that it believes in is there.
            assert!(*side == Part::Dials || partners == 1, "a session with nobody");
        }
        finished.len()
    }
}

#[test]
fn every_schedule_of_loss_replay_reordering_and_reflection() {
    let lab = Lab::new();
    let ends: Vec<End> = [(Part::Dials, 10), (Part::Dials, 11), (Part::Listens, 20), (Part::Listens, 21)]
        .map(|(side, fill)| End { side, fill })
        .to_vec();
    let mut explorer = Explorer { lab, ends, pool: Vec::new(), played: HashMap::new() };

    // A whole session of the same two nodes with the same static keys, recorded earlier.
    let (old_dialler, old_listener) =
        (End { side: Part::Dials, fill: 30 }, End { side: Part::Listens, fill: 31 });
    let said = |outcome: Outcome| match outcome {
        Outcome::Waits { said: Some(said) } | Outcome::Done { said: Some(said), .. } => said,
        other => panic!("{other:?}"),
    };
    let first = said(play(&explorer.lab, old_dialler, &[]));
    let second = said(play(&explorer.lab, old_listener, std::slice::from_ref(&first)));
    let third = said(play(&explorer.lab, old_dialler, std::slice::from_ref(&second)));
    let recorded: Vec<usize> = [first, second, third].map(|message| explorer.number(message)).to_vec();

    let start: World = vec![Vec::new(); explorer.ends.len()];
    let (mut ahead, mut seen, mut both_done, mut deaths) = (vec![start], HashSet::new(), 0, 0);
    while let Some(world) = ahead.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        both_done += usize::from(explorer.check(&world) == 4);
        let known = explorer.known(&recorded, &world);
        for end in 0..world.len() {
            // Losing a message is not to deliver it; only who waits can be given one.
            let (outcome, _) = explorer.outcome(end, &world[end]);
            if !matches!(*outcome, Outcome::Waits { .. }) {
                deaths += usize::from(matches!(*outcome, Outcome::Dead));
                continue;
            }
            for message in &known {
                let mut next = world.clone();
                next[end].push(*message);
                ahead.push(next);
            }
        }
    }
    println!(
        "{} states, {both_done} with two sessions, {deaths} failed ends, {} runs of an end",
        seen.len(),
        explorer.played.len()
    );
    // Both sessions can come about, in either pairing, and most of what can be done to them ends them.
    assert!(both_done >= 2 && deaths > 1000 && seen.len() > 1000, "{both_done} {deaths} {}", seen.len());
}

/// Cut at every length, a byte too long, and every bit of the fields that are not ML-KEM's, a bit of every fifth byte
/// of those that are.
#[test]
fn every_truncation_and_bit_flip() {
    use support::{PAYLOAD_I, PAYLOAD_R, params};
    let say = |bytes: &'static [u8]| move |_: TranscriptHash| Ok::<_, HandshakeError>(bytes.to_vec());
    let (own, other) = (params(7, 1), params(7, 2));
    let dialler = || Initiator::start(&own, initiator_random(3)).unwrap();
    let first = dialler().1;
    let listener = || {
        let hello = AwaitHello::new(&other).read(&first).unwrap();
        hello.write(responder_random(4), say(PAYLOAD_R)).unwrap()
    };
    let second = listener().0;
    let third = dialler().0.read(&second).unwrap().0.write(say(PAYLOAD_I)).unwrap().0;
    type Message<'a> = (&'a [u8], std::ops::Range<usize>, &'a dyn Fn(&[u8]) -> bool);
    let refused: [Message<'_>; 3] = [
        (&first, 32..32 + 1184, &|message| AwaitHello::new(&other).read(message).is_err()),
        (&second, 32..32 + 1088, &|message| dialler().0.read(message).is_err()),
        (&third, 0..0, &|message| listener().1.read(message).is_err()),
    ];
    for (n, (message, ml_kem, refused)) in refused.into_iter().enumerate() {
        assert!(!refused(message));
        for length in 0..message.len() {
            assert!(refused(&message[..length]), "message {n} cut to {length}");
        }
        assert!(refused(&[message, &[0]].concat()), "message {n} and a byte");
        for at in 0..message.len() {
            let bits = match ml_kem.contains(&at) {
                true if at % 5 == 0 => at % 8..at % 8 + 1,
                true => 0..0,
                false => 0..8,
            };
            for bit in bits {
                let mut changed = message.to_vec();
                changed[at] ^= 1 << bit;
                assert!(refused(&changed), "message {n}, byte {at}, bit {bit}");
            }
        }
    }
}
