//! How packets of foca look: fixed sizes, big endian, no allocation while decoding.
//!
//! ```text
//! identity   node 32 │ incarnation u64 │ bump u32 │ left u8
//! header     sender identity │ its refutations u16 │ receiver identity │ kind u8 │ [probe u8] │ [a third identity]
//! member     identity │ refutations u16 │ state u8
//! packet     header │ [count u16 │ members]
//! ```
use bytes::{Buf, BufMut};
use foca::{Header, Member, Message, State};
use octomesh_protocol::id::NodeId;

use super::identity::Identity;

const IDENTITY_BYTES: usize = 32 + 8 + 4 + 1;
const MEMBER_BYTES: usize = IDENTITY_BYTES + 2 + 1;
/// Kind, probe number and third identity at most.
const MESSAGE_BYTES: usize = 2 + IDENTITY_BYTES;
const HEADER_BYTES: usize = 2 * IDENTITY_BYTES + 2 + MESSAGE_BYTES;

/// Bytes that are no packet, or no room for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum PacketError {
    /// Fewer bytes than the field has.
    #[error("the packet is cut short")]
    Short,
    /// A kind, state or flag that does not exist.
    #[error("the packet has a field of no meaning")]
    Unknown,
    /// Bytes are left after the last member.
    #[error("bytes are left after the packet")]
    Trailing,
    /// The buffer is full.
    #[error("no room for another item")]
    Full,
}

/// The codec that foca uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketCodec;

fn enough(buf: &impl Buf, bytes: usize) -> Result<(), PacketError> {
    if buf.remaining() < bytes { Err(PacketError::Short) } else { Ok(()) }
}

fn put_identity(identity: &Identity, buf: &mut impl BufMut) {
    buf.put_slice(identity.node.as_bytes());
    buf.put_u64(identity.incarnation);
    buf.put_u32(identity.bump);
    buf.put_u8(u8::from(identity.left));
}

fn get_identity(buf: &mut impl Buf) -> Result<Identity, PacketError> {
    enough(buf, IDENTITY_BYTES)?;
    let mut node = [0; 32];
    buf.copy_to_slice(&mut node);
    let (incarnation, bump) = (buf.get_u64(), buf.get_u32());
    let left = match buf.get_u8() {
        0 => false,
        1 => true,
        _ => return Err(PacketError::Unknown),
    };
    Ok(Identity { node: NodeId::from_bytes(node), incarnation, bump, left })
}

fn put_probe(kind: u8, number: u8, third: Option<&Identity>, buf: &mut impl BufMut) {
    buf.put_u8(kind);
    buf.put_u8(number);
    if let Some(third) = third {
        put_identity(third, buf);
    }
}

fn put_message(message: &Message<Identity>, buf: &mut impl BufMut) {
    match message {
        Message::Ping(number) => put_probe(1, *number, None, buf),
        Message::Ack(number) => put_probe(2, *number, None, buf),
        Message::PingReq { target, probe_number } => put_probe(3, *probe_number, Some(target), buf),
        Message::IndirectPing { origin, probe_number } => put_probe(4, *probe_number, Some(origin), buf),
        Message::IndirectAck { target, probe_number } => put_probe(5, *probe_number, Some(target), buf),
        Message::ForwardedAck { origin, probe_number } => put_probe(6, *probe_number, Some(origin), buf),
        Message::Announce => buf.put_u8(7),
        Message::Feed => buf.put_u8(8),
        Message::Gossip => buf.put_u8(9),
        Message::Broadcast => buf.put_u8(10),
        Message::TurnUndead => buf.put_u8(11),
    }
}

fn get_message(buf: &mut impl Buf) -> Result<Message<Identity>, PacketError> {
    enough(buf, 1)?;
    let kind = buf.get_u8();
    Ok(match kind {
        1..=6 => {
            enough(buf, 1)?;
            let probe_number = buf.get_u8();
            match kind {
                1 => Message::Ping(probe_number),
                2 => Message::Ack(probe_number),
                3 => Message::PingReq { target: get_identity(buf)?, probe_number },
                4 => Message::IndirectPing { origin: get_identity(buf)?, probe_number },
                5 => Message::IndirectAck { target: get_identity(buf)?, probe_number },
                _ => Message::ForwardedAck { origin: get_identity(buf)?, probe_number },
            }
        }
        7 => Message::Announce,
        8 => Message::Feed,
        9 => Message::Gossip,
        11 => Message::TurnUndead,
        // Nobody here sends broadcasts of its own.
        _ => return Err(PacketError::Unknown),
    })
}

impl foca::Codec<Identity> for PacketCodec {
    type Error = PacketError;

    fn encode_header(&mut self, header: &Header<Identity>, mut buf: impl BufMut) -> Result<(), PacketError> {
        if buf.remaining_mut() < HEADER_BYTES {
            return Err(PacketError::Full);
        }
        put_identity(&header.src, &mut buf);
        buf.put_u16(header.src_incarnation);
        put_identity(&header.dst, &mut buf);
        put_message(&header.message, &mut buf);
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Identity>, PacketError> {
        let src = get_identity(&mut buf)?;
        enough(&buf, 2)?;
        let src_incarnation = buf.get_u16();
        let dst = get_identity(&mut buf)?;
        Ok(Header { src, src_incarnation, dst, message: get_message(&mut buf)? })
    }

    fn encode_member(&mut self, member: &Member<Identity>, mut buf: impl BufMut) -> Result<(), PacketError> {
        if buf.remaining_mut() < MEMBER_BYTES {
            return Err(PacketError::Full);
        }
        put_identity(member.id(), &mut buf);
        buf.put_u16(member.incarnation());
        buf.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Identity>, PacketError> {
        let id = get_identity(&mut buf)?;
        enough(&buf, 3)?;
        let refutations = buf.get_u16();
        let state = match buf.get_u8() {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(PacketError::Unknown),
        };
        Ok(Member::new(id, refutations, state))
    }
}

/// A whole packet, read before foca sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Packet {
    pub(super) header: Header<Identity>,
    pub(super) members: Vec<Member<Identity>>,
}

/// Whether foca puts a list of members, be it empty, after this header.
fn carries_members(message: &Message<Identity>) -> bool {
    !matches!(message, Message::Announce | Message::TurnUndead)
}

impl Packet {
    /// Reads all of `bytes`.
    pub(super) fn read(mut bytes: &[u8]) -> Result<Self, PacketError> {
        let mut codec = PacketCodec;
        let header = foca::Codec::decode_header(&mut codec, &mut bytes)?;
        let mut members = Vec::new();
        if carries_members(&header.message) {
            enough(&bytes, 2)?;
            let count = usize::from(bytes.get_u16());
            // Before anything is kept for them.
            enough(&bytes, count * MEMBER_BYTES)?;
            for _ in 0..count {
                members.push(foca::Codec::decode_member(&mut codec, &mut bytes)?);
            }
        }
        if bytes.is_empty() { Ok(Self { header, members }) } else { Err(PacketError::Trailing) }
    }

    /// Writes it as foca does.
    pub(super) fn write(&self) -> Result<Vec<u8>, PacketError> {
        let mut codec = PacketCodec;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 2 + self.members.len() * MEMBER_BYTES);
        foca::Codec::encode_header(&mut codec, &self.header, &mut bytes)?;
        if carries_members(&self.header.message) {
            bytes.put_u16(u16::try_from(self.members.len()).map_err(|_| PacketError::Full)?);
            for member in &self.members {
                foca::Codec::encode_member(&mut codec, member, &mut bytes)?;
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(byte: u8) -> Identity {
        Identity { bump: 3, ..Identity::new(NodeId::from_bytes([byte; 32]), 1_700_000_000) }
    }

    fn packet(message: Message<Identity>) -> Packet {
        let members = if carries_members(&message) {
            vec![
                Member::new(identity(3).after_leaving(), 1, State::Down),
                Member::new(identity(4), 515, State::Suspect),
            ]
        } else {
            Vec::new()
        };
        let header = Header { src: identity(1), src_incarnation: 258, dst: identity(2), message };
        Packet { header, members }
    }

    fn messages() -> Vec<Message<Identity>> {
        let (other, probe_number) = (identity(9), 200);
        vec![
            Message::Ping(1),
            Message::Ack(2),
            Message::PingReq { target: other, probe_number },
            Message::IndirectPing { origin: other, probe_number },
            Message::IndirectAck { target: other, probe_number },
            Message::ForwardedAck { origin: other, probe_number },
            Message::Announce,
            Message::Feed,
            Message::Gossip,
            Message::TurnUndead,
        ]
    }

    #[test]
    fn golden_bytes() {
        let bytes = packet(Message::Ping(5)).write().unwrap();
        let one = "01".repeat(32) + "00000000" + "6553f100" + "00000003" + "00";
        let two = one.replace("0101", "0202");
        let three = "03".repeat(32) + "00000000" + "6553f100" + "00000003" + "01";
        let four = "04".repeat(32) + "00000000" + "6553f100" + "00000003" + "00";
        let whole = format!("{one}0102{two}01050002{three}000102{four}020301");
        assert_eq!(data_encoding::HEXLOWER.encode(&bytes), whole);
    }

    #[test]
    fn every_packet_is_read_as_it_was_written() {
        for message in messages() {
            let packet = packet(message);
            assert_eq!(Packet::read(&packet.write().unwrap()).unwrap(), packet);
        }
    }

    #[test]
    fn every_cut_is_an_error_and_so_is_every_byte_more() {
        for message in messages() {
            let bytes = packet(message).write().unwrap();
            for end in 0..bytes.len() {
                assert!(Packet::read(&bytes[..end]).is_err(), "{end}");
            }
            assert_eq!(Packet::read(&[&bytes[..], &[0]].concat()), Err(PacketError::Trailing));
        }
    }

    #[test]
    fn unknown_kinds_states_and_flags_are_refused() {
        let bytes = packet(Message::Gossip).write().unwrap();
        let kind = 2 * IDENTITY_BYTES + 2;
        for (at, value) in [(IDENTITY_BYTES - 1, 2), (kind, 0), (kind, 10), (kind, 12), (bytes.len() - 1, 3)]
        {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(Packet::read(&bad), Err(PacketError::Unknown), "{at} {value}");
        }
        // More members than bytes.
        let mut bad = bytes;
        bad[kind + 1] = 0xff;
        assert_eq!(Packet::read(&bad), Err(PacketError::Short));
    }

    #[test]
    fn what_does_not_fit_leaves_the_buffer_clean() {
        let mut codec = PacketCodec;
        let member = Member::new(identity(1), 0, State::Alive);
        let mut room = [0u8; MEMBER_BYTES - 1];
        let mut buf = &mut room[..];
        assert_eq!(foca::Codec::encode_member(&mut codec, &member, &mut buf), Err(PacketError::Full));
        assert_eq!(buf.len(), MEMBER_BYTES - 1);
    }
}
