//! `octomesh tools`.
use clap::{Args, Subcommand};

use super::{
    CliError, Context, Exit,
    render::{self, Table},
};
use crate::api::types::{ToolDetail, ToolsReply};

/// Lists, shows or searches tools.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ToolsCommand {
    /// Of the whole mesh
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One line per tool
    List {
        /// Of the whole mesh
        #[arg(long)]
        all: bool,
    },
    /// Everything about one tool
    Show {
        /// Its name
        name: String,
    },
    /// The tools that fit some words, of the whole mesh, best first
    Search {
        /// The words
        #[arg(required = true)]
        query: Vec<String>,
        /// At most this many
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        max: u32,
    },
}

impl ToolsCommand {
    pub(super) async fn run(&self, context: &Context) -> Result<Exit, CliError> {
        let client = context.client()?;
        let query = match &self.what {
            Some(What::Show { name }) => {
                let detail: ToolDetail = client.get(&["api", "tools", name]).await?;
                context.screen.show(&detail, show)?;
                return Ok(Exit::Ok);
            }
            Some(What::Search { query, max }) => {
                vec![("all", "true".to_owned()), ("search", query.join(" ")), ("max", max.to_string())]
            }
            Some(What::List { all: true }) => vec![("all", "true".to_owned())],
            None if self.all => vec![("all", "true".to_owned())],
            _ => Vec::new(),
        };
        let reply: ToolsReply = client.query(&["api", "tools"], &query).await?;
        context.screen.show(&reply, list)?;
        Ok(Exit::Ok)
    }
}

fn list(reply: &ToolsReply) -> String {
    let mut table = Table::new(&["name", "version", "source", "tier", "state", "effect", "nodes"]);
    for tool in &reply.tools {
        table.row([
            tool.listed_as.clone(),
            tool.version.clone(),
            tool.source.to_string(),
            tool.tier.clone(),
            tool.state.clone(),
            tool.effect.to_string(),
            tool.nodes.join(", "),
        ]);
    }
    let reasons = reply.tools.iter().filter_map(|t| Some(format!("{}: {}\n", t.name, t.reason.as_ref()?)));
    if table.is_empty() {
        "No tools.".to_owned()
    } else {
        std::iter::once(table.to_string()).chain(reasons).collect()
    }
}

fn show(detail: &ToolDetail) -> String {
    let (entry, card) = (&detail.entry, &detail.card);
    let mut lines = vec![
        format!("{} {} ({}, {}, {})", entry.name, entry.version, entry.source, entry.state, entry.effect),
        card.description.clone(),
        format!("on {}; usually {} ms; card {}", entry.nodes.join(", "), card.typical_ms, entry.card_hash),
    ];
    lines.extend(entry.reason.iter().map(|reason| format!("not usable: {reason}")));
    lines.push(format!("\narguments:\n{}", render::value(&card.input_schema)));
    for (title, list) in [("limits", &card.limitations), ("good to know", &card.best_practice)] {
        if !list.is_empty() {
            lines.push(format!("\n{title}:\n- {}", list.join("\n- ")));
        }
    }
    for example in &card.examples {
        lines.push(format!("\nexample: {} {}", example.description, example.arguments));
    }
    lines.join("\n")
}
