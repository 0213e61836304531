//! Changes of a membership: another name, leaving, a member that is forgotten here.
use axum::{
    Json,
    extract::{Request, State},
};

use super::{
    ApiState,
    body::{self, Body, SMALL_BYTES, Segment},
    error::ApiError,
    types::{ForgetReply, LeaveReply, LeaveRequest, RenameReply, RenameRequest},
};

pub(super) async fn rename(
    State(state): State<ApiState>,
    Body(request): Body<RenameRequest, SMALL_BYTES>,
) -> Result<Json<RenameReply>, ApiError> {
    state.backend.rename(request).await.map(Json)
}

pub(super) async fn leave(
    State(state): State<ApiState>,
    request: Request,
) -> Result<Json<LeaveReply>, ApiError> {
    let bytes = body::read(request.into_body(), SMALL_BYTES).await?;
    let asked: Option<LeaveRequest> =
        if bytes.trim_ascii().is_empty() { None } else { body::parse_json(&bytes, SMALL_BYTES)? };
    state.backend.leave(asked.unwrap_or_default()).await.map(Json)
}

pub(super) async fn forget(
    State(state): State<ApiState>,
    Segment(node): Segment,
) -> Result<Json<ForgetReply>, ApiError> {
    state.backend.forget(&node).await.map(Json)
}
