//! Sessions beside what libp2p brings: its Noise, its TLS, and no encryption. Only with the feature `bench-sessions`, and only to
//! measure: no node speaks these.
//!
//! Both ends live in this process and meet over TCP on the loopback interface, each in a task of its own. They keep their
//! identities for as long as the bench lasts, as nodes do.
use std::io;

use libp2p::{identity::SigningError, noise, tls};
use multistream_select::NegotiationError;
use octomesh_protocol::{id::InvalidId, trust::CertificateError};

use super::secure::SecureError;
use crate::app::clock::EntropyError;

mod ed25519;
mod link;
mod meter;
mod suite;

pub(crate) use link::Link;
pub(crate) use meter::Cost;
pub(crate) use suite::{Suites, Variant};

/// Why something could not be measured.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum BenchError {
    /// The loopback interface, or a connection over it.
    #[error("loopback connection: {0}")]
    Io(#[from] io::Error),
    /// The two ends found no protocol.
    #[error("negotiation: {0}")]
    Negotiation(#[from] NegotiationError),
    /// A session of ours did not come about.
    #[error(transparent)]
    Session(#[from] SecureError),
    /// libp2p's Noise failed.
    #[error("libp2p Noise: {0}")]
    Noise(#[from] noise::Error),
    /// libp2p's TLS found no certificate.
    #[error("libp2p TLS: {0}")]
    TlsCertificate(#[from] tls::certificate::GenError),
    /// libp2p's TLS failed.
    #[error("libp2p TLS: {0}")]
    Tls(#[from] tls::UpgradeError),
    /// libp2p's form of an identity did not sign.
    #[error("signing: {0}")]
    Signing(#[from] SigningError),
    /// The members of the bench got no certificates.
    #[error("certificates of the bench: {0}")]
    Certificate(#[from] CertificateError),
    /// A name of a member is none.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// No randomness.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// An end broke off.
    #[error("the other end of the bench broke off: {0}")]
    BrokeOff(&'static str),
}
