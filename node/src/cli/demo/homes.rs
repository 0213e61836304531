//! The demo's folder: one home per node, and what is different about each node.
use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::DEMO_RENDER_ARGUMENT;
use crate::{
    api::token,
    cli::{
        CliError,
        client::{Client, base_url},
    },
};

const HARBOUR_LOG: &str = include_str!("notes/harbour-log.txt");
const TIDES: &str = include_str!("notes/tides.txt");
const IMAGE_RENDER: &str = include_str!("image_render.toml");

/// The node that is asked: pi. Attic has the notes, tower declares a GPU.
const COORDINATOR: &str = "pi";
const LIBRARY: &str = "attic";
const WORKSTATION: &str = "tower";

/// One node of the demo.
#[derive(Debug)]
pub(super) struct DemoNode {
    pub(super) name: String,
    pub(super) home: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) api: SocketAddr,
}

impl DemoNode {
    /// A client of its API; the token is there once the node is up.
    pub(super) fn client(&self) -> Result<Client, CliError> {
        let token =
            token::read(&self.home).map_err(|e| CliError::failed(format!("token of {}: {e}", self.name)))?;
        Client::new(base_url(&self.api.to_string())?, token)
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Homes {
    folder: PathBuf,
    nodes: Vec<DemoNode>,
}

fn failed(what: &Path) -> impl FnOnce(io::Error) -> CliError + '_ {
    move |e| CliError::failed(format!("{}: {e}", what.display()))
}

impl Homes {
    /// Makes the folder and writes what each node starts with.
    pub(super) fn create(count: u8) -> Result<Self, CliError> {
        let folder = tempfile::Builder::new()
            .prefix("octomesh-demo-")
            .tempdir()
            .map_err(|e| CliError::failed(format!("no folder for the demo: {e}")))?
            .keep();
        let names = [COORDINATOR.to_owned(), LIBRARY.to_owned(), WORKSTATION.to_owned()];
        let more = (4..=count).map(|n| format!("shelf-{n}"));
        let ports = free_ports(2 * usize::from(count))?;
        let addresses = ports.chunks_exact(2);
        let mut nodes = Vec::new();
        for (name, pair) in names.into_iter().chain(more).zip(addresses) {
            let [listen, api] = pair else { continue };
            let node = DemoNode { home: folder.join(&name), name, listen: *listen, api: *api };
            furnish(&node)?;
            nodes.push(node);
        }
        Ok(Self { folder, nodes })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &DemoNode> {
        self.nodes.iter()
    }

    /// The node that is asked.
    pub(super) fn coordinator(&self) -> &DemoNode {
        // The first is made first, always.
        #[expect(clippy::expect_used, reason = "a demo has at least three nodes")]
        self.nodes.first().expect("a demo has nodes")
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &DemoNode> {
        self.nodes.iter().skip(1)
    }

    /// Copies the rendered picture beside the homes, where it outlives them.
    pub(super) fn save_picture(&self, steps: &[Value]) -> Result<Option<PathBuf>, CliError> {
        let rendered = steps.iter().find(|s| s.get("tool").and_then(Value::as_str) == Some("image_render"));
        let Some((node, name)) = rendered.and_then(|step| {
            let node = step.get("node")?.as_str()?;
            let name = step.pointer("/output/path")?.as_str()?;
            let node = self.nodes.iter().find(|n| n.name == node)?;
            // A bare file name: the tool allows nothing else.
            Path::new(name).file_name().map(|name| (node, name.to_owned()))
        }) else {
            return Ok(None);
        };
        let to = self.folder.join(&name);
        fs::copy(node.home.join("workspace").join(&name), &to).map_err(failed(&to))?;
        Ok(Some(to))
    }

    /// Removes the homes, keys and all, unless they are kept; gives the folder when something is left in it.
    pub(super) fn tidy(&self, keep: bool) -> Option<&Path> {
        if !keep {
            for node in &self.nodes {
                // silent-ok: what can't be removed is left in a folder that is named
                let _ = fs::remove_dir_all(&node.home);
            }
            // silent-ok: it is not empty when a picture is in it
            let _ = fs::remove_dir(&self.folder);
        }
        self.folder.exists().then_some(&*self.folder)
    }
}

/// Ports that are free now. Between here and the node's own bind another program could take one; the node then says so.
fn free_ports(count: usize) -> Result<Vec<SocketAddr>, CliError> {
    let held: Result<Vec<TcpListener>, io::Error> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let addresses = held.and_then(|held| held.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|e| CliError::failed(format!("no free ports on 127.0.0.1: {e}")))
}

fn furnish(node: &DemoNode) -> Result<(), CliError> {
    let write = |path: PathBuf, text: &str| {
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(failed(&path))
    };
    let mut config = format!("listen = [\"{}\"]\napi = \"{}\"\n", node.listen, node.api);
    config.push_str(match node.name.as_str() {
        COORDINATOR => "slots = 2\n",
        LIBRARY => "slots = 4\ntags = [\"archive\"]\n",
        WORKSTATION => {
            "slots = 4\ntags = [\"workstation\"]\n\n[[gpus]]\nname = \"demo GPU\"\nvram = \"24GiB\"\n"
        }
        _ => "slots = 2\n",
    });
    // The nodes of the demo share one machine: a real GPU would be in all of them.
    config.push_str("\n[hardware]\nprobe = false\n");
    write(node.home.join("octomesh.toml"), &config)?;
    if node.name == LIBRARY {
        let notes = node.home.join("workspace/notes");
        write(notes.join("harbour-log.txt"), HARBOUR_LOG)?;
        write(notes.join("tides.txt"), TIDES)?;
    }
    if node.name == LIBRARY || node.name == WORKSTATION {
        write(node.home.join("tools/image_render/tool.toml"), &image_render()?)?;
    }
    Ok(())
}

/// The manifest with the command that this very program is.
fn image_render() -> Result<String, CliError> {
    let program = std::env::current_exe().map_err(|e| CliError::failed(format!("own program: {e}")))?;
    let program =
        program.to_str().ok_or_else(|| CliError::failed("the path of this program is not UTF-8"))?;
    let command = serde_json::json!([program, DEMO_RENDER_ARGUMENT]);
    // A JSON list of strings is a TOML list of strings; it has to stand before the first table.
    Ok(format!("command = {command}\n{IMAGE_RENDER}"))
}
