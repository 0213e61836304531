//! Reading a file that somebody else may have put there: a regular one only, and never more of it than is allowed.
use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a file for reading without ever waiting for it: a fifo would keep whoever opens it until somebody writes, and a device may do
/// anything.
///
/// # Errors
/// The operating system's error, or `InvalidInput` for what is no regular file.
pub fn open(path: &Path) -> io::Result<fs::File> {
    let flags = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Of what was opened, not of what lies under that name a moment earlier.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// All bytes of a regular file. The buffer is made once and never moves, so that a secret leaves no copies behind.
///
/// # Errors
/// As [`open`]; `FileTooLarge` when there are more than `most` bytes, which are then not read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_large = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {most} bytes, which is all that is read"),
        )
    };
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(length).unwrap_or(0).saturating_add(64))
        .map_err(io::Error::other)?;
    // It may have grown since.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// The same as text.
///
/// # Errors
/// As [`read`]; `InvalidData` when it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        assert_eq!(read(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // A terabyte of nothing takes no memory.
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // One that never ends, and says that it is empty.
        assert_eq!(read(Path::new("/dev/zero"), 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(
            read(&pipe, 4).unwrap_err().kind(),
            io::ErrorKind::InvalidInput,
            "and nobody waits for it"
        );
        assert_eq!(read(folder.path(), 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
