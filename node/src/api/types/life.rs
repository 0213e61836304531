//! The life of members: tickets, the root key, another name, leaving, waking up.
use octomesh_protocol::trust::{Grants, Role};
use serde::{Deserialize, Serialize};

/// `POST /api/invites`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// What the newcomer will be.
    #[serde(default = "worker")]
    pub role: Role,
    /// How long the ticket is good for.
    #[serde(default = "quarter_of_an_hour")]
    pub ttl_s: u64,
    /// How many nodes may use it.
    #[serde(default = "once")]
    pub uses: u32,
    /// Limits on what the newcomer may call: `{tools, min_sandbox}`.
    #[serde(default)]
    pub grants: Grants,
}

const fn worker() -> Role {
    Role::Worker
}

const fn quarter_of_an_hour() -> u64 {
    900
}

const fn once() -> u32 {
    1
}

/// A new ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteReply {
    /// The ticket, `octo1…`: whoever has it can join.
    pub ticket: String,
    /// Its id, for `--withdraw`.
    pub id: String,
    /// In seconds since the Unix epoch.
    pub expires_at: u64,
    /// How many nodes may use it.
    pub uses: u32,
    /// What they will be.
    pub role: Role,
    /// Limits on what they may call.
    #[serde(default)]
    pub grants: Grants,
}

/// `GET /api/invites`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitesReply {
    /// Tickets that can still be used.
    pub invites: Vec<InviteEntry>,
}

/// A ticket in a list: never the ticket itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteEntry {
    /// Its id.
    pub id: String,
    /// In seconds since the Unix epoch.
    pub expires_at: u64,
    /// Uses left.
    pub uses: u32,
    /// What they will be.
    pub role: Role,
    /// Limits on what they may call.
    #[serde(default)]
    pub grants: Grants,
}

/// `DELETE /api/invites/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawReply {
    /// The ticket.
    pub id: String,
    /// Whether it can no longer be used.
    pub withdrawn: bool,
}

/// `GET /api/root`, and the answer to `/api/root/unlock` and `/lock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootReply {
    /// `here`, `locked`, `unlocked` or `away`.
    pub place: String,
}

/// `POST /api/root/unlock`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnlockRequest {
    /// Opens the key. Erased after use.
    pub passphrase: String,
    /// For how long, in seconds; at most a day.
    #[serde(default = "quarter_of_an_hour")]
    pub for_s: u64,
}

impl std::fmt::Debug for UnlockRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnlockRequest").field("for_s", &self.for_s).finish_non_exhaustive()
    }
}

impl Drop for UnlockRequest {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.passphrase);
    }
}

/// `POST /api/rename`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name of this node.
    pub name: String,
}

/// This node under its new name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameReply {
    /// The node.
    pub node_id: String,
    /// Its name now.
    pub name: String,
}

/// The body of `POST /api/leave`; it may be absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaveRequest {
    /// Leave also when no other admin is known.
    pub last_admin: bool,
}

/// `POST /api/leave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveReply {
    /// The node that leaves.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Names of the members that were told.
    pub told: Vec<String>,
}

/// `POST /api/mesh/nodes/{id}/wake`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeReply {
    /// Its id.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Whom the packets name.
    pub macs: Vec<String>,
    /// Networks that they were sent to.
    pub networks: u32,
}

/// `POST /api/mesh/nodes/{id}/forget`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReply {
    /// The node that is out of sight here.
    pub node_id: String,
    /// Its name.
    pub name: String,
}
