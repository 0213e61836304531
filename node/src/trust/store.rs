//! The files of trust in `identity/`: `certificate`, `secrets.json` and one file per revocation. Each is written whole or not at all
//! and is private like a key.
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use data_encoding::HEXLOWER;
use octomesh_protocol::{
    id::{MeshId, RevocationId},
    limits,
    session::secret::{MeshSecret, SECRET_BYTES},
    trust::{CertificateChain, RevocationSet, SignedRevocation, SignedRotation},
};
use octomesh_tools::regular;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{PREVIOUS_SECRETS, Previous, Secrets};

const CERTIFICATE: &str = "certificate";
const MESH_SECRET: &str = "mesh.secret";
const SECRETS: &str = "secrets.json";
const REVOCATIONS: &str = "revocations";
/// Twice what the largest of these files holds; a larger one is not ours.
const LONGEST_FILE: u64 = 64 * 1024;

/// Why the files of trust can't be read or written.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub(crate) enum StoreError {
    #[error("{path}: {cause}", path = path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error(
        "{path} is damaged: {what}. Restore it from a backup, or have this node revoked and join again with another --home",
        path = path.display()
    )]
    Damaged { path: PathBuf, what: &'static str },
    /// The rotation does not follow the one that is held.
    #[error(
        "the node is revoked, but the mesh secret was not replaced: the new one does not follow the one in force; ask again"
    )]
    NotTaken,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    |cause| StoreError::Io { path: path.to_owned(), cause }
}

/// The form of `secrets.json`; absent while the mesh has its first secret.
#[derive(Serialize, Deserialize)]
struct SecretsFile {
    /// The signed rotation in hexadecimal; it holds the current secret.
    rotation: String,
    /// The secrets before it, the newest first.
    previous: Vec<PreviousRow>,
}

#[derive(Serialize, Deserialize)]
struct PreviousRow {
    secret: String,
    until: u64,
}

impl PreviousRow {
    fn read(&self) -> Option<Previous> {
        let secret = HEXLOWER.decode(self.secret.as_bytes()).map(Zeroizing::new).ok()?;
        let secret: Zeroizing<[u8; SECRET_BYTES]> = Zeroizing::new(secret.as_slice().try_into().ok()?);
        Some(Previous { secret: MeshSecret::from_bytes(*secret), until: self.until })
    }
}

impl Drop for SecretsFile {
    fn drop(&mut self) {
        self.rotation.zeroize();
        for previous in &mut self.previous {
            previous.secret.zeroize();
        }
    }
}

/// The folder `identity/` of a home.
#[derive(Debug, Clone)]
pub(crate) struct Store(PathBuf);

impl Store {
    pub(crate) fn new(identity_folder: PathBuf) -> Self {
        Self(identity_folder)
    }

    fn revocations_folder(&self) -> PathBuf {
        self.0.join(REVOCATIONS)
    }

    /// The secrets: `first` is what `mesh.secret` holds, which counts until a rotation was stored.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: without the right secret the node would be refused everywhere, and could not say why.
    pub(crate) fn secrets(&self, mesh: MeshId, first: MeshSecret) -> Result<Secrets, StoreError> {
        let path = self.0.join(SECRETS);
        let damaged = |what| StoreError::Damaged { path: path.clone(), what };
        let text = match read(&path) {
            Ok(text) => text,
            Err(StoreError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                return Ok(Secrets::first(first));
            }
            Err(error) => return Err(error),
        };
        let file: SecretsFile = serde_json::from_slice(&text).map_err(|_| damaged("not its JSON"))?;
        let bytes = HEXLOWER.decode(file.rotation.as_bytes()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| damaged("the rotation is not hexadecimal"))?;
        let rotation = SignedRotation::from_bytes(&bytes).map_err(|_| damaged("no rotation"))?;
        let said = rotation.verify(mesh).map_err(|_| damaged("a rotation that does not hold"))?;
        let current = said.secret.clone();
        let previous =
            file.previous.iter().take(PREVIOUS_SECRETS).map(PreviousRow::read).collect::<Option<_>>();
        let previous = previous.ok_or_else(|| damaged("a previous secret"))?;
        Ok(Secrets { current, stamp: rotation.stamp(), rotation: Some(Arc::new(rotation)), previous })
    }

    /// All revocations that are held. A damaged one is left out and said in the log: other members have it, and no step of others
    /// is taken before one of them was asked.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder can't be read.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn revocations(&self, mesh: MeshId) -> Result<RevocationSet, StoreError> {
        self.load(mesh).map(|(set, _)| set)
    }

    /// The same, with the files of those that are damaged.
    ///
    /// # Errors
    /// As above.
    pub(super) fn load(&self, mesh: MeshId) -> Result<(RevocationSet, Vec<PathBuf>), StoreError> {
        let (set, damaged) = self.look(mesh)?;
        for path in &damaged {
            tracing::warn!(
                path = %path.display(),
                "a stored revocation is damaged and not used; it is learnt again from other members. Remove the file to end this warning"
            );
        }
        Ok((set, damaged))
    }

    /// Reads all that a start reads, for `octomesh doctor`: the stored revocations that are damaged.
    ///
    /// # Errors
    /// [`StoreError`]: with it the node would not start.
    pub(crate) fn examine(&self, mesh: MeshId) -> Result<Vec<PathBuf>, StoreError> {
        // The first secret of the mesh is not judged here, so that any will do.
        self.secrets(mesh, MeshSecret::from_bytes([0; SECRET_BYTES]))?;
        self.look(mesh).map(|(_, damaged)| damaged)
    }

    /// The revocations that hold, and the files of those that don't.
    fn look(&self, mesh: MeshId) -> Result<(RevocationSet, Vec<PathBuf>), StoreError> {
        let folder = self.revocations_folder();
        let (mut set, mut damaged) = (RevocationSet::default(), Vec::new());
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok((set, damaged)),
            Err(cause) => return Err(at(&folder)(cause)),
        };
        // What is not ours must not take the place of a revocation.
        let ours = |entry: &io::Result<fs::DirEntry>| {
            entry.as_ref().map_or(true, |entry| {
                entry.file_name().to_str().is_some_and(|name| name.parse::<RevocationId>().is_ok())
            })
        };
        for entry in entries.filter(ours).take(2 * limits::REVOCATIONS) {
            let path = entry.map_err(at(&folder))?.path();
            let signed = read(&path).ok().and_then(|bytes| SignedRevocation::from_bytes(&bytes).ok());
            match signed.filter(|signed| signed.verify(mesh).is_ok()) {
                Some(signed) => set.restore(Arc::new(signed)),
                None => damaged.push(path),
            }
        }
        Ok((set, damaged))
    }

    /// Stores a revocation, and removes the one whose place it takes.
    pub(super) fn add_revocation(
        &self,
        signed: &SignedRevocation,
        instead_of: Option<&SignedRevocation>,
    ) -> Result<(), StoreError> {
        let folder = self.revocations_folder();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(at(&folder))?;
        let path = folder.join(signed.id().to_string());
        let bytes = signed.to_bytes().map_err(|e| at(&path)(io::Error::other(e)))?;
        write_private(&path, &bytes).map_err(at(&path))?;
        if let Some(old) = instead_of {
            let path = folder.join(old.id().to_string());
            match fs::remove_file(&path) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(at(&path)(cause)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the secrets; those of a mesh that was never rotated are in `mesh.secret` already.
    pub(super) fn write_secrets(&self, secrets: &Secrets) -> Result<(), StoreError> {
        let Some(rotation) = &secrets.rotation else { return Ok(()) };
        let path = self.0.join(SECRETS);
        let bytes = rotation.to_bytes().map_err(|e| at(&path)(io::Error::other(e)))?;
        let file = SecretsFile {
            rotation: HEXLOWER.encode(&bytes),
            previous: secrets
                .previous
                .iter()
                .map(|p| PreviousRow { secret: HEXLOWER.encode(p.secret.expose()), until: p.until })
                .collect(),
        };
        let text = serde_json::to_vec(&file).map(Zeroizing::new);
        let text = text.map_err(|e| at(&path)(io::Error::other(e)))?;
        write_private(&path, &text).map_err(at(&path))?;
        // The file above is what counts; an old secret must not stay behind in this one.
        let path = self.0.join(MESH_SECRET);
        let mut text = Zeroizing::new(HEXLOWER.encode(secrets.current.expose()));
        text.push('\n');
        write_private(&path, text.as_bytes()).map_err(at(&path))
    }

    /// Stores another certificate of this node.
    pub(super) fn write_chain(&self, chain: &CertificateChain) -> Result<(), StoreError> {
        let path = self.0.join(CERTIFICATE);
        let bytes = chain.to_bytes().map_err(|e| at(&path)(io::Error::other(e)))?;
        let mut text = HEXLOWER.encode(&bytes);
        text.push('\n');
        write_private(&path, text.as_bytes()).map_err(at(&path))
    }
}

/// Stores the revocations that came with a certificate, into the folder that is about to become `identity/`.
pub(crate) fn write_joined(
    identity_folder: &Path,
    mesh: MeshId,
    revocations: &[Vec<u8>],
) -> Result<(), StoreError> {
    let store = Store::new(identity_folder.to_owned());
    for bytes in revocations {
        // What does not hold is not worth a failed join: the first sync brings the rest.
        if let Some(signed) = SignedRevocation::from_bytes(bytes).ok().filter(|s| s.verify(mesh).is_ok()) {
            store.add_revocation(&signed, None)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, StoreError> {
    regular::read(path, LONGEST_FILE).map(Zeroizing::new).map_err(at(path))
}

/// Writes a file of mode 0600, whole or not at all. The mode is there from the first byte, never narrowed afterwards.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    // `tempfile` creates with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The rename itself must survive a power cut.
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
