//! `/api/runs/{id}/events` and `/api/mesh/events`: what happened and what happens, as server-sent events.
use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::StreamExt;

use super::{ApiState, body::Segment, error::ApiError, types::RunEvent};

/// Often enough that no proxy takes a waiting stream for a dead one.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn stream(
    State(state): State<ApiState>,
    Segment(id): Segment,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut events = state.backend.run_events(&id).await?;
    // A client that lost its connection says what it had; the rest follows.
    let had: u64 = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let stream = futures::stream::poll_fn(move |cx| events.poll_recv(cx))
        .filter(move |event| std::future::ready(event.seq > had))
        .map(|event| Ok::<_, Infallible>(encode(&event)))
        .take_until(state.cancel.clone().cancelled_owned());
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// What happens in the mesh, until the client goes or the node stops.
pub(super) async fn mesh(State(state): State<ApiState>) -> Result<Response, ApiError> {
    let mut events = state.backend.mesh_events().await?;
    let stream = futures::stream::poll_fn(move |cx| events.poll_recv(cx))
        .map(|event| Ok::<_, Infallible>(encode(&event)))
        .take_until(state.cancel.clone().cancelled_owned());
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn encode(event: &RunEvent) -> Event {
    // A line break in a name would end the field.
    let name = event.kind().replace(['\n', '\r'], " ");
    match serde_json::to_string(event) {
        // JSON text has no line break, so it is always one `data` line.
        Ok(json) => Event::default().id(event.seq.to_string()).event(name).data(json),
        Err(e) => Event::default().comment(format!("event {} can't be shown: {e}", event.seq)),
    }
}
