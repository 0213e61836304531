//! `octomesh runs artifacts`.
use std::path::{Path, PathBuf};

use super::{
    CliError, Context,
    client::Client,
    cp::{self, Remote},
    render::Table,
};
use crate::api::types::{Artifact, ArtifactsReply};

/// Shows what a run has made, and copies it into a folder.
pub(super) async fn run(
    client: &Client,
    id: &str,
    out: Option<&PathBuf>,
    context: &Context,
) -> Result<(), CliError> {
    let reply: ArtifactsReply = client.get(&["api", "runs", id, "artifacts"]).await?;
    if let Some(folder) = out {
        std::fs::create_dir_all(folder)
            .map_err(|e| CliError::failed(format!("{}: {e}", folder.display())))?;
        for artifact in &reply.artifacts {
            fetch(client, artifact, folder, context).await?;
        }
    }
    context.screen.show(&reply, |reply| table(reply, out.map(PathBuf::as_path)))
}

async fn fetch(
    client: &Client,
    artifact: &Artifact,
    folder: &Path,
    context: &Context,
) -> Result<(), CliError> {
    let source = match (&artifact.node, &artifact.path, &artifact.sha256) {
        (Some(node), Some(path), _) => Remote::file(node, path),
        (_, None, Some(sha256)) => Remote::blob(sha256),
        _ => return Err(CliError::failed(format!("{} lies nowhere", artifact.name))),
    };
    // The name of a file that a tool has made: it stays in the folder.
    let name = artifact.name.replace(['/', '\\'], "_");
    let moved = cp::download(client, &source, &folder.join(&name), &context.screen).await?;
    let changed = artifact.sha256.as_ref().is_some_and(|then| *then != moved.sha256);
    if changed {
        context.screen.warn(&format!("{name}: it was changed after the run; this is how it is now"));
    }
    context.screen.progress(&format!("{name}: {} bytes", moved.bytes));
    Ok(())
}

fn table(reply: &ArtifactsReply, folder: Option<&Path>) -> String {
    if reply.artifacts.is_empty() {
        return format!(
            "Run {id} has made no files, and no result of it is larger than 256 KiB. `octomesh runs show {id}` has its results.",
            id = reply.run_id
        );
    }
    let mut table = Table::new(&["name", "kind", "bytes", "where"]);
    for artifact in &reply.artifacts {
        let place = match (&artifact.node, &artifact.path, &artifact.sha256) {
            (Some(node), Some(path), _) => format!("{node}:{path}"),
            (_, _, Some(sha256)) => format!("blob:{sha256}"),
            _ => String::new(),
        };
        let bytes = artifact.bytes.map_or_else(|| "?".to_owned(), |b| b.to_string());
        table.row([artifact.name.clone(), artifact.kind.clone(), bytes, place]);
    }
    match folder {
        Some(folder) => format!("{table}\nAll of it is in {}.", folder.display()),
        None => format!(
            "{table}\n`octomesh cp WHERE FILE` gets one, `octomesh runs artifacts {} --out DIR` all.",
            reply.run_id
        ),
    }
}
