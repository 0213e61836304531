//! The last word of a side that does not want the other: one authenticated close record with the reason, after message 3 has given it
//! keys. Who only refuses message 2 has none and says nothing.
//!
//! An initiator is done with its handshake before it can hear this. It then waits for the other side to agree on the multiplexer, so
//! the close record is what it reads first, and its dial fails with the reason: there never is a session that vanishes again.
use std::{fmt, io, time::Duration};

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use octomesh_protocol::{
    session::{
        handshake::Split,
        record::{CloseReason, RecordLimits, Sealer},
    },
    trust::{IdentityError, RevokedError},
};
use tokio::time::timeout;

use super::{Cause, SecureError};
use crate::net::printable;

/// The other side has this long to take in why it is refused.
const PATIENCE: Duration = Duration::from_secs(1);
/// With [`CloseReason::Revoked`]: it is the issuer of its certificate that was revoked.
pub(in crate::net) const VOID: &str = "void";
/// It may have sent the beginning of a session, which nobody reads: less than a record.
const UNREAD: u64 = 64 << 10;

/// Why one side ended a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Farewell {
    pub(crate) reason: CloseReason,
    /// A code for [`CloseReason::Refused`], `clock:+3600` or another cause; name and address of the other node for
    /// [`CloseReason::IdentityInUse`].
    pub(crate) detail: String,
}

impl Farewell {
    pub(crate) fn new(reason: CloseReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    /// What the other side said: its text has a bound by then, but may have any characters.
    pub(super) fn heard(reason: CloseReason, detail: &str) -> Self {
        Self { reason, detail: printable(detail, detail.len()) }
    }

    /// What to say to a peer that is refused for `error`.
    pub(super) fn to(error: &SecureError) -> Option<Self> {
        let cause = Cause::of(error);
        let detail = match error {
            SecureError::IdentityInUse(occupant) => occupant.to_string(),
            SecureError::Identity(IdentityError::Clock { clocks_differ_s, direction, .. }) => {
                let sign = if *direction == "behind" { '-' } else { '+' };
                format!("{cause}:{sign}{clocks_differ_s}")
            }
            SecureError::Revoked(RevokedError::Issuer { .. }) => VOID.to_owned(),
            _ => cause.to_string(),
        };
        Some(Self { reason: cause.close_reason()?, detail })
    }

    pub(crate) fn cause(&self) -> Cause {
        match self.reason {
            CloseReason::IdentityInUse => Cause::IdentityInUse,
            CloseReason::Revoked => Cause::Revoked,
            _ => Cause::of_code(self.detail.split(':').next().unwrap_or_default()),
        }
    }
}

impl fmt::Display for Farewell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other node refuses this one: ")?;
        let detail = &self.detail;
        match (self.reason, self.cause()) {
            (CloseReason::IdentityInUse, _) => {
                write!(
                    f,
                    "identity_in_use: a node with this node's identity is connected and answers: {detail}"
                )
            }
            (CloseReason::Revoked, _) if detail == VOID => f.write_str(
                "revoked: the admin that issued this node's certificate was, so that the certificate is void",
            ),
            (CloseReason::Revoked, _) => f.write_str("revoked: this node was taken out of the mesh"),
            (_, Cause::Expired) => {
                f.write_str("expired: this node's certificate has ended by the other's clock")
            }
            (_, Cause::NotYetValid) => {
                f.write_str("not_yet_valid: this node's certificate has not begun by the other's clock")
            }
            (_, Cause::Clock) => write!(
                f,
                "clock: this node's clock differs from the other's by {} s",
                detail.split(':').nth(1).unwrap_or("some")
            ),
            (_, Cause::OtherMesh | Cause::MixedMesh) => {
                write!(f, "{detail}: this node's certificate is of another mesh")
            }
            (_, Cause::Signature) => f.write_str("signature: this node's signatures do not hold"),
            _ => write!(f, "{detail}"),
        }
    }
}

/// Says why to the other side, if there is something to say, and waits a moment until it has heard. Gives the error back.
pub(super) async fn refuse<T>(io: &mut T, split: &Split, error: SecureError) -> SecureError
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(farewell) = Farewell::to(&error) {
        let said = timeout(PATIENCE, say(io, split, &farewell)).await;
        if !matches!(said, Ok(Ok(()))) {
            tracing::debug!(reason = %farewell.reason, "the other side did not wait to hear why it is refused");
        }
    }
    error
}

async fn say<T>(io: &mut T, split: &Split, farewell: &Farewell) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut sealer = Sealer::new(&split.send, RecordLimits::default());
    let record = sealer.close_with(farewell.reason, &farewell.detail).map_err(io::Error::other)?;
    io.write_all(&record).await?;
    io.flush().await?;
    io.close().await?;
    // A socket that is closed with bytes unread takes back what was sent.
    futures::io::copy(io.take(UNREAD), &mut futures::io::sink()).await?;
    Ok(())
}
