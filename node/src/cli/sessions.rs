//! `octomesh sessions`.
use super::{
    CliError, Context, Exit,
    render::{Table, seconds, size},
};
use crate::api::types::SessionsReply;

pub(super) async fn run(context: &Context) -> Result<Exit, CliError> {
    let reply: SessionsReply = context.client()?.get(&["api", "mesh", "sessions"]).await?;
    context.screen.show(&reply, text)?;
    Ok(Exit::Ok)
}

fn text(reply: &SessionsReply) -> String {
    let mut table = Table::new(&[
        "with",
        "suite",
        "post-quantum",
        "direction",
        "age",
        "rekeys",
        "received",
        "sent",
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
            s.addr.clone(),
        ]);
    }
    if table.is_empty() { "No open sessions.".to_owned() } else { table.to_string() }
}
