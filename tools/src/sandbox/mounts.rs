//! Making a file tree of chosen pieces in a mount namespace of one's own.
use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::statvfs::{FsFlags, statvfs},
};
use rustix::fs::{CWD, Mode, OFlags};

/// A folder to put the tree over: only this mount namespace sees it. The first that exists.
const BASES: [&str; 4] = ["/mnt", "/tmp", "/run", "/var/tmp"];

/// A file or folder that is found again whatever is mounted over its path.
pub(super) struct Source {
    path: PathBuf,
    fd: OwnedFd,
    pub(super) is_folder: bool,
}

impl Source {
    /// To be opened in the mount namespace that it is used in.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let fd = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let is_folder = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.is_dir();
        Ok(Self { path: path.to_owned(), fd, is_folder })
    }

    /// Where it exists.
    pub(super) fn find(path: &Path) -> Option<Self> {
        Self::open(path).ok()
    }

    /// Shows it at `target`, which is made.
    pub(super) fn bind(&self, target: &Path, access: Access) -> Result<(), String> {
        let say = |e: &dyn std::fmt::Display| format!("show {}: {e}", self.path.display());
        if self.is_folder {
            fs::create_dir_all(target).map_err(|e| say(&e))?;
        } else {
            target.parent().map_or(Ok(()), fs::create_dir_all).map_err(|e| say(&e))?;
            fs::write(target, "").map_err(|e| say(&e))?;
        }
        let from = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let none = None::<&str>;
        mount(Some(from.as_str()), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)
            .map_err(|e| say(&e))?;
        for point in mounts_below(target) {
            match restrict(&point, access) {
                Ok(()) => {}
                // A mount below it that can't be looked at is hidden by something else.
                Err(Errno::EACCES | Errno::ENOENT) if point != target => {}
                Err(e) => return Err(format!("{}: {e}", point.display())),
            }
        }
        Ok(())
    }
}

/// What may be done below a mount. SUID bits never count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    Writable,
    Device,
}

/// Adds the restrictions of `access` to those that the mount has.
pub(super) fn restrict(point: &Path, access: Access) -> Result<(), Errno> {
    let has = statvfs(point)?.flags();
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID;
    if access != Access::Device || has.contains(FsFlags::ST_NODEV) {
        flags |= MsFlags::MS_NODEV;
    }
    if access == Access::ReadOnly || has.contains(FsFlags::ST_RDONLY) {
        flags |= MsFlags::MS_RDONLY;
    }
    if has.contains(FsFlags::ST_NOEXEC) {
        flags |= MsFlags::MS_NOEXEC;
    }
    mount(None::<&str>, point, None::<&str>, flags, None::<&str>)
}

/// Mounts at and below a path.
fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string("/proc/self/mountinfo") else { return vec![path.to_owned()] };
    let mut points: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(path))
        .collect();
    points.sort();
    points.dedup();
    points
}

/// Blanks and the like are written as `\040` there.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                out.push_str(part.get(3..).unwrap_or_default());
            }
            _ => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// From here on no mount of ours is seen by others, and none of others by us.
pub(super) fn make_private() -> Result<(), String> {
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(|e| format!("private mounts: {e}"))
}

/// Where a tree can be put.
pub(super) fn base() -> Result<PathBuf, String> {
    BASES.iter().map(PathBuf::from).find(|p| p.is_dir()).ok_or_else(|| "no folder to mount over".to_owned())
}

/// An empty file system in memory of at most `bytes`.
pub(super) fn memory(target: &Path, bytes: u64, mode: u32) -> Result<(), String> {
    fs::create_dir_all(target).map_err(|e| format!("{}: {e}", target.display()))?;
    // An i-node takes about a KiB of kernel memory that `size` does not count.
    let inodes = (bytes >> 12).clamp(1024, 65_536);
    let options = format!("size={bytes},nr_inodes={inodes},mode={mode:o}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|e| format!("tmpfs on {}: {e}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_blanks() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/plain\"), r"/plain\");
        assert!(mounts_below(Path::new("/")).contains(&PathBuf::from("/proc")));
    }
}
