//! `/api/runs…` and `/api/invites…`.
use axum::{Json, extract::State, http::StatusCode};

use serde_json::Value;

use super::{
    ApiState,
    body::{Body, RUN_BYTES, SMALL_BYTES, Segment},
    error::ApiError,
    types::{
        InviteReply, InviteRequest, InvitesReply, ResumeRequest, RunRequest, RunStarted, RunsReply,
        WithdrawReply,
    },
};

pub(super) async fn start(
    State(state): State<ApiState>,
    Body(request): Body<RunRequest, RUN_BYTES>,
) -> Result<(StatusCode, Json<RunStarted>), ApiError> {
    if request.question.trim().is_empty() && request.plan.is_none() {
        return Err(ApiError::invalid_request("there is neither a question nor a plan"));
    }
    let started = state.backend.start_run(request).await?;
    Ok((StatusCode::ACCEPTED, Json(started)))
}

pub(super) async fn list(State(state): State<ApiState>) -> Result<Json<RunsReply>, ApiError> {
    state.backend.runs().await.map(Json)
}

pub(super) async fn show(
    State(state): State<ApiState>,
    Segment(id): Segment,
) -> Result<Json<Value>, ApiError> {
    state.backend.run(&id).await.map(Json)
}

pub(super) async fn cancel(
    State(state): State<ApiState>,
    Segment(id): Segment,
) -> Result<Json<Value>, ApiError> {
    state.backend.cancel_run(&id).await.map(Json)
}

pub(super) async fn resume(
    State(state): State<ApiState>,
    Segment(id): Segment,
    Body(request): Body<ResumeRequest, SMALL_BYTES>,
) -> Result<(StatusCode, Json<RunStarted>), ApiError> {
    let resumed = state.backend.resume_run(&id, request).await?;
    Ok((StatusCode::ACCEPTED, Json(resumed)))
}

pub(super) async fn invite(
    State(state): State<ApiState>,
    Body(request): Body<InviteRequest, SMALL_BYTES>,
) -> Result<(StatusCode, Json<InviteReply>), ApiError> {
    if request.ttl_s == 0 || request.uses == 0 {
        return Err(ApiError::invalid_request("ttl_s and uses must be at least 1"));
    }
    let reply = state.backend.invite(request).await?;
    Ok((StatusCode::CREATED, Json(reply)))
}

pub(super) async fn invites(State(state): State<ApiState>) -> Result<Json<InvitesReply>, ApiError> {
    state.backend.invites().await.map(Json)
}

pub(super) async fn withdraw(
    State(state): State<ApiState>,
    Segment(id): Segment,
) -> Result<Json<WithdrawReply>, ApiError> {
    state.backend.withdraw_invite(&id).await.map(Json)
}
