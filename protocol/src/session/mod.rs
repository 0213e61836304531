//! A session: the hybrid post-quantum handshake and the records that follow it.
//!
//! ```text
//!   Initiator::start ──message 1──> AwaitHello::read
//!   AwaitResponse::read <──message 2── SendResponse::write   (payload: the responder's identity)
//!   SendConfirm::write ──message 3──> AwaitConfirm::read     (payload: the initiator's identity)
//!        Split                             Split
//! ```
//!
//! Each state is consumed by its only step, so a message out of order does not compile and a failed one leaves nothing
//! behind. `XXhfs` is a draft without a published proof; the argument for it is that each secret enters only through
//! HKDF(ck, .), so that a broken ML-KEM leaves plain Noise XXpsk0 and a broken X25519 leaves ML-KEM under the mesh secret.
mod cipher;
pub mod handshake;
mod kem;
mod params;
pub mod record;
pub mod rekey;
pub mod secret;
mod symmetric;

pub use cipher::AEAD_PROVIDER;

use crate::id::MeshId;

/// The protocol id of the connection upgrade.
pub const PROTOCOL: &str = "/octomesh/pq/1";
/// The suite as people know it. There is one; a second one would be another protocol id.
pub const SUITE: &str = "X25519MLKEM768_ChaChaPoly_SHA256";
/// Its key exchange: FIPS 203 and RFC 7748.
pub const KEY_EXCHANGE: &str = "ML-KEM-768+X25519";
/// Its records: RFC 8439.
pub const AEAD: &str = "ChaCha20-Poly1305";
/// What both sides prove who they are with: RFC 8032 and FIPS 204.
pub const IDENTITY_KEYS: &str = "Ed25519+ML-DSA-65";

/// The prologue of a session between members of `mesh`: a node of another mesh fails at its first message.
#[must_use]
pub fn prologue(mesh: MeshId) -> Vec<u8> {
    [b"octomesh/pq/1", &mesh.as_bytes()[..]].concat()
}
