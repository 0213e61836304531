//! `octomesh init`.
use clap::Args;

use super::{CliError, Context, Exit};
use crate::app::entry::{self, InitArgs};

/// Makes a mesh.
#[derive(Debug, Args)]
pub(super) struct InitCommand {
    /// The node's name [default: the machine's]
    #[arg(long)]
    name: Option<String>,
}

impl InitCommand {
    pub(super) fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let reply = entry::init(InitArgs { home: context.home.clone(), name: self.name.clone() })?;
        context.screen.show(&reply, |r| {
            format!(
                "Mesh {}\nNode {} ({}) in {}\n\nNext: `octomesh up` here, then `octomesh invite` for the next machine.",
                r.mesh_id, r.name, r.node_id, r.home
            )
        })?;
        Ok(Exit::Ok)
    }
}
