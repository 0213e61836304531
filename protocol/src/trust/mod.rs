//! Who may take part: identities, certificates, tickets, revocations. Everything that is signed is signed twice, with Ed25519 and ML-DSA-65.

pub mod certificate;
pub mod chain;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod identity;
pub mod identity_payload;
pub mod keys;
pub mod links;
pub mod revocation;
mod revoked;
mod role;
pub mod rotation;
mod statement;
pub mod ticket;

pub use certificate::{Certificate, CertificateError, CertificateRequest, Issuer, SignedCertificate};
pub use chain::{CertificateChain, MeshRoot, Verified};
pub use identity::NodeIdentity;
pub use identity_payload::{IdentityError, Side, VerifiedPeer};
pub use keys::{Domain, MlDsaKey, PublicKeys, Signature};
pub use links::VerifiedLinks;
pub use revocation::{Revocation, SignedRevocation};
pub use revoked::{Learned, RevocationSet, RevokedError};
pub use role::{Grants, Role};
pub use rotation::{Rotation, SecretStamp, SignedRotation};
pub use statement::{Authority, StatementError};
pub use ticket::{Ticket, TicketError, TicketId};

/// Seconds that clocks of one mesh may differ before a validity period is held against a certificate.
pub const CLOCK_TOLERANCE_S: u64 = 300;

/// A number of seconds for people: the two largest units.
#[must_use]
pub fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        if left >= size {
            parts.push(format!("{} {unit}", left / size));
            left %= size;
        }
    }
    parts.truncate(2);
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

/// How another machine's clock stands to this one's, for people: `clocks differ by 1 h: theirs is behind this one's`.
#[must_use]
pub fn clocks_differ(theirs: u64, ours: u64, whose: &str) -> String {
    let side = if theirs > ours { "ahead of" } else { "behind" };
    format!("clocks differ by {}: {whose} is {side} this one's", span(theirs.abs_diff(ours)))
}

#[cfg(test)]
mod tests {
    use super::{clocks_differ, span};

    #[test]
    fn clocks() {
        assert_eq!(clocks_differ(0, 7200, "pi's"), "clocks differ by 2 h: pi's is behind this one's");
        assert_eq!(clocks_differ(60, 0, "pi's"), "clocks differ by 1 min: pi's is ahead of this one's");
    }

    #[test]
    fn spans() {
        assert_eq!(span(0), "0 s");
        assert_eq!(span(59), "59 s");
        assert_eq!(span(3 * 3600), "3 h");
        assert_eq!(span(86_400 + 3_600 + 61), "1 d 1 h");
    }
}
