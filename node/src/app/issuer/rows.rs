//! The tickets of this node and who redeemed them: `identity/tickets.json`.
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::NodeName,
    trust::{CertificateChain, Grants, Role},
};
use octomesh_tools::regular;
use serde::{Deserialize, Serialize};

use crate::app::home::{self, HomeError};

/// Tickets kept after they ended, so that a late joiner is told "expired" or "used" instead of "unknown".
const ENDED_TICKETS: usize = 256;

/// Far more than all tickets that are open or remembered, each with many uses; a larger file is not ours.
const LONGEST_FILE: u64 = 64 * 1024 * 1024;

/// A ticket.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) id: String,
    /// Hexadecimal; the file is private like a key.
    pub(super) secret: String,
    pub(super) role: Role,
    #[serde(default)]
    pub(super) grants: Grants,
    pub(super) uses: u32,
    pub(super) expires: u64,
    pub(super) withdrawn: bool,
    pub(super) redeemed: Vec<Redeemed>,
}

/// One use of a ticket.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Redeemed {
    pub(super) node_id: String,
    pub(super) name: NodeName,
    /// The chain in hexadecimal: the same key asking again gets the same certificate.
    pub(super) chain: String,
    /// It left for good or was forgotten: its name is free.
    #[serde(default)]
    pub(super) gone: bool,
}

impl Row {
    pub(super) fn is_open(&self, now: u64) -> bool {
        !self.withdrawn && now <= self.expires && self.redeemed.len() < self.uses as usize
    }
}

impl Redeemed {
    pub(super) fn chain(&self) -> Option<CertificateChain> {
        CertificateChain::from_bytes(&HEXLOWER.decode(self.chain.as_bytes()).ok()?).ok()
    }
}

/// All tickets, on disk and here.
pub(super) struct Rows {
    file: PathBuf,
    rows: Vec<Row>,
}

impl Rows {
    /// Those of the file; none, and a line in the log, when it is damaged.
    pub(super) fn read(file: &Path) -> Self {
        let rows = match regular::read(file, LONGEST_FILE) {
            Ok(bytes) => serde_json::from_slice(&zeroize::Zeroizing::new(bytes)).unwrap_or_else(|error| {
                tracing::warn!(path = %file.display(), %error, "tickets are damaged and void; make new ones");
                Vec::new()
            }),
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!(path = %file.display(), %error, "tickets can't be read and are void");
                }
                Vec::new()
            }
        };
        Self { file: file.to_owned(), rows }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Row> {
        self.rows.iter()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.id == id)
    }

    /// Everybody who redeemed a ticket here.
    pub(super) fn redeemed(&self) -> impl Iterator<Item = &Redeemed> {
        self.rows.iter().flat_map(|r| &r.redeemed)
    }

    /// Changes the rows on disk first: an answer that went out is never forgotten.
    pub(super) fn change(&mut self, now: u64, change: impl FnOnce(&mut Vec<Row>)) -> Result<(), HomeError> {
        let mut next = self.rows.clone();
        change(&mut next);
        let ended = next.iter().filter(|r| !r.is_open(now)).count();
        let mut drop = ended.saturating_sub(ENDED_TICKETS);
        next.retain(|r| {
            let goes = drop > 0 && !r.is_open(now);
            drop -= usize::from(goes);
            !goes
        });
        let text = zeroize::Zeroizing::new(serde_json::to_vec_pretty(&next).unwrap_or_default());
        home::write_private(&self.file, &text)?;
        self.rows = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_tickets_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(Rows::read(&path).rows.is_empty(), "and nobody waits for it");
        std::fs::remove_file(&path).unwrap();
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(Rows::read(&path).rows.is_empty());
    }
}
