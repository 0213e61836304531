//! Our handshake with the identity that libp2p's Noise has: a public key and one Ed25519 signature, no certificates, no ML-DSA. It
//! shows what the handshake itself costs; no node speaks it.
use futures::{AsyncRead, AsyncWrite};
use libp2p::identity::{Keypair, PublicKey};
use octomesh_protocol::{
    limits,
    session::{
        self,
        handshake::{
            AwaitHello, Initiator, InitiatorRandom, MESSAGE_1_BYTES, MESSAGE_2_OVERHEAD, MESSAGE_3_OVERHEAD,
            Params, Received, ResponderRandom, Split, StaticKey, TranscriptHash,
        },
        secret::{MeshSecret, PreSharedKey},
    },
};
use zeroize::Zeroizing;

use super::BenchError;
use crate::{
    app::clock::{Clock, EntropyError},
    net::secure::{SecureError, message},
};

/// The protocol's name between the two ends of the bench.
pub(super) const PROTOCOL: &str = "/octomesh/bench-ed25519/1";

/// One end.
pub(super) struct End {
    keypair: Keypair,
    params: Params,
}

fn drawn<const N: usize>(clock: &dyn Clock) -> Result<Zeroizing<[u8; N]>, EntropyError> {
    let mut bytes = Zeroizing::new([0; N]);
    clock.fill(&mut *bytes)?;
    Ok(bytes)
}

impl End {
    pub(super) fn new(
        keypair: Keypair,
        secret: &MeshSecret,
        mesh: octomesh_protocol::id::MeshId,
        clock: &dyn Clock,
    ) -> Result<Self, EntropyError> {
        let static_key = StaticKey::from_secret(*drawn(clock)?);
        let params = Params::new(PreSharedKey::from(secret), session::prologue(mesh), static_key);
        Ok(Self { keypair, params })
    }

    fn payload(&self, transcript: TranscriptHash) -> Result<Vec<u8>, BenchError> {
        let mut payload = self.keypair.public().encode_protobuf();
        payload.extend_from_slice(&self.keypair.sign(transcript.as_bytes())?);
        Ok(payload)
    }

    pub(super) async fn initiate<T>(&self, io: &mut T, clock: &dyn Clock) -> Result<Split, BenchError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let random = InitiatorRandom::from_bytes(&drawn(clock)?);
        let (state, first) = Initiator::start(&self.params, random).map_err(SecureError::from)?;
        message::send(io, &first).await?;
        let second = message::receive(io, MESSAGE_2_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES).await?;
        let (state, received) = state.read(&second).map_err(SecureError::from)?;
        check(&received)?;
        let (third, split) = state.write(|transcript| self.payload(transcript))?;
        message::send(io, &third).await?;
        Ok(split)
    }

    pub(super) async fn respond<T>(&self, io: &mut T, clock: &dyn Clock) -> Result<Split, BenchError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let first = message::receive(io, MESSAGE_1_BYTES..=MESSAGE_1_BYTES).await?;
        let state = AwaitHello::new(&self.params).read(&first).map_err(SecureError::from)?;
        let random = ResponderRandom::from_bytes(&drawn(clock)?);
        let (second, state) = state.write(random, |transcript| self.payload(transcript))?;
        message::send(io, &second).await?;
        let third = message::receive(io, MESSAGE_3_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES).await?;
        let (received, split) = state.read(&third).map_err(SecureError::from)?;
        check(&received)?;
        Ok(split)
    }
}

impl From<octomesh_protocol::session::handshake::HandshakeError> for BenchError {
    fn from(error: octomesh_protocol::session::handshake::HandshakeError) -> Self {
        Self::Session(error.into())
    }
}

fn check(received: &Received) -> Result<(), BenchError> {
    let wrong = || BenchError::BrokeOff("its signature does not hold");
    let (key, signature) = received.payload.split_last_chunk::<64>().ok_or_else(wrong)?;
    let key = PublicKey::try_decode_protobuf(key).map_err(|_| wrong())?;
    if key.verify(received.transcript.as_bytes(), signature) { Ok(()) } else { Err(wrong()) }
}
