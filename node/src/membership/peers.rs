//! `peers.json`: members and their addresses, so that nodes find each other again after a restart without flags. It grants
//! nothing; the certificate of whoever answers does.
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use octomesh_protocol::{id::NodeName, limits, sync::MemberAddress};
use octomesh_tools::regular;
use serde::{Deserialize, Serialize};

use super::state::MEMBERS;

/// Where members and their addresses are kept from one run to the next.
#[derive(Debug, Clone)]
pub(crate) enum AddressBook {
    /// `peers.json`.
    File(PathBuf),
    /// In a simulation, whose nodes have no threads for slow disks.
    #[cfg(feature = "testing")]
    Kept(std::sync::Arc<std::sync::Mutex<Vec<MemberAddress>>>),
}

impl AddressBook {
    /// What was written last.
    pub(crate) fn read(&self) -> Vec<MemberAddress> {
        match self {
            Self::File(path) => read(path),
            #[cfg(feature = "testing")]
            Self::Kept(members) => members.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone(),
        }
    }

    /// Writes where nothing can block; gives the file that has to be written elsewhere.
    pub(crate) fn write_or_path(&self, members: &[MemberAddress]) -> Option<PathBuf> {
        // Without simulations there is nothing but files.
        let _ = members;
        match self {
            Self::File(path) => Some(path.clone()),
            #[cfg(feature = "testing")]
            Self::Kept(kept) => {
                *kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = members.to_vec();
                None
            }
        }
    }
}

/// Twice what a full file holds; a larger one is not ours.
const LONGEST_FILE: u64 = 2 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct PeersFile {
    /// Rows are read one by one, so that a bad one costs only itself.
    members: Vec<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct PeerRow {
    node_id: String,
    name: NodeName,
    addresses: Vec<String>,
}

/// Reads the file; absent is empty. Rows that are not what they should be are left out with a warning: a damaged address book
/// must not keep a node from starting.
pub(crate) fn read(path: &Path) -> Vec<MemberAddress> {
    let text = match regular::read_text(path, LONGEST_FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "addresses of members can't be read");
            return Vec::new();
        }
    };
    let file: PeersFile = match serde_json::from_str(&text) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "addresses of members are damaged; members will be learnt anew");
            return Vec::new();
        }
    };
    let rows = file.members.len();
    let members: Vec<MemberAddress> = file.members.into_iter().take(MEMBERS).filter_map(member).collect();
    if members.len() < rows {
        tracing::warn!(path = %path.display(), left_out = rows - members.len(), "rows that are no members");
    }
    members
}

fn member(row: serde_json::Value) -> Option<MemberAddress> {
    let row: PeerRow = serde_json::from_value(row).ok()?;
    let node = row.node_id.parse().ok()?;
    // One that others refuse to read would spoil everything that this node tells them.
    let fits = |a: &String| a.len() <= limits::ADDRESS_BYTES && crate::net::is_address(a);
    let addresses = row.addresses.into_iter().filter(fits).take(limits::MEMBER_ADDRESSES).collect();
    Some(MemberAddress { node, name: row.name, addresses })
}

/// Writes the file whole or not at all.
pub(crate) fn write(path: &Path, members: &[MemberAddress]) -> io::Result<()> {
    let members = members
        .iter()
        .map(|m| PeerRow {
            node_id: m.node.to_string(),
            name: m.name.clone(),
            addresses: m.addresses.clone(),
        })
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    let text = serde_json::to_string_pretty(&PeersFile { members })?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use octomesh_protocol::id::NodeId;

    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peers.json");
        assert!(read(&path).is_empty());
        let members = vec![MemberAddress {
            node: NodeId::from_bytes([3; 32]),
            name: NodeName::parse("tower").unwrap(),
            addresses: vec!["192.0.2.1:9400".into()],
        }];
        write(&path, &members).unwrap();
        assert_eq!(read(&path), members);
        let node = members[0].node.to_string();
        let long = "1".repeat(limits::ADDRESS_BYTES + 1);
        let rows = serde_json::json!({"members": [
            {"node_id": node, "name": "Not A Name", "addresses": []},
            {"node_id": "nobody", "name": "x", "addresses": []},
            {"node_id": 7}, null, "text", [[[]]],
            {"node_id": node, "name": "tower", "addresses": [long, "junk", "192.0.2.1:9400"]},
        ]});
        std::fs::write(&path, rows.to_string()).unwrap();
        assert_eq!(read(&path), members, "only what is bad is left out");
        std::fs::write(&path, vec![b' '; 10 << 20]).unwrap();
        assert!(read(&path).is_empty());
        std::fs::write(&path, [0xff; 100]).unwrap();
        assert!(read(&path).is_empty());
        std::fs::write(&path, "{\"members\": [").unwrap();
        assert!(read(&path).is_empty());
    }
}
