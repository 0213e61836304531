//! Every bound of the wire, with its reason. A bound that is not here does not exist.

/// Body of an advert: gossip is for facts that fit a packet; anything larger is fetched by hash.
pub const ADVERT_BYTES: usize = 1024;
/// GPUs in one advert; a machine with more reports the rest as part of its tool-set hash.
pub const ADVERT_GPUS: usize = 8;
/// Models named in one advert.
pub const ADVERT_MODELS: usize = 16;
/// Bytes of a name inside an advert (GPU, model, tag, region).
pub const ADVERT_NAME_BYTES: usize = 48;
/// Tags in one advert.
pub const ADVERT_TAGS: usize = 8;
/// Tools of one node; bounds the manifest that a peer can make us hold.
pub const TOOLS_PER_NODE: usize = 1024;
/// One tool card in its canonical form.
pub const CARD_BYTES: usize = 64 * 1024;
/// A manifest: 1,024 entries of at most 200 bytes.
pub const MANIFEST_BYTES: usize = 256 * 1024;
/// Cards in one reply.
pub const CARDS_PER_REPLY: usize = 64;
/// Bytes of one reply of the cards protocol.
pub const CARDS_REPLY_BYTES: usize = 1024 * 1024 + 4096;
/// Bytes of one request of the cards protocol (64 hashes).
pub const CARDS_REQUEST_BYTES: usize = 4096;
/// One exchange of the sync protocol.
pub const SYNC_BYTES: usize = 64 * 1024;
/// Members told in one sync exchange.
pub const SYNC_MEMBERS: usize = 256;
/// Addresses of one member.
pub const MEMBER_ADDRESSES: usize = 8;
/// Bytes of one address in text form.
pub const ADDRESS_BYTES: usize = 128;
/// Arguments of one call, as JSON bytes. Larger inputs belong into a file of the workspace.
pub const ARGUMENT_BYTES: usize = 256 * 1024;
/// Output of one call, as JSON bytes, after the tool's own truncation.
pub const OUTPUT_BYTES: usize = 256 * 1024;
/// One event of a running step (progress line, output chunk, log line).
pub const EVENT_BYTES: usize = 16 * 1024;
/// Any frame of the step protocol: the largest is an outcome or a start.
pub const STEP_FRAME_BYTES: usize = 272 * 1024;
/// Human text inside a message: a refusal's detail, an error.
pub const TEXT_BYTES: usize = 4096;
/// A tool's name; 64 characters is what model APIs accept.
pub const TOOL_NAME_BYTES: usize = 64;
/// A node's name: one DNS label.
pub const NODE_NAME_BYTES: usize = 63;
/// One handshake message, its length prefix excluded.
pub const HANDSHAKE_MESSAGE_BYTES: usize = 20 * 1024;
/// Identity payload of a handshake message: the root's keys, two certificates of the largest size, three signatures of 3,373 bytes.
/// With the 1.2 KiB around it in message 2 it fits a handshake message.
pub const IDENTITY_PAYLOAD_BYTES: usize = 18 * 1024;
/// One encoded certificate, without its signatures: 2,050 bytes of keys, and room for the grants.
pub const CERTIFICATE_BYTES: usize = 3 * 1024;
/// Certificates in a chain: a node's own and, when its issuer is an admin, the admin's.
pub const CHAIN_CERTIFICATES: usize = 2;
/// A ticket before base32.
pub const TICKET_BYTES: usize = 2048;
/// Addresses in a ticket.
pub const TICKET_ADDRESSES: usize = 8;
/// Message of the join exchange after the handshake.
pub const JOIN_BYTES: usize = 64 * 1024;
/// Leases renewed in one message: more than a node can run at once.
pub const RENEW_LEASES: usize = 1024;
