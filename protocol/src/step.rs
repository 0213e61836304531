//! `/octomesh/step/1`: how a step gets to another node and its outcome back.
//!
//! A stream carries one exchange after the other. The coordinator opens it and sends one of [`Probe`], [`Reserve`], [`StartIfFree`],
//! [`Cancel`] or [`StatusQuery`]:
//!
//! ```text
//!  Probe       -> Have | Missing
//!  Reserve     -> Granted | Refused            Granted, then  Start -> Event* , Outcome
//!  StartIfFree -> Started | Granted | Refused  Started, then           Event* , Outcome
//!  Cancel      -> StatusReply                                 Renew every 500 ms, until the outcome
//!  Status      -> StatusReply                                 Cancel on the same stream works too
//! ```
//!
//! The next exchange begins after the last message of the one before. A coordinator that sent Renew or Cancel can't know whether they were
//! read before the outcome went out, and begins none.
//!
//! A stream that ends before [`Outcome`] says nothing about the step: only a cancel, its deadline or a lost lease stops it.
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    advert::LoadState,
    blob::BlobRef,
    card::{Effect, SandboxLevel},
    codec,
    frame::{self, FrameError},
    id::{BlobHash, CardHash, LeaseId, StepKey, ToolName},
    limits,
};

/// How often a coordinator renews its leases, in milliseconds.
pub const RENEW_EVERY_MS: u64 = 500;
/// A lease is lost after this many milliseconds without a renewal: three missed.
pub const RENEW_LOST_MS: u64 = 3 * RENEW_EVERY_MS + RENEW_EVERY_MS / 2;
/// A granted lease that was not started lapses after this many milliseconds.
pub const LEASE_TTL_MS: u64 = 5_000;

/// Does this node have the data that the arguments point to?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The tool that would be called.
    pub tool: ToolName,
    /// Its arguments as JSON bytes; only those named by the card's `data` are looked at.
    #[serde(with = "codec::bytes")]
    pub arguments: Vec<u8>,
}

/// The data is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// Its size in bytes.
    pub bytes: u64,
}

/// The data is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Why, for people.
    pub detail: String,
}

/// Asks for a place to run a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// The step.
    pub key: StepKey,
    /// The tool.
    pub tool: ToolName,
    /// The card that the coordinator planned with.
    pub card: CardHash,
    /// What running it twice does, as the coordinator sees it; the executor's own card decides.
    pub effect: Effect,
    /// Expected duration, in milliseconds.
    pub est_ms: u32,
    /// GPU memory to reserve, in bytes; 0 for none.
    pub vram: u64,
    /// Main memory to reserve, in bytes; 0 for none.
    pub memory: u64,
    /// Size of the arguments, in bytes.
    pub argument_bytes: u64,
    /// Time left until the step's deadline, in milliseconds. Relative, because clocks differ.
    pub deadline_ms: u64,
    /// The coordinator's epoch of this run; a lower one than seen before is fenced off.
    pub epoch: u64,
    /// The longest time in milliseconds that the step may have to wait for a slot; a node where it would wait longer refuses, and
    /// says so with its fresh state. [`u32::MAX`] takes any place.
    pub longest_wait_ms: u32,
}

/// A reservation that is also a start, if a slot is free and nobody waits: one round trip for a small step. Only a step that may repeat
/// begins so; any other is granted a place like one that has to wait, and started by [`Start`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartIfFree {
    /// As by itself.
    pub reserve: Reserve,
    /// The arguments as JSON bytes, at most 64 KiB.
    #[serde(with = "codec::bytes")]
    pub arguments: Vec<u8>,
}

/// The step runs; its events and its outcome follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The lease, which is to be renewed.
    pub lease: LeaseId,
    /// Fresh load of the executor.
    pub state: LoadState,
}

/// A place to run the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The lease; lapses after [`LEASE_TTL_MS`] unless started.
    pub lease: LeaseId,
    /// Fresh load of the executor.
    pub state: LoadState,
}

/// Why an executor refuses a reservation. Its name is the reason code that people and metrics see.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefuseReason {
    /// All slots and the queue are full.
    Busy,
    /// The node takes no new steps.
    Draining,
    /// It has no such tool.
    NoTool,
    /// It has another card under this name.
    ToolVersion,
    /// Not enough GPU memory is free.
    Vram,
    /// Not enough main memory is free.
    Memory,
    /// The caller's role or grants do not allow this call here.
    Policy,
    /// The caller has too many leases here.
    Quota,
    /// The step can't end before its deadline.
    Deadline,
    /// A newer coordinator of this run was seen.
    Fenced,
    /// The tool is here but does not work.
    Unavailable,
    /// The node was away, and has not heard yet from another member than the caller who was revoked meanwhile.
    CatchingUp,
    /// The step would wait longer here than its coordinator expects: it may be better off elsewhere.
    Wait,
    /// The machine is its owner's alone for now.
    Yields,
}

/// No place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The code.
    pub reason: RefuseReason,
    /// One sentence for people.
    pub detail: String,
    /// Fresh load of the executor.
    pub state: LoadState,
}

/// Runs a reserved step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The lease from [`Granted`].
    pub lease: LeaseId,
    /// As in [`Reserve`].
    pub epoch: u64,
    /// The arguments as JSON bytes; empty when they are a blob.
    #[serde(with = "codec::bytes")]
    pub arguments: Vec<u8>,
    /// Arguments that are too large for a frame: the blob that the coordinator has brought here before.
    pub input: Option<BlobRef>,
}

impl Start {
    /// With arguments that fit a frame.
    #[must_use]
    pub const fn new(lease: LeaseId, epoch: u64, arguments: Vec<u8>) -> Self {
        Self { lease, epoch, arguments, input: None }
    }
}

/// What kind of text an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    /// A line that says how far the step is.
    Progress,
    /// A piece of output.
    Output,
    /// A log line of the tool.
    Log,
}

/// Something that happened while a step runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// 1, 2, 3 …; a gap means that the executor dropped events because the reader was slow.
    pub seq: u32,
    /// What it is.
    pub kind: EventKind,
    /// The text.
    pub text: String,
}

/// How a step ended.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum StepStatus {
    /// The tool returned a result.
    Ok,
    /// The tool failed; the output says why.
    Error,
    /// Nobody can know whether it ran.
    Uncertain,
    /// Stopped because the coordinator said so or its lease was lost.
    Cancelled,
    /// Stopped at its deadline or the tool's own limit.
    Timeout,
    /// Never started.
    Refused,
}

/// The last message of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub status: StepStatus,
    /// The result, or `{"error": {"code", "message"}}`, as JSON bytes.
    #[serde(with = "codec::bytes")]
    pub output: Vec<u8>,
    /// How long the tool ran, in milliseconds.
    pub elapsed_ms: u64,
    /// Level it ran at.
    pub sandbox: SandboxLevel,
    /// SHA-256 of the result: an outcome that was cut or mixed up is not taken for one.
    pub digest: [u8; 32],
    /// 0 when `output` is the result. Else `output` is empty, and the result is the blob of so many bytes that is called `digest`; its
    /// executor has it for the coordinator.
    pub blob_bytes: u64,
}

impl Outcome {
    /// With the digest of `output`.
    #[must_use]
    pub fn new(status: StepStatus, output: Vec<u8>, elapsed_ms: u64, sandbox: SandboxLevel) -> Self {
        let digest = Sha256::digest(&output).into();
        Self { status, output, elapsed_ms, sandbox, digest, blob_bytes: 0 }
    }

    /// With a result that is a blob.
    #[must_use]
    pub const fn with_blob(
        status: StepStatus,
        blob: BlobRef,
        elapsed_ms: u64,
        sandbox: SandboxLevel,
    ) -> Self {
        let digest = *blob.hash.as_bytes();
        Self { status, output: Vec::new(), elapsed_ms, sandbox, digest, blob_bytes: blob.bytes }
    }

    /// The blob that is the result, if it is one.
    #[must_use]
    pub const fn blob(&self) -> Option<BlobRef> {
        match self.blob_bytes {
            0 => None,
            bytes => Some(BlobRef { hash: BlobHash::from_bytes(self.digest), bytes }),
        }
    }

    /// Whether the output is the one that the executor hashed. Of a blob it is asked when its bytes are here.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        match self.blob_bytes {
            0 => <[u8; 32]>::from(Sha256::digest(&self.output)) == self.digest,
            bytes => self.output.is_empty() && bytes <= limits::RESULT_BYTES as u64,
        }
    }
}

/// Keeps leases alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// Leases of the sender on the receiver, at most 1,024.
    pub leases: Vec<LeaseId>,
}

/// Stops a step and everything it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// The step.
    pub key: StepKey,
    /// As in [`Reserve`].
    pub epoch: u64,
}

/// What became of a step?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusQuery {
    /// The step.
    pub key: StepKey,
}

/// What the executor knows of a step of the asking node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatusReply {
    /// Never heard of it (or it is another node's).
    Unseen,
    /// Reserved, not started.
    Granted,
    /// Running.
    Running,
    /// Ended, with this outcome.
    Done(Outcome),
    /// Was running when the executor itself stopped.
    Interrupted,
}

macro_rules! messages {
    ($($kind:literal $name:ident($body:ty),)*) => {
        /// Any message of the step protocol.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each variant is documented at its type")]
        pub enum Message { $($name($body),)* }

        impl Message {
            /// The whole frame, length prefix included.
            ///
            /// # Errors
            /// [`FrameError::Body`] or [`FrameError::TooLarge`] when the message is over its limit.
            pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
                match self {
                    $(Self::$name(body) => {
                        let body = codec::encode::<_, { limits::STEP_FRAME_BYTES }>(body)?;
                        frame::join($kind, &body, limits::STEP_FRAME_BYTES)
                    })*
                }
            }

            /// Decodes a frame whose length prefix was removed, and checks the bounds of its parts.
            ///
            /// # Errors
            /// Any [`FrameError`].
            pub fn from_frame(bytes: &[u8]) -> Result<Self, FrameError> {
                let (kind, body) = frame::split(bytes)?;
                let message = match kind {
                    $($kind => Self::$name(codec::decode::<_, { limits::STEP_FRAME_BYTES }>(body)?),)*
                    other => return Err(FrameError::Kind(other)),
                };
                if message.fits() { Ok(message) } else { Err(FrameError::Body(codec::CodecError::Malformed)) }
            }

            /// The message's name, for logs and metrics.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }
        }

        $(impl From<$body> for Message {
            fn from(body: $body) -> Self {
                Self::$name(body)
            }
        })*
    };
}

messages! {
    1 Probe(Probe),
    2 Have(Have),
    3 Missing(Missing),
    4 Reserve(Reserve),
    5 Granted(Granted),
    6 Refused(Refused),
    7 Start(Start),
    8 Event(Event),
    9 Outcome(Outcome),
    10 Renew(Renew),
    11 Cancel(Cancel),
    12 Status(StatusQuery),
    13 StatusReply(StatusReply),
    14 StartIfFree(StartIfFree),
    15 Started(Started),
}

impl Message {
    fn fits(&self) -> bool {
        match self {
            Self::Probe(m) => m.arguments.len() <= limits::ARGUMENT_BYTES,
            Self::Missing(m) => m.detail.len() <= limits::TEXT_BYTES,
            Self::Refused(m) => m.detail.len() <= limits::TEXT_BYTES,
            Self::StartIfFree(m) => m.arguments.len() <= limits::START_IF_FREE_BYTES,
            Self::Start(m) => {
                let fits = |blob: BlobRef| m.arguments.is_empty() && blob.bytes <= limits::INPUT_BYTES as u64;
                m.arguments.len() <= limits::ARGUMENT_BYTES && m.input.is_none_or(fits)
            }
            Self::Event(m) => m.text.len() <= limits::EVENT_BYTES,
            Self::Outcome(m) | Self::StatusReply(StatusReply::Done(m)) => {
                m.output.len() <= limits::OUTPUT_BYTES && m.is_intact()
            }
            Self::Renew(m) => m.leases.len() <= limits::RENEW_LEASES,
            Self::Have(_)
            | Self::Reserve(_)
            | Self::Granted(_)
            | Self::Started(_)
            | Self::Cancel(_)
            | Self::Status(_)
            | Self::StatusReply(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{RunId, StepId};

    fn key() -> StepKey {
        StepKey { run: RunId::run([1; 8]), step: StepId::parse("s001").unwrap() }
    }

    /// One message of each kind with its bytes. A change here is a new protocol version.
    fn golden() -> Vec<(Message, &'static str)> {
        let tool = ToolName::parse("echo").unwrap();
        let reserve = Reserve {
            key: key(),
            tool: tool.clone(),
            card: CardHash::from_bytes([5; 32]),
            effect: Effect::Pure,
            est_ms: 10,
            vram: 0,
            memory: 0,
            argument_bytes: 2,
            deadline_ms: 60_000,
            epoch: 1,
            longest_wait_ms: 300,
        };
        let state = LoadState { slots: 4, ready: true, ..LoadState::default() };
        vec![
            (Probe { tool, arguments: b"{}".to_vec() }.into(), "0000000a0101046563686f027b7d"),
            (Have { bytes: 300 }.into(), "000000050102fb2c01"),
            (Missing { detail: "no".into() }.into(), "000000050103026e6f"),
            (
                reserve.clone().into(),
                "0000004d01041472756e2d303130313031303130313031303130310473303031046563686f0505050505050505050505050505050505050505050505050505050505050505000a000002fb60ea01fb2c01",
            ),
            (Granted { lease: LeaseId(7), state }.into(), "0000000b0105070400000000000100"),
            (
                Refused { reason: RefuseReason::Vram, detail: "x".into(), state }.into(),
                "0000000d01060401780400000000000100",
            ),
            (Start::new(LeaseId(7), 1, b"{}".to_vec()).into(), "0000000801070701027b7d00"),
            (Event { seq: 1, kind: EventKind::Log, text: "t".into() }.into(), "00000006010801020174"),
            (
                Outcome::new(StepStatus::Ok, b"1".to_vec(), 5, SandboxLevel::Rlimits).into(),
                "00000028010900013105016b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b00",
            ),
            (Renew { leases: vec![LeaseId(7)] }.into(), "00000004010a0107"),
            (
                Cancel { key: key(), epoch: 1 }.into(),
                "0000001d010b1472756e2d30313031303130313031303130313031047330303101",
            ),
            (
                StatusQuery { key: key() }.into(),
                "0000001c010c1472756e2d303130313031303130313031303130310473303031",
            ),
            (StatusReply::Interrupted.into(), "00000003010d04"),
            (
                StartIfFree { reserve, arguments: b"{}".to_vec() }.into(),
                "00000050010e1472756e2d303130313031303130313031303130310473303031046563686f0505050505050505050505050505050505050505050505050505050505050505000a000002fb60ea01fb2c01027b7d",
            ),
            (Started { lease: LeaseId(7), state }.into(), "0000000b010f070400000000000100"),
        ]
    }

    #[test]
    fn golden_bytes() {
        for (message, hex) in golden() {
            let frame = message.to_frame().unwrap();
            assert_eq!(data_encoding::HEXLOWER.encode(&frame), hex, "{}", message.name());
            assert_eq!(Message::from_frame(&frame[frame::LENGTH_BYTES..]).unwrap(), message);
        }
    }

    #[test]
    fn what_is_a_blob_is_not_in_the_frame_as_well() {
        let blob = |bytes| BlobRef { hash: BlobHash::from_bytes([9; 32]), bytes };
        let taken = |message: Message| {
            Message::from_frame(&message.to_frame().unwrap()[frame::LENGTH_BYTES..]).is_ok()
        };
        let start = |arguments: &[u8], bytes| Start {
            input: Some(blob(bytes)),
            ..Start::new(LeaseId(7), 1, arguments.to_vec())
        };
        assert!(taken(start(b"", 1 << 20).into()));
        assert!(!taken(start(b"{}", 1 << 20).into()));
        assert!(!taken(start(b"", limits::INPUT_BYTES as u64 + 1).into()));
        let outcome = |bytes| Outcome::with_blob(StepStatus::Ok, blob(bytes), 1, SandboxLevel::None);
        assert_eq!(outcome(1 << 20).blob(), Some(blob(1 << 20)));
        assert!(taken(outcome(1 << 20).into()));
        assert!(!taken(outcome(limits::RESULT_BYTES as u64 + 1).into()));
        assert!(!taken(Outcome { output: b"1".to_vec(), ..outcome(1 << 20) }.into()));
    }

    #[test]
    fn a_mixed_up_outcome_is_no_result() {
        let mut outcome = Outcome::new(StepStatus::Ok, b"42".to_vec(), 1, SandboxLevel::None);
        outcome.output = b"43".to_vec();
        let frame = Message::from(outcome).to_frame().unwrap();
        assert!(Message::from_frame(&frame[frame::LENGTH_BYTES..]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), kind in 0u8..20) {
            let _ = Message::from_frame(&bytes);
            let mut framed = vec![frame::VERSION, kind];
            framed.extend_from_slice(&bytes);
            let _ = Message::from_frame(&framed);
        }

        #[test]
        fn a_cut_message_is_an_error(cut in 0usize..200, which in 0usize..15) {
            let frame = golden()[which].0.to_frame().unwrap();
            let body = &frame[frame::LENGTH_BYTES..];
            if cut < body.len() {
                proptest::prop_assert!(Message::from_frame(&body[..cut]).is_err());
            }
        }
    }
}
