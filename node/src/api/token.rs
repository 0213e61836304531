//! The bearer token of the API: who has it owns the node.
use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use octomesh_tools::regular;
use sha2::{Digest, Sha256};

use crate::config::TOKEN_FILE;

/// A file over this size is not a token.
const LONGEST_FILE_BYTES: u64 = 1024;

/// Only the token's hash is kept: comparing hashes tells nothing of the token by its timing, and a dump does not hold it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    /// The hash of a token.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether the presented text is the token.
    #[must_use]
    pub fn matches(&self, presented: &str) -> bool {
        Self::new(presented) == *self
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The text of `api.token` in the home directory; `None` when there is no such file or it is empty.
///
/// # Errors
/// The operating system's error, or `InvalidData` for something that is no token.
pub fn read(home: &Path) -> io::Result<Option<String>> {
    let path = home.join(TOKEN_FILE);
    let text = match regular::read_text(&path, LONGEST_FILE_BYTES) {
        Ok(text) => text.trim().to_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
            let words = format!("{TOKEN_FILE} is too large for a token");
            return Err(io::Error::new(io::ErrorKind::InvalidData, words));
        }
        Err(e) => return Err(e),
    };
    Ok((!text.is_empty()).then_some(text))
}

/// The text of `api.token`, made from `random` when there is none. The file is only readable for its owner.
///
/// # Errors
/// The operating system's error.
pub fn load_or_create(home: &Path, random: [u8; 32]) -> io::Result<String> {
    if let Some(text) = read(home)? {
        make_private(&home.join(TOKEN_FILE));
        return Ok(text);
    }
    let text = data_encoding::HEXLOWER.encode(&random);
    // Written beside and renamed: a crash leaves no half token.
    let beside = home.join(format!("{TOKEN_FILE}.new"));
    match fs::remove_file(&beside) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, home.join(TOKEN_FILE))?;
    Ok(text)
}

/// A token that others could read is one that others may have: it is closed, and the owner is told.
fn make_private(path: &Path) {
    let Ok(mode) = fs::metadata(path).map(|meta| meta.permissions().mode()) else { return };
    if mode & 0o077 == 0 {
        return;
    }
    let closed = fs::set_permissions(path, fs::Permissions::from_mode(0o600));
    tracing::warn!(
        path = %path.display(), mode = format!("{:o}", mode & 0o777), closed = closed.is_ok(),
        "other users of this machine could read the API token; to be safe, delete the file and start again for a new one"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_private() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path()).unwrap(), None);
        let first = load_or_create(home.path(), [7; 32]).unwrap();
        assert_eq!(first.len(), 64);
        assert_eq!(load_or_create(home.path(), [8; 32]).unwrap(), first);
        let mode = fs::metadata(home.path().join(TOKEN_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_that_others_can_read_is_closed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(TOKEN_FILE);
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(load_or_create(home.path(), [7; 32]).unwrap(), "secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_large_file_is_no_token() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(TOKEN_FILE), vec![b'a'; 2000]).unwrap();
        assert_eq!(read(home.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn only_the_same_text_matches_and_nothing_is_shown() {
        let token = Token::new("secret");
        assert!(token.matches("secret"));
        assert!(!token.matches("secret ") && !token.matches(""));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
