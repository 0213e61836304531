//! Throwing a node out: those whom it certified get another certificate first, then everybody hears of it.
use std::{sync::Arc, time::Duration};

use octomesh_protocol::{
    id::NodeId,
    sync::{SyncReply, SyncRequest},
    trust::{Certificate, Issuer},
};

use super::{backend::NodeBackend, node::Node};
use crate::{
    api::{
        ApiError,
        types::{RevokeReply, RevokeRequest},
    },
    membership::view::ResolveError,
    trust::{RevokeAsk, TrustError},
};

/// A node takes its new certificate in milliseconds; one that does not answer joins anew.
const REISSUE: Duration = Duration::from_secs(3);

impl From<TrustError> for ApiError {
    fn from(error: TrustError) -> Self {
        let status = match error {
            TrustError::NotAdmin | TrustError::Excluded(_) => 403,
            TrustError::Itself | TrustError::Statement(_) | TrustError::Certificate(_) => 400,
            TrustError::Full => 507,
            TrustError::Store(_) | TrustError::Entropy(_) | TrustError::Stopped => 500,
        };
        let code = match error {
            TrustError::Itself => "itself",
            TrustError::Excluded(_) => crate::dispatch::REVOKED,
            ref other => other.into(),
        };
        Self::new(status, code, error.to_string())
    }
}

impl NodeBackend {
    /// A member, or any node by its full id: also one that this node has never met.
    fn resolve_any(&self, text: &str) -> Result<NodeId, ApiError> {
        let view = Arc::clone(&self.0.view.borrow());
        match (view.resolve(text), text.parse::<NodeId>()) {
            (Ok(member), _) => Ok(member.node),
            (Err(ResolveError::UnknownNode(_)), Ok(node)) => Ok(node),
            (Err(error), _) => Err(error.into()),
        }
    }

    pub(super) async fn throw_out(
        &self,
        text: &str,
        request: RevokeRequest,
    ) -> Result<RevokeReply, ApiError> {
        let node = self.resolve_any(text)?;
        self.0.trust.may_revoke(node)?;
        let (reissued, void) = self.0.reissue(node).await;
        let ask = RevokeAsk { node, reason: request.reason, rotate: request.rotate_secret };
        let revoked = self.0.trust.revoke(ask).await?;
        Ok(RevokeReply {
            node_id: node.to_string(),
            revoked_at: revoked.at,
            secret_generation: revoked.secret_generation,
            reissued,
            void_certificates: void,
        })
    }
}

impl Node {
    /// Gives every member that `admin` certified a certificate of this node, as far as it is reached. Names: those that have one now, and
    /// those whose certificate will be void.
    async fn reissue(&self, admin: NodeId) -> (Vec<String>, Vec<String>) {
        let certified: Vec<(Arc<Certificate>, bool)> = {
            let view = self.view.borrow();
            let of_admin = |c: &Arc<Certificate>| c.issuer == Issuer::Admin(admin);
            let showed = view
                .members
                .values()
                .filter_map(|m| Some((Arc::clone(m.certificate.as_ref()?), m.connected)));
            showed.filter(|(certificate, _)| of_admin(certificate)).collect()
        };
        let attempts = certified.into_iter().map(|(certificate, connected)| async move {
            let name = certificate.name.to_string();
            let given = connected && self.give_certificate(&certificate).await;
            (name, given)
        });
        let (given, void): (Vec<_>, Vec<_>) =
            futures::future::join_all(attempts).await.into_iter().partition(|(_, given)| *given);
        let names = |list: Vec<(String, bool)>| list.into_iter().map(|(name, _)| name).collect();
        (names(given), names(void))
    }

    async fn give_certificate(&self, old: &Certificate) -> bool {
        let chain = match self.issuer.reissue(old.clone()).await {
            Ok(chain) => chain,
            Err(error) => {
                tracing::warn!(node = %old.name, %error, "no other certificate could be issued");
                return false;
            }
        };
        let Ok(bytes) = SyncRequest::Certificate(Box::new(chain)).to_bytes() else { return false };
        let answer = tokio::time::timeout(REISSUE, self.net.sync(old.node, bytes)).await;
        let taken = match answer {
            Ok(Ok(bytes)) => matches!(SyncReply::from_bytes(&bytes), Ok(SyncReply::Done)),
            _ => false,
        };
        tracing::info!(node = %old.name, taken, "another certificate was issued");
        taken
    }
}
