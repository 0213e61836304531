//! `octomesh root`: the mesh's root key, moved offline and back. `unlock` and `lock` speak to the running node; the others work on
//! the home, and a running node sees at once what they did.
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{CliError, Context, Exit, ask, invite};
use crate::{
    api::types::{RootReply as NodeReply, UnlockRequest},
    app::root::{self, ExportArgs, ImportArgs, Passphrase, RemoveArgs, RootPlace, RootReply},
};

/// Where the root key is, and how it moves.
#[derive(Debug, Args)]
pub(super) struct RootCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show where the root key is
    Status,
    /// Write a copy of the root key; nothing is overwritten
    Export {
        /// The file to write, best on a disk that is then put away
        file: PathBuf,
        /// Put the copy under a passphrase
        #[arg(long)]
        passphrase: bool,
    },
    /// Erase the root key from this node, after a copy has proved to be one
    Remove {
        /// The copy that `export` made
        #[arg(long, value_name = "FILE")]
        copy: PathBuf,
    },
    /// Bring the root key back from a copy
    Import {
        /// The copy
        file: PathBuf,
    },
    /// Open the root key in the running node for a while
    Unlock {
        /// For how long: 90s, 15m, 2h; at most 1d
        #[arg(long = "for", value_name = "TIME", default_value = "15m", value_parser = open_for)]
        seconds: u64,
    },
    /// Close the root key in the running node
    Lock,
}

fn open_for(text: &str) -> Result<u64, String> {
    invite::duration(text).and_then(|s| if s <= 86_400 { Ok(s) } else { Err("at most 1d".to_owned()) })
}

impl RootCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        match &self.action {
            Action::Status => self.status(context).await,
            Action::Export { file, passphrase } => export(context, file, *passphrase).await,
            Action::Remove { copy } => remove(context, copy).await,
            Action::Import { file } => import(context, file).await,
            Action::Unlock { seconds } => {
                let phrase = ask::passphrase(context).await?;
                let request = UnlockRequest { passphrase: phrase.expose().to_owned(), for_s: *seconds };
                shown_by_node(
                    context,
                    context.client()?.post(&["api", "root", "unlock"], &request, false).await?,
                )
            }
            Action::Lock => {
                shown_by_node(context, context.client()?.post(&["api", "root", "lock"], &(), false).await?)
            }
        }
    }

    /// What lies in the home; a running node knows whether it is open.
    async fn status(&self, context: &Context) -> Result<Exit, CliError> {
        let mut reply = root::status(&context.home)?;
        if reply.place == RootPlace::Locked {
            let asked = context.client()?.get::<NodeReply>(&["api", "root"]).await;
            if asked.is_ok_and(|node| node.place == RootPlace::Unlocked.to_string()) {
                reply.place = RootPlace::Unlocked;
            }
        }
        shown(context, &reply)
    }
}

fn shown(context: &Context, reply: &RootReply) -> Result<Exit, CliError> {
    context.screen.show(reply, |r| format!("Mesh {}\n{}.", r.mesh_id, capital(r.place.sentence())))?;
    Ok(Exit::Ok)
}

fn shown_by_node(context: &Context, reply: NodeReply) -> Result<Exit, CliError> {
    context.screen.show(&json!({ "place": reply.place }), |_| format!("The root key is {}.", reply.place))?;
    Ok(Exit::Ok)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// Work that opens a sealed key takes a second and is not for this thread.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, crate::app::entry::EntryError> + Send + 'static,
) -> Result<T, CliError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|e| CliError::failed(e.to_string()))??)
}

async fn for_copy(context: &Context, file: &std::path::Path) -> Result<Option<Passphrase>, CliError> {
    if root::is_sealed(file)? { Ok(Some(ask::passphrase(context).await?)) } else { Ok(None) }
}

async fn export(context: &Context, file: &std::path::Path, passphrase: bool) -> Result<Exit, CliError> {
    let sealed = root::status(&context.home)?.place == RootPlace::Locked;
    let open_with = if sealed { Some(ask::passphrase(context).await?) } else { None };
    let seal_with = if passphrase && !sealed { Some(ask::new_passphrase(context).await?) } else { None };
    let in_the_clear = !sealed && seal_with.is_none();
    let args = ExportArgs { home: context.home.clone(), file: file.to_owned(), open_with, seal_with };
    let reply = apart(move || root::export(&args)).await?;
    context.screen.show(&reply, |r| {
        let file = r.file.as_deref().unwrap_or_default();
        let care = if in_the_clear {
            "Whoever has the file has the mesh: keep it like cash, or export with --passphrase."
        } else {
            "Nobody can open it without its passphrase, you neither."
        };
        format!("Copied to {file}, and read back. {care}\n\nNext: `octomesh root remove --copy {file}`.")
    })?;
    Ok(Exit::Ok)
}

async fn remove(context: &Context, copy: &std::path::Path) -> Result<Exit, CliError> {
    ask::confirm(context, "Erasing the root key from this node").await?;
    let open_with = for_copy(context, copy).await?;
    let args = RemoveArgs { home: context.home.clone(), copy: copy.to_owned(), open_with };
    let reply = apart(move || root::remove(&args)).await?;
    context.screen.show(&reply, |_| {
        "The root key is erased here. This node goes on inviting workers and clients.\n\n\
         To make or renew an admin: `octomesh root import FILE`, and `octomesh root remove` afterwards."
            .to_owned()
    })?;
    Ok(Exit::Ok)
}

async fn import(context: &Context, file: &std::path::Path) -> Result<Exit, CliError> {
    let open_with = for_copy(context, file).await?;
    let args = ImportArgs { home: context.home.clone(), file: file.to_owned(), open_with };
    let reply = apart(move || root::import(&args)).await?;
    shown(context, &reply)
}
