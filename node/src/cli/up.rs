//! `octomesh up`.
use std::{
    io::Write,
    sync::{Mutex, PoisonError},
};

use clap::Args;

use super::{CliError, Context, Exit, render};
use crate::{
    app::entry::{self, UpArgs, UpEvent},
    config,
};

/// Runs the node.
#[derive(Debug, Args)]
pub(super) struct UpCommand {
    /// Where the mesh reaches this node; may be given several times [default: 0.0.0.0:9400]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,
    /// A member to dial besides those known; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    peer: Vec<String>,
    /// Stop when stdin ends: for programs that start nodes and may be killed
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

impl UpCommand {
    fn flags(&self, context: &Context) -> Vec<(String, String)> {
        let mut flags = Vec::new();
        for (key, list) in [("listen", &self.listen), ("peers", &self.peer)] {
            if !list.is_empty() {
                flags.push((key.to_owned(), list.join(",")));
            }
        }
        let level = match (context.screen.quiet, context.verbose) {
            (true, _) => Some("warn"),
            (false, 0) => None,
            (false, 1) => Some("octomesh=debug,info"),
            (false, _) => Some("octomesh=trace,debug"),
        };
        flags.extend(level.map(|level| ("log".to_owned(), level.to_owned())));
        flags
    }

    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let loaded = config::load(&context.sources(self.flags(context)))?;
        let args = UpArgs {
            home: context.home.clone(),
            config: loaded.config,
            warnings: loaded.warnings,
            stop_with_stdin: self.stop_with_stdin,
        };
        let (json, out) = (context.screen.json, Mutex::new(std::io::stdout()));
        let show = move |event: UpEvent| {
            let line = if json {
                serde_json::to_string(&event).unwrap_or_default()
            } else {
                render::printable(&event.sentence)
            };
            // silent-ok: a node does not stop because nobody reads what it says
            let _ = writeln!(out.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        };
        entry::up(args, Box::new(show)).await?;
        Ok(Exit::Ok)
    }
}
