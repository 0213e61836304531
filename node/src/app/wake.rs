//! Who can be woken, and how: hardware addresses from adverts, kept in `wake.json`, because a machine that sleeps tells nothing.
use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use octomesh_protocol::{advert::MacAddress, id::NodeId, limits};
use octomesh_tools::regular;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::backend::NodeBackend;
use crate::{
    api::{ApiError, types::WakeReply},
    discovery,
    dispatch::Wakes,
    load::wake,
    membership::MeshView,
};

/// Members whose addresses are kept: the design target of a mesh.
const NODES: usize = 1024;
/// What so many take, and room.
const FILE_BYTES: u64 = 512 * 1024;
/// The view changes many times a second, an address in years.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct WakeFile {
    nodes: BTreeMap<String, Vec<String>>,
}

type Known = BTreeMap<NodeId, Vec<MacAddress>>;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct WakeBook(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    known: Mutex<Known>,
    /// Whether a call may wake a machine.
    auto: bool,
}

impl WakeBook {
    /// What was kept. A damaged file is as good as none: awake machines tell anew.
    pub(crate) fn read(path: PathBuf, auto: bool) -> Self {
        let known = read(&path);
        Self(Arc::new(Inner { path, known: Mutex::new(known), auto }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what adverts say; gives all of it when it is news. A machine that tells no address any more does not want to be woken.
    fn learn(&self, view: &MeshView) -> Option<Known> {
        let mut known = self.known();
        let mut changed = false;
        for member in view.members.values().filter(|m| !view.is_me(m.node)) {
            let Some(advert) = &member.advert else { continue };
            let told = &advert.circumstances.macs;
            if told.is_empty() {
                changed |= known.remove(&member.node).is_some();
            } else if known.get(&member.node) != Some(told)
                && (known.len() < NODES || known.contains_key(&member.node))
            {
                known.insert(member.node, told.clone());
                changed = true;
            }
        }
        changed.then(|| known.clone())
    }

    /// Keeps what adverts say, until the node stops.
    pub(crate) async fn run(self, mut view: watch::Receiver<Arc<MeshView>>, stop: CancellationToken) {
        loop {
            let news = self.learn(&view.borrow_and_update().clone());
            if let Some(known) = news {
                let path = self.0.path.clone();
                let written = tokio::task::spawn_blocking(move || write(&path, &known)).await;
                if let Ok(Err(error)) = written {
                    tracing::warn!(%error, "hardware addresses can't be written; after a restart they are learnt anew");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = view.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Sends the packets to all networks of this machine; gives their number.
    fn send(&self, node: NodeId) -> Option<io::Result<(Vec<MacAddress>, usize)>> {
        let macs = self.known().get(&node).cloned()?;
        let networks = discovery::interfaces().into_iter().flat_map(|i| i.networks);
        let v4 = networks.filter_map(|n| match n.ip {
            IpAddr::V4(ip) => Some((ip, n.prefix)),
            IpAddr::V6(_) => None,
        });
        let sent = wake::send(&macs, &wake::targets(v4));
        Some(sent.map(|networks| (macs, networks)))
    }
}

impl Wakes for WakeBook {
    fn wake(&self, node: NodeId) -> bool {
        if !self.0.auto {
            return false;
        }
        match self.send(node) {
            None => false,
            Some(Ok((_, networks))) => {
                tracing::info!(
                    node = node.short(),
                    networks,
                    "a machine that sleeps is woken: nobody else has the tool"
                );
                true
            }
            Some(Err(error)) => {
                tracing::warn!(node = node.short(), %error, "a machine that sleeps can't be woken");
                false
            }
        }
    }
}

impl NodeBackend {
    pub(super) fn wake_up(&self, text: &str) -> Result<WakeReply, ApiError> {
        let node = self.resolve(text)?;
        let name = self.view().get(node).map(|m| m.name.to_string()).unwrap_or_default();
        let Some(sent) = self.0.wake.send(node) else {
            let message = format!("no hardware address of {name} is known");
            return Err(ApiError::new(409, "no_mac", message).hint(
                "it tells its address while it is awake, when it has a network cable and `wake.offer` is not false there",
            ));
        };
        let (macs, networks) =
            sent.map_err(|error| ApiError::internal(format!("the packet could not be sent: {error}")))?;
        let macs = macs.iter().map(ToString::to_string).collect();
        let networks = u32::try_from(networks).unwrap_or(u32::MAX);
        Ok(WakeReply { node_id: node.to_string(), name, macs, networks })
    }
}

fn read(path: &Path) -> Known {
    let text = match regular::read_text(path, FILE_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Known::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "hardware addresses can't be read");
            return Known::new();
        }
    };
    let file: WakeFile = match serde_json::from_str(&text) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "hardware addresses are damaged; they are learnt anew");
            return Known::new();
        }
    };
    let row = |(node, macs): (String, Vec<String>)| {
        let macs: Vec<MacAddress> =
            macs.iter().take(limits::ADVERT_MACS).filter_map(|mac| wake::parse(mac)).collect();
        Some((node.parse().ok()?, macs)).filter(|(_, macs)| !macs.is_empty())
    };
    file.nodes.into_iter().take(NODES).filter_map(row).collect()
}

/// Writes the file whole or not at all.
fn write(path: &Path, known: &Known) -> io::Result<()> {
    let row = |(node, macs): (&NodeId, &Vec<MacAddress>)| {
        (node.to_string(), macs.iter().map(ToString::to_string).collect())
    };
    let text = serde_json::to_string_pretty(&WakeFile { nodes: known.iter().map(row).collect() })?;
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or_else(|| Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::{
        advert::{Advert, Circumstances, LoadState},
        card::SandboxLevel,
        id::{NodeName, ToolSetHash},
        trust::{Grants, Role},
    };

    use super::*;
    use crate::membership::Member;

    fn view(macs: Option<Vec<MacAddress>>) -> MeshView {
        let member = |byte: u8, name: &str| {
            Member::new(
                NodeId::from_bytes([byte; 32]),
                NodeName::parse(name).unwrap(),
                Role::Worker,
                Grants::default(),
            )
        };
        let mut view = MeshView::alone(member(1, "pi"));
        let mut attic = member(2, "attic");
        attic.advert = macs.map(|macs| {
            Arc::new(Advert {
                node: attic.node,
                incarnation: 1,
                seq: 1,
                load: LoadState::default(),
                memory_total: 1,
                gpus: vec![],
                models: vec![],
                tool_set: ToolSetHash::from_bytes([0; 32]),
                speed_percent: 100,
                sandbox: SandboxLevel::None,
                region: String::new(),
                tags: vec![],
                version: String::new(),
                circumstances: Circumstances { macs, ..Circumstances::default() },
            })
        });
        view.members.insert(attic.node, Arc::new(attic));
        view
    }

    #[test]
    fn addresses_outlive_the_machine_s_sleep_and_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wake.json");
        let attic = NodeId::from_bytes([2; 32]);
        let mac = wake::parse("02:00:00:00:00:07").unwrap();
        let book = WakeBook::read(path.clone(), false);
        assert!(book.learn(&view(None)).is_none());
        let known = book.learn(&view(Some(vec![mac]))).unwrap();
        assert!(book.learn(&view(Some(vec![mac]))).is_none(), "no news");
        assert!(book.learn(&view(None)).is_none(), "it sleeps and tells nothing");
        write(&path, &known).unwrap();
        let again = WakeBook::read(path.clone(), false);
        assert_eq!(again.known()[&attic], [mac]);
        assert!(!again.wake(attic), "not without its owner's leave");
        assert!(
            again.learn(&view(Some(vec![]))).unwrap().is_empty(),
            "it does not want to be woken any more"
        );
        for bad in ["", "{", "{\"nodes\": {\"x\": [\"y\"], \"\": []}}", "{\"nodes\": 7}"] {
            std::fs::write(&path, bad).unwrap();
            assert!(WakeBook::read(path.clone(), true).known().is_empty(), "{bad}");
        }
    }
}
