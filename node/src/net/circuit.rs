//! Circuits: the way between two members of which neither can dial the other, through a third one that has sessions with both. A circuit
//! carries a session of the two like a cable would; the one in between sees its records and nothing else.
//!
//! The protocols are libp2p's circuit relay v2, and run inside of sessions: whoever reserves a place or asks for a circuit is a member,
//! and so is the one who is asked for.
use std::{num::NonZeroU32, time::Duration};

use libp2p::{Multiaddr, PeerId, multiaddr::Protocol, relay};

/// Members that wait for circuits here: as many as have sessions, in the largest full mesh and twice over.
const RESERVATIONS: usize = 128;
/// Of one member: one for each of its connections.
const RESERVATIONS_PER_MEMBER: usize = 4;
/// A place lasts as long as the session over which it was reserved. Renewing it would only be a race with its end.
const RESERVED_FOR: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Circuits through this node at once: each costs it two streams, and 16 KiB while it copies.
const CIRCUITS: usize = 512;
/// Those that begin or end at one member: one to each other node of a full mesh. A single one can't take all.
const CIRCUITS_PER_MEMBER: usize = 64;
/// A circuit ends then, and its two ends make another one within a second: nobody is a relay for ever because of one question.
const CIRCUIT_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Bytes each way of one circuit, for the same reason: a day of a slow home connection.
const CIRCUIT_BYTES: u64 = 64 * 1024 * 1024 * 1024;
/// Circuits that one member may ask for at once, and how fast it may ask again: as many as it can have, then one a second.
const ASKED_AT_ONCE: NonZeroU32 = NonZeroU32::new(64).unwrap();
const ASKED_EACH: Duration = Duration::from_secs(1);

/// The part of a node that carries circuits of others. Switched off, it offers nothing.
pub(super) fn carrier(local: PeerId, on: bool) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: RESERVATIONS,
        max_reservations_per_peer: RESERVATIONS_PER_MEMBER,
        reservation_duration: RESERVED_FOR,
        reservation_rate_limiters: Vec::new(),
        max_circuits: CIRCUITS,
        max_circuits_per_peer: CIRCUITS_PER_MEMBER,
        max_circuit_duration: CIRCUIT_LASTS,
        max_circuit_bytes: CIRCUIT_BYTES,
        circuit_src_rate_limiters: Vec::new(),
    }
    .reservation_rate_per_peer(ASKED_AT_ONCE, ASKED_EACH)
    .circuit_src_per_peer(ASKED_AT_ONCE, ASKED_EACH);
    let mut carrier = relay::Behaviour::new(local, config);
    carrier.set_status(Some(if on { relay::Status::Enable } else { relay::Status::Disable }));
    carrier
}

/// What the carrier tells those who reserve: the protocol wants an address of it, and they have a session with it already.
pub(super) fn told_address(local: PeerId) -> Multiaddr {
    Protocol::P2p(local).into()
}

/// The address of `to` over the relay with a session to `at`; without `to`, the one that this node waits at.
pub(super) fn address(at: &Multiaddr, relay: PeerId, to: Option<PeerId>) -> Multiaddr {
    let over = before(at).with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
    match to {
        Some(to) => over.with(Protocol::P2p(to)),
        None => over,
    }
}

/// Whether a connection to or from `address` is a circuit.
pub(super) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Where the relay itself is, without saying who it is.
pub(super) fn before(address: &Multiaddr) -> Multiaddr {
    let circuit = |part: &Protocol<'_>| *part == Protocol::P2pCircuit;
    address.iter().take_while(|p| !circuit(p)).filter(|p| !matches!(p, Protocol::P2p(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_circuits() {
        let (relay, to) = (PeerId::random(), PeerId::random());
        let plain: Multiaddr = "/ip4/192.0.2.1/tcp/9400".parse().unwrap();
        let dialled = plain.clone().with(Protocol::P2p(relay));
        for at in [&plain, &dialled] {
            let over = address(at, relay, Some(to));
            assert_eq!(over.to_string(), format!("/ip4/192.0.2.1/tcp/9400/p2p/{relay}/p2p-circuit/p2p/{to}"));
            assert!(is_circuit(&over) && !is_circuit(at));
            assert_eq!(before(&over), plain);
            assert!(is_circuit(&address(at, relay, None)));
        }
    }
}
