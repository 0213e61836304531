//! Bytes that come in: into a file beside their place, from where the last transfer of the same blob left off.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use octomesh_protocol::{blob::BlobRef, id::BlobHash};
use sha2::{Digest as _, Sha256};

use super::{BlobError, PIECE, blocking, store::Turn};

/// What is there of a blob, and its hash so far.
struct Part {
    file: File,
    hash: Sha256,
    have: u64,
}

/// A blob that comes in. Dropped before its end it leaves what has come for the next transfer.
pub(crate) struct Incoming {
    blob: BlobRef,
    path: PathBuf,
    /// `None` only while it is being written.
    part: Option<Part>,
    waiting: Vec<u8>,
    /// Nobody else writes this file.
    _turn: Turn,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("blob", &self.blob).finish_non_exhaustive()
    }
}

fn gone() -> BlobError {
    BlobError::Io("a write to it failed before".to_owned())
}

impl Incoming {
    /// Opens what is there of it. Blocks.
    pub(super) fn open(path: PathBuf, blob: BlobRef, turn: Turn) -> Result<Self, BlobError> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let (mut hash, mut have) = (Sha256::new(), file.metadata()?.len());
        if have > blob.bytes {
            file.set_len(0)?;
            have = 0;
        }
        let read = io::copy(&mut (&mut file).take(have), &mut HashOf(&mut hash))?;
        if read != have {
            return Err(BlobError::Io(format!("{} shrank while it was read", path.display())));
        }
        file.seek(SeekFrom::Start(have))?;
        Ok(Self { blob, path, part: Some(Part { file, hash, have }), waiting: Vec::new(), _turn: turn })
    }

    /// Bytes that are there.
    pub(crate) fn have(&self) -> u64 {
        self.part.as_ref().map_or(0, |p| p.have) + self.waiting.len() as u64
    }

    pub(crate) const fn blob(&self) -> BlobRef {
        self.blob
    }

    /// The next bytes.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        if self.have() + bytes.len() as u64 > self.blob.bytes {
            self.throw_away();
            return Err(BlobError::Damaged);
        }
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> Result<(), BlobError> {
        let mut part = self.part.take().ok_or_else(gone)?;
        let bytes = std::mem::take(&mut self.waiting);
        let part = blocking(move || {
            part.file.write_all(&bytes)?;
            part.hash.update(&bytes);
            part.have += bytes.len() as u64;
            Ok(part)
        });
        self.part = Some(part.await?);
        Ok(())
    }

    /// Keeps on the disk what came so far, for the next transfer.
    pub(crate) async fn pause(mut self) {
        // silent-ok: what is not written comes again
        let _ = self.write().await;
    }

    /// All bytes are there: they are on the disk and have the hash when this returns. Else they are thrown away, because nobody knows which
    /// of them are wrong.
    pub(crate) async fn finish(mut self) -> Result<Whole, BlobError> {
        self.write().await?;
        let part = self.part.take().ok_or_else(gone)?;
        if part.have != self.blob.bytes {
            return Err(BlobError::Interrupted(format!("{} of {} bytes came", part.have, self.blob.bytes)));
        }
        let found = BlobHash::from_bytes(part.hash.finalize().into());
        if found != self.blob.hash {
            self.throw_away();
            return Err(BlobError::Damaged);
        }
        let file = part.file;
        blocking(move || Ok(file.sync_all()?)).await?;
        Ok(Whole { path: self.path.clone(), blob: self.blob, _turn: self._turn })
    }

    fn throw_away(&self) {
        // silent-ok: what stays is written over, or goes with the old parts
        let _ = fs::remove_file(&self.path);
    }
}

/// A blob that is whole, beside its place.
pub(crate) struct Whole {
    path: PathBuf,
    blob: BlobRef,
    _turn: Turn,
}

impl std::fmt::Debug for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Whole").field("blob", &self.blob).finish_non_exhaustive()
    }
}

impl Whole {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn blob(&self) -> BlobRef {
        self.blob
    }
}

/// A hash as something to write to.
pub(super) struct HashOf<'a>(pub(super) &'a mut Sha256);

impl io::Write for HashOf<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
