//! `peers.json`: members and their addresses, so that nodes find each other again after a restart without flags. It grants
//! nothing; the certificate of whoever answers does.
use std::{
    io::{self, Write},
    path::Path,
};

use octomesh_protocol::{advert::MemberAddress, id::NodeName, limits};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct PeersFile {
    members: Vec<PeerRow>,
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
    let text = match std::fs::read_to_string(path) {
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
    file.members
        .into_iter()
        .take(limits::SYNC_MEMBERS)
        .filter_map(|row| {
            let node = row.node_id.parse().ok()?;
            let addresses = row.addresses.into_iter().take(limits::MEMBER_ADDRESSES).collect();
            Some(MemberAddress { node, name: row.name, addresses })
        })
        .collect()
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
        .collect();
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
        std::fs::write(&path, "{\"members\": [").unwrap();
        assert!(read(&path).is_empty());
    }
}
