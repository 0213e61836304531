//! What the targets share: fixed keys, a handshake with them, and ways to make hostile bytes that get past the cryptography.
//!
//! A fuzzer does not guess a tag or a signature. So the targets also build what a member with the right keys could send: records
//! sealed with the session's key around any content, certificates that are really signed, payloads signed anew.
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::LazyLock,
};

use chacha20poly1305::{AeadInOut as _, ChaCha20Poly1305, KeyInit as _};
use octomesh_protocol::{
    id::{MeshId, NodeId, NodeName},
    session::{
        self,
        handshake::{
            AwaitConfirm, AwaitHello, AwaitResponse, HandshakeError, Initiator, InitiatorRandom, Params,
            ResponderRandom, Split, StaticKey, TranscriptHash,
        },
        secret::{PreSharedKey, RekeySecret, SessionKey},
    },
    trust::{CertificateChain, CertificateRequest, Grants, MeshRoot, NodeIdentity, Role},
};
use zeroize::Zeroizing;

/// The clock of all targets, unix seconds.
pub const NOW: u64 = 1_800_000_000;
/// The transcript that signatures of the targets are over.
pub const H: TranscriptHash = TranscriptHash::from_bytes([0x11; 32]);

/// No target's input is larger than a few hundred KiB, and the codec lets a length prefix claim 16 MiB at most.
const LARGEST_ALLOCATION: usize = 32 << 20;

/// Ends the process at an allocation that a peer's bytes must not cause.
struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST_ALLOCATION {
            eprintln!("an allocation of {} bytes", layout.size());
            std::process::abort();
        }
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// `good` with the changes that `data` describes: three bytes each (where, twice; what is flipped), and an odd byte at the end that cuts
/// off or appends.
pub fn edited(good: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let mut edits = data.chunks_exact(3);
    for edit in &mut edits {
        if let [high, low, flip] = *edit
            && !bytes.is_empty()
        {
            let at = usize::from(u16::from_be_bytes([high, low])) % bytes.len();
            bytes[at] ^= flip;
        }
    }
    match *edits.remainder() {
        [n] if n < 128 => bytes.truncate(bytes.len().saturating_sub(usize::from(n))),
        [n] => bytes.extend(std::iter::repeat_n(n, usize::from(n - 127))),
        [high, low] => bytes.truncate(usize::from(u16::from_be_bytes([high, low]))),
        _ => {}
    }
    bytes
}

/// Takes up to `n` bytes off the front.
pub fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, rest) = data.split_at(n.min(data.len()));
    *data = rest;
    head
}

/// Takes one byte off the front; 0 at the end.
pub fn byte(data: &mut &[u8]) -> u8 {
    take(data, 1).first().copied().unwrap_or(0)
}

pub fn params(static_key: u8) -> Params {
    Params::new(
        PreSharedKey::from_bytes([7; 32]),
        session::prologue(MeshId::from_bytes([0xaa; 32])),
        StaticKey::from_secret([static_key; 32]),
    )
}

pub fn initiator_random(fill: u8) -> InitiatorRandom {
    InitiatorRandom::from_bytes(&Zeroizing::new([fill; InitiatorRandom::BYTES]))
}

pub fn responder_random(fill: u8) -> ResponderRandom {
    ResponderRandom::from_bytes(&Zeroizing::new([fill; ResponderRandom::BYTES]))
}

pub fn payload(_: TranscriptHash) -> Result<Vec<u8>, HandshakeError> {
    Ok(b"who I am".to_vec())
}

/// An initiator that said its first message.
pub fn initiator() -> (AwaitResponse, Vec<u8>) {
    Initiator::start(&params(1), initiator_random(3)).unwrap()
}

/// A responder that heard `first` and said its message.
pub fn responder(first: &[u8]) -> (Vec<u8>, AwaitConfirm) {
    AwaitHello::new(&params(2)).read(first).unwrap().write(responder_random(4), payload).unwrap()
}

/// The three messages of the handshake between the two.
pub static MESSAGES: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let (state, first) = initiator();
    let (second, _) = responder(&first);
    let (third, _) = state.read(&second).unwrap().0.write(payload).unwrap();
    [first, second, third]
});

/// Keys of both directions; the first is the initiator's.
pub const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];

/// A finished handshake with known keys.
pub fn split(initiator: bool) -> Split {
    let [own, other] = if initiator { [KEYS[0], KEYS[1]] } else { [KEYS[1], KEYS[0]] };
    Split {
        send: SessionKey::from_bytes(own),
        receive: SessionKey::from_bytes(other),
        rekey_secret: RekeySecret::from_bytes([3; 32]),
        hash: H,
        remote_static: [5; 32],
    }
}

/// A record without its length, around any plaintext.
pub fn sealed(key: &[u8; 32], counter: u64, plain: &[u8]) -> Vec<u8> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    let mut record = plain.to_vec();
    let tag = ChaCha20Poly1305::new(key.into())
        .encrypt_inout_detached(&nonce.into(), &[], record.as_mut_slice().into())
        .unwrap();
    record.extend_from_slice(&tag);
    record
}

pub fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

pub fn request(identity: &NodeIdentity, text: &str, role: Role) -> CertificateRequest {
    CertificateRequest {
        keys: identity.public().clone(),
        name: name(text),
        role,
        grants: Grants::default(),
        serial: 1,
        now: NOW,
        lifetime_s: 1000,
    }
}

pub static ROOT: LazyLock<MeshRoot> = LazyLock::new(|| MeshRoot::from_seed([1; 64]));
pub static ADMIN: LazyLock<NodeIdentity> = LazyLock::new(|| NodeIdentity::from_seed([2; 64]));
pub static WORKER: LazyLock<NodeIdentity> = LazyLock::new(|| NodeIdentity::from_seed([3; 64]));
/// The worker's chain: its own certificate and the admin's.
pub static CHAIN: LazyLock<CertificateChain> = LazyLock::new(|| {
    let admin = ROOT.issue(request(&ADMIN, "attic", Role::Admin)).unwrap();
    admin.issue(&ADMIN, request(&WORKER, "tower", Role::Worker)).unwrap()
});

pub fn node(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}
