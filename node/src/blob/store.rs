//! Blobs on the disk of this node.
//!
//! ```text
//!   blobs/HASH            a whole blob, under its SHA-256
//!   blobs/HASH.held       who may have it, and until when it is kept for each: a line `NODE UNIX_MS`
//!   blobs/partial/NAME    what has come of one so far, of one sender
//! ```
//!
//! A blob is written beside its place, made durable and renamed: after a crash it is there whole or not at all.
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use octomesh_protocol::{
    blob::{BlobRef, BlobRefusal},
    id::{BlobHash, NodeId},
};
use octomesh_tools::{regular, tool::WallClock};
use sha2::{Digest as _, Sha256};

use super::{
    BlobError, DISK_RESERVE, blocking,
    feed::Outgoing,
    incoming::{HashOf, Incoming, Whole},
    index::Index,
};

/// A part that nobody goes on with goes after this long.
const PART_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Parts at once. The oldest ones go first.
const PARTS: usize = 64;
/// A list of readers: a node's id and a number for each member that has run the same step.
const HELD_BYTES: u64 = 256 * 1024;
/// A blob that is read into memory: the largest result.
const READ_BYTES: u64 = octomesh_protocol::limits::RESULT_BYTES as u64;

struct Inner {
    folder: PathBuf,
    limit: u64,
    wall: WallClock,
    state: Mutex<State>,
}

struct State {
    index: Index,
    /// Parts that are being written, by name.
    busy: BTreeSet<String>,
    /// Bytes that are still to come of what is being received: room on the disk that is promised.
    promised: u64,
}

/// The store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store(Arc<Inner>);

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

/// The right to write one part, and the room for what is to come of it.
pub(super) struct Turn {
    store: Store,
    name: String,
    promised: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.store.state();
        state.busy.remove(&self.name);
        state.promised = state.promised.saturating_sub(self.promised);
    }
}

/// A blob that somebody works with.
pub(super) struct Pin {
    store: Store,
    hash: BlobHash,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.state().index.unpin(self.hash);
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

impl Store {
    /// Opens the folder, or makes it, and takes up what is in it; what can't be a blob goes. Blocks.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn open(folder: &Path, limit: u64, wall: WallClock) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join("partial"))?;
        let state = State { index: Index::new(limit), busy: BTreeSet::new(), promised: 0 };
        let store =
            Self(Arc::new(Inner { folder: folder.to_owned(), limit, wall, state: Mutex::new(state) }));
        store.take_up()?;
        store.drop_old_parts("");
        Ok(store)
    }

    fn take_up(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0.folder)?.flatten() {
            let (Ok(about), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else { continue };
            if about.is_dir() || name.ends_with(".held") {
                continue;
            }
            match name.parse::<BlobHash>() {
                Ok(hash) if about.is_file() => {
                    found.push((about.modified().unwrap_or(UNIX_EPOCH), hash, about.len()));
                }
                _ => fs::remove_file(entry.path())?,
            }
        }
        found.sort();
        let now = self.now();
        let mut state = self.state();
        for (_, hash, bytes) in found {
            state.index.insert(hash, bytes);
            for (node, until) in self.read_held(hash) {
                state.index.hold(hash, node, until);
            }
        }
        // A limit that was lowered.
        if let Ok(gone) = state.index.make_room(0, now) {
            self.unlink(&gone);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        let since = (self.0.wall)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn path(&self, hash: BlobHash) -> PathBuf {
        self.0.folder.join(hash.to_string())
    }

    fn held_path(&self, hash: BlobHash) -> PathBuf {
        self.0.folder.join(format!("{hash}.held"))
    }

    fn part_path(&self, name: &str) -> PathBuf {
        self.0.folder.join("partial").join(name)
    }

    fn read_held(&self, hash: BlobHash) -> Vec<(NodeId, u64)> {
        // A list that is gone or damaged names nobody: the blob is then only this node's own.
        let text = regular::read_text(&self.held_path(hash), HELD_BYTES).unwrap_or_default();
        let line = |line: &str| {
            let (node, until) = line.split_once(' ')?;
            Some((node.parse().ok()?, until.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    fn write_held(&self, hash: BlobHash) -> io::Result<()> {
        let text: String =
            self.state().index.readers(hash).iter().map(|(n, until)| format!("{n} {until}\n")).collect();
        let beside = self.part_path(&format!("{hash}.held"));
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, self.held_path(hash))
    }

    fn unlink(&self, gone: &BTreeSet<BlobHash>) {
        for hash in gone {
            for path in [self.held_path(*hash), self.path(*hash)] {
                if let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(path = %path.display(), %error, "a blob was not removed");
                }
            }
        }
    }

    /// Parts of the past go, and the oldest of too many; `mine` stays.
    fn drop_old_parts(&self, mine: &str) {
        let Ok(entries) = fs::read_dir(self.0.folder.join("partial")) else { return };
        let busy = self.state().busy.clone();
        let mut parts: Vec<(SystemTime, PathBuf)> = entries
            .flatten()
            .filter(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                name != mine && !busy.contains(&name)
            })
            .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
            .collect();
        parts.sort();
        let surplus = parts.len().saturating_sub(PARTS);
        let now = (self.0.wall)();
        for (at, (changed, path)) in parts.into_iter().enumerate() {
            let old = now.duration_since(changed).is_ok_and(|age| age > PART_LASTS);
            if old || at < surplus {
                // silent-ok: it is looked at again with the next transfer
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Bytes that the disk has left for blobs and files.
    fn disk_left(&self) -> u64 {
        let about = rustix::fs::statvfs(&self.0.folder);
        let free = about.map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize));
        free.saturating_sub(DISK_RESERVE).saturating_sub(self.state().promised)
    }

    /// Makes room in the store. Blocks.
    fn make_room(&self, bytes: u64) -> Result<(), BlobError> {
        let now = self.now();
        let made = self.state().index.make_room(bytes, now);
        match made {
            Ok(gone) => {
                self.unlink(&gone);
                Ok(())
            }
            Err(no) => Err(BlobError::Full(format!(
                "{bytes} bytes do not fit into the blob store: {} of {} bytes are still needed; raise `blobs.limit`",
                no.kept, self.0.limit
            ))),
        }
    }

    /// The next transfer of a blob from `sender` goes on with what came of the last one. `to_store`: it becomes a blob of the store, and not
    /// a file elsewhere.
    pub(crate) async fn receive(
        &self,
        sender: NodeId,
        blob: BlobRef,
        to_store: bool,
    ) -> Result<Incoming, BlobError> {
        let store = self.clone();
        blocking(move || {
            // Of each sender its own: what one sent wrong does not spoil it for another.
            let name = format!("{}.{}", blob.hash, sender);
            let path = store.part_path(&name);
            let there = fs::metadata(&path).map_or(0, |about| about.len());
            let to_come = blob.bytes.saturating_sub(there);
            let left = store.disk_left();
            if to_come > left {
                return Err(BlobError::Full(format!(
                    "{to_come} bytes do not fit on the disk: {left} are left beside the reserve of {DISK_RESERVE}"
                )));
            }
            if to_store {
                store.make_room(blob.bytes)?;
            }
            let turn = {
                let mut state = store.state();
                if !state.busy.insert(name.clone()) {
                    let detail = "the same bytes are being received already";
                    return Err(BlobError::refused(BlobRefusal::Busy, detail));
                }
                state.promised = state.promised.saturating_add(to_come);
                Turn { store: store.clone(), name: name.clone(), promised: to_come }
            };
            store.drop_old_parts(&name);
            Incoming::open(path, blob, turn)
        })
        .await
    }

    /// A blob that is whole becomes one of the store, kept for `reader` as long as `lasts`.
    pub(crate) async fn take(
        &self,
        whole: Whole,
        reader: NodeId,
        lasts: Duration,
    ) -> Result<BlobRef, BlobError> {
        let store = self.clone();
        blocking(move || {
            let blob = whole.blob();
            if !store.state().index.contains(blob.hash) {
                store.make_room(blob.bytes)?;
                fs::rename(whole.path(), store.path(blob.hash))?;
                store.state().index.insert(blob.hash, blob.bytes);
            }
            store.hold(blob.hash, reader, lasts)?;
            sync_folder(&store.0.folder)?;
            Ok(blob)
        })
        .await
    }

    /// Makes a blob of `bytes`, kept for `reader` as long as `lasts`. It is on the disk when this returns.
    pub(crate) async fn keep(
        &self,
        bytes: Vec<u8>,
        reader: NodeId,
        lasts: Duration,
    ) -> Result<BlobRef, BlobError> {
        let hash = BlobHash::from_bytes(Sha256::digest(&bytes).into());
        let blob = BlobRef { hash, bytes: bytes.len() as u64 };
        let mut incoming = match self.receive(reader, blob, true).await {
            // Two steps with the same large result at the same moment.
            Err(BlobError::Refused { .. }) => return Err(BlobError::Io("it is being written".to_owned())),
            other => other?,
        };
        let have = usize::try_from(incoming.have()).unwrap_or(usize::MAX);
        incoming.push(bytes.get(have..).unwrap_or_default()).await?;
        self.take(incoming.finish().await?, reader, lasts).await
    }

    /// `reader` may have it, and it is kept as long as `lasts`, also over a restart. Blocks.
    fn hold(&self, hash: BlobHash, reader: NodeId, lasts: Duration) -> io::Result<()> {
        let until = self.now().saturating_add(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        self.state().index.hold(hash, reader, until);
        self.write_held(hash)
    }

    /// `reader` has it; it goes when its room is needed.
    pub(crate) async fn release(&self, hash: BlobHash, reader: NodeId) {
        let store = self.clone();
        let written = blocking(move || {
            store.state().index.release(hash, reader);
            if store.state().index.contains(hash) { Ok(store.write_held(hash)?) } else { Ok(()) }
        });
        if let Err(error) = written.await {
            tracing::warn!(%error, "that a blob was fetched is forgotten with the next restart");
        }
    }

    /// Whether `node` may have the blob, and it is here.
    pub(crate) fn may_read(&self, hash: BlobHash, node: NodeId) -> bool {
        self.state().index.may_read(hash, node)
    }

    fn pin(&self, hash: BlobHash) -> Result<(Pin, u64), BlobError> {
        let bytes = self.state().index.pin(hash).ok_or_else(|| {
            BlobError::refused(BlobRefusal::NotFound, format!("there is no blob {hash} on this node"))
        })?;
        Ok((Pin { store: self.clone(), hash }, bytes))
    }

    /// A damaged blob is none.
    fn damaged(&self, hash: BlobHash) -> BlobError {
        tracing::error!(blob = %hash, "a blob on the disk does not have its hash any more; it is thrown away");
        self.state().index.remove(hash);
        self.unlink(&[hash].into());
        BlobError::refused(BlobRefusal::Damaged, format!("the blob {hash} was damaged on the disk"))
    }

    /// All of a blob that fits into memory, its hash checked.
    pub(crate) async fn read(&self, hash: BlobHash) -> Result<Vec<u8>, BlobError> {
        let store = self.clone();
        blocking(move || {
            let (_pin, _) = store.pin(hash)?;
            let bytes = regular::read(&store.path(hash), READ_BYTES)?;
            if <[u8; 32]>::from(Sha256::digest(&bytes)) != *hash.as_bytes() {
                return Err(store.damaged(hash));
            }
            Ok(bytes)
        })
        .await
    }

    /// A blob to be sent, its hash checked before.
    pub(crate) async fn send(&self, hash: BlobHash) -> Result<Outgoing, BlobError> {
        let store = self.clone();
        blocking(move || {
            let (pin, bytes) = store.pin(hash)?;
            let mut file = regular::open(&store.path(hash))?;
            let mut found = Sha256::new();
            let read = io::copy(&mut file, &mut HashOf(&mut found))?;
            if read != bytes || <[u8; 32]>::from(found.finalize()) != *hash.as_bytes() {
                return Err(store.damaged(hash));
            }
            Ok(Outgoing::of_blob(file, BlobRef { hash, bytes }, pin))
        })
        .await
    }

    /// Where it lies, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn file_of(&self, hash: BlobHash) -> PathBuf {
        self.path(hash)
    }
}
