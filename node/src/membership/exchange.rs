//! What two members tell each other over sync, from the side that asks.
use octomesh_protocol::{
    advert::Advert,
    id::{NodeId, RevocationId},
    sync::{Sync, SyncReply, SyncRequest},
    trust::{CLOCK_TOLERANCE_S, Certificate, CertificateChain},
};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::{catching::Catching, state::Input};
use crate::{
    net::{NetError, NetHandle},
    trust::{Trust, TrustHandle},
};

/// Names in one question: a few more than fit the answer.
const ASKED_AT_ONCE: usize = 64;

/// Why an exchange brought nothing.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("sync: {0}")]
    Codec(#[from] octomesh_protocol::codec::CodecError),
    #[error("the answer is to another question, or a refusal")]
    Answer,
}

async fn ask(net: &NetHandle, node: NodeId, request: &SyncRequest) -> Result<SyncReply, ExchangeError> {
    Ok(SyncReply::from_bytes(&net.sync(node, request.to_bytes()?).await?)?)
}

/// Compares this node's `own` state with that of `node`, and asks it for what is missing here.
pub(super) async fn compare(net: NetHandle, trust: TrustHandle, node: NodeId, own: Sync) -> Vec<Input> {
    match ask(&net, node, &SyncRequest::State(own)).await {
        Ok(SyncReply::State(theirs)) => {
            let mut inputs = told(node, &theirs);
            inputs.extend(catch_up(net, trust, node, theirs).await);
            inputs
        }
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::debug!(node = node.short(), %error, "sync failed");
            Vec::new()
        }
    }
}

/// Sends an answer.
pub(super) fn reply(to: oneshot::Sender<Vec<u8>>, answer: &SyncReply) {
    match answer.to_bytes() {
        // silent-ok: the asker does not wait any more
        Ok(bytes) => drop(to.send(bytes)),
        Err(error) => tracing::error!(%error, "a sync reply can't be encoded"),
    }
}

/// A member tells this node that it, or the admin that certified it, is out.
pub(super) async fn heard_out(
    trust: TrustHandle,
    revocation: Vec<u8>,
    to: oneshot::Sender<Vec<u8>>,
) -> Vec<Input> {
    let heard = trust.learn(vec![revocation]).await.is_ok();
    reply(to, if heard { &SyncReply::Done } else { &SyncReply::Refused });
    Vec::new()
}

/// An admin that is about to revoke the one that certified this node gives it another certificate.
pub(super) async fn certified(
    trust: TrustHandle,
    from: NodeId,
    chain: CertificateChain,
    to: oneshot::Sender<Vec<u8>>,
) -> Vec<Input> {
    let taken = trust.accept(chain).await;
    match &taken {
        Ok(()) => tracing::info!(from = from.short(), "this node has another certificate"),
        Err(error) => tracing::warn!(from = from.short(), %error, "a certificate was refused"),
    }
    reply(to, if taken.is_ok() { &SyncReply::Done } else { &SyncReply::Refused });
    Vec::new()
}

/// The certificate that a member shows in the place of an earlier one, if it holds and is its own.
pub(super) fn shown(trust: &Trust, node: NodeId, chain: &CertificateChain, now: u64) -> Option<Certificate> {
    let checked = chain.verify(trust.mesh, now, CLOCK_TOLERANCE_S).map_err(|e| e.to_string());
    let checked = checked.and_then(|verified| {
        let certificate = verified.certificate;
        trust.check(&certificate).map_err(|e| e.to_string())?;
        if certificate.node == node { Ok(certificate) } else { Err("it is another node's".to_owned()) }
    });
    checked
        .inspect_err(|why| tracing::warn!(node = node.short(), why, "a member's new certificate was refused"))
        .ok()
}

/// Shows a member this node's own new certificate. One that does not hear of it sees it in the next session.
pub(super) async fn show(net: NetHandle, node: NodeId, chain: CertificateChain) -> Vec<Input> {
    if let Err(error) = ask(&net, node, &SyncRequest::Shown(Box::new(chain))).await {
        tracing::debug!(node = node.short(), %error, "a member did not hear of this node's new certificate");
    }
    Vec::new()
}

/// What `theirs` says of members.
pub(super) fn told(node: NodeId, theirs: &Sync) -> Vec<Input> {
    let mut inputs = vec![Input::Members { from: Some(node), members: theirs.members.clone() }];
    match Advert::from_bytes(&theirs.advert, node) {
        Ok(advert) => inputs.push(Input::Advert { advert, direct: true }),
        Err(error) => tracing::warn!(node = node.short(), %error, "advert refused"),
    }
    inputs
}

/// Asks `node` for the revocations and the mesh secret that it has and this node has not.
pub(super) async fn catch_up(net: NetHandle, trust: TrustHandle, node: NodeId, theirs: Sync) -> Vec<Input> {
    match revocations(&net, &trust, node, theirs.revocations).await {
        Ok(true) => {
            // Only now: who has the newest secret must know of everybody who may not have it, or it would hand it to them.
            if theirs.secret > trust.now().secrets.stamp
                && let Err(error) = secret(&net, &trust, node).await
            {
                tracing::debug!(node = node.short(), %error, "the mesh secret was not fetched");
            }
            vec![Input::Exchanged { node }]
        }
        Ok(false) => {
            tracing::warn!(
                node = node.short(),
                "a member has revocations that it does not give or that do not hold"
            );
            Vec::new()
        }
        Err(error) => {
            tracing::debug!(node = node.short(), %error, "revocations were not fetched");
            Vec::new()
        }
    }
}

/// As [`catch_up`], and goes on with what `node` told meanwhile.
pub(super) async fn catch_up_all(
    net: NetHandle,
    trust: TrustHandle,
    catching: Catching,
    node: NodeId,
    theirs: Sync,
) -> Vec<Input> {
    let mut inputs = catch_up(net.clone(), trust.clone(), node, theirs).await;
    while let Some(theirs) = catching.next(node) {
        inputs = catch_up(net.clone(), trust.clone(), node, theirs).await;
    }
    inputs
}

/// Gives whether nothing is missing in the end. Each round brings at least one, so that it ends.
async fn revocations(
    net: &NetHandle,
    trust: &TrustHandle,
    node: NodeId,
    ids: Vec<RevocationId>,
) -> Result<bool, ExchangeError> {
    let stopped = |_| ExchangeError::Answer;
    let mut missing = trust.missing(ids).await.map_err(stopped)?;
    while !missing.is_empty() {
        let asked = missing.iter().take(ASKED_AT_ONCE).copied().collect();
        let SyncReply::Revocations(list) = ask(net, node, &SyncRequest::Revocations(asked)).await? else {
            return Err(ExchangeError::Answer);
        };
        trust.learn(list).await.map_err(stopped)?;
        let left = trust.missing(missing.clone()).await.map_err(stopped)?;
        if left.len() == missing.len() {
            return Ok(false);
        }
        missing = left;
    }
    Ok(true)
}

async fn secret(net: &NetHandle, trust: &TrustHandle, node: NodeId) -> Result<(), ExchangeError> {
    match ask(net, node, &SyncRequest::Secret).await? {
        SyncReply::Secret(Some(rotation)) => {
            trust.learn_secret(Zeroizing::new(rotation)).await.map_err(|_| ExchangeError::Answer)
        }
        _ => Err(ExchangeError::Answer),
    }
}
