//! The root key of a mesh: where it is, how it is moved offline and back. It makes admins; everything else goes on without it.
//!
//! Commands change the file in the home; a running node looks at the file each time it needs the root (`RootKeeper`), so that
//! what they do counts at once, and a root that was taken away is not kept in memory.
mod file;
mod keeper;

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use octomesh_protocol::{id::MeshId, trust::MeshRoot};
use serde::Serialize;

pub use file::Passphrase;
pub(crate) use file::{Cost, RANDOM_BYTES, RootFile, RootFileError, SealedRoot};
pub(crate) use keeper::{RootAbsent, RootKeeper};

use super::{
    clock::{Clock, SystemClock},
    entry::EntryError,
    home::{self, Home, HomeError},
};

/// Where the root key of this node's mesh is, as seen from this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RootPlace {
    /// In the home, in the clear.
    Here,
    /// In the home, under a passphrase.
    Locked,
    /// Under a passphrase, and opened for a while in the running node.
    Unlocked,
    /// Not on this node.
    Away,
}

impl RootPlace {
    /// What it means, in a sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Here => {
                "the root key is here in the clear; `octomesh root export FILE` and `root remove` move it offline"
            }
            Self::Locked => {
                "the root key is here under its passphrase; `octomesh root unlock --for TIME` opens it for a while"
            }
            Self::Unlocked => "the root key is open in the running node; `octomesh root lock` closes it",
            Self::Away => "the root key is not on this node; it is needed only to make and renew admins",
        }
    }
}

/// What `octomesh root …` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootReply {
    /// The mesh.
    pub mesh_id: String,
    /// Where its root key is now.
    pub place: RootPlace,
    /// The file that was written or read, if one was.
    pub file: Option<String>,
}

fn failed(code: &'static str, message: impl std::fmt::Display, hint: &str) -> EntryError {
    EntryError { code, message: message.to_string(), hint: Some(hint.to_owned()) }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> EntryError + '_ {
    move |cause| HomeError::Io { path: path.to_owned(), cause }.into()
}

fn unreadable(path: &Path) -> impl FnOnce(RootFileError) -> EntryError + '_ {
    move |error| {
        let hint = match error {
            RootFileError::Passphrase => "try the passphrase again; nobody can open the file without it",
            _ => "give the file that `octomesh root export` wrote",
        };
        failed((&error).into(), format!("{}: {error}", path.display()), hint)
    }
}

fn mesh_of(home: &Home) -> Result<MeshId, EntryError> {
    match home.identity()? {
        Some(identity) => Ok(identity.mesh),
        None => Err(failed(
            "no_identity",
            format!("{} belongs to no mesh", home.path().display()),
            "give the home of a node with --home",
        )),
    }
}

/// Where the root key is, by what lies in the home.
///
/// # Errors
/// [`EntryError`] when there is no identity, or a key that can't be read.
pub fn status(home: &Path) -> Result<RootReply, EntryError> {
    let home = Home::new(home);
    let mesh = mesh_of(&home)?;
    Ok(reply(mesh, place(&home)?, None))
}

fn place(home: &Home) -> Result<RootPlace, EntryError> {
    Ok(match home.root()? {
        Some(file) if file.is_sealed() => RootPlace::Locked,
        Some(_) => RootPlace::Here,
        None => RootPlace::Away,
    })
}

fn reply(mesh: MeshId, place: RootPlace, file: Option<&Path>) -> RootReply {
    RootReply { mesh_id: mesh.to_string(), place, file: file.map(|f| f.display().to_string()) }
}

/// Whether the copy in `path` needs a passphrase to be opened.
///
/// # Errors
/// [`EntryError`] when it is no root key.
pub fn is_sealed(path: &Path) -> Result<bool, EntryError> {
    Ok(read_copy(path)?.is_sealed())
}

fn read_copy(path: &Path) -> Result<RootFile, EntryError> {
    let bytes = home::hex_file(path)?;
    RootFile::from_bytes(&bytes).map_err(unreadable(path))
}

/// The root in `file`; `passphrase` is asked for by the caller when it is sealed.
fn open(file: &RootFile, path: &Path, passphrase: Option<&Passphrase>) -> Result<MeshRoot, EntryError> {
    match (file, passphrase) {
        (RootFile::Clear(root), _) => Ok(MeshRoot::from_seed(*root.expose_seed())),
        (RootFile::Sealed(sealed), Some(passphrase)) => sealed.open(passphrase).map_err(unreadable(path)),
        (RootFile::Sealed(_), None) => Err(failed(
            "passphrase",
            format!("{} is under a passphrase", path.display()),
            "give it on a terminal, on stdin, or in OCTOMESH_ROOT_PASSPHRASE",
        )),
    }
}

/// A new root key as it is to lie in a home: under `passphrase`, or in the clear.
///
/// # Errors
/// [`EntryError`] for a passphrase of the wrong length.
pub(crate) fn file_of(root: MeshRoot, passphrase: Option<&Passphrase>) -> Result<RootFile, EntryError> {
    let Some(passphrase) = passphrase else { return Ok(RootFile::Clear(root)) };
    let mut random = [0; RANDOM_BYTES];
    SystemClock.fill(&mut random).map_err(|e| failed("entropy", e, "try again"))?;
    SealedRoot::seal(&root, passphrase, Cost::NEW, &random)
        .map(RootFile::Sealed)
        .map_err(|e| failed((&e).into(), e, "choose several words that nobody would guess"))
}

/// Opens the sealed root of a home. Takes about a second and 64 MiB: not on a thread that others wait for.
///
/// # Errors
/// [`EntryError`]: `root_away`, `not_sealed`, `passphrase`.
pub(crate) fn open_in_home(home: &Home, passphrase: &Passphrase) -> Result<MeshRoot, EntryError> {
    match home.root()? {
        Some(file @ RootFile::Sealed(_)) => open(&file, &home.root_key(), Some(passphrase)),
        Some(RootFile::Clear(_)) => {
            Err(failed("not_sealed", "the root key is here in the clear", "there is nothing to unlock"))
        }
        None => Err(failed(
            "root_away",
            "the root key is not on this node",
            "bring it with `octomesh root import FILE`",
        )),
    }
}

/// Arguments of `octomesh root export`.
#[derive(Debug, Clone)]
pub struct ExportArgs {
    /// The home directory.
    pub home: PathBuf,
    /// The file to write; it must not exist.
    pub file: PathBuf,
    /// Opens the root when it is under a passphrase.
    pub open_with: Option<Passphrase>,
    /// Seals the copy of a root that is in the clear. A sealed root keeps its passphrase.
    pub seal_with: Option<Passphrase>,
}

/// Writes a copy of the root key and reads it back.
///
/// # Errors
/// [`EntryError`]: `root_away`, `exists`, `wrong_passphrase`, or what is wrong with the file.
pub fn export(args: &ExportArgs) -> Result<RootReply, EntryError> {
    let home = Home::new(&args.home);
    let mesh = mesh_of(&home)?;
    let Some(stored) = home.root()? else {
        return Err(failed(
            "root_away",
            "the root key is not on this node",
            "it is on the node where `octomesh init` was run, or where it was moved to from there",
        ));
    };
    // Opened in any case: a copy that nobody can open is none.
    let root = open(&stored, &home.root_key(), args.open_with.as_ref())?;
    let copy = match (&stored, &args.seal_with) {
        (RootFile::Sealed(_), Some(_)) => {
            return Err(failed(
                "sealed",
                "the root key is under a passphrase already, and so is every copy of it",
                "leave --passphrase out",
            ));
        }
        (RootFile::Clear(_), seal_with @ Some(_)) => file_of(root, seal_with.as_ref())?,
        (_, None) => stored,
    };
    write_new(&args.file, &copy)?;
    let written = read_copy(&args.file)?;
    let passphrase = args.seal_with.as_ref().or(args.open_with.as_ref());
    if open(&written, &args.file, passphrase)?.mesh_id() != mesh {
        return Err(failed("damaged", "the copy is not what was written", "use another disk"));
    }
    Ok(reply(mesh, place(&home)?, Some(&args.file)))
}

/// A file of mode 0600 from its first byte, which must not exist.
fn write_new(path: &Path, copy: &RootFile) -> Result<(), EntryError> {
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(failed(
                "exists",
                format!("{} exists already", path.display()),
                "a key is never overwritten: choose another file",
            ));
        }
        Err(cause) => return Err(at(path)(cause)),
    };
    let text = home::hex_text(&copy.to_bytes());
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if let Err(cause) = written {
        // Half a key must not look like a copy. silent-ok: the first failure is the one to tell
        let _ = fs::remove_file(path);
        return Err(at(path)(cause));
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::File::open(folder).and_then(|f| f.sync_all()).map_err(at(folder))
}

/// Arguments of `octomesh root remove`.
#[derive(Debug, Clone)]
pub struct RemoveArgs {
    /// The home directory.
    pub home: PathBuf,
    /// A copy, which must open and be the same key.
    pub copy: PathBuf,
    /// Opens the copy when it is under a passphrase.
    pub open_with: Option<Passphrase>,
}

/// Erases the root key from the home, after the copy has proved to be one.
///
/// # Errors
/// [`EntryError`]: `root_away`, `other_mesh`, `same_file`, or what is wrong with the copy.
pub fn remove(args: &RemoveArgs) -> Result<RootReply, EntryError> {
    let home = Home::new(&args.home);
    let mesh = mesh_of(&home)?;
    if home.root()?.is_none() {
        return Err(failed("root_away", "the root key is not on this node", "there is nothing to remove"));
    }
    let path = home.root_key();
    let place_of = |p: &Path| fs::metadata(p).map(|m| (m.dev(), m.ino())).map_err(at(p));
    if place_of(&args.copy)? == place_of(&path)? {
        return Err(failed(
            "same_file",
            format!("{} is the file that would be removed", args.copy.display()),
            "name the copy that `octomesh root export` made, on another disk",
        ));
    }
    let copy = read_copy(&args.copy)?;
    // The id of a mesh is the hash of its root's public keys, so the same id is the same key.
    if open(&copy, &args.copy, args.open_with.as_ref())?.mesh_id() != mesh {
        return Err(other_mesh(&args.copy));
    }
    home::erase(&path)?;
    Ok(reply(mesh, RootPlace::Away, Some(&args.copy)))
}

fn other_mesh(path: &Path) -> EntryError {
    failed(
        "other_mesh",
        format!("{} is the root key of another mesh", path.display()),
        "give the copy that was exported from this mesh",
    )
}

/// Arguments of `octomesh root import`.
#[derive(Debug, Clone)]
pub struct ImportArgs {
    /// The home directory.
    pub home: PathBuf,
    /// The copy.
    pub file: PathBuf,
    /// Opens it when it is under a passphrase.
    pub open_with: Option<Passphrase>,
}

/// Brings the root key back, in the form that the copy has.
///
/// # Errors
/// [`EntryError`]: `exists`, `other_mesh`, or what is wrong with the file.
pub fn import(args: &ImportArgs) -> Result<RootReply, EntryError> {
    let home = Home::new(&args.home);
    let mesh = mesh_of(&home)?;
    if home.root()?.is_some() {
        return Err(failed(
            "exists",
            "the root key is on this node already",
            "`octomesh root status` shows it",
        ));
    }
    let copy = read_copy(&args.file)?;
    if open(&copy, &args.file, args.open_with.as_ref())?.mesh_id() != mesh {
        return Err(other_mesh(&args.file));
    }
    home.keep_root(&copy)?;
    Ok(reply(mesh, place(&home)?, Some(&args.file)))
}

#[cfg(test)]
mod tests;
