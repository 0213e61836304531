//! A socket is heard by the reactor of the runtime in which it was made. Whoever passed the door is heard by the swarm's from then on.
use std::io;

use futures::future::Either;
use libp2p::{relay, tcp};
use tokio::runtime::Handle;

use super::transport::watched;

/// A connection that can change its runtime.
pub(super) trait Handover: Sized {
    /// The same connection, heard by the reactor of `runtime`.
    ///
    /// # Errors
    /// What the kernel says.
    fn hand_over(self, runtime: &Handle) -> io::Result<Self>;
}

impl Handover for tcp::tokio::TcpStream {
    fn hand_over(self, runtime: &Handle) -> io::Result<Self> {
        let stream = self.0.into_std()?;
        let _inside = runtime.enter();
        Ok(watched(Self(tokio::net::TcpStream::from_std(stream)?)))
    }
}

impl<L: Handover, R: Handover> Handover for Either<L, R> {
    fn hand_over(self, runtime: &Handle) -> io::Result<Self> {
        Ok(match self {
            Self::Left(stream) => Self::Left(stream.hand_over(runtime)?),
            Self::Right(stream) => Self::Right(stream.hand_over(runtime)?),
        })
    }
}

/// It goes over a connection that lives there already.
impl Handover for relay::client::Connection {
    fn hand_over(self, _: &Handle) -> io::Result<Self> {
        Ok(self)
    }
}

/// It has no reactor.
#[cfg(any(test, feature = "testing"))]
impl Handover for libp2p::core::transport::memory::Channel<Vec<u8>> {
    fn hand_over(self, _: &Handle) -> io::Result<Self> {
        Ok(self)
    }
}

/// The simulation hears it.
#[cfg(feature = "testing")]
impl Handover for tokio_util::compat::Compat<super::simulated::Line> {
    fn hand_over(self, _: &Handle) -> io::Result<Self> {
        Ok(self)
    }
}
