//! Identifiers: every one is a validated newtype; text from outside becomes one through `parse`, bytes through the decoder,
//! and both go through the same check.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits;

/// Text that is not the identifier it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a {kind}: {rule}")]
pub struct InvalidId {
    kind: &'static str,
    value: String,
    rule: &'static str,
}

fn invalid(kind: &'static str, value: &str, rule: &'static str) -> InvalidId {
    // A name of megabytes is not repeated in the message about it.
    InvalidId { kind, value: value.chars().take(80).collect(), rule }
}

/// A node: its Ed25519 public key. The text form is the libp2p peer id (base58btc of the identity multihash over the protobuf
/// form of the key), so that logs of both worlds agree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId([u8; 32]);

/// Identity multihash (0x00), 36 bytes; protobuf: key type Ed25519 (field 1 = 1), key data (field 2, 32 bytes).
const PEER_ID_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

impl NodeId {
    /// From the 32 bytes of an Ed25519 public key. Whether it is a point on the curve shows when a signature is verified.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the public key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The binary form of the libp2p peer id: 38 bytes.
    #[must_use]
    pub fn to_peer_id_bytes(self) -> Vec<u8> {
        [&PEER_ID_PREFIX[..], &self.0].concat()
    }

    /// From the binary form of a libp2p peer id; `None` for any other key type than Ed25519.
    #[must_use]
    pub fn from_peer_id_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.strip_prefix(&PEER_ID_PREFIX)?.try_into().ok().map(Self)
    }

    /// The last eight characters of the text form: enough to tell the nodes of one mesh apart in a log.
    #[must_use]
    pub fn short(&self) -> String {
        let text = self.to_string();
        text.get(text.len().saturating_sub(8)..).unwrap_or_default().to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bs58::encode(self.to_peer_id_bytes()).into_string())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let fail = || invalid("node id", text, "52 characters of base58 that begin with 12D3KooW");
        if text.len() > 64 {
            return Err(fail());
        }
        let bytes = bs58::decode(text).into_vec().map_err(|_| fail())?;
        Self::from_peer_id_bytes(&bytes).ok_or_else(fail)
    }
}

macro_rules! hash_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name([u8; 32]);

        impl $name {
            /// From the 32 bytes of the hash.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The 32 bytes of the hash.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The first eight hexadecimal characters, for people.
            #[must_use]
            pub fn short(&self) -> String {
                self.to_string().chars().take(8).collect()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let fail = || invalid($kind, text, "64 hexadecimal characters");
                if text.len() != 64 {
                    return Err(fail());
                }
                let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| fail())?;
                bytes.try_into().map(Self).map_err(|_| fail())
            }
        }
    };
}

hash_id!(
    /// A mesh: SHA-256 over the root's public key.
    MeshId,
    "mesh id"
);
hash_id!(
    /// SHA-256 over the bytes of a blob: what it is called everywhere.
    BlobHash,
    "blob hash"
);
hash_id!(
    /// SHA-256 over the canonical form of a tool card.
    CardHash,
    "card hash"
);
hash_id!(
    /// SHA-256 over the canonical form of a node's manifest: which tools it has.
    ToolSetHash,
    "tool-set hash"
);
hash_id!(
    /// SHA-256 over the signed content of a revocation.
    RevocationId,
    "revocation id"
);
hash_id!(
    /// SHA-256 over the signed content of a rotation of the mesh secret.
    RotationId,
    "rotation id"
);

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// Checks and takes the text.
            ///
            /// # Errors
            /// [`InvalidId`] that names the rule.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.into())) } else { Err(invalid($kind, text, $rule)) }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), &self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::parse(&text).map_err(de::Error::custom)
            }
        }
    };
}

fn of(text: &str, longest: usize, allowed: fn(char) -> bool) -> bool {
    !text.is_empty() && text.len() <= longest && text.chars().all(allowed)
}

text_id!(
    /// A tool's name: 1 to 64 of `a-z A-Z 0-9 _ -`, the first a letter; what every model API accepts.
    ToolName,
    "tool name",
    "1 to 64 of a-z A-Z 0-9 _ -, the first a letter",
    |t| of(t, limits::TOOL_NAME_BYTES, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && t.starts_with(|c: char| c.is_ascii_alphabetic())
);
text_id!(
    /// A node's name: one DNS label in lower case.
    NodeName,
    "node name",
    "1 to 63 of a-z 0-9 -, not beginning or ending with -",
    |t| of(t, limits::NODE_NAME_BYTES, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !t.starts_with('-')
        && !t.ends_with('-')
);
text_id!(
    /// One run of the solve loop, or one single call: `run-` or `call-` and 16 hexadecimal characters.
    RunId,
    "run id",
    "run- or call- and 16 hexadecimal characters",
    |t| t.strip_prefix("run-").or_else(|| t.strip_prefix("call-"))
        .is_some_and(|h| h.len() == 16 && h.bytes().all(|b| b.is_ascii_hexdigit()))
);
text_id!(
    /// A step inside a run: `s001`, or with its attempt `s001.2`.
    StepId,
    "step id",
    "s and 3 to 6 digits, then perhaps a dot and 1 to 3 digits",
    |t| {
        let digits = |d: &str, low, high| (low..=high).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_digit());
        match t.strip_prefix('s').map(|r| r.split_once('.').map_or((r, None), |(a, b)| (a, Some(b)))) {
            Some((step, attempt)) => digits(step, 3, 6) && attempt.is_none_or(|a| digits(a, 1, 3)),
            None => false,
        }
    }
);

impl RunId {
    /// A run of the solve loop from 8 random bytes.
    #[must_use]
    pub fn run(random: [u8; 8]) -> Self {
        Self(format!("run-{}", data_encoding::HEXLOWER.encode(&random)).into())
    }

    /// A single call from 8 random bytes.
    #[must_use]
    pub fn call(random: [u8; 8]) -> Self {
        Self(format!("call-{}", data_encoding::HEXLOWER.encode(&random)).into())
    }
}

/// What makes a step the same step: its run and its id. The executor answers for a key, the journal stores it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepKey {
    /// The run, or the single call.
    pub run: RunId,
    /// The step in it.
    pub step: StepId,
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.step)
    }
}

/// A lease: random, unique on the executor that granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease-{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_text_is_the_peer_id() {
        let id = NodeId::from_bytes([7; 32]);
        let text = id.to_string();
        assert!(text.starts_with("12D3KooW"), "{text}");
        assert_eq!(text.parse::<NodeId>().unwrap(), id);
        assert_eq!(NodeId::from_peer_id_bytes(&id.to_peer_id_bytes()), Some(id));
        assert!("12D3KooWx".parse::<NodeId>().is_err());
        assert!("1".repeat(1 << 20).parse::<NodeId>().is_err());
    }

    #[test]
    fn names() {
        for good in ["echo", "file_read", "A-b", "a"] {
            assert!(ToolName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "a b", "a/b", "é", &"a".repeat(65)] {
            assert!(ToolName::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(NodeName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn run_and_step_ids() {
        assert_eq!(RunId::run([0xab; 8]).as_str(), "run-abababababababab");
        assert!(RunId::parse("run-xyz").is_err());
        for good in ["s001", "s000123", "s001.2"] {
            assert!(StepId::parse(good).is_ok(), "{good}");
        }
        for bad in ["s1", "001", "s001.", "s001.2.3", "s00a"] {
            assert!(StepId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_decoded_id_is_checked_like_a_parsed_one() {
        let bytes = crate::codec::encode::<_, 64>(&"not a tool").unwrap();
        assert!(crate::codec::decode::<ToolName, 64>(&bytes).is_err());
    }
}
