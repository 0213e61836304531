//! `octomesh init`.
use clap::Args;

use super::{CliError, Context, Exit, ask};
use crate::{
    app::entry::{self, InitArgs},
    config,
};

/// Makes a mesh.
#[derive(Debug, Args)]
pub(super) struct InitCommand {
    /// The node's name [default: the machine's]
    #[arg(long)]
    name: Option<String>,
    /// Keep the mesh's root key under a passphrase: asked for twice, or one line of stdin without a terminal
    #[arg(long)]
    passphrase: bool,
}

impl InitCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let config = config::load(&context.sources(Vec::new()))?.config;
        let passphrase = if self.passphrase { Some(ask::new_passphrase(context).await?) } else { None };
        let reply = entry::init(InitArgs {
            home: context.home.clone(),
            name: self.name.clone(),
            passphrase,
            lifetime_s: config.certificate_lifetime_s,
        })?;
        context.screen.show(&reply, |r| {
            format!(
                "Mesh {}\nNode {} ({}) in {}\n\nNext: `octomesh up` here, then `octomesh invite` for the next machine.",
                r.mesh_id, r.name, r.node_id, r.home
            )
        })?;
        Ok(Exit::Ok)
    }
}
