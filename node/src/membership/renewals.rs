//! Members that ask this node for another certificate: the way from the network to the issuer, which lives in a room above.
use octomesh_protocol::{
    id::NodeId,
    sync::{RenewRefusal, Renewal, SyncReply},
};
use tokio::sync::{mpsc, oneshot};

/// Asks that wait for the issuer; each takes it a few milliseconds.
pub(crate) const RENEWALS: usize = 16;

/// A member, this node included, wants another certificate. Its session proved its keys.
#[derive(Debug)]
pub(crate) struct RenewAsk {
    pub(crate) node: NodeId,
    pub(crate) renewal: Renewal,
    /// [`SyncReply::Renewed`] or [`SyncReply::NotRenewed`].
    pub(crate) reply: oneshot::Sender<SyncReply>,
}

/// Leads to the issuer; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Renewals(mpsc::Sender<RenewAsk>);

impl Renewals {
    /// The way in, and what the issuer reads.
    pub(crate) fn new() -> (Self, mpsc::Receiver<RenewAsk>) {
        let (asks, issuer) = mpsc::channel(RENEWALS);
        (Self(asks), issuer)
    }

    /// The issuer's answer.
    pub(crate) async fn ask(&self, node: NodeId, renewal: Renewal) -> SyncReply {
        let (reply, answer) = oneshot::channel();
        if self.0.try_send(RenewAsk { node, renewal, reply }).is_err() {
            return not_renewed(RenewRefusal::Busy, "too many ask at once");
        }
        answer.await.unwrap_or_else(|_| not_renewed(RenewRefusal::NotIssuer, "the issuer has stopped"))
    }
}

/// A refusal.
pub(crate) fn not_renewed(why: RenewRefusal, detail: impl ToString) -> SyncReply {
    SyncReply::NotRenewed { why, detail: detail.to_string() }
}
