//! Changes of a membership that the owner asks for at the API: another name, leaving, a member that is forgotten here.
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use octomesh_protocol::{
    id::{NodeId, NodeName},
    sync::{RenewRefusal, SyncReply, SyncRequest},
    trust::Role,
};
use tokio::sync::oneshot;

use super::{backend::NodeBackend, node::Node, renewal::RenewalError, root::RootPlace};
use crate::{
    api::{
        ApiError,
        types::{ForgetReply, LeaveReply, RenameReply},
    },
    membership::{Member, MemberState, MeshView},
    trust::Trust,
};

/// A member answers in milliseconds; one that does not will see this node as down.
const GOODBYE: Duration = Duration::from_secs(2);
/// The answer to the API's client goes out before the node begins to stop.
const LAST_WORD: Duration = Duration::from_millis(300);

impl From<RenewalError> for ApiError {
    fn from(error: RenewalError) -> Self {
        let (status, code, hint) = match &error {
            RenewalError::Refused { why: RenewRefusal::NameTaken, .. } => {
                (409, "name_taken", Some("choose another name"))
            }
            RenewalError::NoIssuer => (
                503,
                "no_issuer",
                Some(
                    "a new name needs a new certificate: try again when a node of an admin is connected (`octomesh nodes`)",
                ),
            ),
            RenewalError::Refused { why: RenewRefusal::NotIssuer, .. } => (
                409,
                "no_root",
                Some(
                    "an admin's certificate comes from the root key: `octomesh root import FILE`, or unlock it",
                ),
            ),
            RenewalError::Refused { why: RenewRefusal::Busy, .. } => {
                (503, "busy", Some("try again in a few seconds"))
            }
            RenewalError::Refused { .. } | RenewalError::Excluded(_) => (403, (&error).into(), None),
            RenewalError::Unreachable(_) | RenewalError::Answer(_) => (502, (&error).into(), None),
            RenewalError::Install(_) | RenewalError::Stopped => (500, (&error).into(), None),
        };
        let made = Self::new(status, code, error.to_string());
        match hint {
            Some(hint) => made.hint(hint),
            None => made,
        }
    }
}

/// Refuses while this node is the only admin that it knows of.
pub(super) fn not_the_last_admin(view: &MeshView, trust: &Trust) -> Result<(), ApiError> {
    let is_admin =
        |m: &Member| m.certificate.as_ref().is_some_and(|c| c.role == Role::Admin && trust.check(c).is_ok());
    let mut others = view.members.values().filter(|m| !view.is_me(m.node) && !m.is_gone());
    if !trust.is_admin() || others.any(|m| is_admin(m)) {
        return Ok(());
    }
    Err(ApiError::new(
        409,
        "last_admin",
        "this node is the last admin that it knows of: when it has left, nobody can invite, renew or revoke until the root key makes \
         another admin",
    )
    .hint("make another one first: `octomesh invite --role admin`, and `octomesh join` there; --yes leaves all the same"))
}

impl Node {
    /// Tells every member with a session; gives the names of those that heard it.
    async fn tell_goodbye(&self) -> Vec<String> {
        let others: Vec<(NodeId, String)> = {
            let view = self.view.borrow();
            let connected = view.members.values().filter(|m| m.connected && !view.is_me(m.node));
            connected.map(|m| (m.node, m.name.to_string())).collect()
        };
        let attempts = others.into_iter().map(|(node, name)| async move {
            let bytes = SyncRequest::Leaving.to_bytes().ok()?;
            let answer = tokio::time::timeout(GOODBYE, self.net.sync(node, bytes)).await.ok()?.ok()?;
            matches!(SyncReply::from_bytes(&answer), Ok(SyncReply::Done)).then_some(name)
        });
        futures::future::join_all(attempts).await.into_iter().flatten().collect()
    }
}

impl NodeBackend {
    pub(super) async fn take_name(&self, text: &str) -> Result<RenameReply, ApiError> {
        let name = NodeName::parse(text).map_err(|e| ApiError::new(400, "invalid_name", e.to_string()))?;
        if self.0.name() != name {
            self.0.life.renewal.rename(name.clone()).await?;
        }
        Ok(RenameReply { node_id: self.0.caller.node.to_string(), name: name.to_string() })
    }

    /// Tells the members, and lets the node stop. What erases the identity is `up`, after everything has ended.
    pub(super) async fn say_goodbye(&self) -> Result<LeaveReply, ApiError> {
        if self.0.life.root.place() != RootPlace::Away {
            return Err(ApiError::new(
                409,
                "holds_root",
                "the mesh's root key is on this node and would be erased with it: nobody could make or renew an admin any more",
            )
            .hint("`octomesh root export FILE`, then `octomesh root remove --copy FILE`, then leave"));
        }
        // Before anybody is told: a member that said good-bye must not come back after a crash.
        self.0.home.mark_leaving().map_err(|e| {
            ApiError::internal(format!("the leave can't be noted: {e}"))
                .hint("nobody was told; free the disk or repair it and leave again")
        })?;
        // A task of its own: whoever asked may go away, and half a good-bye is none.
        let (reply, answer) = oneshot::channel();
        let node = Arc::clone(&self.0);
        self.0.supervisor.spawn("leaving", async move {
            node.left.store(true, Ordering::SeqCst);
            // silent-ok: an executor that has gone takes no work either
            let _ = node.executor.drain(true).await;
            // silent-ok: the client is gone
            let _ = reply.send(node.tell_goodbye().await);
            tokio::time::sleep(LAST_WORD).await;
            node.leaving.cancel();
        });
        let told = answer.await.map_err(|_| ApiError::not_ready("the node is stopping"))?;
        Ok(LeaveReply { node_id: self.0.caller.node.to_string(), name: self.0.name().to_string(), told })
    }

    pub(super) async fn put_out_of_sight(&self, text: &str) -> Result<ForgetReply, ApiError> {
        let node = self.resolve(text)?;
        let member = self.view().members.get(&node).cloned();
        let Some(member) = member.filter(|_| node != self.0.caller.node) else {
            return Err(ApiError::invalid_request("a node does not forget itself")
                .hint("`octomesh leave` ends its membership"));
        };
        if member.connected || !matches!(member.state, MemberState::Down | MemberState::Left) {
            let message = format!(
                "{} is {}: only a member that is down or has left is forgotten",
                member.name, member.state
            );
            return Err(ApiError::new(409, "still_there", message)
                .hint("stop it first, or throw it out for good with `octomesh revoke`"));
        }
        if !self.0.life.membership.forget(node).await {
            return Err(ApiError::not_ready("the node is stopping"));
        }
        Ok(ForgetReply { node_id: node.to_string(), name: member.name.to_string() })
    }
}
