//! Secrets: erased when dropped, compared in constant time, and printed as `[secret]`.
use std::fmt;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of every secret here.
pub const SECRET_BYTES: usize = 32;

macro_rules! secret {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Boxed, so that a move copies a pointer and leaves no second copy of the secret on the stack.
        #[derive(Clone, Zeroize, ZeroizeOnDrop)]
        pub struct $name(Box<[u8; SECRET_BYTES]>);

        impl $name {
            /// Takes the bytes.
            #[must_use]
            pub fn from_bytes(mut bytes: [u8; SECRET_BYTES]) -> Self {
                let secret = Self(Box::new(bytes));
                bytes.zeroize();
                secret
            }

            /// The bytes, for the one place that needs them.
            #[must_use]
            pub fn expose(&self) -> &[u8; SECRET_BYTES] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[secret]")
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.ct_eq(&*other.0).into()
            }
        }

        impl Eq for $name {}
    };
}

secret!(
    /// The mesh secret: every member has it, and strangers without it learn nothing of a node.
    MeshSecret
);
secret!(
    /// The secret of one ticket.
    OneTimeSecret
);
secret!(
    /// What is mixed into a handshake before its first message: a [`MeshSecret`] or a [`OneTimeSecret`].
    PreSharedKey
);
secret!(
    /// Key of one direction of a session.
    SessionKey
);
secret!(
    /// Third output of the handshake's last HKDF: the salt of a rekey.
    RekeySecret
);

impl From<&MeshSecret> for PreSharedKey {
    fn from(secret: &MeshSecret) -> Self {
        Self(secret.0.clone())
    }
}

impl From<&OneTimeSecret> for PreSharedKey {
    fn from(secret: &OneTimeSecret) -> Self {
        Self(secret.0.clone())
    }
}

/// Serde for the two secrets that travel inside a message; nothing else may be serialised, so the types themselves can't.
macro_rules! on_the_wire {
    ($module:ident, $name:ident) => {
        pub(crate) mod $module {
            use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

            use super::{SECRET_BYTES, $name};

            pub(crate) fn serialize<S: Serializer>(secret: &$name, s: S) -> Result<S::Ok, S::Error> {
                secret.expose().serialize(s)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                <[u8; SECRET_BYTES]>::deserialize(d).map($name::from_bytes)
            }
        }
    };
}

on_the_wire!(mesh_secret, MeshSecret);
on_the_wire!(one_time_secret, OneTimeSecret);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(
            format!("{:?} {:#?}", MeshSecret::from_bytes([7; 32]), SessionKey::from_bytes([7; 32])),
            "[secret] [secret]"
        );
    }

    #[test]
    fn equality() {
        assert_eq!(MeshSecret::from_bytes([7; 32]), MeshSecret::from_bytes([7; 32]));
        let mut other = [7; 32];
        other[31] = 6;
        assert_ne!(MeshSecret::from_bytes([7; 32]), MeshSecret::from_bytes(other));
    }
}
