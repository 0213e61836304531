//! `octomesh sessions`.
use super::{
    CliError, Context, Exit,
    render::{Table, seconds, size, via},
};
use crate::api::types::SessionsReply;

pub(super) async fn run(context: &Context) -> Result<Exit, CliError> {
    let reply: SessionsReply = context.client()?.get(&["api", "mesh", "sessions"]).await?;
    let now = crate::app::entry::unix_seconds();
    context.screen.show(&reply, |reply| text(reply, now))?;
    Ok(Exit::Ok)
}

fn text(reply: &SessionsReply, now: u64) -> String {
    let mut table = Table::new(&[
        "with",
        "suite",
        "post-quantum",
        "direction",
        "age",
        "rekeys",
        "received",
        "sent",
        "role",
        "certificate ends in",
        "address",
    ]);
    for s in &reply.sessions {
        table.row([
            s.name.clone(),
            s.suite.clone(),
            if s.pq { "yes" } else { "no" }.to_owned(),
            s.direction.clone(),
            seconds(s.established_s),
            s.rekeys.to_string(),
            size(s.bytes_in),
            size(s.bytes_out),
            s.role.to_string(),
            seconds(s.certificate_expires_at.saturating_sub(now)),
            s.relay.as_deref().map_or_else(|| s.addr.clone(), via),
        ]);
    }
    match reply.sessions.first() {
        None => "No open sessions.".to_owned(),
        Some(any) => format!(
            "{table}\nIdentities are proved with {}, keys agreed with {}, records sealed with {}.",
            any.identity, any.kem, any.aead
        ),
    }
}
