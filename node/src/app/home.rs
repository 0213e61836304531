//! The home directory: who this node is, and where everything lies. A new identity appears whole or not at all: it is written
//! into a folder beside its place, which is then renamed.
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::MeshId,
    session::secret::MeshSecret,
    trust::{CertificateChain, NodeIdentity, keys::SEED_BYTES},
};
use octomesh_tools::regular;
use zeroize::Zeroizing;

use super::root::{RootFile, RootFileError};
use crate::trust::store::{self, StoreError};

/// Files of the identity folder. All of mode 0600, in a folder of mode 0700. A key file holds two seeds of 32 bytes, for Ed25519
/// and for ML-DSA-65.
const NODE_KEY: &str = "node.key";
/// There while the node leaves its mesh.
const LEAVING: &str = "leaving";
const ROOT_KEY: &str = "root.key";
const MESH_SECRET: &str = "mesh.secret";
const CERTIFICATE: &str = "certificate";
/// No file here is larger; a larger one is not ours.
const LONGEST_FILE: u64 = 256 * 1024;

/// Why a home can't be used. Each names the path and what to do.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum HomeError {
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("{path} is not what it should be: {what}")]
    Damaged { path: PathBuf, what: &'static str },
    #[error("{path}: {error}")]
    Root { path: PathBuf, error: RootFileError },
    #[error("there is an identity in {0} already")]
    Exists(PathBuf),
    #[error("another node or command works with the home {0}")]
    Busy(PathBuf),
    #[error(transparent)]
    Trust(#[from] StoreError),
}

impl HomeError {
    /// What a person can do.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Io { path, cause } if cause.kind() == io::ErrorKind::PermissionDenied => Some(format!(
                "make {} writable for this user, or choose another home with --home",
                path.display()
            )),
            Self::Io { path, cause } if cause.kind() == io::ErrorKind::ReadOnlyFilesystem => Some(format!(
                "{} is on a read-only file system; choose another home with --home",
                path.display()
            )),
            Self::Io { .. } | Self::Trust(_) => None,
            Self::Damaged { .. } | Self::Root { .. } => {
                Some("restore the file from a backup, or make a new identity in another --home".to_owned())
            }
            Self::Exists(_) => {
                Some("use another --home for a second node, or move this one away first".to_owned())
            }
            Self::Busy(_) => Some("stop that node first, or use another --home for a second one".to_owned()),
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> HomeError + '_ {
    |cause| HomeError::Io { path: path.to_owned(), cause }
}

/// A node's own secrets and certificate.
pub(crate) struct Identity {
    pub(crate) node: NodeIdentity,
    pub(crate) chain: CertificateChain,
    pub(crate) mesh: MeshId,
    pub(crate) secret: MeshSecret,
}

/// Paths below one directory.
#[derive(Debug, Clone)]
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Only where the mesh was made, until it is moved away.
    pub(crate) fn root_key(&self) -> PathBuf {
        self.identity_folder().join(ROOT_KEY)
    }

    pub(crate) fn identity_folder(&self) -> PathBuf {
        self.0.join("identity")
    }

    fn pending_folder(&self) -> PathBuf {
        self.0.join("identity.pending")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    /// Made and removed by the self-test of the sandbox.
    pub(crate) fn sandbox_probe(&self) -> PathBuf {
        self.0.join("sandbox-probe")
    }

    /// What is too large for a frame.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.0.join("blobs")
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.0.join("tools")
    }

    pub(crate) fn recipes(&self) -> PathBuf {
        self.0.join("recipes")
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.0.join("runs")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("journal.db")
    }

    pub(crate) fn peers(&self) -> PathBuf {
        self.0.join("peers.json")
    }

    pub(crate) fn wake(&self) -> PathBuf {
        self.0.join("wake.json")
    }

    pub(crate) fn tickets(&self) -> PathBuf {
        self.identity_folder().join("tickets.json")
    }

    /// Makes the folders of a running node.
    pub(crate) fn prepare(&self) -> Result<(), HomeError> {
        for folder in [&self.0, &self.workspace(), &self.tools(), &self.runs()] {
            private_folder(folder)?;
        }
        Ok(())
    }

    /// Holds the home for this process until dropped: two nodes with one identity would refuse each other's sessions.
    pub(crate) fn lock(&self) -> Result<fs::File, HomeError> {
        let path = self.0.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            // A fifo of that name must not be waited for.
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&path)
            .map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(HomeError::Busy(self.0.clone())),
            Err(fs::TryLockError::Error(cause)) => Err(HomeError::Io { path, cause }),
        }
    }

    /// The identity, if there is one.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, HomeError> {
        let folder = self.identity_folder();
        match fs::metadata(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(HomeError::Io { path: folder, cause }),
            Ok(_) => {}
        }
        let node = NodeIdentity::from_seed(*secret_file(&folder.join(NODE_KEY))?);
        let secret = MeshSecret::from_bytes(*secret_file(&folder.join(MESH_SECRET))?);
        let path = folder.join(CERTIFICATE);
        let damaged = |what| HomeError::Damaged { path: path.clone(), what };
        let bytes = hex_file(&path)?;
        let chain = CertificateChain::from_bytes(&bytes).map_err(|_| damaged("no certificate chain"))?;
        let leaf = chain.leaf().ok_or_else(|| damaged("an empty certificate chain"))?;
        if leaf.keys() != *node.public() {
            return Err(damaged("the certificate of other node keys"));
        }
        let mesh = chain.root().mesh_id();
        if self.root()?.is_some_and(|root| root.mesh() != mesh) {
            return Err(HomeError::Damaged { path: self.root_key(), what: "the root key of another mesh" });
        }
        Ok(Some(Identity { node, chain, mesh, secret }))
    }

    /// The mesh's root key, if it is here.
    pub(crate) fn root(&self) -> Result<Option<RootFile>, HomeError> {
        let path = self.root_key();
        let bytes = match hex_file(&path) {
            Ok(bytes) => bytes,
            Err(HomeError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        RootFile::from_bytes(&bytes).map(Some).map_err(|error| HomeError::Root { path, error })
    }

    /// Puts a root key into the home; the caller has checked whose it is.
    pub(crate) fn keep_root(&self, root: &RootFile) -> Result<(), HomeError> {
        write_secret(&self.root_key(), &root.to_bytes())
    }

    fn left_folder(&self) -> PathBuf {
        self.0.join("identity.left")
    }

    fn leaving_mark(&self) -> PathBuf {
        self.identity_folder().join(LEAVING)
    }

    /// Notes on disk that this node leaves its mesh, before anybody is told: after a crash the next start erases the identity instead of
    /// coming back as a member that has said good-bye. Never beside the root key, which would be erased too.
    pub(crate) fn mark_leaving(&self) -> Result<(), HomeError> {
        write_private(&self.leaving_mark(), b"this node leaves its mesh\n")
    }

    /// Ends a leave that a crash cut off. Gives whether there was one.
    pub(crate) fn finish_leaving(&self) -> Result<bool, HomeError> {
        if !self.leaving_mark().exists() {
            return Ok(false);
        }
        // Held by the node itself while it still says good-bye.
        let _alone = self.lock()?;
        if self.leaving_mark().exists() {
            self.erase_identity()?;
        }
        Ok(true)
    }

    /// Erases who this node was; the caller holds the lock. The folder is moved aside first, so that half an identity is never found, and
    /// an erasure that was cut off is ended by the next command that wants to enter.
    pub(crate) fn erase_identity(&self) -> Result<(), HomeError> {
        let (place, left) = (self.identity_folder(), self.left_folder());
        self.finish_erasure()?;
        fs::rename(&place, &left).map_err(at(&place))?;
        fs::File::open(&self.0).and_then(|f| f.sync_all()).map_err(at(&self.0))?;
        self.finish_erasure()?;
        for path in [self.peers(), self.wake()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn finish_erasure(&self) -> Result<(), HomeError> {
        let left = self.left_folder();
        match fs::read_dir(&left) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(cause) => return Err(HomeError::Io { path: left, cause }),
            Ok(entries) => {
                for entry in entries.flatten().filter(|e| e.path().is_file()) {
                    erase(&entry.path())?;
                }
            }
        }
        fs::remove_dir_all(&left).map_err(at(&left))
    }

    /// Whether there is an identity, without reading it.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity_folder().exists()
    }

    /// As [`Home::lock`], for a command that makes an identity: two at once would mix their files.
    pub(crate) fn lock_to_enter(&self) -> Result<fs::File, HomeError> {
        self.finish_leaving()?;
        if self.has_identity() {
            return Err(HomeError::Exists(self.identity_folder()));
        }
        private_folder(&self.0)?;
        let lock = self.lock()?;
        self.finish_erasure()?;
        Ok(lock)
    }

    /// The keys of a node that is about to get its certificate: made once and kept, so that a join that broke off half way is
    /// answered with the same certificate when it is tried again.
    pub(crate) fn pending_node(
        &self,
        fresh: &Zeroizing<[u8; SEED_BYTES]>,
    ) -> Result<NodeIdentity, HomeError> {
        if self.has_identity() {
            return Err(HomeError::Exists(self.identity_folder()));
        }
        private_folder(&self.0)?;
        private_folder(&self.pending_folder())?;
        let path = self.pending_folder().join(NODE_KEY);
        match secret_file(&path) {
            Ok(seed) => Ok(NodeIdentity::from_seed(*seed)),
            // Absent, or cut off by a crash while it was written: nobody has seen that key.
            Err(_) => {
                write_secret(&path, &**fresh)?;
                Ok(NodeIdentity::from_seed(**fresh))
            }
        }
    }

    /// Completes the pending identity and puts it in its place. `revocations` are those that came with the certificate.
    pub(crate) fn adopt(
        &self,
        chain: &CertificateChain,
        secret: &MeshSecret,
        root: Option<&RootFile>,
        revocations: &[Vec<u8>],
    ) -> Result<(), HomeError> {
        let folder = self.pending_folder();
        store::write_joined(&folder, chain.root().mesh_id(), revocations)?;
        let path = folder.join(CERTIFICATE);
        let bytes = chain
            .to_bytes()
            .map_err(|_| HomeError::Damaged { path: path.clone(), what: "a chain that is too large" })?;
        write_secret(&path, &bytes)?;
        write_secret(&folder.join(MESH_SECRET), secret.expose())?;
        let root_path = folder.join(ROOT_KEY);
        match root {
            Some(root) => write_secret(&root_path, &root.to_bytes())?,
            // Left by an `init` that broke off here: it must not become the root of the mesh that is joined.
            None => match fs::remove_file(&root_path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&root_path)(error)),
                _ => {}
            },
        }
        let place = self.identity_folder();
        fs::rename(&folder, &place).map_err(at(&place))?;
        // The rename itself must survive a power cut.
        fs::File::open(&self.0).and_then(|f| f.sync_all()).map_err(at(&self.0))
    }

    /// Raised at every start and stored before use: at least the unix time, and more than ever before.
    pub(crate) fn next_incarnation(&self, unix: u64) -> Result<u64, HomeError> {
        let path = self.0.join("incarnation");
        let last = match regular::read_text(&path, LONGEST_FILE) {
            Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(cause) => return Err(HomeError::Io { path, cause }),
        };
        let next = unix.max(last.saturating_add(1));
        write_private(&path, next.to_string().as_bytes())?;
        Ok(next)
    }
}

/// Overwrites a file and removes it. On flash and on file systems that copy on write the old blocks may live on; the documentation
/// says so.
pub(crate) fn erase(path: &Path) -> Result<(), HomeError> {
    let mut file = OpenOptions::new().write(true).open(path).map_err(at(path))?;
    let length = usize::try_from(file.metadata().map_err(at(path))?.len()).unwrap_or(0);
    file.write_all(&vec![b'0'; length]).and_then(|()| file.sync_all()).map_err(at(path))?;
    fs::remove_file(path).map_err(at(path))?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::File::open(folder).and_then(|f| f.sync_all()).map_err(at(folder))
}

pub(crate) fn private_folder(path: &Path) -> Result<(), HomeError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))
}

/// A file of hexadecimal digits, as every key is written.
pub(crate) fn hex_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, HomeError> {
    let text = Zeroizing::new(regular::read(path, LONGEST_FILE).map_err(at(path))?);
    HEXLOWER
        .decode(text.trim_ascii())
        .map(Zeroizing::new)
        .map_err(|_| HomeError::Damaged { path: path.to_owned(), what: "not hexadecimal" })
}

fn secret_file<const N: usize>(path: &Path) -> Result<Zeroizing<[u8; N]>, HomeError> {
    let bytes = hex_file(path)?;
    let secret: [u8; N] = bytes
        .as_slice()
        .try_into()
        .map_err(|_| HomeError::Damaged { path: path.to_owned(), what: "of another length" })?;
    Ok(Zeroizing::new(secret))
}

/// What [`hex_file`] reads.
pub(crate) fn hex_text(bytes: &[u8]) -> Zeroizing<String> {
    // Room for all of it at once: a string that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len() + 1));
    HEXLOWER.encode_append(bytes, &mut text);
    text.push('\n');
    text
}

fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), HomeError> {
    write_private(path, hex_text(bytes).as_bytes())
}

/// Writes a file of mode 0600, whole or not at all. The mode is there from the first byte, never narrowed afterwards.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), HomeError> {
    store::write_private(path, bytes).map_err(at(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use octomesh_protocol::{
        id::NodeName,
        trust::{CertificateRequest, Grants, MeshRoot, Role},
    };

    use super::*;

    fn make(home: &Home) {
        let node = home.pending_node(&Zeroizing::new([1; 64])).unwrap();
        let root = MeshRoot::from_seed([2; 64]);
        let request = CertificateRequest {
            keys: node.public().clone(),
            name: NodeName::parse("pi").unwrap(),
            role: Role::Admin,
            grants: Grants::default(),
            serial: 1,
            now: 1_000_000,
            lifetime_s: 1000,
        };
        let chain = root.issue(request).unwrap();
        home.adopt(&chain, &MeshSecret::from_bytes([3; 32]), Some(&RootFile::Clear(root)), &[]).unwrap();
    }

    #[test]
    fn an_identity_is_private_whole_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(&folder.path().join("home"));
        assert!(home.identity().unwrap().is_none());
        make(&home);
        let identity = home.identity().unwrap().unwrap();
        assert_eq!(identity.mesh, MeshRoot::from_seed([2; 64]).mesh_id());
        assert!(home.root().unwrap().is_some());
        for entry in fs::read_dir(home.identity_folder()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(fs::metadata(home.identity_folder()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(home.pending_node(&Zeroizing::new([9; 64])), Err(HomeError::Exists(_))));
    }

    #[test]
    fn a_join_that_broke_off_keeps_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let first = home.pending_node(&Zeroizing::new([1; 64])).unwrap().node_id();
        assert_eq!(home.pending_node(&Zeroizing::new([2; 64])).unwrap().node_id(), first);
        assert!(home.identity().unwrap().is_none());
    }

    /// A join after an `init` that was killed before its last step.
    #[test]
    fn a_broken_off_init_leaves_no_root_to_a_join() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let other = MeshRoot::from_seed([9; 64]);
        let node = home.pending_node(&Zeroizing::new([1; 64])).unwrap();
        write_secret(&home.pending_folder().join(ROOT_KEY), &*other.expose_seed()).unwrap();
        let request = CertificateRequest {
            keys: node.public().clone(),
            name: NodeName::parse("pi").unwrap(),
            role: Role::Worker,
            grants: Grants::default(),
            serial: 1,
            now: 1_000_000,
            lifetime_s: 1000,
        };
        let chain = MeshRoot::from_seed([2; 64]).issue(request).unwrap();
        home.adopt(&chain, &MeshSecret::from_bytes([3; 32]), None, &[]).unwrap();
        assert!(home.identity().unwrap().is_some() && home.root().unwrap().is_none());
        write_secret(&home.identity_folder().join(ROOT_KEY), &*other.expose_seed()).unwrap();
        let error = home.identity().err().unwrap();
        assert!(
            error.to_string().contains("root.key") && error.to_string().contains("another mesh"),
            "{error}"
        );
    }

    #[test]
    fn two_commands_do_not_make_an_identity_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(&folder.path().join("home"));
        let first = home.lock_to_enter().unwrap();
        assert!(matches!(home.lock_to_enter(), Err(HomeError::Busy(_))));
        drop(first);
        make(&home);
        assert!(matches!(home.lock_to_enter(), Err(HomeError::Exists(_))));
    }

    #[test]
    fn an_identity_is_erased_whole_also_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(&folder.path().join("home"));
        make(&home);
        fs::write(home.peers(), "[]").unwrap();
        fs::write(home.wake(), "{}").unwrap();
        home.erase_identity().unwrap();
        assert!(
            !home.has_identity()
                && !home.left_folder().exists()
                && !home.peers().exists()
                && !home.wake().exists()
        );
        assert!(home.identity().unwrap().is_none());
        // Cut off after it was moved aside: whoever enters next ends it.
        make(&home);
        fs::rename(home.identity_folder(), home.left_folder()).unwrap();
        drop(home.lock_to_enter().unwrap());
        assert!(!home.left_folder().exists());
    }

    #[test]
    fn a_leave_that_was_cut_off_is_ended_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(&folder.path().join("home"));
        make(&home);
        assert!(!home.finish_leaving().unwrap() && home.has_identity());
        home.mark_leaving().unwrap();
        let running = home.lock().unwrap();
        assert!(matches!(home.finish_leaving(), Err(HomeError::Busy(_))), "it still says good-bye");
        drop(running);
        assert!(home.finish_leaving().unwrap());
        assert!(!home.has_identity() && !home.left_folder().exists());
        // Whoever enters next does the same.
        make(&home);
        home.mark_leaving().unwrap();
        drop(home.lock_to_enter().unwrap());
        assert!(!home.has_identity());
        make(&home);
        assert!(!home.finish_leaving().unwrap());
    }

    #[test]
    fn damage_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        make(&home);
        let path = home.identity_folder().join(NODE_KEY);
        fs::write(&path, "00").unwrap();
        let error = home.identity().err().unwrap();
        assert!(error.to_string().contains("node.key"), "{error}");
    }

    #[test]
    fn incarnations_only_rise_and_a_home_has_one_node() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        assert_eq!(home.next_incarnation(100).unwrap(), 100);
        assert_eq!(home.next_incarnation(50).unwrap(), 101);
        let lock = home.lock().unwrap();
        assert!(matches!(home.lock(), Err(HomeError::Busy(_))));
        drop(lock);
        assert!(home.lock().is_ok());
    }
}
