//! What a certificate allows its holder to ask for. Authentication is not authorisation: the executor checks each step.
use serde::{Deserialize, Serialize};

use crate::{card::SandboxLevel, codec, id::ToolName, limits};

/// What a member is in its mesh.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    /// May also drain, revoke and invite.
    Admin,
    /// Places steps and offers tools.
    Worker,
    /// Places steps and offers none.
    Client,
}

/// Limits on what a member may call. The default allows everything that its role allows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
// In JSON a limit that is spelt wrong must not be no limit.
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// Only these tools, when present.
    pub tools: Option<Vec<ToolName>>,
    /// Only on nodes that run process tools at this level or a better one.
    pub min_sandbox: Option<SandboxLevel>,
}

impl Grants {
    /// Whether a certificate has room for them beside the longest name.
    #[must_use]
    pub fn fit(&self) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.len() <= limits::GRANTED_TOOLS)
            && codec::encode::<_, { limits::GRANTS_BYTES }>(self).is_ok()
    }
}
