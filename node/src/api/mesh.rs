//! `/api/mesh/…`: this node, the others, sessions, maintenance.
use axum::{Json, extract::State};

use super::{
    ApiState,
    body::Segment,
    error::ApiError,
    types::{DrainReply, NodesReply, SessionsReply, StatusReply},
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
