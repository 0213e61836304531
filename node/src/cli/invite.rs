//! `octomesh invite`.
use clap::{Args, ValueEnum};
use octomesh_protocol::trust::Role;

use super::{
    CliError, Context, Exit,
    render::{self, Table},
};
use crate::{
    api::types::{InviteReply, InviteRequest, InvitesReply, WithdrawReply},
    app::entry,
};

/// Makes, lists or withdraws tickets.
#[derive(Debug, Args)]
pub(super) struct InviteCommand {
    /// What the newcomer will be
    #[arg(long, default_value = "worker")]
    role: RoleName,
    /// How long the ticket is good for: 90s, 15m, 2h, 1d
    #[arg(long, default_value = "15m", value_parser = duration)]
    ttl: u64,
    /// How many machines may use it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
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

fn duration(text: &str) -> Result<u64, String> {
    let fail = || "a time such as 90s, 15m, 2h or 1d is needed".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(fail()),
    };
    let number: u64 = digits.parse().map_err(|_| fail())?;
    match number.checked_mul(scale) {
        Some(s) if (1..=LONGEST_TTL_S).contains(&s) => Ok(s),
        _ => Err("between 1s and 7d".to_owned()),
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
        let request = InviteRequest { role, ttl_s: self.ttl, uses: self.uses };
        let reply: InviteReply = client.post(&["api", "invites"], &request, false).await?;
        context.screen.show(&reply, |r| {
            format!(
                "{}\n\nOn the new machine: octomesh join {}\nGood for {} and {} machine(s), as {}. Whoever has it can join.",
                r.ticket,
                r.ticket,
                render::seconds(r.expires_at.saturating_sub(now)),
                r.uses,
                r.role
            )
        })?;
        Ok(Exit::Ok)
    }
}

fn list(reply: &InvitesReply, now: u64) -> String {
    let mut table = Table::new(&["id", "role", "uses", "good for"]);
    for invite in &reply.invites {
        let left = render::seconds(invite.expires_at.saturating_sub(now));
        table.row([invite.id.clone(), invite.role.to_string(), invite.uses.to_string(), left]);
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
