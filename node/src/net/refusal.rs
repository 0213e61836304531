//! Why a connection did not come about, as a word and a sentence for people: libp2p wraps the cause several errors deep.
use std::error::Error;

use libp2p::{
    core::transport::TransportError,
    swarm::{ConnectionDenied, ConnectionError, DialError, ListenError},
};

use super::secure::{Cause, Crowded, Diagnosis, SecureError, diagnose};

mod record;

pub(crate) use record::{RefusalReport, Refusals};

/// The cause of a failed dial.
pub(super) fn of_dial(error: &DialError) -> Diagnosis {
    match error {
        DialError::LocalPeerId { .. } => Diagnosis::new(Cause::SelfDial, "that address is this node itself"),
        DialError::WrongPeerId { obtained, .. } => {
            Diagnosis::new(Cause::WrongPeer, format!("another node answers there: {obtained}"))
        }
        DialError::Transport(attempts) => attempts
            .iter()
            .map(|(_, e)| of_transport(e))
            .reduce(both)
            .unwrap_or_else(|| Diagnosis::new(Cause::Unreachable, "no address to dial")),
        // Also what is left when the only address is one that this node listens on.
        DialError::NoAddresses => Diagnosis::new(Cause::SelfDial, "no address but this node's own"),
        DialError::Denied { cause } => diagnose(cause, Cause::Denied),
        DialError::Aborted | DialError::DialPeerConditionFalse(_) => {
            Diagnosis::new(Cause::Denied, "given up")
        }
    }
}

/// Whether a machine answered that nobody listens at that port: the process that did is gone. The wrappers of libp2p pass on the
/// text of the system's error, not always the error.
pub(super) fn nobody_listens(error: &DialError) -> bool {
    let DialError::Transport(attempts) = error else { return false };
    let refused = rustix::io::Errno::CONNREFUSED.to_string();
    attempts.iter().any(|(_, error)| of_transport(error).message.contains(&refused))
}

/// Two addresses of one node failed: a refusal tells more than a dead address.
fn both(all: Diagnosis, next: Diagnosis) -> Diagnosis {
    let message = if all.message.contains(&next.message) {
        all.message.clone()
    } else {
        format!("{}; {}", all.message, next.message)
    };
    let first = all.cause.is_refusal() || !next.cause.is_refusal();
    Diagnosis { message, ..if first { all } else { next } }
}

/// The cause of a failed inbound connection; `None` when there is nothing to report, since a join was served on it,
/// or since it was one too many.
pub(super) fn of_inbound(error: &ListenError) -> Option<Diagnosis> {
    match error {
        ListenError::Transport(TransportError::Other(io)) => {
            Some(diagnose(io, Cause::Io)).filter(|found| found.cause != Cause::JoinServed)
        }
        // Refusing costs less than telling of it, which is what a flood wants.
        ListenError::Denied { cause } if is_crowded(cause) => None,
        ListenError::Denied { cause } => Some(diagnose(cause, Cause::Denied)),
        ListenError::LocalPeerId { .. } => Some(Diagnosis::new(Cause::SelfDial, "dialled itself")),
        other => Some(diagnose(other, Cause::Io)),
    }
}

/// Why a session ended, if the other side ended it because it does not want this node.
pub(super) fn of_end(error: &ConnectionError) -> Option<Diagnosis> {
    Some(diagnose(error, Cause::Io)).filter(|found| found.by_peer)
}

fn is_crowded(cause: &ConnectionDenied) -> bool {
    cause.source().is_some_and(|cause| cause.is::<Crowded>())
}

fn of_transport(error: &TransportError<std::io::Error>) -> Diagnosis {
    match error {
        TransportError::MultiaddrNotSupported(_) => {
            Diagnosis::new(Cause::Unreachable, "address of an unknown kind")
        }
        TransportError::Other(io) => diagnose(io, Cause::Unreachable),
    }
}

/// The same with what a peer offered before there was any security. One that named no protocol is no classical peer: it left. One that
/// goes on in its own protocol without waiting for the answer breaks the negotiation.
pub(super) fn with_offer(found: Diagnosis, offered: Option<&str>) -> Diagnosis {
    match (found.cause, offered) {
        (Cause::ClassicalOnly | Cause::NoNegotiation, Some(protocols)) => {
            let message = format!("it offered {protocols}; {}", SecureError::ClassicalOnly);
            Diagnosis::new(Cause::ClassicalOnly, message)
        }
        (Cause::ClassicalOnly, None) => {
            let message = SecureError::NoNegotiation("it left before it named a protocol".to_owned());
            Diagnosis::new(Cause::NoNegotiation, message.to_string())
        }
        _ => found,
    }
}

/// The innermost error, in its own words.
pub(super) fn root(io: &std::io::Error) -> String {
    diagnose(io, Cause::Io).message
}

/// The error of type `E` that is wrapped somewhere in `error`.
pub(super) fn find<E: Error + 'static>(error: &TransportError<std::io::Error>) -> Option<&E> {
    let TransportError::Other(io) = error else { return None };
    let mut next: Option<&(dyn Error + 'static)> = io.get_ref().map(|held| held as &(dyn Error + 'static));
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(held) => Some(held),
            None => error.source(),
        };
    }
    None
}

/// Text of a stranger for logs, documents and terminals: ASCII that shows, at most `most` characters.
pub(super) fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}
