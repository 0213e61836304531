//! `/api/mesh/…`: this node, the others, sessions, maintenance.
use axum::{Json, extract::State};

use super::{
    ApiState,
    body::{Body, SMALL_BYTES, Segment},
    error::ApiError,
    types::{
        DrainReply, NodesReply, RefusalsReply, RevokeReply, RevokeRequest, SessionsReply, StatusReply,
        WakeReply,
    },
};

pub(super) async fn status(State(state): State<ApiState>) -> Result<Json<StatusReply>, ApiError> {
    state.backend.status().await.map(Json)
}

pub(super) async fn nodes(State(state): State<ApiState>) -> Result<Json<NodesReply>, ApiError> {
    state.backend.nodes().await.map(Json)
}

pub(super) async fn sessions(State(state): State<ApiState>) -> Result<Json<SessionsReply>, ApiError> {
    state.backend.sessions().await.map(Json)
}

pub(super) async fn refusals(State(state): State<ApiState>) -> Result<Json<RefusalsReply>, ApiError> {
    state.backend.refusals().await.map(Json)
}

pub(super) async fn drain(
    State(state): State<ApiState>,
    Segment(node): Segment,
) -> Result<Json<DrainReply>, ApiError> {
    state.backend.drain(&node, true).await.map(Json)
}

pub(super) async fn undrain(
    State(state): State<ApiState>,
    Segment(node): Segment,
) -> Result<Json<DrainReply>, ApiError> {
    state.backend.drain(&node, false).await.map(Json)
}

pub(super) async fn wake(
    State(state): State<ApiState>,
    Segment(node): Segment,
) -> Result<Json<WakeReply>, ApiError> {
    state.backend.wake(&node).await.map(Json)
}

pub(super) async fn revoke(
    State(state): State<ApiState>,
    Segment(node): Segment,
    Body(request): Body<RevokeRequest, SMALL_BYTES>,
) -> Result<Json<RevokeReply>, ApiError> {
    if request.reason.len() > octomesh_protocol::limits::REASON_BYTES {
        return Err(ApiError::invalid_request("a reason has at most 200 bytes"));
    }
    state.backend.revoke(&node, request).await.map(Json)
}
