//! Fixed keys and a whole handshake, for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses a part of it")]
use octomesh_protocol::{
    id::MeshId,
    session::{
        self,
        handshake::{
            AwaitHello, HandshakeError, Initiator, InitiatorRandom, Params, ResponderRandom, Split,
            StaticKey, TranscriptHash,
        },
        secret::PreSharedKey,
    },
};
use zeroize::Zeroizing;

pub(crate) const PAYLOAD_R: &[u8] = b"identity of the responder";
pub(crate) const PAYLOAD_I: &[u8] = b"identity of the initiator";

pub(crate) fn initiator_random(fill: u8) -> InitiatorRandom {
    InitiatorRandom::from_bytes(&Zeroizing::new([fill; InitiatorRandom::BYTES]))
}

pub(crate) fn responder_random(fill: u8) -> ResponderRandom {
    ResponderRandom::from_bytes(&Zeroizing::new([fill; ResponderRandom::BYTES]))
}

pub(crate) fn params(psk: u8, static_key: u8) -> Params {
    let mesh = MeshId::from_bytes([0xaa; 32]);
    Params::new(
        PreSharedKey::from_bytes([psk; 32]),
        session::prologue(mesh),
        StaticKey::from_secret([static_key; 32]),
    )
}

pub(crate) struct Ran {
    pub(crate) messages: [Vec<u8>; 3],
    pub(crate) initiator: Split,
    pub(crate) responder: Split,
}

/// Which byte of which message (from 0) is changed on the way.
pub(crate) type Flip = Option<(usize, usize)>;

/// A handshake with the keys 1 and 2 and the given pre-shared keys.
pub(crate) fn run(psk_i: u8, psk_r: u8, flip: Flip) -> Result<Ran, HandshakeError> {
    let on_the_way = |message: &[u8], number: usize| {
        let mut message = message.to_vec();
        if let Some((_, at)) = flip.filter(|(n, _)| *n == number) {
            message[at] ^= 0x40;
        }
        message
    };
    let say = |bytes: &'static [u8]| move |_: TranscriptHash| Ok::<_, HandshakeError>(bytes.to_vec());

    let (state_i, first) = Initiator::start(&params(psk_i, 1), initiator_random(3))?;
    let state_r = AwaitHello::new(&params(psk_r, 2)).read(&on_the_way(&first, 0))?;
    let mut seen_r = None;
    let (second, state_r) = state_r.write(responder_random(4), |h| {
        seen_r = Some(h);
        say(PAYLOAD_R)(h)
    })?;
    let (state_i, received) = state_i.read(&on_the_way(&second, 1))?;
    assert_eq!(received.payload, PAYLOAD_R);
    assert_eq!(Some(received.transcript), seen_r);
    let mut seen_i = None;
    let (third, initiator) = state_i.write(|h| {
        seen_i = Some(h);
        say(PAYLOAD_I)(h)
    })?;
    let (received, responder) = state_r.read(&on_the_way(&third, 2))?;
    assert_eq!(received.payload, PAYLOAD_I);
    assert_eq!(Some(received.transcript), seen_i);
    Ok(Ran { messages: [first, second, third], initiator, responder })
}
