//! Who may ask: the bearer token, and on loopback only clients that meant this machine.
use std::net::SocketAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{ApiState, error::ApiError};

/// Open to everybody: whether the process lives and serves, nothing else.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Lets a request through or answers it.
pub(super) async fn check(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let open = OPEN.contains(&request.uri().path());
    let (admitted, mut response) = match admit(&state, &request) {
        Ok(()) => (true, next.run(request).await),
        Err(error) => (false, error.into_response()),
    };
    if open || !admitted {
        // Places are few and for those with the token; whoever shows none does not keep one.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn admit(state: &ApiState, request: &Request) -> Result<(), ApiError> {
    let host = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    if !host_is_ours(state.bound, host) {
        return Err(ApiError::new(403, "bad_host", "the Host header does not name this machine").hint(
            format!(
                "use http://{}; names are refused so that a web page can't reach the API through DNS",
                state.bound
            ),
        ));
    }
    if OPEN.contains(&request.uri().path()) {
        return Ok(());
    }
    let presented = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    match presented {
        Some(token) if state.token.matches(token) => Ok(()),
        Some(_) => Err(ApiError::new(401, "unauthorized", "the token is not this node's")
            .hint("it is in the file api.token of the node's home directory")),
        None => Err(ApiError::new(401, "unauthorized", "a token is needed").hint(
            "give the --home of that node, or send `Authorization: Bearer …` with the content of api.token in it",
        )),
    }
}

/// On loopback, only requests that name loopback: a page whose name was pointed at 127.0.0.1 sends its own name.
fn host_is_ours(bound: SocketAddr, host: Option<&str>) -> bool {
    if !bound.ip().is_loopback() {
        return true;
    }
    let Some(host) = host else { return false };
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, port)) if port.is_empty() || port.starts_with(':') => inside,
        Some(_) => return false,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name == "127.0.0.1"
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip == bound.ip() || ip == std::net::Ipv6Addr::LOCALHOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let loopback = "127.0.0.2:9480".parse().unwrap();
        for good in ["localhost", "LOCALHOST:1", "127.0.0.1:9480", "127.0.0.2", "[::1]:9480", "[::1]"] {
            assert!(host_is_ours(loopback, Some(good)), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9480",
            "127.0.0.3",
            "",
            "[::1]x",
        ] {
            assert!(!host_is_ours(loopback, Some(bad)), "{bad}");
        }
        assert!(!host_is_ours(loopback, None));
        assert!(host_is_ours("10.0.0.1:9480".parse().unwrap(), Some("attic.lan")));
    }
}
