//! Every bound of the wire, with its reason. A bound that is not here does not exist.

/// Body of an advert: gossip is for facts that fit a packet; anything larger is fetched by hash.
pub const ADVERT_BYTES: usize = 1024;
/// GPUs in one advert; a machine with more reports the rest as part of its tool-set hash.
pub const ADVERT_GPUS: usize = 8;
/// Models named in one advert.
pub const ADVERT_MODELS: usize = 16;
/// Bytes of a name inside an advert (GPU, model, tag, region).
pub const ADVERT_NAME_BYTES: usize = 48;
/// Hardware addresses in one advert: a machine with more network cards wakes by any of these.
pub const ADVERT_MACS: usize = 2;
/// Bytes of memory that an advert may claim, of the machine or of one card: a petabyte, so that sums stay far from the end of the numbers.
pub const ADVERT_MEMORY_BYTES: u64 = 1 << 50;
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
/// One request of the sync protocol: half of it for members, a third for the ids of revocations.
pub const SYNC_BYTES: usize = 96 * 1024;
/// One reply of the sync protocol: about 20 revocations with all that is needed to check them.
pub const SYNC_REPLY_BYTES: usize = 256 * 1024;
/// Revocations of a mesh. They are kept for ever, and their ids (32 KiB at most) are told in every sync; a mesh of at most 1,000
/// nodes that has thrown out more is better made anew.
pub const REVOCATIONS: usize = 1024;
/// Bytes of the reason of a revocation.
pub const REASON_BYTES: usize = 200;
/// One revocation or rotation: its content, the issuer's certificate with the root's keys, two signatures of 3,373 bytes.
pub const STATEMENT_BYTES: usize = 14 * 1024;
/// Revocations in one reply.
pub const REVOCATIONS_PER_REPLY: usize = (SYNC_REPLY_BYTES - 4096) / (STATEMENT_BYTES + 8);
/// Members told in one sync exchange.
pub const SYNC_MEMBERS: usize = 256;
/// Addresses of one member.
pub const MEMBER_ADDRESSES: usize = 8;
/// Bytes of one address in text form.
pub const ADDRESS_BYTES: usize = 128;
/// Arguments of one call inside a frame, as JSON bytes. Larger ones travel as a blob before the step is reserved.
pub const ARGUMENT_BYTES: usize = 256 * 1024;
/// Arguments of a call that may start with its reservation: larger ones are sent when a place is granted, or not at all.
pub const START_IF_FREE_BYTES: usize = 64 * 1024;
/// Output of one call inside a frame, as JSON bytes. A larger one is a blob, and the outcome names it.
pub const OUTPUT_BYTES: usize = 256 * 1024;
/// Arguments of one call at all: both ends hold them in memory, and a small machine runs several at once. What is larger belongs into a
/// file of the workspace.
pub const INPUT_BYTES: usize = 8 * 1024 * 1024;
/// Output of one call at all, for the same reason.
pub const RESULT_BYTES: usize = 16 * 1024 * 1024;
/// One file that is copied: minutes on a home network, and what the file tools look through at most.
pub const FILE_BYTES: u64 = 4 << 30;
/// Bytes of a blob in one frame: a few records of the session, so that other streams get their turn in between.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Any frame of the blob protocol: a chunk, or a path and a few numbers.
pub const BLOB_FRAME_BYTES: usize = CHUNK_BYTES + 64;
/// A path in a workspace.
pub const PATH_BYTES: usize = 4096;
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
/// Grants inside a certificate: what its 3 KiB leave beside keys, names and numbers.
pub const GRANTS_BYTES: usize = 768;
/// Tools that one certificate may name; whoever needs more wants no limit.
pub const GRANTED_TOOLS: usize = 32;
/// Certificates in a chain: a node's own and, when its issuer is an admin, the admin's.
pub const CHAIN_CERTIFICATES: usize = 2;
/// A ticket before base32.
pub const TICKET_BYTES: usize = 2048;
/// Addresses in a ticket.
pub const TICKET_ADDRESSES: usize = 8;
/// Message of the join exchange after the handshake.
pub const JOIN_BYTES: usize = 64 * 1024;
/// Revocations that come with a new member's certificate, the newest; it asks the first member that it meets for the rest.
pub const JOIN_REVOCATIONS: usize = 2;
/// Leases renewed in one message: more than a node can run at once.
pub const RENEW_LEASES: usize = 1024;
/// One message of the membership protocol, its frame excluded: what fits a packet of any network with room for the framing.
pub const SWIM_BYTES: usize = 1400;
/// Members in one page of the member list: as many of the largest size as fit into a message.
pub const SWIM_PAGE_MEMBERS: usize = 26;
