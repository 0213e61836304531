//! The root in a running node: looked up when it is needed, and kept open only as long as its owner said.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octomesh_protocol::{id::MeshId, trust::MeshRoot};
use tokio::time::Instant;

use super::{RootFile, RootPlace};
use crate::{app::home::Home, trust::RootSource};

/// Why there is no root to sign with, and how it comes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum RootAbsent {
    #[error(
        "the root key is not on this node: bring it with `octomesh root import FILE`, or ask the node that has it"
    )]
    Away,
    #[error("the root key is under its passphrase: open it with `octomesh root unlock --for TIME`")]
    Locked,
    #[error("the root key can't be read: {0}")]
    Unreadable(String),
}

/// Finds the root for whoever signs with it. Clones share an opened one.
#[derive(Clone)]
pub(crate) struct RootKeeper {
    home: Home,
    mesh: MeshId,
    open: Arc<Mutex<Option<Open>>>,
}

struct Open {
    root: MeshRoot,
    until: Instant,
}

impl RootKeeper {
    pub(crate) fn new(home: Home, mesh: MeshId) -> Self {
        Self { home, mesh, open: Arc::default() }
    }

    /// As the room below asks for it.
    pub(crate) fn source(&self) -> RootSource {
        let keeper = self.clone();
        Arc::new(move || keeper.root().ok())
    }

    /// The root, or why there is none.
    pub(crate) fn root(&self) -> Result<MeshRoot, RootAbsent> {
        let unreadable = |e: &dyn std::fmt::Display| RootAbsent::Unreadable(e.to_string());
        match self.home.root().map_err(|e| unreadable(&e))? {
            Some(file) if file.mesh() != self.mesh => Err(unreadable(&"it is another mesh's")),
            Some(RootFile::Clear(root)) => {
                self.lock();
                Ok(root)
            }
            Some(RootFile::Sealed(_)) => {
                self.close_after_its_time();
                let open = self.opened();
                let copy = open.as_ref().map(|open| MeshRoot::from_seed(*open.root.expose_seed()));
                copy.ok_or(RootAbsent::Locked)
            }
            // Taken away while it was open: then it is not used any more.
            None => {
                self.lock();
                Err(RootAbsent::Away)
            }
        }
    }

    /// Where the root is now.
    pub(crate) fn place(&self) -> RootPlace {
        match self.home.root() {
            Ok(Some(RootFile::Clear(_))) => RootPlace::Here,
            Ok(Some(RootFile::Sealed(_))) => {
                self.close_after_its_time();
                if self.opened().is_some() { RootPlace::Unlocked } else { RootPlace::Locked }
            }
            Ok(None) | Err(_) => RootPlace::Away,
        }
    }

    /// Keeps an opened root until `until`. Another mesh's is not kept.
    pub(crate) fn unlock(&self, root: MeshRoot, until: Instant) {
        if root.mesh_id() == self.mesh {
            *self.opened() = Some(Open { root, until });
        }
    }

    /// Forgets it.
    pub(crate) fn lock(&self) {
        *self.opened() = None;
    }

    /// Forgets it when its time is over.
    pub(crate) fn close_after_its_time(&self) {
        let mut open = self.opened();
        if open.as_ref().is_some_and(|open| Instant::now() >= open.until) {
            *open = None;
        }
    }

    fn opened(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
