//! Changes of a membership: another name, leaving, a member that is forgotten here.
use axum::{Json, extract::State};

use super::{
    ApiState,
    body::{Body, SMALL_BYTES, Segment},
    error::ApiError,
    types::{ForgetReply, LeaveReply, RenameReply, RenameRequest},
};

pub(super) async fn rename(
    State(state): State<ApiState>,
    Body(request): Body<RenameRequest, SMALL_BYTES>,
) -> Result<Json<RenameReply>, ApiError> {
    state.backend.rename(request).await.map(Json)
}

pub(super) async fn leave(State(state): State<ApiState>) -> Result<Json<LeaveReply>, ApiError> {
    state.backend.leave().await.map(Json)
}

pub(super) async fn forget(
    State(state): State<ApiState>,
    Segment(node): Segment,
) -> Result<Json<ForgetReply>, ApiError> {
    state.backend.forget(&node).await.map(Json)
}
