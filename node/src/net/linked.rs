//! A network of streams that a test makes, without sessions: what carries steps is real, what carries bytes is not.
use std::sync::Arc;

use futures::future::BoxFuture;
use octomesh_protocol::id::NodeId;
use tokio::sync::{mpsc, watch};
use tokio_util::compat::TokioAsyncReadCompatExt;

pub(crate) use super::stream::ByteStream;
use super::{
    NetError, NetHandle,
    behaviour::STEP_PROTOCOL,
    outbound::{Open, Outbound},
};

/// Bytes on their way, as the window of a stream.
const WINDOW: usize = 64 * 1024;

/// Opens a stream to a node; may take for ever.
pub(crate) type Links = Arc<dyn Fn(NodeId) -> BoxFuture<'static, Result<ByteStream, NetError>> + Send + Sync>;

/// Both ends of a stream.
pub(crate) fn pair() -> (ByteStream, ByteStream) {
    let (a, b) = tokio::io::duplex(WINDOW);
    (ByteStream::new(a.compat()), ByteStream::new(b.compat()))
}

/// A handle whose step streams are `links`; all else finds no driver.
pub(crate) fn handle(links: Links) -> NetHandle {
    NetHandle {
        commands: mpsc::channel(1).0,
        control: Outbound::new(&[STEP_PROTOCOL], Open::default()).opener(),
        refusals: watch::channel(Arc::default()).1,
        links: Some(links),
    }
}
