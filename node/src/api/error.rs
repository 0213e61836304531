//! The one shape of errors: `{error: {code, message, hint}}`.
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::types::ErrorBody;

/// What a 503 says about when to try again, in seconds: a full queue is usually shorter a second later.
const RETRY_AFTER_S: u64 = 1;

/// An error that a client sees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// For programs, in snake case.
    pub code: String,
    /// For people.
    pub message: String,
    /// What to do, when it is known.
    pub hint: Option<String>,
}

impl ApiError {
    /// Any error.
    #[must_use]
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), hint: None }
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// 400: the request itself is wrong.
    #[must_use]
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request", message)
    }

    /// 404: the thing named does not exist (`code` says which kind: `unknown_tool`, `unknown_run`, …).
    #[must_use]
    pub fn not_found(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(404, code, message)
    }

    /// 503 `no_capacity`: no node can take it; the message has each node's reason.
    #[must_use]
    pub fn no_capacity(message: impl Into<String>) -> Self {
        Self::new(503, "no_capacity", message)
    }

    /// 503 `not_ready`: the node is starting or stopping.
    #[must_use]
    pub fn not_ready(message: impl Into<String>) -> Self {
        Self::new(503, "not_ready", message)
    }

    /// 500: a fault of the node.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "internal", message)
    }

    /// The inside of the JSON form.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        ErrorBody { code: self.code.clone(), message: self.message.clone(), hint: self.hint.clone() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(json!({ "error": self.body() }))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
