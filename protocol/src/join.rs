//! `/octomesh/join/1`: a machine with a ticket becomes a member.
//!
//! ```text
//!   joiner                                    issuer
//!     ── message 1 (psk = ticket's secret) ──>
//!     <── message 2, payload: identity payload of the issuer, whose root must hash to the ticket's mesh id
//!     ── message 3, payload: JoinRequest ────>
//!     <── one record: JoinAnswer ─────────────
//!     <── close ──────────────────────────────
//! ```
//!
//! The handshake is that of a session, with another prologue. Such a connection reaches no other protocol.
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    codec::{self, CodecError},
    id::{MeshId, NodeId, NodeName},
    limits,
    session::{
        handshake::TranscriptHash,
        record,
        secret::{self, MeshSecret},
    },
    sync::MemberAddress,
    trust::{
        CertificateChain, Domain, NodeIdentity, PublicKeys, Side, Signature, identity_payload,
        keys::{ML_DSA_KEY_BYTES, SIGNATURE_BYTES, SigningFailed},
    },
};

/// The protocol id of the connection upgrade.
pub const PROTOCOL: &str = "/octomesh/join/1";
/// Version of the request.
pub const REQUEST_VERSION: u8 = 1;
/// Bytes of a request without its signatures: the keys, the name and a little around them.
const REQUEST_BYTES: usize = ML_DSA_KEY_BYTES + 256;
/// An answer is one record.
const ANSWER_BYTES: usize =
    if limits::JOIN_BYTES < record::MAX_BODY_BYTES { limits::JOIN_BYTES } else { record::MAX_BODY_BYTES };

/// The prologue of the exchange: a ticket of another mesh fails at the first message.
#[must_use]
pub fn prologue(mesh: MeshId) -> Vec<u8> {
    [PROTOCOL.trim_start_matches('/').as_bytes(), mesh.as_bytes()].concat()
}

/// Why a request is refused before anybody looks at the ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum JoinRequestError {
    /// Not a request.
    #[error("join request: {0}")]
    Codec(#[from] CodecError),
    /// Made by a newer or older program.
    #[error("join request version {0} is not {REQUEST_VERSION}")]
    Version(u8),
    /// The joiner does not hold both keys it names, or the request was made for another handshake.
    #[error("join request is not signed by the keys it names")]
    Signature,
    /// No signature came about.
    #[error(transparent)]
    Signing(#[from] SigningFailed),
}

/// Who wants to join: payload of message 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// Its keys.
    pub keys: PublicKeys,
    /// The name it would like.
    pub name: NodeName,
    /// Its clock, in unix seconds: a certificate that does not hold by it would be of no use.
    pub unix_time: u64,
}

#[derive(Serialize, Deserialize)]
struct Unsigned {
    version: u8,
    unix_time: u64,
    keys: PublicKeys,
    name: NodeName,
}

impl JoinRequest {
    /// The payload: asks for `name` and proves both keys of `identity`; `now` is unix seconds.
    ///
    /// # Errors
    /// None in practice: a name always fits.
    pub fn build(
        identity: &NodeIdentity,
        name: &NodeName,
        now: u64,
        transcript: TranscriptHash,
    ) -> Result<Vec<u8>, JoinRequestError> {
        let unsigned = Unsigned {
            version: REQUEST_VERSION,
            unix_time: now,
            keys: identity.public().clone(),
            name: name.clone(),
        };
        let mut bytes = codec::encode::<_, REQUEST_BYTES>(&unsigned)?;
        let message = identity_payload::signed(Side::Initiator, transcript, &bytes);
        bytes.extend_from_slice(identity.sign(Domain::Join, &message)?.as_bytes());
        Ok(bytes)
    }

    /// Checks a payload.
    ///
    /// # Errors
    /// [`JoinRequestError`].
    pub fn verify(payload: &[u8], transcript: TranscriptHash) -> Result<Self, JoinRequestError> {
        let (unsigned, signature) =
            payload.split_last_chunk::<SIGNATURE_BYTES>().ok_or(CodecError::Malformed)?;
        match unsigned.first() {
            Some(&REQUEST_VERSION) => {}
            Some(version) => return Err(JoinRequestError::Version(*version)),
            None => return Err(CodecError::Malformed.into()),
        }
        let content: Unsigned = codec::decode::<_, REQUEST_BYTES>(unsigned)?;
        let message = identity_payload::signed(Side::Initiator, transcript, unsigned);
        if !Signature::from_bytes(*signature).verifies(&content.keys, Domain::Join, &message) {
            return Err(JoinRequestError::Signature);
        }
        Ok(Self { keys: content.keys, name: content.name, unix_time: content.unix_time })
    }

    /// Who wants to join.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.keys.node_id()
    }
}

/// Why an issuer says no.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum JoinRefusal {
    /// Its time is over.
    Expired,
    /// Redeemed by as many nodes as it is for.
    Used,
    /// Taken back.
    Withdrawn,
    /// Another member has the name.
    NameTaken,
    /// The issuer does not know the ticket (any more).
    UnknownTicket,
    /// The issuer can't issue at the moment.
    Unavailable,
    /// The node was revoked.
    Revoked,
    /// A certificate of now would not hold by the joiner's clock.
    Clocks,
}

impl JoinRefusal {
    /// For the person at the joining machine.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Expired => "the ticket has expired: ask for a new one",
            Self::Used => "the ticket was used already: ask for a new one",
            Self::Withdrawn => "the ticket was withdrawn: ask for a new one",
            Self::NameTaken => "another node has this name: join with another --name",
            Self::UnknownTicket => "the issuer does not know this ticket: ask for a new one",
            Self::Unavailable => "the issuer can't issue certificates at the moment: try again",
            Self::Revoked => "this node was revoked: make a new one with another --home",
            Self::Clocks => "the clocks of the two machines differ too much: set them, and join again",
        }
    }
}

/// What a new member gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinGrant {
    /// Its certificate, with the assigned name, and its issuer's.
    pub chain: CertificateChain,
    /// The secret of the mesh.
    #[serde(with = "secret::mesh_secret")]
    pub mesh_secret: MeshSecret,
    /// Where the other members are.
    pub members: Vec<MemberAddress>,
    /// The newest revocations in their canonical bytes, at most [`limits::JOIN_REVOCATIONS`].
    pub revocations: Vec<Vec<u8>>,
}

/// The issuer's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// A new member.
    Granted(JoinGrant),
    /// Not a member.
    Refused {
        /// Why.
        reason: JoinRefusal,
        /// More about it, for a person; may be empty.
        detail: String,
    },
}

impl JoinAnswer {
    /// The body of the one record. Members that do not fit are left out: the new member hears of them from those it meets.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] for a detail over its limit.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, CodecError> {
        let mut answer = self.clone();
        if let Self::Granted(grant) = &mut answer {
            grant.members.truncate(limits::SYNC_MEMBERS);
        }
        loop {
            let result = codec::encode::<_, ANSWER_BYTES>(&answer).map(Zeroizing::new);
            match (&result, &mut answer) {
                (Err(CodecError::TooLarge { .. }), Self::Granted(grant)) if !grant.members.is_empty() => {
                    grant.members.truncate(grant.members.len() / 2);
                }
                _ => return result,
            }
        }
    }

    /// Reads the body of the one record.
    ///
    /// # Errors
    /// [`CodecError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let answer: Self = codec::decode::<_, ANSWER_BYTES>(bytes)?;
        let fits = match &answer {
            Self::Granted(grant) => {
                grant.members.len() <= limits::SYNC_MEMBERS
                    && grant.members.iter().all(MemberAddress::fits)
                    && grant.revocations.len() <= limits::JOIN_REVOCATIONS
                    && grant.revocations.iter().all(|r| r.len() <= limits::STATEMENT_BYTES)
            }
            Self::Refused { detail, .. } => detail.len() <= limits::TEXT_BYTES,
        };
        if fits { Ok(answer) } else { Err(CodecError::Malformed) }
    }
}
