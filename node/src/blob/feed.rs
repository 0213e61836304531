//! Where the bytes of a transfer come from: a file that is open here, or another node.
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

use octomesh_protocol::{
    blob::{BlobRef, End},
    id::BlobHash,
};
use sha2::{Digest as _, Sha256};

use super::{BlobError, IDLE, PIECE, blocking, client::Download, incoming::HashOf, store::Pin, window::Sent};
use crate::net::BlobStream;

/// Bytes of this machine that go out.
pub(crate) struct Outgoing {
    file: Option<File>,
    blob: BlobRef,
    at: u64,
    _pin: Option<Pin>,
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("blob", &self.blob).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Outgoing {
    pub(super) fn of_blob(file: File, blob: BlobRef, pin: Pin) -> Self {
        Self { file: Some(file), blob, at: 0, _pin: Some(pin) }
    }

    /// A file of the workspace. It is read as a whole for its hash. Blocks.
    pub(super) fn of_file(mut file: File) -> Result<Self, BlobError> {
        let mut hash = Sha256::new();
        let bytes = io::copy(&mut file, &mut HashOf(&mut hash))?;
        let blob = BlobRef { hash: BlobHash::from_bytes(hash.finalize().into()), bytes };
        Ok(Self { file: Some(file), blob, at: 0, _pin: None })
    }

    pub(crate) const fn blob(&self) -> BlobRef {
        self.blob
    }

    /// Begins at byte `offset`.
    pub(crate) fn from(mut self, offset: u64) -> Self {
        self.at = offset.min(self.blob.bytes);
        self
    }

    /// The next piece; empty at the end. A file that got shorter meanwhile is an error; one that was written over is found by its hash at
    /// the other end.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, BlobError> {
        let left = self.blob.bytes - self.at;
        if left == 0 {
            return Ok(Vec::new());
        }
        let mut file = self.file.take().ok_or_else(|| BlobError::Io("a read failed before".to_owned()))?;
        let (at, want) = (self.at, usize::try_from(left).unwrap_or(PIECE).min(PIECE));
        let (file, piece) = blocking(move || {
            let mut piece = vec![0; want];
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut piece)?;
            Ok((file, piece))
        })
        .await?;
        self.file = Some(file);
        self.at += piece.len() as u64;
        Ok(piece)
    }

    /// All that is left, and the end.
    pub(super) async fn pour(mut self, stream: &mut BlobStream) -> Result<(), BlobError> {
        let mut sent = Sent::from(self.at);
        loop {
            let piece = self.next().await?;
            if piece.is_empty() {
                break;
            }
            sent.push(stream, &piece).await?;
        }
        Ok(stream.send(End { hash: self.blob.hash }, IDLE).await?)
    }
}

/// Bytes for somebody on this machine.
#[derive(Debug)]
pub(crate) enum Feed {
    /// They are here.
    Local(Outgoing),
    /// They come from another node.
    Remote(Box<Download>),
}

impl Feed {
    /// What all of it is.
    pub(crate) fn blob(&self) -> BlobRef {
        match self {
            Self::Local(outgoing) => outgoing.blob(),
            Self::Remote(download) => download.blob(),
        }
    }

    /// The next bytes; empty at the end. When they come to their end, they are those that were announced.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, BlobError> {
        match self {
            Self::Local(outgoing) => outgoing.next().await,
            Self::Remote(download) => download.next().await,
        }
    }
}
