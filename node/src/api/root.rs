//! `/api/root`: the mesh's root key, opened for a while and closed again.
use axum::{Json, extract::State};

use super::{
    ApiState,
    body::{Body, SMALL_BYTES},
    error::ApiError,
    types::{RootReply, UnlockRequest},
};

/// Longest time that a root key stays open: a day's work.
const LONGEST_S: u64 = 86_400;

pub(super) async fn place(State(state): State<ApiState>) -> Result<Json<RootReply>, ApiError> {
    state.backend.root().await.map(Json)
}

pub(super) async fn unlock(
    State(state): State<ApiState>,
    Body(request): Body<UnlockRequest, SMALL_BYTES>,
) -> Result<Json<RootReply>, ApiError> {
    if !(1..=LONGEST_S).contains(&request.for_s) {
        return Err(ApiError::invalid_request(format!("for_s is between 1 and {LONGEST_S}")));
    }
    state.backend.unlock_root(request).await.map(Json)
}

pub(super) async fn lock(State(state): State<ApiState>) -> Result<Json<RootReply>, ApiError> {
    state.backend.lock_root().await.map(Json)
}
