//! `/octomesh/sync/1`: two members compare what every member should have: who is there, who was thrown out, which mesh secret holds.
//!
//! Members tell each other the names of what they hold; whoever misses something asks for it. After a change a node syncs with
//! everybody it has a session with, so that news cross the mesh in as many steps as it is wide.
use serde::{Deserialize, Serialize};

use crate::{
    codec::{self, CodecError},
    id::{NodeId, NodeName, RevocationId},
    limits,
    trust::{CertificateChain, rotation::SecretStamp},
};

/// A member as told to another: where it can be dialled. Trust comes from its certificate, not from this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAddress {
    /// Who.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// `IP:PORT`, at most 8.
    pub addresses: Vec<String>,
}

impl MemberAddress {
    pub(crate) fn fits(&self) -> bool {
        self.addresses.len() <= limits::MEMBER_ADDRESSES
            && self.addresses.iter().all(|a| a.len() <= limits::ADDRESS_BYTES)
    }
}

/// What a node holds; both sides of an exchange send theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// The sender's own advert in canonical bytes.
    pub advert: Vec<u8>,
    /// Members and addresses, at most 256.
    pub members: Vec<MemberAddress>,
    /// All revocations by name, at most 1,024.
    pub revocations: Vec<RevocationId>,
    /// Which mesh secret it has.
    pub secret: SecretStamp,
}

impl Sync {
    fn fits(&self) -> bool {
        self.members.len() <= limits::SYNC_MEMBERS
            && self.members.iter().all(MemberAddress::fits)
            && self.revocations.len() <= limits::REVOCATIONS
    }
}

/// What one member asks of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncRequest {
    /// Compares: the answer is [`SyncReply::State`].
    State(Sync),
    /// Asks for revocations by name, as many as fit a reply; the answer is [`SyncReply::Revocations`].
    Revocations(Vec<RevocationId>),
    /// Tells a revocation to the node that it is about, before its sessions end; the answer is [`SyncReply::Done`].
    Revoked(Vec<u8>),
    /// Asks for the newest mesh secret; the answer is [`SyncReply::Secret`].
    Secret,
    /// Gives the node that hears it another certificate, because the admin that issued its own is about to be revoked; the answer is
    /// [`SyncReply::Done`] once it is stored.
    Certificate(Box<CertificateChain>),
    /// Asks an issuer for another certificate in the place of the one that ends; the answer is [`SyncReply::Renewed`] or
    /// [`SyncReply::NotRenewed`].
    Renew(Box<Renewal>),
    /// The sender's own certificate, which replaces the one that it showed in the handshake; the answer is [`SyncReply::Done`] when it
    /// holds.
    Shown(Box<CertificateChain>),
    /// The sender leaves the mesh for good; the answer is [`SyncReply::Done`].
    Leaving,
}

/// What a member asks an issuer for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The certificate that the asker has, with its issuer's. It says what the new one is to say.
    pub chain: CertificateChain,
    /// Another name for the asker.
    pub name: Option<NodeName>,
}

/// Why an issuer gives no certificate.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum RenewRefusal {
    /// It issues none, or none for this role.
    NotIssuer,
    /// The certificate shown does not hold, or is another node's.
    Certificate,
    /// A newer certificate of the asker is known.
    Old,
    /// The asker, or who issued its certificate, was revoked.
    Revoked,
    /// Another member has the name.
    NameTaken,
    /// Asked too often, or too many ask.
    Busy,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncReply {
    /// What the answering side holds.
    State(Sync),
    /// The bytes of revocations that are here, in the order asked for; what is left out is asked for again.
    Revocations(Vec<Vec<u8>>),
    /// The bytes of the newest rotation; absent when the secret was never rotated.
    Secret(Option<Vec<u8>>),
    /// Heard.
    Done,
    /// Can't be answered.
    Refused,
    /// The new certificate, with its issuer's.
    Renewed(Box<CertificateChain>),
    /// No new certificate.
    NotRenewed {
        /// Why.
        why: RenewRefusal,
        /// More about it, for a person; may be empty.
        detail: String,
    },
}

impl SyncRequest {
    /// Encodes.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, { limits::SYNC_BYTES }>(self)
    }

    /// Decodes and checks the bounds of its lists.
    ///
    /// # Errors
    /// [`CodecError::Malformed`] for a list or an address over its bound.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let request: Self = codec::decode::<_, { limits::SYNC_BYTES }>(bytes)?;
        let fits = match &request {
            Self::State(sync) => sync.fits(),
            Self::Revocations(ids) => ids.len() <= limits::REVOCATIONS,
            Self::Revoked(bytes) => bytes.len() <= limits::STATEMENT_BYTES,
            // A chain checks its own bounds when it is decoded and verified.
            Self::Secret | Self::Certificate(_) | Self::Renew(_) | Self::Shown(_) | Self::Leaving => true,
        };
        if fits { Ok(request) } else { Err(CodecError::Malformed) }
    }
}

impl SyncReply {
    /// Encodes.
    ///
    /// # Errors
    /// [`CodecError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode::<_, { limits::SYNC_REPLY_BYTES }>(self)
    }

    /// Decodes and checks the bounds of its lists.
    ///
    /// # Errors
    /// [`CodecError::Malformed`] for a list, an address or a statement over its bound.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let reply: Self = codec::decode::<_, { limits::SYNC_REPLY_BYTES }>(bytes)?;
        let statement = |bytes: &Vec<u8>| bytes.len() <= limits::STATEMENT_BYTES;
        let fits = match &reply {
            Self::State(sync) => sync.fits(),
            Self::Revocations(list) => {
                list.len() <= limits::REVOCATIONS_PER_REPLY && list.iter().all(statement)
            }
            Self::Secret(rotation) => rotation.as_ref().is_none_or(statement),
            Self::NotRenewed { detail, .. } => detail.len() <= limits::TEXT_BYTES,
            Self::Done | Self::Refused | Self::Renewed(_) => true,
        };
        if fits { Ok(reply) } else { Err(CodecError::Malformed) }
    }
}

#[cfg(test)]
mod tests;
