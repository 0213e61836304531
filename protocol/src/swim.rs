//! `/octomesh/swim/1`: who is alive. One long-lived stream per connected pair carries frames of three kinds: packets of the
//! SWIM state machine (opaque here; its own codec is beside it), a request for a page of the member list, and the page.
//!
//! SWIM: Das, Gupta, Motivala, "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership Protocol", DSN 2002.
use serde::{Deserialize, Serialize};

use crate::{
    codec::{self, CodecError},
    frame::{self, FrameError, HEADER_BYTES},
    id::NodeId,
    limits,
};

const PACKET: u8 = 1;
const ASK: u8 = 2;
const PAGE: u8 = 3;

/// The largest frame, its length prefix excluded.
pub const FRAME_BYTES: usize = limits::SWIM_BYTES + HEADER_BYTES;

/// What a member is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Liveness {
    /// It answers.
    Alive,
    /// Somebody had no answer; it may refute that.
    Suspect,
    /// It did not refute in time, or said good-bye.
    Down,
}

/// One member as one node knows it. Only the node itself raises its numbers; of two records the one with the greater
/// (`incarnation`, `bump`, `left`, `refutations`) is newer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Who.
    pub node: NodeId,
    /// Raised at every start of the node and kept on its disk.
    pub incarnation: u64,
    /// Raised by the running node when it was declared down and comes back.
    pub bump: u32,
    /// It said good-bye.
    pub left: bool,
    /// Suspicions that it refuted.
    pub refutations: u16,
    /// What it is said to be.
    pub state: Liveness,
}

/// A message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A packet of the SWIM state machine.
    Packet(Vec<u8>),
    /// Asks for the members whose id is greater than this one, or for the first.
    Ask(Option<NodeId>),
    /// Members in the order of their ids, tombstones included.
    Page(Page),
}

/// A page of the member list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// At most [`limits::SWIM_PAGE_MEMBERS`].
    pub members: Vec<MemberRecord>,
    /// There are members after the last one.
    pub more: bool,
}

impl Message {
    /// The whole frame.
    ///
    /// # Errors
    /// [`FrameError`] for a message over its limit.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Packet(bytes) => frame::join(PACKET, bytes, FRAME_BYTES),
            Self::Ask(after) => frame::join(ASK, &codec::encode::<_, 64>(after)?, FRAME_BYTES),
            Self::Page(page) => {
                frame::join(PAGE, &codec::encode::<_, { limits::SWIM_BYTES }>(page)?, FRAME_BYTES)
            }
        }
    }

    /// From a frame without its length prefix.
    ///
    /// # Errors
    /// [`FrameError`] for anything that is not a message of this protocol.
    pub fn from_frame(bytes: &[u8]) -> Result<Self, FrameError> {
        if bytes.len() > FRAME_BYTES {
            return Err(FrameError::TooLarge { size: bytes.len(), limit: FRAME_BYTES });
        }
        match frame::split(bytes)? {
            (PACKET, body) => Ok(Self::Packet(body.to_vec())),
            (ASK, body) => Ok(Self::Ask(codec::decode::<_, 64>(body)?)),
            (PAGE, body) => {
                let page: Page = codec::decode::<_, { limits::SWIM_BYTES }>(body)?;
                if page.members.len() > limits::SWIM_PAGE_MEMBERS {
                    return Err(CodecError::Malformed.into());
                }
                Ok(Self::Page(page))
            }
            (other, _) => Err(FrameError::Kind(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(byte: u8) -> MemberRecord {
        MemberRecord {
            node: NodeId::from_bytes([byte; 32]),
            incarnation: 1_700_000_000,
            bump: 1,
            left: false,
            refutations: 2,
            state: Liveness::Suspect,
        }
    }

    #[test]
    fn golden_bytes() {
        let hex = |m: &Message| data_encoding::HEXLOWER.encode(&m.to_frame().unwrap());
        let node = "07".repeat(32);
        assert_eq!(hex(&Message::Packet(vec![9, 8])), "0000000401010908");
        assert_eq!(hex(&Message::Ask(None)), "00000003010200");
        assert_eq!(hex(&Message::Ask(Some(NodeId::from_bytes([7; 32])))), format!("00000023010201{node}"));
        let page = Message::Page(Page { members: vec![record(7)], more: true });
        assert_eq!(hex(&page), format!("0000002d010301{node}fc00f1536501000201{}", "01"));
    }

    #[test]
    fn round_trips() {
        for message in [
            Message::Packet(vec![1; limits::SWIM_BYTES]),
            Message::Ask(Some(NodeId::from_bytes([3; 32]))),
            Message::Page(Page { members: vec![record(1), record(2)], more: false }),
        ] {
            let frame = message.to_frame().unwrap();
            assert_eq!(Message::from_frame(&frame[frame::LENGTH_BYTES..]).unwrap(), message);
        }
    }

    #[test]
    fn a_full_page_of_the_largest_records_fits() {
        let largest = MemberRecord {
            incarnation: u64::MAX,
            bump: u32::MAX,
            left: true,
            refutations: u16::MAX,
            ..record(0xff)
        };
        let page = Page { members: vec![largest; limits::SWIM_PAGE_MEMBERS], more: true };
        Message::Page(page).to_frame().unwrap();
    }

    #[test]
    fn hostile_frames_are_refused() {
        let refused = |bytes: &[u8]| Message::from_frame(bytes).unwrap_err();
        assert_eq!(refused(&[1, 9]), FrameError::Kind(9));
        assert_eq!(refused(&[2, 1]), FrameError::Version(2));
        assert_eq!(refused(&[1]), FrameError::TooShort);
        assert!(matches!(refused(&[1, ASK, 0, 0]), FrameError::Body(CodecError::Trailing(1))));
        assert!(matches!(refused(&[1, ASK, 1, 7]), FrameError::Body(CodecError::Malformed)));
        assert!(matches!(refused(&[1; FRAME_BYTES + 1]), FrameError::TooLarge { .. }));
        assert!(matches!(Message::Packet(vec![0; 1401]).to_frame(), Err(FrameError::TooLarge { .. })));
        let many = Page { members: vec![record(1); limits::SWIM_PAGE_MEMBERS + 1], more: false };
        let body = codec::encode::<_, 4096>(&many).unwrap();
        assert!(matches!(refused(&[&[1, PAGE], &body[..]].concat()), FrameError::Body(_)));
        // A page that claims more members than memory has.
        assert!(matches!(
            refused(&[1, PAGE, 253, 255, 255, 255, 255, 255, 255, 255, 127]),
            FrameError::Body(_)
        ));
    }
}
