//! Tickets: what one person gives another so that a machine may join. One line of text.
use std::{fmt, net::SocketAddr};

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{Role, span};
use crate::{
    codec,
    id::{MeshId, NodeId},
    limits,
    session::secret::{self, OneTimeSecret},
};

/// First characters of every ticket.
pub const PREFIX: &str = "octo1";
/// Version of a ticket's content.
pub const TICKET_VERSION: u8 = 1;
/// Bytes at the end that find a typing error.
const CHECKSUM_BYTES: usize = 4;

/// The public name of a ticket: shown in lists, told to no one who could use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TicketId([u8; 8]);

impl TicketId {
    /// Of the ticket with this secret.
    #[must_use]
    pub fn of(secret: &OneTimeSecret) -> Self {
        let digest =
            Sha256::new().chain_update(b"octomesh-ticket-id-v1").chain_update(secret.expose()).finalize();
        let mut id = [0; 8];
        id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        Self(id)
    }
}

impl fmt::Display for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketId({self})")
    }
}

impl std::str::FromStr for TicketId {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let bytes =
            if text.len() == 16 { data_encoding::HEXLOWER.decode(text.as_bytes()).ok() } else { None };
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(TicketError::Id)
    }
}

/// An invitation. Its `Debug` hides the secret; [`Ticket::to_text`] does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The mesh to join; the issuer proves it by a root key with this hash.
    pub mesh: MeshId,
    /// The only node that redeems it.
    pub issuer: NodeId,
    /// Where the issuer listens, `IP:PORT`, at most 8.
    pub addresses: Vec<String>,
    /// What lets the holder in.
    #[serde(with = "secret::one_time_secret")]
    pub secret: OneTimeSecret,
    /// What the holder will be.
    pub role: Role,
    /// When it ends, unix seconds.
    pub expires: u64,
}

/// Why a text is no ticket that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum TicketError {
    /// Something else altogether.
    #[error("not a ticket: a ticket begins with {PREFIX}")]
    Prefix,
    /// Longer than any ticket.
    #[error("not a ticket: too long")]
    TooLong,
    /// A character was lost, added or changed.
    #[error("the ticket has a typing error or is cut short: copy it again")]
    Typo,
    /// Made by a newer or older program.
    #[error(
        "ticket version {0} is not {TICKET_VERSION}: use the same version of the program on both machines"
    )]
    Version(u8),
    /// Correctly copied, but its content is not a ticket's.
    #[error("the ticket's content is invalid")]
    Content,
    /// Not the public name of a ticket.
    #[error("a ticket's id is 16 hexadecimal characters")]
    Id,
    /// Its time is over by this clock.
    #[error("the ticket ended {} ago by this machine's clock: ask for a new one", span(*ago_s))]
    Expired {
        /// Seconds since its end.
        ago_s: u64,
    },
}

impl Ticket {
    /// The public name.
    #[must_use]
    pub fn id(&self) -> TicketId {
        TicketId::of(&self.secret)
    }

    /// The text to hand over. It holds the secret.
    ///
    /// # Errors
    /// [`TicketError::Content`] for more than 8 addresses or one that is not `IP:PORT`.
    pub fn to_text(&self) -> Result<Zeroizing<String>, TicketError> {
        self.check()?;
        let body = codec::encode::<_, { limits::TICKET_BYTES }>(self).map_err(|_| TicketError::Content)?;
        let body = Zeroizing::new(body);
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 + body.len() + CHECKSUM_BYTES));
        bytes.push(TICKET_VERSION);
        bytes.extend_from_slice(&body);
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        let mut encoded = Zeroizing::new(BASE32_NOPAD.encode(&bytes));
        encoded.make_ascii_lowercase();
        Ok(Zeroizing::new([PREFIX, &encoded].concat()))
    }

    /// Reads a ticket; upper case and spaces around it do not matter. Whether it has ended is asked by
    /// [`Ticket::check_time`].
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn parse(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        // Base32 needs eight characters for five bytes.
        if text.len() > PREFIX.len() + (1 + limits::TICKET_BYTES + CHECKSUM_BYTES) * 8 / 5 + 8 {
            return Err(TicketError::TooLong);
        }
        let (prefix, encoded) = text.split_at_checked(PREFIX.len()).ok_or(TicketError::Prefix)?;
        if !prefix.eq_ignore_ascii_case(PREFIX) {
            return Err(TicketError::Prefix);
        }
        let encoded = Zeroizing::new(encoded.to_ascii_uppercase());
        let bytes = Zeroizing::new(BASE32_NOPAD.decode(encoded.as_bytes()).map_err(|_| TicketError::Typo)?);
        let (content, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(TicketError::Typo)?;
        if checksum(content) != *sum {
            return Err(TicketError::Typo);
        }
        let (version, body) = content.split_first().ok_or(TicketError::Content)?;
        if *version != TICKET_VERSION {
            return Err(TicketError::Version(*version));
        }
        let ticket: Self =
            codec::decode::<_, { limits::TICKET_BYTES }>(body).map_err(|_| TicketError::Content)?;
        ticket.check()?;
        Ok(ticket)
    }

    /// Whether it may still be used by this clock; the issuer's clock decides in the end.
    ///
    /// # Errors
    /// [`TicketError::Expired`].
    pub fn check_time(&self, now: u64) -> Result<(), TicketError> {
        if now > self.expires { Err(TicketError::Expired { ago_s: now - self.expires }) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), TicketError> {
        let fits = self.addresses.len() <= limits::TICKET_ADDRESSES
            && self
                .addresses
                .iter()
                .all(|a| a.len() <= limits::ADDRESS_BYTES && a.parse::<SocketAddr>().is_ok());
        if fits { Ok(()) } else { Err(TicketError::Content) }
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.iter_mut().zip(Sha256::digest(content)).for_each(|(to, from)| *to = from);
    sum
}
