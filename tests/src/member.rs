//! A member without a node: dials by hand with the identity of a home, one step at a time, so that each can be timed.
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use octomesh_protocol::{
    id::MeshId,
    session::{
        self,
        handshake::{Initiator, InitiatorRandom, Params, StaticKey},
        record::{HEADER_BYTES, LENGTH_BYTES, Opener, Record, RecordLimits, Sealer},
        secret::{MeshSecret, PreSharedKey},
    },
    trust::{CLOCK_TOLERANCE_S, CertificateChain, NodeIdentity, Side, VerifiedLinks, identity_payload},
};
use zeroize::Zeroizing;

use crate::attacker::{framed, negotiation};

/// What a home's node is.
#[derive(Debug)]
pub struct HandMade {
    identity: NodeIdentity,
    chain: CertificateChain,
    secret: MeshSecret,
    links: VerifiedLinks,
}

/// The bytes of a file of hexadecimal digits.
///
/// # Panics
/// When it is none.
pub fn hex_file(path: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let digits = text.trim().as_bytes().chunks_exact(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn random<const N: usize>() -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut *bytes).unwrap();
    bytes
}

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl HandMade {
    /// The identity of `home`, whose node does not run.
    ///
    /// # Panics
    /// When there is none.
    pub fn of(home: &Path) -> Self {
        let file = |name: &str| hex_file(&home.join("identity").join(name));
        Self {
            identity: NodeIdentity::from_seed(file("node.key").try_into().unwrap()),
            chain: CertificateChain::from_bytes(&file("certificate")).unwrap(),
            secret: MeshSecret::from_bytes(file("mesh.secret").try_into().unwrap()),
            links: VerifiedLinks::new(),
        }
    }

    /// Its mesh.
    pub fn mesh(&self) -> MeshId {
        self.chain.root().mesh_id()
    }

    /// Connects, shakes hands, and ends the session in order once its other end has said something inside it. Gives the time from the
    /// first byte of the connection until then.
    ///
    /// # Errors
    /// Whatever broke.
    pub fn session(&self, target: SocketAddr) -> io::Result<Duration> {
        let began = Instant::now();
        let mut io = TcpStream::connect_timeout(&target, Duration::from_secs(20))?;
        io.set_nodelay(true)?;
        io.set_read_timeout(Some(Duration::from_secs(20)))?;
        let words = negotiation();
        io.write_all(&words)?;
        // The same words come back: the protocol is agreed on.
        io.read_exact(&mut vec![0; words.len()])?;

        let psk = PreSharedKey::from(&self.secret);
        let params =
            Params::new(psk, session::prologue(self.mesh()), StaticKey::from_secret(*random::<32>()));
        let (state, first) =
            Initiator::start(&params, InitiatorRandom::from_bytes(&random())).map_err(broken)?;
        io.write_all(&framed(&first))?;
        let second = receive(&mut io)?;
        let (state, received) = state.read(&second).map_err(broken)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(broken)?.as_secs();
        identity_payload::verify(
            &received.payload,
            Side::Responder,
            received.transcript,
            self.mesh(),
            now,
            CLOCK_TOLERANCE_S,
            &self.links,
        )
        .map_err(broken)?;
        let payload = |transcript| {
            identity_payload::build(&self.identity, &self.chain, Side::Initiator, transcript, now)
                .map_err(broken)
        };
        let (third, split) =
            state.write(|transcript| payload(transcript).map_err(Failed)).map_err(|Failed(error)| error)?;
        io.write_all(&framed(&third))?;

        // Which multiplexer: the first bytes of the session.
        let (mut sealer, mut opener) = (
            Sealer::new(&split.send, RecordLimits::default()),
            Opener::new(&split.receive, RecordLimits::default()),
        );
        let mut record = vec![0; HEADER_BYTES];
        record.extend_from_slice(b"\x13/multistream/1.0.0\n");
        sealer.seal(&mut record).map_err(broken)?;
        io.write_all(&record)?;
        let mut prefix = [0; LENGTH_BYTES];
        io.read_exact(&mut prefix)?;
        let mut sealed = vec![0; Opener::sealed_bytes(prefix).map_err(broken)?];
        io.read_exact(&mut sealed)?;
        match opener.open(&mut sealed).map_err(broken)? {
            Record::Data(_) => {}
            Record::Rekey(_) | Record::Close(_) => return Err(broken("no data came first")),
        }
        let took = began.elapsed();
        io.write_all(&sealer.close(session::record::CloseReason::Done).map_err(broken)?)?;
        Ok(took)
    }
}

struct Failed(io::Error);

impl From<session::handshake::HandshakeError> for Failed {
    fn from(error: session::handshake::HandshakeError) -> Self {
        Self(broken(error))
    }
}

fn receive(io: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    io.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    io.read_exact(&mut message)?;
    Ok(message)
}
