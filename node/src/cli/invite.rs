//! `octomesh invite`.
use clap::{Args, ValueEnum};
use octomesh_protocol::{
    card::SandboxLevel,
    id::ToolName,
    trust::{Grants, Role},
};

use super::{
    CliError, Context, Exit,
    client::Client,
    render::{self, Table},
};
use crate::{
    api::types::{InviteReply, InviteRequest, InvitesReply, ToolsReply, WithdrawReply},
    app::entry,
};

/// Makes, lists or withdraws tickets.
#[derive(Debug, Args)]
pub(super) struct InviteCommand {
    /// What the newcomer will be
    #[arg(long, default_value = "worker")]
    role: RoleName,
    /// How long the ticket is good for: 90s, 15m, 2h, 1d; at most 7d
    #[arg(long, default_value = "15m", value_parser = duration)]
    ttl: u64,
    /// How many machines may use it: 1 to 64
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// Only these tools may be called by the newcomer, separated by commas [default: all]
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',', value_parser = tool)]
    tools: Vec<ToolName>,
    /// Its calls run only where programs run at this level or a better one
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    min_sandbox: Option<SandboxLevel>,
    /// List tickets that can still be used
    #[arg(long, conflicts_with = "withdraw")]
    list: bool,
    /// Make a ticket useless
    #[arg(long, value_name = "ID")]
    withdraw: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleName {
    Worker,
    Client,
    Admin,
}

/// A ticket that is good for longer is a password.
const LONGEST_TTL_S: u64 = 7 * 86_400;

fn tool(text: &str) -> Result<ToolName, String> {
    ToolName::parse(text.trim()).map_err(|e| e.to_string())
}

fn level(text: &str) -> Result<SandboxLevel, String> {
    SandboxLevel::parse(text)
        .ok_or_else(|| format!("one of {} is needed", SandboxLevel::ALL.map(SandboxLevel::as_str).join(", ")))
}

/// Which calls the newcomer may make, in words; empty without limits.
fn limits(grants: &Grants) -> String {
    let tools = grants.tools.as_ref().map(|tools| {
        let names: Vec<_> = tools.iter().map(ToString::to_string).collect();
        format!("only {}", names.join(", "))
    });
    let level = grants.min_sandbox.map(|level| format!("from {level} on"));
    [tools, level].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

pub(super) fn duration(text: &str) -> Result<u64, String> {
    match crate::config::parse_time(text) {
        None => Err("a time such as 90s, 15m, 2h or 1d is needed".to_owned()),
        Some(s) if (1..=LONGEST_TTL_S).contains(&s) => Ok(s),
        Some(_) => Err("between 1s and 7d".to_owned()),
    }
}

impl InviteCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        if let Some(id) = &self.withdraw {
            let reply: WithdrawReply = client.delete(&["api", "invites", id]).await?;
            context.screen.show(&reply, |r| format!("Ticket {} can no longer be used.", r.id))?;
            return Ok(Exit::Ok);
        }
        let now = entry::unix_seconds();
        if self.list {
            let reply: InvitesReply = client.get(&["api", "invites"]).await?;
            context.screen.show(&reply, |r| list(r, now))?;
            return Ok(Exit::Ok);
        }
        let role = match self.role {
            RoleName::Worker => Role::Worker,
            RoleName::Client => Role::Client,
            RoleName::Admin => Role::Admin,
        };
        let tools = (!self.tools.is_empty()).then(|| self.tools.clone());
        let grants = Grants { tools, min_sandbox: self.min_sandbox };
        let request = InviteRequest { role, ttl_s: self.ttl, uses: self.uses, grants };
        if let Some(tools) = &request.grants.tools {
            warn_of_unknown(context, &client, tools).await;
        }
        let reply: InviteReply = client.post(&["api", "invites"], &request, false).await?;
        context.screen.show(&reply, |r| {
            format!(
                "{}\n\nOn the new machine: octomesh join {}\nGood for {} and {} machine(s), as {}{}. Whoever has it can join.",
                r.ticket,
                r.ticket,
                render::seconds(r.expires_at.saturating_sub(now)),
                r.uses,
                r.role,
                match limits(&r.grants) {
                    none if none.is_empty() => none,
                    some => format!(" ({some})"),
                }
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// A grant may name a tool that comes later, and may be a typing error.
async fn warn_of_unknown(context: &Context, client: &Client, tools: &[ToolName]) {
    // silent-ok: the ticket does not hang on it
    let Ok(known) = client.query::<ToolsReply>(&["api", "tools"], &[("all", "true".to_owned())]).await else {
        return;
    };
    for name in tools.iter().filter(|name| known.tools.iter().all(|t| t.name != name.as_str())) {
        context.screen.warn(&format!(
            "warning: no node of this mesh has a tool {name} now; the newcomer may call it when there is one (`octomesh tools --all` lists them)"
        ));
    }
}

fn list(reply: &InvitesReply, now: u64) -> String {
    let mut table = Table::new(&["id", "role", "uses", "good for", "limits"]);
    for invite in &reply.invites {
        let left = render::seconds(invite.expires_at.saturating_sub(now));
        let limits = limits(&invite.grants);
        table.row([invite.id.clone(), invite.role.to_string(), invite.uses.to_string(), left, limits]);
    }
    if table.is_empty() { "No tickets.".to_owned() } else { table.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, s) in [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("7", 7)] {
            assert_eq!(duration(text), Ok(s));
        }
        for bad in ["", "m", "0s", "1w", "31d", "-1m", "99999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
