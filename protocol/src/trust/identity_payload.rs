//! The payload of handshake messages 2 and 3: who is speaking, bound to this one transcript.
//!
//! `codec(version, unix_time, chain) │ Ed25519 signature │ ML-DSA-65 signature`, both over the domain, the side, the transcript hash and the SHA-256 of
//! what stands before it. So a payload copied into another handshake, or sent back to where it came from, does not verify.
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    certificate::{Certificate, CertificateError},
    chain::CertificateChain,
    identity::NodeIdentity,
    keys::{Domain, PublicKeys, SIGNATURE_BYTES, Signature, SigningFailed},
    links::VerifiedLinks,
    span,
};
use crate::{
    codec::{self, CodecError},
    id::{MeshId, NodeId},
    limits,
    session::handshake::TranscriptHash,
};

/// Version of the payload.
pub const PAYLOAD_VERSION: u8 = 1;

/// Which end of the handshake speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that dialled.
    Initiator,
    /// The one that was dialled.
    Responder,
}

impl Side {
    const fn label(self) -> u8 {
        match self {
            Self::Initiator => b'I',
            Self::Responder => b'R',
        }
    }
}

/// Why an identity payload is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum IdentityError {
    /// Not a payload, or over 18 KiB.
    #[error("identity payload: {0}")]
    Codec(#[from] CodecError),
    /// Made by a newer or older program.
    #[error("identity payload version {0} is not {PAYLOAD_VERSION}")]
    Version(u8),
    /// The certificate is refused, and clocks are close.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// The certificate's time does not fit, and the clocks of the two sides differ.
    #[error("{refused} (the other side's clock is {} {direction} this one)", span(*clocks_differ_s))]
    Clock {
        /// What is wrong with the certificate by this clock.
        refused: CertificateError,
        /// The other side's clock, in unix seconds.
        theirs: u64,
        /// Difference of the two clocks in seconds.
        clocks_differ_s: u64,
        /// `ahead of` or `behind`.
        direction: &'static str,
    },
    /// Not both signatures are those of the keys in the certificate, or they were made for another handshake.
    #[error("identity signature does not hold for this session")]
    Signature,
    /// No signature came about.
    #[error(transparent)]
    Signing(#[from] SigningFailed),
}

/// A peer whose identity payload was found good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedPeer {
    /// Who.
    pub node: NodeId,
    /// What it may be.
    pub certificate: Certificate,
    /// The root's keys of its chain, which are the mesh's.
    pub root: PublicKeys,
    /// Its clock, in unix seconds.
    pub unix_time: u64,
}

#[derive(Serialize, Deserialize)]
struct Unsigned {
    version: u8,
    unix_time: u64,
    chain: CertificateChain,
}

/// What is signed after the domain.
pub(crate) fn signed(side: Side, transcript: TranscriptHash, unsigned: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(unsigned);
    [&[side.label()][..], transcript.as_bytes(), &digest].concat()
}

/// The payload of the side `side`; `now` is unix seconds.
///
/// # Errors
/// [`IdentityError::Codec`] for a chain that does not fit, [`IdentityError::Signing`].
pub fn build(
    identity: &NodeIdentity,
    chain: &CertificateChain,
    side: Side,
    transcript: TranscriptHash,
    now: u64,
) -> Result<Vec<u8>, IdentityError> {
    let unsigned = Unsigned { version: PAYLOAD_VERSION, unix_time: now, chain: chain.clone() };
    let mut bytes = codec::encode::<_, { limits::IDENTITY_PAYLOAD_BYTES - SIGNATURE_BYTES }>(&unsigned)?;
    let signature = identity.sign(Domain::Identity, &signed(side, transcript, &bytes))?;
    bytes.extend_from_slice(signature.as_bytes());
    Ok(bytes)
}

/// Checks the payload that `side` (the other one) sent: its chain up to the root of `mesh`, and both its signatures over this
/// handshake. Certificates that `links` knows are not checked again.
///
/// # Errors
/// [`IdentityError`].
pub fn verify(
    payload: &[u8],
    side: Side,
    transcript: TranscriptHash,
    mesh: MeshId,
    now: u64,
    tolerance_s: u64,
    links: &VerifiedLinks,
) -> Result<VerifiedPeer, IdentityError> {
    let (unsigned, signature) = payload.split_last_chunk::<SIGNATURE_BYTES>().ok_or(CodecError::Malformed)?;
    match unsigned.first() {
        Some(&PAYLOAD_VERSION) => {}
        Some(version) => return Err(IdentityError::Version(*version)),
        None => return Err(CodecError::Malformed.into()),
    }
    let content: Unsigned =
        codec::decode::<_, { limits::IDENTITY_PAYLOAD_BYTES - SIGNATURE_BYTES }>(unsigned)?;
    let verified = content
        .chain
        .verify_with(mesh, now, tolerance_s, links)
        .map_err(|e| with_clocks(e, content.unix_time, now, tolerance_s))?;
    let node = verified.certificate.node;
    let message = signed(side, transcript, unsigned);
    let (signature, keys) = (Signature::from_bytes(*signature), verified.certificate.keys());
    if !links.verifies(&signature, &keys, Domain::Identity, &message) {
        return Err(IdentityError::Signature);
    }
    let peer = VerifiedPeer {
        node,
        certificate: verified.certificate,
        root: verified.root,
        unix_time: content.unix_time,
    };
    Ok(peer)
}

/// Says of a time error whether the clocks are to blame, as far as the other side tells its own.
fn with_clocks(refused: CertificateError, theirs: u64, ours: u64, tolerance_s: u64) -> IdentityError {
    let clocks_differ_s = theirs.abs_diff(ours);
    let about_time =
        matches!(refused, CertificateError::Expired { .. } | CertificateError::NotYetValid { .. });
    if !about_time || clocks_differ_s <= tolerance_s {
        return IdentityError::Certificate(refused);
    }
    let direction = if theirs > ours { "ahead of" } else { "behind" };
    IdentityError::Clock { refused, theirs, clocks_differ_s, direction }
}
