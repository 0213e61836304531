//! Whom this node trusts at this moment: its own certificate, the mesh secret, and who was revoked. One task owns it and writes each
//! change to the disk; everybody else reads a snapshot, at every handshake and for every step.
#[cfg(test)]
pub(crate) mod fixtures;
mod state;
pub(crate) mod store;
mod task;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use octomesh_protocol::{
    id::{MeshId, NodeId},
    session::secret::MeshSecret,
    trust::{
        Certificate, CertificateChain, Issuer, MeshRoot, RevocationSet, RevokedError, Role, SecretStamp,
        SignedRotation,
    },
};
pub(crate) use task::{RevokeAsk, TrustError, TrustHandle, TrustParts};
use tokio::sync::watch;

/// How long the mesh secret that was replaced still opens a handshake: a machine that is off over night finds the mesh again; one that
/// is away for longer joins anew.
pub(crate) const ROTATION_WINDOW_S: u64 = 24 * 3600;

/// The snapshot, as everybody holds it.
pub(crate) type TrustReader = watch::Receiver<Arc<Trust>>;

/// Gives the root key of the mesh when it is at hand at this moment: it may be moved away, or under its passphrase.
pub(crate) type RootSource = Arc<dyn Fn() -> Option<MeshRoot> + Send + Sync>;

/// What holds at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trust {
    /// This node.
    pub(crate) node: NodeId,
    /// Its mesh.
    pub(crate) mesh: MeshId,
    /// Its certificate, with its issuer's.
    pub(crate) chain: CertificateChain,
    pub(crate) secrets: Secrets,
    pub(crate) revocations: Arc<RevocationSet>,
    /// Members that closed a session because this node is revoked, as far as they know; at most [`state::TELLERS`].
    told: Vec<NodeId>,
    /// Files of stored revocations that are damaged and not used, and were not learnt again since the start.
    damaged: Vec<PathBuf>,
}

/// Secrets before the current one that are kept, each for [`ROTATION_WINDOW_S`]: a machine that is off while a few nodes are revoked one
/// after the other finds the mesh again, and a stranger's first message is tried five times at most.
pub(crate) const PREVIOUS_SECRETS: usize = 4;

/// The mesh secret, and for a while those before it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Secrets {
    pub(crate) current: MeshSecret,
    pub(crate) stamp: SecretStamp,
    /// Absent for the first secret of the mesh.
    pub(crate) rotation: Option<Arc<SignedRotation>>,
    /// The newest first, at most [`PREVIOUS_SECRETS`].
    pub(crate) previous: Vec<Previous>,
}

/// A secret that was replaced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Previous {
    pub(crate) secret: MeshSecret,
    /// Last second in which it opens a handshake, unix.
    pub(crate) until: u64,
}

impl Secrets {
    /// The first secret of a mesh.
    pub(crate) fn first(secret: MeshSecret) -> Self {
        Self { current: secret, stamp: SecretStamp::FIRST, rotation: None, previous: Vec::new() }
    }

    /// The secrets before this one that are still accepted, the newest first.
    pub(crate) fn previous(&self, now: u64) -> impl Iterator<Item = &MeshSecret> {
        self.previous
            .iter()
            .take(PREVIOUS_SECRETS)
            .filter(move |previous| now <= previous.until)
            .map(|previous| &previous.secret)
    }
}

/// Why this node is out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exclusion {
    /// A revocation of this node, signed by the root or an admin.
    Revoked { at: u64, by: Issuer, reason: String },
    /// The admin that issued this node's certificate was revoked.
    Void { issuer: NodeId },
    /// Nothing signed came yet, but these members say so.
    Told { by: Vec<NodeId> },
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revoked { by, reason, .. } => {
                f.write_str("this node was revoked by ")?;
                match by {
                    Issuer::Root => f.write_str("the root of the mesh")?,
                    Issuer::Admin(admin) => write!(f, "admin {}", admin.short())?,
                }
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
            Self::Void { issuer } => {
                write!(
                    f,
                    "this node's certificate is void: admin {}, which issued it, was revoked (this node itself was not)",
                    issuer.short()
                )
            }
            Self::Told { by } => {
                write!(
                    f,
                    "{} member(s) ended the session because this node, or the admin that issued its certificate, was revoked",
                    by.len()
                )
            }
        }
    }
}

impl Exclusion {
    /// What its owner can do.
    pub(crate) const fn hint(&self) -> &'static str {
        match self {
            Self::Void { .. } => {
                "it needs a certificate of another admin: have one made there with `octomesh invite`, then here `octomesh leave` and \
                 `octomesh join` with that ticket"
            }
            Self::Revoked { .. } | Self::Told { .. } => {
                "a revocation is for good: `octomesh leave`, then `octomesh join` in the same home with a new ticket"
            }
        }
    }
}

impl Trust {
    /// Before anything was heard.
    pub(crate) fn new(
        node: NodeId,
        chain: CertificateChain,
        secrets: Secrets,
        revocations: RevocationSet,
    ) -> Self {
        let mesh = chain.root().mesh_id();
        Self {
            node,
            mesh,
            chain,
            secrets,
            revocations: Arc::new(revocations),
            told: Vec::new(),
            damaged: Vec::new(),
        }
    }

    /// What the files of a home say when a node starts. `secret` is the first one of the mesh.
    ///
    /// # Errors
    /// [`store::StoreError`]: without these files a node would be refused everywhere, or would let in who is out.
    pub(crate) fn load(
        store: &store::Store,
        node: NodeId,
        chain: CertificateChain,
        secret: MeshSecret,
    ) -> Result<Self, store::StoreError> {
        let mesh = chain.root().mesh_id();
        let secrets = store.secrets(mesh, secret)?;
        let (revocations, damaged) = store.load(mesh)?;
        Ok(Self { damaged, ..Self::new(node, chain, secrets, revocations) })
    }

    /// What its owner should know of the files.
    pub(crate) fn warning(&self) -> Option<String> {
        let first = self.damaged.first()?;
        Some(format!(
            "{} stored revocation(s) are damaged and not used, the first is {}: they are learnt again from other members; \
             remove the files to end this warning",
            self.damaged.len(),
            first.display()
        ))
    }

    /// Damaged files that are gone or were written anew are none.
    fn mended(&self, still: impl Fn(&Path) -> bool) -> Option<Self> {
        let damaged: Vec<PathBuf> = self.damaged.iter().filter(|path| still(path)).cloned().collect();
        (damaged.len() != self.damaged.len()).then(|| Self { damaged, ..self.clone() })
    }

    /// A snapshot that never changes, for tests and benches.
    #[cfg(any(test, feature = "bench-sessions"))]
    pub(crate) fn fixed(chain: CertificateChain, secret: &MeshSecret) -> TrustReader {
        let node = chain.leaf().map_or(NodeId::from_bytes([0; 32]), |own| own.node);
        let trust = Self::new(node, chain, Secrets::first(secret.clone()), RevocationSet::default());
        watch::channel(Arc::new(trust)).1
    }

    /// Whether `node` is out.
    pub(crate) fn is_revoked(&self, node: NodeId) -> bool {
        self.revocations.is_revoked(node)
    }

    /// Whether a verified certificate may be used.
    pub(crate) fn check(&self, certificate: &Certificate) -> Result<(), RevokedError> {
        self.revocations.check(certificate)
    }

    /// This node's own certificate; it is there in every home that can be read.
    pub(crate) fn own(&self) -> Option<&Certificate> {
        self.chain.leaf()
    }

    /// Why this node is out, as far as it knows.
    pub(crate) fn exclusion(&self) -> Option<Exclusion> {
        if let Some(said) = self.revocations.of(self.node) {
            return Some(Exclusion::Revoked { at: said.at, by: said.issuer, reason: said.reason.clone() });
        }
        match self.own().map(|own| own.issuer) {
            Some(Issuer::Admin(issuer)) if self.is_revoked(issuer) => Some(Exclusion::Void { issuer }),
            _ if self.told.is_empty() => None,
            _ => Some(Exclusion::Told { by: self.told.clone() }),
        }
    }

    /// Whether this node may sign for the mesh with its own certificate.
    pub(crate) fn is_admin(&self) -> bool {
        let own = self.own();
        own.is_some_and(|own| own.role == Role::Admin && own.issuer == Issuer::Root)
            && !self.is_revoked(self.node)
    }
}

#[cfg(test)]
mod tests;
