use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::mock::{Served, TOKEN};

async fn send(served: &Served, method: Method, path: &str, body: Option<String>) -> Response {
    let mut request = reqwest::Client::new().request(method, served.url(path)).bearer_auth(TOKEN);
    if let Some(body) = body {
        request = request.body(body);
    }
    request.send().await.unwrap()
}

async fn get(served: &Served, path: &str) -> Response {
    send(served, Method::GET, path, None).await
}

async fn post(served: &Served, path: &str, body: impl Into<String>) -> Response {
    send(served, Method::POST, path, Some(body.into())).await
}

/// Status and code of an error, after checking its shape.
async fn error(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    let error = body["error"].as_object().unwrap();
    let keys: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["code", "hint", "message"]);
    assert!(!error["message"].as_str().unwrap().is_empty());
    (status, error["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_mesh_is_streamed_until_the_node_stops() {
    let served = Served::start().await;
    let without = reqwest::Client::new().get(served.url("/api/mesh/events")).send().await.unwrap();
    assert_eq!(error(without).await, (401, "unauthorized".into()));
    let mut stream = get(&served, "/api/mesh/events").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while !text.contains("id: 2") {
        text += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
    }
    served.cancel.cancel();
    let rest = timeout(Duration::from_secs(5), async { while stream.chunk().await.unwrap().is_some() {} });
    rest.await.unwrap();
}

fn names(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// F104 and F106: exactly these names; others may stand beside them at the top only.
#[tokio::test]
async fn status_and_drain_have_the_names_of_the_seed() {
    let served = Served::start().await;
    let status: Value = get(&served, "/api/mesh/status").await.json().await.unwrap();
    for name in [
        "cluster_enabled",
        "node_id",
        "state",
        "region",
        "capabilities",
        "uptime_secs",
        "transport",
        "membership",
        "routing",
    ] {
        assert!(status.get(name).is_some(), "{name} in {status}");
    }
    let of = |name: &str, wanted: &[&str]| {
        let there = names(&status[name]);
        assert!(wanted.iter().all(|w| there.contains(w)), "{name}: {there:?}");
    };
    of("transport", &["bind_addr", "advertise_addr", "encryption", "protocol_version"]);
    of("membership", &["alive", "suspect", "dead", "total_seen"]);
    of("routing", &["local_load", "tasks_routed_out", "tasks_routed_in", "tasks_failed_over"]);
    for name in [
        "name",
        "version",
        "sandbox",
        "slots",
        "running",
        "queued",
        "engines",
        "lazy_tools",
        "gpus",
        "warnings",
    ] {
        assert!(status.get(name).is_some(), "{name} in {status}");
    }
    let drain: Value = post(&served, "/api/mesh/nodes/pi/drain", "").await.json().await.unwrap();
    assert_eq!(names(&drain), ["drained", "node_id", "remaining_steps", "remaining_tasks"]);
    assert_eq!(drain["remaining_tasks"], drain["remaining_steps"]);
}

#[tokio::test]
async fn only_health_is_open() {
    let served = Served::start().await;
    let client = reqwest::Client::new();
    assert_eq!(client.get(served.url("/healthz")).send().await.unwrap().status(), StatusCode::OK);
    let ready = client.get(served.url("/readyz")).send().await.unwrap();
    assert_eq!(ready.headers()["retry-after"], "1");
    assert_eq!(error(ready).await, (503, "not_ready".into()));
    for path in ["/metrics", "/api/mesh/status", "/api/tools", "/api/runs", "/nothing"] {
        let without = client.get(served.url(path)).send().await.unwrap();
        assert_eq!(error(without).await, (401, "unauthorized".into()), "{path}");
        for wrong in ["Bearer wrong", "Bearer", "Basic 0123456789abcdef", TOKEN] {
            let with = client.get(served.url(path)).header("authorization", wrong).send().await.unwrap();
            assert_eq!(with.headers()["www-authenticate"], "Bearer");
            assert_eq!(error(with).await.0, 401, "{path} {wrong}");
        }
    }
    let post = client.post(served.url("/api/call")).body("{}").send().await.unwrap();
    assert_eq!(error(post).await.0, 401);
    assert!(served.mock.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn every_route_answers() {
    let served = Served::start().await;
    for path in [
        "/metrics",
        "/api/mesh/status",
        "/api/mesh/nodes",
        "/api/mesh/sessions",
        "/api/mesh/refusals",
        "/api/tools",
        "/api/tools/echo",
        "/api/decisions/call-0000000000000001/s001",
        "/api/runs",
        "/api/runs/completed",
        "/api/invites",
    ] {
        assert_eq!(get(&served, path).await.status(), StatusCode::OK, "{path}");
    }
    let decision: Value = get(&served, "/api/decisions/a/s001").await.json().await.unwrap();
    assert_eq!(decision, json!({ "id": "a/s001" }));
    for (path, on) in [("/api/mesh/nodes/attic/drain", true), ("/api/mesh/nodes/attic/undrain", false)] {
        let reply: Value = post(&served, path, "").await.json().await.unwrap();
        assert_eq!(
            reply,
            json!({ "node_id": "attic", "drained": on, "remaining_steps": 3, "remaining_tasks": 3 })
        );
    }
    let revoke = r#"{"reason": "lost", "rotate_secret": true}"#;
    let reply: Value = post(&served, "/api/mesh/nodes/attic/revoke", revoke).await.json().await.unwrap();
    assert_eq!(reply, json!({ "node_id": "attic", "revoked_at": 1_700_000_000, "secret_generation": 1 }));
    let wordy = json!({ "reason": "x".repeat(201) }).to_string();
    assert_eq!(post(&served, "/api/mesh/nodes/attic/revoke", &wordy).await.status(), StatusCode::BAD_REQUEST);
    let tools: Value = get(&served, "/api/tools?search=x%20y&max=3").await.json().await.unwrap();
    assert_eq!(tools["tools"][0]["name"], "x y");
    let invite = post(&served, "/api/invites", "{}").await;
    assert_eq!(invite.status(), StatusCode::CREATED);
    assert_eq!(invite.json::<Value>().await.unwrap()["role"], "worker");
    assert_eq!(send(&served, Method::DELETE, "/api/invites/t1", None).await.status(), StatusCode::OK);
    let run = post(&served, "/api/runs", r#"{"question":"q"}"#).await;
    assert_eq!(run.status(), StatusCode::ACCEPTED);
    let metrics = get(&served, "/metrics").await;
    assert_eq!(metrics.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn bad_requests_are_errors_of_one_shape() {
    let served = Served::start().await;
    let deep =
        format!(r#"{{"tool":"echo","arguments":{{"a":{}1{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let deep_but_small = format!(r#"{{"tool":"echo","arguments":{{"a":{}"#, "[".repeat(100));
    for (path, body, expected) in [
        ("/api/call", "{".to_owned(), (400, "invalid_request")),
        ("/api/call", "{}".to_owned(), (400, "invalid_request")),
        ("/api/call", "[]".to_owned(), (400, "invalid_request")),
        ("/api/call", r#"{"tool":"echo","argumnets":{}}"#.to_owned(), (400, "invalid_request")),
        ("/api/call", r#"{"tool":"echo","arguments":7}"#.to_owned(), (400, "invalid_request")),
        ("/api/call", r#"{"tool":"echo","timeout_s":0}"#.to_owned(), (400, "invalid_request")),
        ("/api/call", deep, (400, "too_deep")),
        ("/api/call", deep_but_small, (400, "too_deep")),
        ("/api/runs", r#"{"question":" "}"#.to_owned(), (400, "invalid_request")),
        ("/api/invites", r#"{"uses":0}"#.to_owned(), (400, "invalid_request")),
        ("/api/nothing", "{}".to_owned(), (404, "unknown_route")),
        ("/api/mesh/status", "{}".to_owned(), (405, "method_not_allowed")),
        ("/api/call", r#"{"tool":"full"}"#.to_owned(), (503, "no_capacity")),
    ] {
        let got = error(post(&served, path, body.clone()).await).await;
        assert_eq!((got.0, got.1.as_str()), expected, "{path} {}", &body[..body.len().min(80)]);
    }
    assert_eq!(error(get(&served, "/api/runs/run-2").await).await, (404, "unknown_run".into()));
    assert_eq!(error(get(&served, "/api/tools?al=true").await).await, (400, "invalid_request".into()));
    assert_eq!(error(get(&served, "/api/tools/a%00b").await).await, (400, "invalid_request".into()));
    let unknown: Value =
        post(&served, "/api/call", r#"{"tool":"echo","argumnets":{}}"#).await.json().await.unwrap();
    assert!(unknown["error"]["message"].as_str().unwrap().contains("argumnets"), "{unknown}");
}

#[tokio::test]
async fn large_arguments_are_refused_with_what_to_do() {
    let served = Served::start().await;
    let body = |bytes| json!({ "tool": "echo", "arguments": { "text": "x".repeat(bytes) } }).to_string();
    for bytes in [8 << 20, 9 << 20, 10 << 20] {
        let response = post(&served, "/api/call", body(bytes)).await;
        assert_eq!(response.status(), 413, "{bytes}");
        let reply: Value = response.json().await.unwrap();
        assert_eq!(reply["error"]["code"], "too_large");
        let hint = reply["error"]["hint"].as_str().unwrap();
        assert!(hint.contains("8 MiB") && hint.contains("file"), "{hint}");
    }
    assert!(served.mock.calls.lock().unwrap().is_empty());
    assert_eq!(post(&served, "/api/call", body((8 << 20) - 1024)).await.status(), 200);
}

#[tokio::test]
async fn a_foreign_host_header_is_refused() {
    let served = Served::start().await;
    let client = reqwest::Client::new();
    for path in ["/healthz", "/api/mesh/status"] {
        let request = client.get(served.url(path)).bearer_auth(TOKEN).header("host", "evil.example");
        assert_eq!(error(request.send().await.unwrap()).await, (403, "bad_host".into()), "{path}");
    }
    let fine = client.get(served.url("/healthz")).header("host", "localhost:9480").send().await.unwrap();
    assert_eq!(fine.status(), 200);
}

#[tokio::test]
async fn events_are_replayed_and_resumed() {
    let served = Served::start().await;
    let path = "/api/runs/completed/events";
    let response = get(&served, path).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, ["planned", "step_placed", "step_finished", "answer"]);
    let first = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let first: super::types::RunEvent = serde_json::from_str(first).unwrap();
    assert_eq!(first, super::mock::events()[0]);

    let resumed =
        reqwest::Client::new().get(served.url(path)).bearer_auth(TOKEN).header("last-event-id", "2");
    let text = resumed.send().await.unwrap().text().await.unwrap();
    assert!(text.contains("id: 3") && !text.contains("id: 2"), "{text}");
    assert_eq!(error(get(&served, "/api/runs/run-2/events").await).await.0, 404);
}

async fn raw_slow_call(served: &Served) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let body = r#"{"tool":"slow"}"#;
    let request = format!(
        "POST /api/call HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    served.mock.began.notified().await;
    stream
}

#[tokio::test]
async fn a_call_is_dropped_when_its_client_goes_away() {
    let served = Served::start().await;
    drop(raw_slow_call(&served).await);
    timeout(Duration::from_secs(5), served.mock.dropped.notified()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_five_seconds_and_no_longer() {
    let mut served = Served::start().await;
    let mut stream = raw_slow_call(&served).await;
    let before = tokio::time::Instant::now();
    served.cancel.cancel();
    served.task.join_next().await.unwrap().unwrap().unwrap();
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?}");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("not_ready"), "{answer}");
    assert!(TcpStream::connect(served.address).await.is_err());
}

/// Everything until the server closes.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end, too.
    timeout(Duration::from_secs(30), stream.read_to_end(&mut text)).await.expect("it is closed").ok();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn without_the_token_nobody_keeps_a_place() {
    let served = Served::start().await;
    let address = served.address();
    for request in [
        "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /api/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",
        "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = until_closed(stream).await;
        assert!(answer.contains("connection: close"), "{request}: {answer}");
    }
    // More silent and half clients than there are places.
    let mut silent = Vec::new();
    for n in 0..super::listen::CONNECTIONS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /api/runs HTTP/1.1\r\nHost: loc").await.unwrap();
        }
        silent.push(stream);
    }
    let answered = timeout(Duration::from_secs(30), get(&served, "/api/mesh/status")).await;
    assert_eq!(answered.expect("they lost their places").status(), StatusCode::OK);
    for stream in silent {
        until_closed(stream).await;
    }
}
