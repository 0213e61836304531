//! Why a connection did not come about, as a sentence for people: libp2p wraps the cause several errors deep.
use std::error::Error;

use libp2p::{
    core::transport::TransportError,
    swarm::{ConnectionDenied, DialError, ListenError},
};

use super::secure::{self, Crowded, SecureError};

/// The cause of a failed dial.
pub(super) fn of_dial(error: &DialError) -> String {
    match error {
        DialError::LocalPeerId { .. } => "that address is this node itself".to_owned(),
        DialError::WrongPeerId { obtained, .. } => format!("another node answers there: {obtained}"),
        DialError::Transport(attempts) => attempts
            .iter()
            .map(|(_, e)| of_transport(e))
            .reduce(|all, next| if all.contains(&next) { all } else { format!("{all}; {next}") })
            .unwrap_or_else(|| "no address to dial".to_owned()),
        // Also what is left when the only address is one that this node listens on.
        DialError::NoAddresses => "no address but this node's own".to_owned(),
        DialError::Denied { cause } => secure::explain(cause),
        DialError::Aborted | DialError::DialPeerConditionFalse(_) => "given up".to_owned(),
    }
}

/// The cause of a failed inbound connection; `None` when there is nothing to report, since a join was served on it,
/// or since it was one too many.
pub(super) fn of_inbound(error: &ListenError) -> Option<String> {
    match error {
        ListenError::Transport(TransportError::Other(io)) => (!served_join(io)).then(|| secure::explain(io)),
        // Refusing costs less than telling of it, which is what a flood wants.
        ListenError::Denied { cause } if is_crowded(cause) => None,
        ListenError::Denied { cause } => Some(secure::explain(cause)),
        ListenError::LocalPeerId { .. } => Some("dialled itself".to_owned()),
        other => Some(secure::explain(other)),
    }
}

fn is_crowded(cause: &ConnectionDenied) -> bool {
    cause.source().is_some_and(|cause| cause.is::<Crowded>())
}

fn of_transport(error: &TransportError<std::io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => "address of an unknown kind".to_owned(),
        TransportError::Other(io) => secure::explain(io),
    }
}

/// Whether the connection was one that served a join: it ends by design.
fn served_join(io: &std::io::Error) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = io.get_ref().map(|e| e as &(dyn Error + 'static));
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<SecureError>() {
            return matches!(found, SecureError::JoinServed { .. });
        }
        // An I/O error shows the source of what it holds, not what it holds.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}
