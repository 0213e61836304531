//! How much a workspace holds, and that what programs left there is harmless and belongs to the right user.
use std::path::Path;

use cap_std::fs::{Dir, MetadataExt, PermissionsExt};

/// Bits that make a program run as its owner or group.
const SUID: u32 = 0o6000;
/// Folders within folders; a deeper one is counted as too much.
const DEPTH: usize = 128;

/// How much a workspace may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files and folders.
    pub entries: u64,
}

impl Default for Quota {
    /// 10 GiB in 200,000 files: room for a home lab's data, and looked through in less than a second.
    fn default() -> Self {
        Self { bytes: 10 << 30, entries: 200_000 }
    }
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    too_deep: bool,
}

impl Usage {
    /// What is over the quota, in words.
    pub(crate) fn over(&self, quota: &Quota) -> Option<String> {
        if self.bytes > quota.bytes {
            return Some(format!(
                "the workspace holds {} bytes, over the limit of {}",
                self.bytes, quota.bytes
            ));
        }
        if self.entries > quota.entries {
            return Some(format!("the workspace holds more than {} files and folders", quota.entries));
        }
        self.too_deep.then(|| format!("folders of the workspace are nested deeper than {DEPTH}"))
    }
}

/// Goes through all of a workspace: counts, takes SUID bits away and, when `owner` is given, gives everything to that user.
/// Links are not followed and nothing outside is reached, also when programs change the folders meanwhile.
pub(crate) fn walk(
    workspace: &Path,
    quota: &Quota,
    owner: Option<u32>,
    strip: bool,
) -> std::io::Result<Usage> {
    let dir = Dir::open_ambient_dir(workspace, cap_std::ambient_authority())?;
    let mut usage = Usage::default();
    if let Some(owner) = owner {
        chown(&dir, Path::new("."), owner, dir.dir_metadata()?.uid());
    }
    let walk = Walk { quota: *quota, owner, strip };
    walk.folder(&dir, 0, &mut usage);
    Ok(usage)
}

struct Walk {
    quota: Quota,
    owner: Option<u32>,
    strip: bool,
}

impl Walk {
    fn folder(&self, dir: &Dir, depth: usize, usage: &mut Usage) {
        if depth > DEPTH {
            usage.too_deep = true;
            return;
        }
        let Ok(entries) = dir.entries() else { return };
        for entry in entries.flatten() {
            // Beyond this it does not matter how much more there is.
            if usage.entries > self.quota.entries {
                return;
            }
            let Ok(about) = entry.metadata() else { continue };
            usage.entries += 1;
            // Blocks, because a file with holes takes less than its length says.
            usage.bytes = usage.bytes.saturating_add(about.blocks().saturating_mul(512));
            let name = entry.file_name();
            let name = Path::new(&name);
            // A file with a second name may be one from outside that the owner has put here.
            if let Some(owner) = self.owner.filter(|_| about.is_dir() || about.nlink() == 1) {
                chown(dir, name, owner, about.uid());
            }
            let mode = about.permissions().mode();
            if self.strip && about.is_file() && mode & SUID != 0 {
                let plain = cap_std::fs::Permissions::from_mode(mode & 0o1777);
                if let Err(error) = dir.set_permissions(name, plain) {
                    tracing::warn!(file = %name.display(), %error, "an SUID bit could not be taken away");
                }
            }
            if about.is_dir()
                && let Ok(below) = entry.open_dir()
            {
                self.folder(&below, depth + 1, usage);
            }
        }
    }
}

/// Without following a link.
fn chown(dir: &Dir, name: &Path, owner: u32, is: u32) {
    if is == owner {
        return;
    }
    let (uid, gid) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    if let Err(error) = rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags) {
        tracing::debug!(file = %name.display(), %error, "the owner of a file of the workspace was not changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    const ALL: Quota = Quota { bytes: u64::MAX, entries: 1000 };

    #[test]
    fn counts_and_strips() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), vec![1u8; 10_000]).unwrap();
        fs::write(dir.path().join("c"), "x").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("a/root")).unwrap();
        fs::set_permissions(dir.path().join("a/b"), fs::Permissions::from_mode(0o6755)).unwrap();
        let usage = walk(dir.path(), &ALL, None, true).unwrap();
        assert_eq!(usage.entries, 4);
        assert!((10_000..40_000).contains(&usage.bytes), "{usage:?}");
        let mode = fs::metadata(dir.path().join("a/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(usage.over(&ALL), None);
        assert!(usage.over(&Quota { bytes: 9_000, entries: 1000 }).unwrap().contains("9000"));
        let few = Quota { bytes: u64::MAX, entries: 2 };
        assert!(walk(dir.path(), &few, None, false).unwrap().over(&few).is_some());
    }
}
