//! `octomesh leave`: ends a membership for good.
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{CliError, Context, Exit, ask, client::Client};
use crate::{
    api::types::{LeaveReply, LeaveRequest},
    app::entry,
};

/// What a node takes to end its steps, its tasks and itself.
const STOPS: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(100);

pub(super) async fn run(context: &Context) -> Result<Exit, CliError> {
    ask::confirm(context, "Leaving the mesh erases this node's keys for good").await?;
    let client = context.client()?;
    let leave = async |last_admin| -> Result<LeaveReply, CliError> {
        client.post(&["api", "leave"], &LeaveRequest { last_admin }, false).await
    };
    let mut told = leave(false).await;
    if let Err(last) = &told
        && last.body.code == "last_admin"
    {
        context.screen.warn(&format!("warning: {}", last.body.message));
        ask::confirm(context, "It leaves without another admin").await?;
        told = leave(true).await;
    }
    match told {
        Ok(reply) => {
            wait_for_its_end(&client).await?;
            context.screen.show(&reply, |r| {
                let told =
                    if r.told.is_empty() { "nobody was connected".to_owned() } else { r.told.join(", ") };
                format!("{} has left the mesh (told: {told}). Its keys are erased.", r.name)
            })?;
        }
        // Nobody can be told then; the home is this command's own.
        Err(error) if error.exit == Exit::NotRunning => {
            warn_if_admin(context).await?;
            let left = entry::leave(&context.home)?;
            let hint = "The others see it as down; `octomesh nodes forget` takes it out of their sight.";
            context.screen.show(
                &json!({ "node_id": left.node_id, "name": left.name, "told": [] }),
                |_| {
                    format!("{} was not running: its keys are erased, and nobody was told. {hint}", left.name)
                },
            )?;
        }
        Err(error) => return Err(error),
    }
    Ok(Exit::Ok)
}

/// A node that does not run knows nobody: it may be the last admin.
async fn warn_if_admin(context: &Context) -> Result<(), CliError> {
    if entry::identity(&context.home).ok().flatten().is_none_or(|who| who.role != "admin") {
        return Ok(());
    }
    context.screen.warn(
        "warning: this node is an admin. If it is the last one, nobody can invite, renew or revoke until the root key makes another",
    );
    ask::confirm(context, "It leaves all the same").await
}

async fn wait_for_its_end(client: &Client) -> Result<(), CliError> {
    let until = Instant::now() + STOPS;
    while client.is_alive().await {
        if Instant::now() >= until {
            return Err(CliError::failed("the node has told the members and has not stopped yet")
                .hint("its keys are erased when it stops"));
        }
        sleep(POLL).await;
    }
    Ok(())
}
