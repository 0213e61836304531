//! A transport for one test: the real handshake, then bytes in the clear, under a protocol id of its own. It shows that a capture
//! which finds nothing in a session would have found it. Only in builds with the feature `testing`; no program has it.
use std::{iter, pin::Pin, sync::Arc, time::Duration};

use futures::{AsyncRead, AsyncWrite, FutureExt};
use libp2p::{
    PeerId, Transport,
    core::{
        UpgradeInfo,
        muxing::StreamMuxerBox,
        transport::Boxed,
        upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, Version},
    },
    tcp, yamux,
};

use super::secure::{SecureConfig, SecureError, Security};

const PROTOCOL: &str = "/octomesh/plaintext-test/1";

#[derive(Clone)]
struct Plaintext(Arc<SecureConfig>);

type Upgrading<T> = Pin<Box<dyn Future<Output = Result<(PeerId, T), SecureError>> + Send>>;

impl Plaintext {
    fn upgrade<T>(self, mut io: T, outbound: bool) -> Upgrading<T>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        async move {
            let (peer, _, traffic) = self.0.authenticate(&mut io, outbound).await?;
            // The driver takes a session whose traffic nobody counts any more for one that never came about.
            std::mem::forget(traffic);
            Ok((peer, io))
        }
        .boxed()
    }
}

impl UpgradeInfo for Plaintext {
    type Info = &'static str;
    type InfoIter = iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once(PROTOCOL)
    }
}

impl<T> InboundConnectionUpgrade<T> for Plaintext
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, T);
    type Error = SecureError;
    type Future = Upgrading<T>;

    fn upgrade_inbound(self, io: T, _: &'static str) -> Self::Future {
        self.upgrade(io, false)
    }
}

impl<T> OutboundConnectionUpgrade<T> for Plaintext
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = (PeerId, T);
    type Error = SecureError;
    type Future = Upgrading<T>;

    fn upgrade_outbound(self, io: T, _: &'static str) -> Self::Future {
        self.upgrade(io, true)
    }
}

pub(super) fn build(security: &Security, timeout: Duration) -> Boxed<(PeerId, StreamMuxerBox)> {
    tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1)
        .authenticate(Plaintext(Arc::clone(security.config())))
        .multiplex(yamux::Config::default())
        .timeout(timeout)
        .boxed()
}
