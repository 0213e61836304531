//! One request to a node's API over a connection of its own, timed without the start of a process.
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::Machine;

const ANSWER: Duration = Duration::from_secs(20);

/// `echo` on `node`, asked of `machine`: how long it took from the connection to the answer.
///
/// # Errors
/// Whatever else came than the echo, or nothing within 20 s.
pub fn timed_echo(machine: &Machine, node: &str) -> Result<Duration, String> {
    let body = json!({"tool": "echo", "arguments": {"text": "hello"}, "node": node, "timeout_s": 20});
    let began = Instant::now();
    let answer = post(machine, "/api/call", &body)?;
    let took = began.elapsed();
    if answer["status"] == "ok" && answer["output"]["text"] == "hello" && answer["node"] == node {
        Ok(took)
    } else {
        Err(answer.to_string())
    }
}

/// The JSON that a request is answered with.
///
/// # Errors
/// No connection, no answer within 20 s, or one that is no JSON.
pub fn post(machine: &Machine, path: &str, body: &Value) -> Result<Value, String> {
    post_patiently(machine, path, body, ANSWER)
}

/// [`post`] for calls that take longer.
///
/// # Errors
/// No connection, no answer within `patience`, or one that is no JSON.
pub fn post_patiently(
    machine: &Machine,
    path: &str,
    body: &Value,
    patience: Duration,
) -> Result<Value, String> {
    let body = body.to_string();
    request_patiently(machine, "POST", path, &body, patience)
        .and_then(|text| serde_json::from_str(&text).map_err(|e| format!("{e}: {text}")))
}

/// The body that a request is answered with.
///
/// # Errors
/// No connection, or no answer within 20 s.
pub fn request(machine: &Machine, method: &str, path: &str, body: &str) -> Result<String, String> {
    request_patiently(machine, method, path, body, ANSWER)
}

fn request_patiently(
    machine: &Machine,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<String, String> {
    let text = |e: std::io::Error| format!("{}: {e}", machine.api);
    let mut stream = TcpStream::connect(&machine.api).map_err(text)?;
    stream.set_read_timeout(Some(patience)).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        machine.api,
        machine.token(),
        body.len()
    );
    stream.write_all((head + body).as_bytes()).map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).ok_or(answer)
}

/// What many measurements came to.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// Half are shorter.
    pub median: Duration,
    /// One of twenty is longer.
    pub p95: Duration,
    /// One of a hundred is longer.
    pub p99: Duration,
    /// None is longer.
    pub worst: Duration,
}

impl Spread {
    /// Of at least one measurement.
    pub fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |part: usize| all[(all.len() * part / 100).min(all.len() - 1)];
        Self { median: at(50), p95: at(95), p99: at(99), worst: at(100) }
    }
}
