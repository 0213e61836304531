//! Joining a mesh with a ticket: the issuer's side as a part of [`super::secure::Security`], the joiner's as one function.
use std::{io, sync::Arc, time::Duration};

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use multistream_select::{NegotiationError, Version, dialer_select_proto};
use octomesh_protocol::{
    codec::CodecError,
    id::{NodeId, NodeName},
    join::{self, JoinAnswer, JoinGrant, JoinRefusal, JoinRequest, JoinRequestError},
    limits,
    session::{
        handshake::{
            AwaitHello, HandshakeError, Initiator, InitiatorRandom, MESSAGE_2_OVERHEAD, MESSAGE_3_OVERHEAD,
            Params, SendResponse, Split, StaticKey,
        },
        record::{
            CloseReason, HEADER_BYTES, LENGTH_BYTES, Opener, Record, RecordError, RecordLimits, Sealer,
        },
        secret::{OneTimeSecret, PreSharedKey},
    },
    trust::{
        CLOCK_TOLERANCE_S, CertificateError, IdentityError, NodeIdentity, PublicKeys, Side, Ticket, TicketId,
        VerifiedLinks, identity_payload,
    },
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use zeroize::Zeroizing;

use crate::{
    app::clock::{Clock, EntropyError},
    net::secure::{HANDSHAKE, SecureConfig, SecureError, first_message, message},
};

/// Tickets tried against one first message: 64 tags are 0.3 ms of work for a stranger's 1.2 KiB.
pub(crate) const OPEN_TICKETS: usize = 64;
/// The issuer signs one certificate and writes one row; a person is not asked.
const ISSUE: Duration = Duration::from_secs(3);
/// How long the issuer waits for the joiner to say that it has the answer.
const FAREWELL: Duration = Duration::from_secs(2);
/// The whole of it at the joiner, with time to spare over the issuer's own limits.
const JOIN: Duration = Duration::from_secs(15);

/// A ticket that may be redeemed here.
#[derive(Debug, Clone)]
pub(crate) struct OpenTicket {
    /// Its public name.
    pub(crate) id: TicketId,
    /// Its secret.
    pub(crate) secret: OneTimeSecret,
}

/// A question to whoever issues certificates.
#[derive(Debug)]
pub(crate) struct JoinAsk {
    /// With which ticket; its holder has proved that it knows the secret.
    pub(crate) ticket: TicketId,
    /// Whose keys; their holder has proved that it has both.
    pub(crate) keys: PublicKeys,
    /// The name it would like.
    pub(crate) name: NodeName,
    /// Its clock, in unix seconds.
    pub(crate) unix_time: u64,
    /// Where the answer goes. Dropped, the joiner is told that nobody could issue.
    pub(crate) answer: oneshot::Sender<JoinAnswer>,
}

/// Lets machines with a ticket in.
#[derive(Debug, Clone)]
pub(crate) struct JoinService {
    open: watch::Receiver<Arc<Vec<OpenTicket>>>,
    asks: mpsc::Sender<JoinAsk>,
}

impl JoinService {
    /// `open` holds the tickets as they are now, of which the first 64 count; `asks` leads to the issuer.
    pub(crate) fn new(open: watch::Receiver<Arc<Vec<OpenTicket>>>, asks: mpsc::Sender<JoinAsk>) -> Self {
        Self { open, asks }
    }

    /// Hears a first message only to know whether it is worth an answer.
    pub(super) async fn hear<T>(&self, config: &SecureConfig, io: &mut T) -> Result<(), SecureError>
    where
        T: AsyncRead + Unpin,
    {
        let first = first_message(io).await?;
        config.try_first(&first, || self.find(config, &first)).map(drop)
    }

    /// Answers one machine. Always gives the reason why the connection leads nowhere else.
    pub(super) async fn serve<T>(self, config: &SecureConfig, mut io: T) -> SecureError
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match self.exchange(config, &mut io).await {
            Ok((request, None)) => SecureError::JoinServed { node: request.node(), name: request.name },
            Ok((request, Some(why))) => {
                SecureError::JoinRefused { node: request.node(), name: request.name, why }
            }
            Err(error) => error,
        }
    }

    /// Who asked, and why it was refused, if it was.
    async fn exchange<T>(
        &self,
        config: &SecureConfig,
        io: &mut T,
    ) -> Result<(JoinRequest, Option<String>), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (ticket, request, split) =
            timeout(HANDSHAKE, self.handshake(config, io)).await.map_err(|_| SecureError::Timeout)??;
        let answer = self.ask(ticket, &request).await;
        timeout(HANDSHAKE, send_answer(io, &split, &answer)).await.map_err(|_| SecureError::Timeout)??;
        // A socket that is closed with bytes unread takes back what was sent; so the joiner's own close is read first. If it
        // does not come, the joiner asks again and gets the same answer.
        let _ = timeout(FAREWELL, io.take(64).read_to_end(&mut Vec::new())).await;
        io.close().await.ok();
        let refused = match answer {
            JoinAnswer::Granted(_) => None,
            JoinAnswer::Refused { reason, detail } => Some(refusal(reason, &detail)),
        };
        Ok((request, refused))
    }

    async fn handshake<T>(
        &self,
        config: &SecureConfig,
        io: &mut T,
    ) -> Result<(TicketId, JoinRequest, Split), SecureError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let first = first_message(io).await?;
        let (ticket, state) = config.hear_first(&first, || self.find(config, &first))?;
        let _answered = config.answered().await;
        let random = config.responder_random()?;
        let (second, state) =
            state.write(random, |transcript| config.payload(Side::Responder, transcript))?;
        message::send(io, &second).await?;
        let third = message::receive(io, MESSAGE_3_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES).await?;
        let (received, split) = state.read(&third)?;
        let request = JoinRequest::verify(&received.payload, received.transcript)?;
        Ok((ticket, request, split))
    }

    /// The ticket with which `first` was made.
    fn find(&self, config: &SecureConfig, first: &[u8]) -> Result<(TicketId, SendResponse), SecureError> {
        let open = self.open.borrow().clone();
        for ticket in open.iter().take(OPEN_TICKETS) {
            let psk = PreSharedKey::from(&ticket.secret);
            let params = Params::new(psk, join::prologue(config.mesh()), config.static_key());
            match AwaitHello::new(&params).read(first) {
                Ok(state) => return Ok((ticket.id, state)),
                Err(HandshakeError::Authentication) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err(SecureError::JoinUnknownTicket)
    }

    async fn ask(&self, ticket: TicketId, request: &JoinRequest) -> JoinAnswer {
        let unavailable = || JoinAnswer::Refused { reason: JoinRefusal::Unavailable, detail: String::new() };
        let (answer, answered) = oneshot::channel();
        let JoinRequest { keys, name, unix_time } = request.clone();
        let ask = JoinAsk { ticket, keys, name, unix_time, answer };
        if self.asks.try_send(ask).is_err() {
            return unavailable();
        }
        match timeout(ISSUE, answered).await {
            Ok(Ok(answer)) => answer,
            _ => unavailable(),
        }
    }
}

async fn send_answer<T>(io: &mut T, split: &Split, answer: &JoinAnswer) -> Result<(), SecureError>
where
    T: AsyncWrite + Unpin,
{
    let body = answer.to_bytes().map_err(|error| SecureError::Io(io::Error::other(error)))?;
    let mut sealer = Sealer::new(&split.send, RecordLimits::default());
    let mut record = vec![0; HEADER_BYTES];
    record.reserve(body.len() + 16);
    record.extend_from_slice(&body);
    let impossible = |error: RecordError| SecureError::Io(io::Error::other(error));
    sealer.seal(&mut record).map_err(impossible)?;
    record.extend_from_slice(&sealer.close(CloseReason::Done).map_err(impossible)?);
    io.write_all(&record).await?;
    io.flush().await?;
    Ok(())
}

/// A refusal for people, on both sides.
fn refusal(reason: JoinRefusal, detail: &str) -> String {
    let between = if detail.is_empty() { "" } else { ": " };
    format!("{}{between}{detail}", reason.advice())
}

/// A granted request.
#[derive(Debug)]
pub(crate) struct Joined {
    /// What was granted.
    pub(crate) grant: JoinGrant,
    /// The issuer's clock, in unix seconds, when it answered.
    pub(crate) issuer_time: u64,
}

/// Why a machine could not join.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum JoinError {
    /// Something answers there, but not an issuer.
    #[error("the program at that address takes no tickets: is it the node that made this one?")]
    NotAnIssuer,
    /// The issuer hung up on message 1.
    #[error(
        "the issuer does not know this ticket (any more): it may have been used, withdrawn or ended; ask for a new one"
    )]
    UnknownTicket,
    /// A handshake message is wrong.
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// The issuer is not a member of the ticket's mesh.
    #[error("the issuer's identity is refused: {0}")]
    Identity(#[from] IdentityError),
    /// A member, but not the one that made the ticket.
    #[error("node {got} answered where the ticket names {wanted}")]
    OtherIssuer {
        /// The ticket's issuer.
        wanted: NodeId,
        /// Who answered.
        got: NodeId,
    },
    /// The issuer said no.
    #[error("{}", refusal(*reason, detail))]
    Refused {
        /// Why.
        reason: JoinRefusal,
        /// More about it.
        detail: String,
    },
    /// The certificate that came does not hold.
    #[error("the issuer sent a certificate that does not hold: {0}")]
    Certificate(#[from] CertificateError),
    /// The certificate that came is for another key or role.
    #[error("the issuer sent a certificate for another node or role")]
    OtherCertificate,
    /// The request could not be made.
    #[error(transparent)]
    Request(#[from] JoinRequestError),
    /// The answer is not one.
    #[error("the issuer's answer: {0}")]
    Answer(#[from] CodecError),
    /// The answer's record is not one.
    #[error("the issuer's answer: {0}")]
    Record(#[from] RecordError),
    /// The issuer was too slow.
    #[error("the issuer did not answer within {} s", JOIN.as_secs())]
    Timeout,
    /// The connection failed.
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    /// No randomness, no handshake.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

impl From<NegotiationError> for JoinError {
    fn from(error: NegotiationError) -> Self {
        match error {
            NegotiationError::Failed => Self::NotAnIssuer,
            NegotiationError::ProtocolError(error) => Self::Io(error.into()),
        }
    }
}

/// Redeems `ticket` over a fresh connection to its issuer, as `identity`, under `name`. What is granted was checked: the chain
/// holds in the ticket's mesh and is for this key and the ticket's role; the issuer may have chosen another name.
///
/// Whether the ticket's time is over is for the issuer to say, by the clock that its end was made with.
///
/// # Errors
/// [`JoinError`].
pub(crate) async fn join_over<T>(
    io: T,
    ticket: &Ticket,
    identity: &NodeIdentity,
    name: &NodeName,
    clock: &dyn Clock,
) -> Result<Joined, JoinError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    timeout(JOIN, exchange(io, ticket, identity, name, clock)).await.map_err(|_| JoinError::Timeout)?
}

async fn exchange<T>(
    io: T,
    ticket: &Ticket,
    identity: &NodeIdentity,
    name: &NodeName,
    clock: &dyn Clock,
) -> Result<Joined, JoinError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let (_, mut io) = dialer_select_proto(io, [join::PROTOCOL], Version::V1).await?;
    let Shaken { split, issuer_time, doubt } = handshake(&mut io, ticket, identity, name, clock).await?;
    let answer = receive_answer(&mut io, &split).await?;
    // Tells the issuer that the answer is here; if it does not arrive, the issuer only waits a little longer.
    if let Ok(farewell) = Sealer::new(&split.send, RecordLimits::default()).close(CloseReason::Done) {
        io.write_all(&farewell).await.ok();
        io.close().await.ok();
    }
    if let Some(doubt) = doubt {
        return Err(doubt.into());
    }
    let grant = match answer {
        JoinAnswer::Granted(grant) => grant,
        JoinAnswer::Refused { reason, detail } => return Err(JoinError::Refused { reason, detail }),
    };
    let certificate = grant.chain.verify(ticket.mesh, clock.unix(), CLOCK_TOLERANCE_S)?.certificate;
    if certificate.keys() != *identity.public() || certificate.role != ticket.role {
        return Err(JoinError::OtherCertificate);
    }
    Ok(Joined { grant, issuer_time })
}

/// A handshake with the issuer.
struct Shaken {
    split: Split,
    issuer_time: u64,
    /// The issuer's certificate does not hold by this machine's clock, only by its own. It is told who asked, so that its owner
    /// learns of the clocks, too; nothing that it grants is taken.
    doubt: Option<IdentityError>,
}

async fn handshake<T>(
    io: &mut T,
    ticket: &Ticket,
    identity: &NodeIdentity,
    name: &NodeName,
    clock: &dyn Clock,
) -> Result<Shaken, JoinError>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut secret = Zeroizing::new([0; 32]);
    clock.fill(&mut *secret)?;
    let mut random = Zeroizing::new([0; InitiatorRandom::BYTES]);
    clock.fill(&mut *random)?;
    let psk = PreSharedKey::from(&ticket.secret);
    let params = Params::new(psk, join::prologue(ticket.mesh), StaticKey::from_secret(*secret));

    let (state, first) = Initiator::start(&params, InitiatorRandom::from_bytes(&random))?;
    message::send(io, &first).await?;
    let second = message::receive(io, MESSAGE_2_OVERHEAD..=limits::HANDSHAKE_MESSAGE_BYTES).await.map_err(
        |error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => JoinError::UnknownTicket,
            _ => JoinError::Io(error),
        },
    )?;
    let (state, received) = state.read(&second)?;
    let (now, links) = (clock.unix(), VerifiedLinks::new());
    let check = |now| {
        let (payload, side) = (&received.payload, Side::Responder);
        identity_payload::verify(
            payload,
            side,
            received.transcript,
            ticket.mesh,
            now,
            CLOCK_TOLERANCE_S,
            &links,
        )
    };
    let (issuer, doubt) = match check(now) {
        Ok(issuer) => (issuer, None),
        Err(doubt @ IdentityError::Clock { theirs, .. }) => (check(theirs)?, Some(doubt)),
        Err(refused) => return Err(refused.into()),
    };
    if issuer.node != ticket.issuer {
        return Err(JoinError::OtherIssuer { wanted: ticket.issuer, got: issuer.node });
    }
    let (third, split) = state.write(|transcript| {
        JoinRequest::build(identity, name, now, transcript).map_err(JoinError::Request)
    })?;
    message::send(io, &third).await?;
    Ok(Shaken { split, issuer_time: issuer.unix_time, doubt })
}

async fn receive_answer<T>(io: &mut T, split: &Split) -> Result<JoinAnswer, JoinError>
where
    T: AsyncRead + Unpin,
{
    let mut prefix = [0; LENGTH_BYTES];
    io.read_exact(&mut prefix).await?;
    let length = Opener::sealed_bytes(prefix)?;
    let mut sealed = Zeroizing::new(Vec::new());
    io.take(length as u64).read_to_end(&mut sealed).await?;
    match Opener::new(&split.receive, RecordLimits::default()).open(&mut sealed)? {
        Record::Data(body) => Ok(JoinAnswer::from_bytes(body)?),
        Record::Close(_) => Err(JoinError::Record(RecordError::Closed)),
        Record::Rekey(_) => Err(JoinError::Record(RecordError::Rekey)),
    }
}

#[cfg(test)]
mod tests;
