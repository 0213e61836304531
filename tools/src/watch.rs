//! The hot folder: drop `NAME/tool.toml` in, the node has the tool at once; change it, it is replaced; remove it, it is gone. Polled
//! twice a second, because that works on every file system, also on network ones; where the kernel tells of changes, the next look
//! does not wait.
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use octomesh_protocol::{id::ToolName, limits};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

mod bell;

use bell::Bell;

use crate::{
    load::Loader,
    manifest::{self, ProcessManifest},
    process::{self, ProcessLoader},
    registry::{FolderTool, Registry},
    sandbox::Sandbox,
};

/// How often the folder is looked through: two looks fit into a second.
const EVERY: Duration = Duration::from_millis(500);
/// After the kernel told of a change: its files may still be on their way, and only the folder itself is watched.
const SOON: Duration = Duration::from_millis(60);
/// So many looks follow soon.
const SOON_LOOKS: u32 = 8;
/// The file that makes a folder a tool.
const MANIFEST_FILE: &str = "tool.toml";

/// Looks through the folder once; to be awaited before the node advertises its tools.
pub async fn scan_once(registry: &Registry, folder: &Path, sandbox: &Sandbox) {
    // silent-ok: the memory of one scan is only needed by the next
    let _ = Scanner::default().scan(registry, folder, sandbox).await;
}

/// Keeps the registry equal to the folder until cancelled. A folder that does not exist has no tools and may appear later.
pub async fn watch(registry: Registry, folder: PathBuf, sandbox: Sandbox, cancel: CancellationToken) {
    let mut scanner = Scanner::default();
    let mut bell = Bell::new();
    let mut soon = 0u32;
    loop {
        bell.watch(&folder).await;
        scanner = scanner.scan(&registry, &folder, &sandbox).await;
        let pause = if soon > 0 { SOON } else { EVERY };
        soon = soon.saturating_sub(1);
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = bell.rings(), if soon == 0 => soon = SOON_LOOKS,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What the last look found, so that an unchanged manifest is not parsed again.
#[derive(Default)]
struct Scanner {
    seen: BTreeMap<PathBuf, Seen>,
    complained: bool,
}

struct Seen {
    text: [u8; 32],
    parsed: Result<Arc<ProcessManifest>, String>,
}

struct Found {
    tools: Vec<FolderTool>,
    problems: Vec<(PathBuf, String)>,
}

impl Scanner {
    /// The disk is read on a thread that may block.
    async fn scan(mut self, registry: &Registry, folder: &Path, sandbox: &Sandbox) -> Self {
        let (folder, sandbox) = (folder.to_owned(), sandbox.clone());
        let done = tokio::task::spawn_blocking(move || {
            let found = self.look(&folder, &sandbox);
            (self, found)
        });
        match done.await {
            Ok((scanner, Some(found))) => {
                registry.set_folder(found.tools, found.problems);
                scanner
            }
            Ok((scanner, None)) => scanner,
            Err(error) => {
                tracing::error!(%error, "looking through the tools folder failed");
                Self::default()
            }
        }
    }

    /// `None` when the folder can't be read: then everything stays as it is.
    fn look(&mut self, folder: &Path, sandbox: &Sandbox) -> Option<Found> {
        let mut found = Found { tools: Vec::new(), problems: Vec::new() };
        let mut seen = BTreeMap::new();
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        for path in self.manifests(&folder)? {
            let text = match manifest::read_bounded(&path) {
                Ok(text) => Ok(text),
                // Removed a moment ago, or a folder without a manifest.
                Err(_) if !path.exists() => continue,
                Err(reason) => Err(format!("{}: {reason}", path.display())),
            };
            let this = self.parse(&path, text);
            found.add(&path, &this, sandbox);
            seen.insert(path, this);
        }
        self.seen = seen;
        Some(found)
    }

    fn manifests(&mut self, folder: &Path) -> Option<Vec<PathBuf>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::warn!(folder = %folder.display(), %error, "the tools folder can't be read");
                }
                return None;
            }
        };
        self.complained = false;
        let mut paths: Vec<PathBuf> = entries
            .flatten()
            // A dot in front hides a folder that is still being filled; renaming it then makes the tool appear at once.
            .filter(|e| !e.file_name().to_string_lossy().starts_with('.'))
            .map(|e| e.path().join(MANIFEST_FILE))
            .filter(|p| p.exists())
            .collect();
        paths.sort();
        paths.truncate(limits::TOOLS_PER_NODE);
        Some(paths)
    }

    fn parse(&mut self, path: &Path, text: Result<String, String>) -> Seen {
        let digest = Sha256::digest(text.as_ref().map_or_else(|e| e.as_bytes(), |t| t.as_bytes())).into();
        if let Some(old) = self.seen.remove(path)
            && old.text == digest
            && text.as_ref().is_ok_and(|t| !t.contains("input_schema_file"))
        {
            return old;
        }
        let parsed =
            text.and_then(|t| ProcessManifest::parse(&t, path).map_err(|e| e.to_string())).map(Arc::new);
        Seen { text: digest, parsed }
    }
}

impl Found {
    fn add(&mut self, path: &Path, seen: &Seen, sandbox: &Sandbox) {
        let mut digest = Sha256::new().chain_update(seen.text);
        let tool = match &seen.parsed {
            Ok(manifest) => {
                let unavailable = process::ready(manifest, sandbox.level()).err();
                digest.update(manifest.card.to_bytes().unwrap_or_default());
                digest.update(unavailable.as_deref().unwrap_or_default());
                let loader = ProcessLoader { manifest: Arc::clone(manifest), sandbox: sandbox.clone() };
                FolderTool {
                    path: path.to_owned(),
                    digest: digest.finalize().into(),
                    name: manifest.card.name.clone(),
                    content: Ok((manifest.card.clone(), Box::new(loader) as Box<dyn Loader>)),
                    unavailable,
                }
            }
            Err(reason) => {
                let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
                let Ok(name) = ToolName::parse(&folder) else {
                    self.problems.push((path.to_owned(), reason.clone()));
                    return;
                };
                digest.update(reason);
                FolderTool {
                    path: path.to_owned(),
                    digest: digest.finalize().into(),
                    name,
                    content: Err(reason.clone()),
                    unavailable: None,
                }
            }
        };
        self.tools.push(tool);
    }
}
