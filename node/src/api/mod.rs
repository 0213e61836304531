//! The HTTP API: handlers see the node through [`Backend`] only, and answer JSON, errors included.
//!
//! A bearer token guards everything but `/healthz` and `/readyz`.
mod auth;
pub mod backend;
pub mod body;
mod error;
mod events;
pub mod files;
mod life;
mod listen;
mod mesh;
mod root;
mod runs;
pub mod token;
mod tools;
pub mod types;

#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod tests;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use backend::Backend;
pub use error::ApiError;
pub use token::Token;

use crate::metrics::NodeMetrics;

/// What a request that runs at the end of the node may still take.
const GRACE: Duration = Duration::from_secs(5);
/// What writing the last answers may take after that: a client that does not read is left behind.
const LAST_WRITES: Duration = Duration::from_millis(500);

#[derive(Clone)]
struct ApiState {
    backend: Arc<dyn Backend>,
    metrics: Arc<NodeMetrics>,
    token: Token,
    bound: SocketAddr,
    cancel: CancellationToken,
}

/// Serves until `cancel`; requests in flight then have five seconds.
///
/// # Errors
/// When the listener has no address.
pub async fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    token: Token,
    metrics: Arc<NodeMetrics>,
    cancel: CancellationToken,
) -> io::Result<()> {
    let bound = listener.local_addr()?;
    let router = router(ApiState { backend, metrics, token, bound, cancel: cancel.clone() });
    let server = axum::serve(listen::Bounded::new(listener), router)
        .with_graceful_shutdown(cancel.clone().cancelled_owned())
        .into_future();
    tokio::pin!(server);
    tokio::select! {
        done = &mut server => return done,
        () = cancel.cancelled() => {}
    }
    timeout(GRACE + LAST_WRITES, server).await.unwrap_or(Ok(()))
}

fn router(state: ApiState) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/mesh/status", get(mesh::status))
        .route("/api/mesh/nodes", get(mesh::nodes))
        .route("/api/mesh/events", get(events::mesh))
        .route("/api/mesh/sessions", get(mesh::sessions))
        .route("/api/mesh/refusals", get(mesh::refusals))
        .route("/api/mesh/nodes/{id}/drain", post(mesh::drain))
        .route("/api/mesh/nodes/{id}/undrain", post(mesh::undrain))
        .route("/api/mesh/nodes/{id}/revoke", post(mesh::revoke))
        .route("/api/runs/{id}/artifacts", get(files::artifacts))
        .route("/api/files/{node}", get(files::read).put(files::write))
        .route("/api/blobs/{hash}", get(files::blob))
        .route("/api/tools", get(tools::list))
        .route("/api/tools/{name}", get(tools::show))
        .route("/api/call", post(tools::call))
        .route("/api/place", post(tools::place))
        .route("/api/decisions/{*id}", get(tools::decision))
        .route("/api/bench/dispatch", post(tools::trial))
        .route("/api/runs", post(runs::start).get(runs::list))
        .route("/api/runs/{id}", get(runs::show))
        .route("/api/runs/{id}/events", get(events::stream))
        .route("/api/runs/{id}/cancel", post(runs::cancel))
        .route("/api/runs/{id}/resume", post(runs::resume))
        .route("/api/invites", post(runs::invite).get(runs::invites))
        .route("/api/invites/{id}", delete(runs::withdraw))
        .route("/api/mesh/nodes/{id}/forget", post(life::forget))
        .route("/api/mesh/nodes/{id}/wake", post(mesh::wake))
        .route("/api/rename", post(life::rename))
        .route("/api/leave", post(life::leave))
        .route("/api/root", get(root::place))
        .route("/api/root/unlock", post(root::unlock))
        .route("/api/root/lock", post(root::lock))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(state.clone(), auth::check))
        .layer(middleware::from_fn_with_state(state.clone(), bounded_at_the_end))
        .with_state(state)
}

/// A node that stops does not wait for a long call: it is dropped, which cancels it.
async fn bounded_at_the_end(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let too_late = async {
        state.cancel.cancelled().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        response = next.run(request) => response,
        () = too_late => ApiError::not_ready("the node is stopping").into_response(),
    }
}

async fn unknown_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::not_found("unknown_route", format!("there is nothing at {path}"))
}

async fn wrong_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::new(405, "method_not_allowed", format!("{} can't be done to {path}", request.method()))
}

async fn healthz() -> Json<serde_json::Value> {
    Json(json!({ "status": "ok" }))
}

async fn readyz(State(state): State<ApiState>) -> Result<Json<serde_json::Value>, ApiError> {
    state.backend.ready().await.map_err(ApiError::not_ready)?;
    Ok(Json(json!({ "status": "ready" })))
}

async fn metrics(State(state): State<ApiState>) -> Result<Response, ApiError> {
    let text = state.metrics.text().map_err(|e| ApiError::internal(e.to_string()))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((StatusCode::OK, kind, text).into_response())
}
