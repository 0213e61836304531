//! Files and blobs as the API sees them.
use std::io;

use futures::{StreamExt as _, stream};
use octomesh_protocol::{
    blob::{BlobRef, BlobRefusal},
    id::{BlobHash, NodeId},
    limits,
};
use tokio::time::Instant;

use super::{backend::NodeBackend, node::Node};
use crate::{
    api::{
        ApiError,
        files::{ByteStream, Bytes, Content, FileAsk, NewFile},
        types::FileReply,
    },
    blob::{BlobError, Feed},
};

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        let status = match &error {
            BlobError::Interrupted(_) => 503,
            BlobError::Refused { reason, .. } => match reason {
                BlobRefusal::NotFound => 404,
                BlobRefusal::Policy => 403,
                BlobRefusal::Invalid => 400,
                BlobRefusal::Changed => 412,
                BlobRefusal::TooLarge => 413,
                BlobRefusal::Full => 507,
                BlobRefusal::Busy | BlobRefusal::CatchingUp => 503,
                BlobRefusal::Damaged => 502,
                BlobRefusal::Failed => 500,
            },
            BlobError::Damaged | BlobError::Unexpected(_) => 502,
            BlobError::Full(_) => 507,
            BlobError::Io(_) => 500,
        };
        let hint = match status {
            404 => Some("`octomesh call file_list --node NODE` shows what is there"),
            412 => Some("copy it again from its beginning"),
            507 => Some("free some space, or copy to another node"),
            _ => None,
        };
        let shown = Self::new(status, error.code(), error.to_string());
        match hint {
            Some(hint) => shown.hint(hint),
            None => shown,
        }
    }
}

fn hash(text: &str) -> Result<BlobHash, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_request("a SHA-256 has 64 hexadecimal characters"))
}

fn path_fits(path: &str) -> Result<(), ApiError> {
    if (1..=limits::PATH_BYTES).contains(&path.len()) {
        return Ok(());
    }
    Err(ApiError::invalid_request(format!("a path has 1 to {} bytes", limits::PATH_BYTES)))
}

/// What came is not what was announced by its own client.
fn cut_short(have: u64, blob: BlobRef) -> BlobError {
    BlobError::Interrupted(format!("the request ended after {have} of {} bytes", blob.bytes))
}

/// The feed's bytes; `done` hears of each node's transfer when it is over.
fn streamed(feed: Feed, offset: u64, done: impl FnOnce() + Send + 'static) -> Content {
    let blob = feed.blob();
    let bytes = stream::unfold((feed, Some(done)), |(mut feed, done)| async move {
        let done = done?;
        match feed.next().await {
            Ok(bytes) if bytes.is_empty() => {
                done();
                None
            }
            Ok(bytes) => Some((Ok(Bytes::from(bytes)), (feed, Some(done)))),
            Err(error) => {
                tracing::warn!(%error, "a file was not sent to its end");
                Some((Err(io::Error::other(error.to_string())), (feed, None)))
            }
        }
    });
    Content { bytes: blob.bytes, sha256: blob.hash.to_string(), offset, stream: Box::pin(bytes) }
}

impl NodeBackend {
    fn node(&self) -> &Node {
        &self.0
    }

    pub(super) async fn file(&self, ask: FileAsk) -> Result<Content, ApiError> {
        path_fits(&ask.path)?;
        let node = self.resolve(&ask.node)?;
        let expect = ask.expect.as_deref().map(hash).transpose()?;
        if ask.offset > 0 && expect.is_none() {
            return Err(ApiError::invalid_request(
                "a part is only sent with If-Match: \"SHA256\" of the whole",
            ));
        }
        let begun = Instant::now();
        if node == self.node().caller.node {
            let outgoing = self.node().files.open(&self.node().caller, ask.path).await?;
            let blob = outgoing.blob();
            if expect.is_some_and(|e| e != blob.hash) || ask.offset > blob.bytes {
                let detail = "it is not what it was when the transfer began".to_owned();
                return Err(BlobError::Refused { reason: BlobRefusal::Changed, detail }.into());
            }
            return Ok(streamed(Feed::Local(outgoing.from(ask.offset)), ask.offset, || {}));
        }
        let download = self.node().blobs.fetch_file(node, ask.path, ask.offset, expect).await?;
        let (dispatcher, bytes) = (self.node().dispatcher.clone(), download.blob().bytes - ask.offset);
        let done = move || dispatcher.note_transfer(node, bytes, begun.elapsed());
        Ok(streamed(Feed::Remote(Box::new(download)), ask.offset, done))
    }

    pub(super) async fn blob(&self, text: &str, offset: u64) -> Result<Content, ApiError> {
        let outgoing = self.node().blobs.store.send(hash(text)?).await?;
        if offset > outgoing.blob().bytes {
            return Err(ApiError::invalid_request("the range begins after the end"));
        }
        Ok(streamed(Feed::Local(outgoing.from(offset)), offset, || {}))
    }

    pub(super) async fn new_file(&self, file: NewFile) -> Result<FileReply, ApiError> {
        path_fits(&file.path)?;
        let node = self.resolve(&file.node)?;
        let blob = BlobRef { hash: hash(&file.sha256)?, bytes: file.bytes };
        if blob.bytes > limits::FILE_BYTES {
            let message = format!("{} bytes; at most {} can be copied", blob.bytes, limits::FILE_BYTES);
            return Err(ApiError::new(413, "too_large", message));
        }
        let name = self.view().get(node).map_or_else(String::new, |m| m.name.to_string());
        let (path, mut body) = (file.path.clone(), file.stream);
        let put = if node == self.node().caller.node {
            self.put_here(path, blob, &mut body).await
        } else {
            self.put_there(node, path, blob, &mut body).await
        };
        if put.is_err() {
            // A client that still writes would not get to read the answer.
            while let Some(Ok(_)) = body.next().await {}
        }
        let resumed_at = put?;
        let sha256 = blob.hash.to_string();
        Ok(FileReply { node: name, path: file.path, bytes: blob.bytes, sha256, resumed_at })
    }

    async fn put_here(&self, path: String, blob: BlobRef, body: &mut ByteStream) -> Result<u64, BlobError> {
        let node = self.node();
        node.files.may_put(&node.caller, path.clone()).await?;
        let mut incoming = node.blobs.store.receive(node.caller.node, blob, false).await?;
        let offset = incoming.have();
        let mut skip = offset;
        while let Some(chunk) = body.next().await {
            match chunk {
                Ok(chunk) => incoming.push(after(&chunk, &mut skip)).await?,
                Err(error) => {
                    incoming.pause().await;
                    return Err(BlobError::Interrupted(error.to_string()));
                }
            }
        }
        if incoming.have() < blob.bytes {
            let have = incoming.have();
            incoming.pause().await;
            return Err(cut_short(have, blob));
        }
        node.files.put(incoming.finish().await?, path).await?;
        Ok(offset)
    }

    async fn put_there(
        &self,
        to: NodeId,
        path: String,
        blob: BlobRef,
        body: &mut ByteStream,
    ) -> Result<u64, BlobError> {
        let mut upload = self.node().blobs.put_file(to, path, blob).await?;
        let (begun, offset) = (Instant::now(), upload.offset());
        let (mut skip, mut came) = (offset, 0u64);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|e| BlobError::Interrupted(e.to_string()))?;
            came += chunk.len() as u64;
            if came > blob.bytes {
                return Err(BlobError::Damaged);
            }
            upload.push(after(&chunk, &mut skip)).await?;
        }
        if came < blob.bytes {
            return Err(cut_short(came, blob));
        }
        upload.finish().await?;
        self.node().dispatcher.note_transfer(to, blob.bytes - offset, begun.elapsed());
        Ok(offset)
    }
}

/// What of a chunk comes after the first `skip` bytes, which are there already.
fn after<'a>(chunk: &'a [u8], skip: &mut u64) -> &'a [u8] {
    let skipped = usize::try_from(*skip).unwrap_or(usize::MAX).min(chunk.len());
    *skip -= skipped as u64;
    chunk.get(skipped..).unwrap_or_default()
}
