//! Reading what a client sends: bounded, not too deep, and with no unknown field.
use axum::{
    body::Body as HttpBody,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::request::Parts,
};
use futures::StreamExt;
use octomesh_protocol::limits;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// A call: its arguments, and room for the tool's name and the like.
pub(super) const CALL_BYTES: usize = limits::INPUT_BYTES + 64 * 1024;
/// A run: a question and perhaps a plan file.
pub(super) const RUN_BYTES: usize = 1024 * 1024;
/// Any other body is a handful of numbers.
pub(super) const SMALL_BYTES: usize = 16 * 1024;
/// How much of a body that is too large is read and thrown away, so that the client gets to read the answer.
const DISCARDED_BYTES: usize = 32 * 1024 * 1024;
/// No tool of ours has arguments this deep, and every JSON reader on the way can follow.
pub const JSON_DEPTH: usize = 64;
/// A name, an id or a prefix in a path.
const SEGMENT_BYTES: usize = 256;

/// What is wrong with JSON before anybody looks at its meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum JsonError {
    /// Over the limit, in bytes.
    #[error("{bytes} bytes; at most {limit}")]
    TooLarge {
        /// Its size; a lower bound when it was not read to its end.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Nested deeper than [`JSON_DEPTH`].
    #[error("JSON nested deeper than {JSON_DEPTH}")]
    TooDeep,
    /// Not JSON, or not of this shape.
    #[error("{0}")]
    Malformed(String),
}

/// Parses JSON that somebody wrote.
///
/// # Errors
/// [`JsonError`].
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, JsonError> {
    if bytes.len() > limit {
        return Err(JsonError::TooLarge { bytes: bytes.len(), limit });
    }
    if depth(bytes) > JSON_DEPTH {
        return Err(JsonError::TooDeep);
    }
    serde_json::from_slice(bytes).map_err(|e| JsonError::Malformed(e.to_string()))
}

/// Deepest nesting of brackets outside of strings. Needs no stack, whatever comes.
fn depth(bytes: &[u8]) -> usize {
    let (mut open, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                open += 1;
                deepest = deepest.max(open);
            }
            b'}' | b']' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        match &error {
            JsonError::TooLarge { .. } => Self::new(413, "too_large", format!("the request has {error}")).hint(format!(
                "arguments are limited to {} MiB; put larger inputs into a file of the workspace (`octomesh cp`) and pass its path",
                limits::INPUT_BYTES >> 20
            )),
            JsonError::TooDeep => Self::new(400, "too_deep", error.to_string()),
            JsonError::Malformed(message) => Self::invalid_request(message.clone()),
        }
    }
}

/// A JSON body of at most `LIMIT` bytes.
pub(super) struct Body<T, const LIMIT: usize>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync, const LIMIT: usize> FromRequest<S> for Body<T, LIMIT> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read(request.into_body(), LIMIT).await?;
        Ok(Self(parse_json(&bytes, LIMIT)?))
    }
}

pub(super) async fn read(body: HttpBody, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let (mut kept, mut seen) = (Vec::new(), 0usize);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| ApiError::invalid_request(format!("the body ended early: {e}")))?;
        seen = seen.saturating_add(chunk.len());
        if seen <= limit {
            kept.extend_from_slice(&chunk);
        } else {
            kept = Vec::new();
            if seen > DISCARDED_BYTES {
                break;
            }
        }
    }
    if seen > limit { Err(JsonError::TooLarge { bytes: seen, limit }.into()) } else { Ok(kept) }
}

/// The one variable part of a path.
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|e| ApiError::invalid_request(e.body_text()))?;
        if text.len() > SEGMENT_BYTES || text.chars().any(char::is_control) {
            return Err(ApiError::invalid_request("the path names no node, tool, decision or run"));
        }
        Ok(Self(text))
    }
}

/// The query of a URL; unknown fields are errors.
pub(super) struct Fields<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Fields<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(value) = Query::<T>::from_request_parts(parts, state)
            .await
            .map_err(|e| ApiError::invalid_request(e.body_text()))?;
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn depth_counts_only_brackets_outside_of_strings() {
        assert_eq!(depth(br#"{"a": "[[[\"[[", "b": [1, {}]}"#), 3);
        let deep = "[".repeat(10_000);
        assert_eq!(parse_json::<Value>(deep.as_bytes(), CALL_BYTES), Err(JsonError::TooDeep));
        let fits = format!("{}{}", "[".repeat(JSON_DEPTH), "]".repeat(JSON_DEPTH));
        assert!(parse_json::<Value>(fits.as_bytes(), CALL_BYTES).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = parse_json::<Value>(&bytes, 150);
        }
    }
}
