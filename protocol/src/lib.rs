//! What travels between Octomesh nodes, as pure data and state machines: no sockets, no clock, no files.
//!
//! ```text
//!  TCP ─ /octomesh/pq/1 ─ Noise_XXhfs+psk0_25519+MLKEM768_ChaChaPoly_SHA256      session::handshake
//!          -> psk, e, e1            32 + 1184 + tags
//!          <- e, ee, ekem1, s, es   + identity payload (certificate chain, signature over h)
//!          -> s, se                 + identity payload
//!        then records: length u16 BE │ ciphertext │ tag                          session::record
//!          plaintext of a record: kind u8 │ body
//!        then yamux, and on its streams frames:                                  frame
//!          length u32 BE │ version u8 │ kind u8 │ bincode body                   codec
//! ```
//!
//! Everything that reads bytes from a peer takes a limit from [`limits`], returns an error for anything unexpected, and
//! never panics. Randomness and time are arguments.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod advert;
pub mod blob;
pub mod card;
pub mod codec;
pub mod frame;
pub mod id;
pub mod join;
pub mod limits;
pub mod session;
pub mod step;
pub mod swim;
pub mod sync;
pub mod trust;
