//! Why a connection did not become a session: one word for programs and a sentence for people, found under whatever libp2p wrapped
//! around it.
use std::{error::Error, io, str::FromStr as _};

use multistream_select::{NegotiationError, ProtocolError};
use octomesh_protocol::{session::record::CloseReason, trust::IdentityError};

use super::SecureError;

/// The causes, as metric labels, as codes in a close record and as what `doctor` looks up its advice by. Those of an identity have
/// the names of [`IdentityError`]'s and its certificate's variants.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    strum::Display,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::EnumIter,
)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Cause {
    ClassicalOnly,
    NoNegotiation,
    WrongMeshSecret,
    Replay,
    HungUp,
    Handshake,
    SelfDial,
    Timeout,
    Busy,
    Io,
    Entropy,
    JoinServed,
    JoinUnknownTicket,
    JoinRequest,
    JoinOnly,
    // Identities.
    Codec,
    Version,
    OtherMesh,
    MixedMesh,
    ChainLength,
    IssuerMismatch,
    IssuerRole,
    AdminByAdmin,
    Signature,
    Signing,
    Expired,
    NotYetValid,
    Clock,
    Revoked,
    IdentityInUse,
    /// An identity refused for a reason that this version has no word for.
    Identity,
    // Before there is a connection.
    WrongPeer,
    Unreachable,
    Denied,
}

impl Cause {
    pub(crate) fn of(error: &SecureError) -> Self {
        let name: &'static str = match error {
            SecureError::Identity(IdentityError::Certificate(certificate)) => certificate.into(),
            SecureError::Identity(identity) => identity.into(),
            SecureError::RefusedByPeer(farewell) => return farewell.cause(),
            other => other.into(),
        };
        Self::from_str(name).unwrap_or(Self::Identity)
    }

    /// A code that the other side sent.
    pub(super) fn of_code(code: &str) -> Self {
        Self::from_str(code).unwrap_or(Self::Identity)
    }

    /// What a node that refuses for this says of it in its close record.
    pub(super) const fn close_reason(self) -> Option<CloseReason> {
        match self {
            Self::IdentityInUse => Some(CloseReason::IdentityInUse),
            Self::Revoked => Some(CloseReason::Revoked),
            Self::SelfDial | Self::Io | Self::Timeout | Self::Entropy => None,
            _ => Some(CloseReason::Refused),
        }
    }

    /// Whether one side did not want the other. What is left are networks and machines that fail, and connections that end by
    /// design.
    pub(crate) const fn is_refusal(self) -> bool {
        !matches!(
            self,
            Self::SelfDial
                | Self::Timeout
                | Self::Busy
                | Self::Io
                | Self::Entropy
                | Self::JoinServed
                | Self::Signing
                | Self::WrongPeer
                | Self::Unreachable
                | Self::Denied
        )
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(crate) cause: Cause,
    pub(crate) message: String,
    /// The other side said so; otherwise this one found out.
    pub(crate) by_peer: bool,
}

impl Diagnosis {
    pub(crate) fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into(), by_peer: false }
    }

    fn of(error: &SecureError) -> Self {
        let by_peer = matches!(error, SecureError::RefusedByPeer(_));
        Self { cause: Cause::of(error), message: error.to_string(), by_peer }
    }
}

/// What an I/O error holds: it shows the source of that, not that itself.
fn held(io: &io::Error) -> Option<&(dyn Error + 'static)> {
    io.get_ref().map(|held| held as &(dyn Error + 'static))
}

/// The innermost error that this room made, or what a negotiation says; `otherwise` is for anything else.
pub(crate) fn diagnose(error: &(dyn Error + 'static), otherwise: Cause) -> Diagnosis {
    let mut innermost = error;
    let mut broke_off = None;
    loop {
        if let Some(secure) = innermost.downcast_ref::<SecureError>() {
            return Diagnosis::of(secure);
        }
        let mut next = innermost.source();
        match innermost.downcast_ref::<NegotiationError>() {
            Some(NegotiationError::Failed) => return Diagnosis::of(&SecureError::ClassicalOnly),
            Some(NegotiationError::ProtocolError(cause)) => {
                broke_off = Some(cause.to_string());
                // Under it may be what the other side said in a close record.
                next = match cause {
                    ProtocolError::IoError(io) => Some(io),
                    _ => None,
                };
            }
            None => {}
        }
        if let Some(io) = innermost.downcast_ref::<io::Error>() {
            next = held(io).or(next);
        }
        match (next, broke_off) {
            (Some(next), so_far) => (innermost, broke_off) = (next, so_far),
            (None, Some(cause)) => return Diagnosis::of(&SecureError::NoNegotiation(cause)),
            (None, None) => return Diagnosis::new(otherwise, innermost.to_string()),
        }
    }
}
