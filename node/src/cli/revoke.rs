//! `octomesh revoke`.
use clap::Args;

use super::{CliError, Context, Exit, ask};
use crate::api::types::{RevokeReply, RevokeRequest};

/// Throws a node out of the mesh for good.
#[derive(Debug, Args)]
pub(super) struct RevokeCommand {
    /// The node: name, id or unique prefix
    node: String,
    /// Why; all members see it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Replace the mesh secret too, so that the node can't even begin a handshake
    #[arg(long)]
    rotate_secret: bool,
}

impl RevokeCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let what = format!("Revoking {} can't be taken back: the node has to join anew", self.node);
        ask::confirm(context, &what).await?;
        let client = context.client()?;
        let request = RevokeRequest { reason: self.reason.clone(), rotate_secret: self.rotate_secret };
        let path = ["api", "mesh", "nodes", &self.node, "revoke"];
        let reply: RevokeReply = client.post(&path, &request, true).await?;
        context.screen.show(&reply, |r| text(&self.node, self.rotate_secret, r))?;
        Ok(Exit::Ok)
    }
}

fn text(node: &str, rotated: bool, reply: &RevokeReply) -> String {
    let mut lines = vec![format!(
        "{node} ({}) is revoked. Members that are away hear of it when they come back.",
        reply.node_id
    )];
    if rotated {
        lines.push(format!(
            "The mesh has secret number {} now; the one before it is accepted for a day. A node that is away for longer joins anew.",
            reply.secret_generation
        ));
    }
    if !reply.reissued.is_empty() {
        lines.push(format!(
            "It had certified {}: they have another certificate now.",
            reply.reissued.join(", ")
        ));
    }
    if !reply.void_certificates.is_empty() {
        lines.push(format!(
            "It had certified {}: their certificates are void. Invite them anew; each joins with another --home.",
            reply.void_certificates.join(", ")
        ));
    }
    lines.join("\n")
}
