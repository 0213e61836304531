//! `/api/tools`, `/api/call`, `/api/place`, `/api/decisions/{id}`, `/api/bench/dispatch`.
use axum::{Json, extract::State};
use octomesh_protocol::limits;
use serde_json::Value;

use super::{
    ApiState,
    body::{Body, CALL_BYTES, Fields, JsonError, SMALL_BYTES, Segment},
    error::ApiError,
    types::{CallReply, CallRequest, ToolDetail, ToolsQuery, ToolsReply, TrialReply, TrialRequest},
};

pub(super) async fn list(
    State(state): State<ApiState>,
    Fields(query): Fields<ToolsQuery>,
) -> Result<Json<ToolsReply>, ApiError> {
    state.backend.tools(query).await.map(Json)
}

pub(super) async fn show(
    State(state): State<ApiState>,
    Segment(name): Segment,
) -> Result<Json<ToolDetail>, ApiError> {
    state.backend.tool(&name).await.map(Json)
}

/// The body may be a little larger than the arguments may be; the arguments themselves are measured as they are sent on.
fn within_limits(request: CallRequest) -> Result<CallRequest, ApiError> {
    let bytes =
        serde_json::to_vec(&request.arguments).map_err(|e| ApiError::invalid_request(e.to_string()))?.len();
    if bytes > limits::INPUT_BYTES {
        return Err(JsonError::TooLarge { bytes, limit: limits::INPUT_BYTES }.into());
    }
    if request.timeout_s == Some(0) {
        return Err(ApiError::invalid_request("timeout_s must be at least 1"));
    }
    Ok(request)
}

pub(super) async fn call(
    State(state): State<ApiState>,
    Body(request): Body<CallRequest, CALL_BYTES>,
) -> Result<Json<CallReply>, ApiError> {
    // When the client goes away this future is dropped, and with it the call.
    state.backend.call(within_limits(request)?).await.map(Json)
}

pub(super) async fn place(
    State(state): State<ApiState>,
    Body(request): Body<CallRequest, CALL_BYTES>,
) -> Result<Json<Value>, ApiError> {
    state.backend.place(within_limits(request)?).await.map(Json)
}

pub(super) async fn trial(
    State(state): State<ApiState>,
    Body(request): Body<TrialRequest, SMALL_BYTES>,
) -> Result<Json<TrialReply>, ApiError> {
    state.backend.trial(request).await.map(Json)
}

pub(super) async fn decision(
    State(state): State<ApiState>,
    Segment(id): Segment,
) -> Result<Json<Value>, ApiError> {
    state.backend.decision(&id).await.map(Json)
}
