//! One identity, one process. A copied home is a second process with the same identity and another Noise static key, which is fresh in
//! every process. While an old session answers, a newcomer with the same identity is refused; when it is silent, the newcomer takes its
//! place: that is how a node comes back after a power cut.
//!
//! The driver owns the sessions and asks the old one; a handshake looks at its snapshot and waits for its word.
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use octomesh_protocol::id::NodeId;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::SecureError;

/// An old session has this long to answer (PROTOCOL 1).
pub(in crate::net) const PROBE: Duration = Duration::from_secs(2);
/// The driver's word comes with the probe's end, or the node is too busy to take anybody in.
const VERDICT: Duration = Duration::from_secs(3);

/// Which process a session is with: the hash of its Noise static key, good for nothing but comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey([u8; 32]);

impl ProcessKey {
    pub(super) fn of(remote_static: &[u8; 32]) -> Self {
        Self(Sha256::digest(remote_static).into())
    }
}

/// Who has an identity at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) process: Option<ProcessKey>,
    /// The name in its certificate.
    pub(crate) name: String,
    /// Where its connection comes from, or goes to.
    pub(crate) address: Option<String>,
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{} at {address}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Open sessions by identity.
pub(in crate::net) type Occupants = HashMap<NodeId, Occupant>;

/// A question to the driver: does the process that has this identity still answer?
#[derive(Debug)]
pub(in crate::net) struct Probe {
    pub(in crate::net) node: NodeId,
    pub(in crate::net) process: ProcessKey,
    pub(in crate::net) answers: oneshot::Sender<bool>,
}

/// The handshakes' end.
#[derive(Debug)]
pub(in crate::net) struct Lookout {
    pub(in crate::net) occupants: watch::Receiver<Arc<Occupants>>,
    pub(in crate::net) probes: mpsc::Sender<Probe>,
}

impl Lookout {
    /// Whether `process` may have a session as `node`.
    pub(super) async fn admit(&self, node: NodeId, process: ProcessKey) -> Result<(), SecureError> {
        let occupant = self.occupants.borrow().get(&node).cloned();
        let Some((occupant, other)) = occupant.and_then(|o| o.process.map(|p| (o, p))) else { return Ok(()) };
        if other == process {
            return Ok(());
        }
        let (answers, verdict) = oneshot::channel();
        self.probes.try_send(Probe { node, process: other, answers }).map_err(|_| SecureError::Busy)?;
        match timeout(VERDICT, verdict).await {
            Ok(Ok(true)) => Err(SecureError::IdentityInUse(occupant)),
            Ok(Ok(false)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(SecureError::Busy),
        }
    }
}
