//! `/api/files/{node}`, `/api/blobs/{hash}`, `/api/runs/{id}/artifacts`: bytes that are streamed, and never held as a whole.
use std::{io, pin::Pin};

pub use axum::body::Bytes;
use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt as _};
use serde::Deserialize;

use super::{
    ApiState,
    body::{Fields, Segment},
    error::ApiError,
    types::{ArtifactsReply, FileReply},
};

/// Bytes as they come.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Which file, and from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAsk {
    /// The node.
    pub node: String,
    /// The path in its workspace.
    pub path: String,
    /// The first byte that is wanted.
    pub offset: u64,
    /// SHA-256 of the file that the bytes before belong to.
    pub expect: Option<String>,
}

/// A file or blob that is read.
pub struct Content {
    /// Size of all of it.
    pub bytes: u64,
    /// SHA-256 of all of it.
    pub sha256: String,
    /// The first byte that comes.
    pub offset: u64,
    /// The bytes from there on. An error in it breaks the answer off.
    pub stream: ByteStream,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A file that is written.
pub struct NewFile {
    /// The node.
    pub node: String,
    /// The path in its workspace.
    pub path: String,
    /// Size of all of it.
    pub bytes: u64,
    /// SHA-256 of all of it.
    pub sha256: String,
    /// All of it.
    pub stream: ByteStream,
}

impl std::fmt::Debug for NewFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewFile")
            .field("path", &self.path)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadQuery {
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteQuery {
    path: String,
    bytes: u64,
    sha256: String,
}

/// `Range: bytes=N-`: only the rest of a file is ever asked for.
fn offset(headers: &HeaderMap) -> Result<u64, ApiError> {
    let Some(range) = headers.get(header::RANGE) else { return Ok(0) };
    let number = range.to_str().ok().and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    number.ok_or_else(|| ApiError::invalid_request("only ranges of the form bytes=N- are served"))
}

/// `If-Match: "SHA256"`.
fn expect(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::IF_MATCH)?.to_str().ok()?.trim_matches('"').to_owned())
}

fn answer(content: Content) -> Response {
    let part = content.offset > 0;
    let status = if part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut headers: Vec<(HeaderName, String)> = vec![
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::ETAG, format!("\"{}\"", content.sha256)),
        (header::CONTENT_LENGTH, (content.bytes - content.offset).to_string()),
    ];
    if part && content.offset < content.bytes {
        let range = format!("bytes {}-{}/{}", content.offset, content.bytes - 1, content.bytes);
        headers.push((header::CONTENT_RANGE, range));
    }
    let mut response = (status, Body::from_stream(content.stream)).into_response();
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

pub(super) async fn read(
    State(state): State<ApiState>,
    Segment(node): Segment,
    Fields(query): Fields<ReadQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (offset, expect) = (offset(&headers)?, expect(&headers));
    let ask = FileAsk { node, path: query.path, offset, expect };
    state.backend.read_file(ask).await.map(answer)
}

pub(super) async fn write(
    State(state): State<ApiState>,
    Segment(node): Segment,
    Fields(query): Fields<WriteQuery>,
    request: Request,
) -> Result<Json<FileReply>, ApiError> {
    let stream = request.into_body().into_data_stream().map(|chunk| chunk.map_err(io::Error::other));
    let WriteQuery { path, bytes, sha256 } = query;
    state.backend.write_file(NewFile { node, path, bytes, sha256, stream: Box::pin(stream) }).await.map(Json)
}

pub(super) async fn blob(
    State(state): State<ApiState>,
    Segment(hash): Segment,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let offset = offset(&headers)?;
    state.backend.read_blob(&hash, offset).await.map(answer)
}

pub(super) async fn artifacts(
    State(state): State<ApiState>,
    Segment(id): Segment,
) -> Result<Json<ArtifactsReply>, ApiError> {
    state.backend.artifacts(&id).await.map(Json)
}
