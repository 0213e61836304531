//! The HTTP API as a stranger, a browser and a scraper meet it.
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use octomesh_tests::{
    Machine, Mesh, SUITE,
    wait::{wait, when},
};
use serde_json::{Value, json};

/// Status, headers and body of one request, written by hand so that nothing is added to it.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.head, self.body))
    }

    /// `{error: {code, message, hint}}`.
    fn code(&self) -> String {
        let value = self.json();
        let error = value["error"].as_object().unwrap_or_else(|| panic!("{value}"));
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()) && error.contains_key("hint"),
            "{value}"
        );
        error["code"].as_str().unwrap().to_owned()
    }
}

fn send(machine: &Machine, request: &str) -> Answer {
    let mut stream = TcpStream::connect(&machine.api).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(!head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn request(machine: &Machine, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let (host, length) = (&machine.api, body.len());
    let host =
        if headers.to_lowercase().contains("host:") { String::new() } else { format!("Host: {host}\r\n") };
    send(
        machine,
        &format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        ),
    )
}

fn token(machine: &Machine) -> String {
    format!("Authorization: Bearer {}\r\n", machine.token())
}

fn get(machine: &Machine, path: &str) -> Answer {
    request(machine, "GET", path, &token(machine), "")
}

fn post(machine: &Machine, path: &str, body: &Value) -> Answer {
    request(machine, "POST", path, &token(machine), &body.to_string())
}

#[test]
fn only_who_has_the_token_and_means_this_machine_is_served() {
    let mesh = Mesh::up(&["pi"], |_| {});
    let pi = &mesh["pi"];
    for open in ["/healthz", "/readyz"] {
        assert_eq!(request(pi, "GET", open, "", "").status, 200, "{open}");
    }
    let paths =
        ["/metrics", "/api/mesh/status", "/api/mesh/nodes", "/api/tools", "/api/runs", "/nothing", "/"];
    for path in paths {
        for wrong in ["", "Authorization: Bearer 0000\r\n", "Authorization: Basic cGk6cGk=\r\n"] {
            let answer = request(pi, "GET", path, wrong, "");
            assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"), "{path} {wrong}");
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        }
    }
    let call = json!({"tool": "echo", "arguments": {"text": "hello"}}).to_string();
    assert_eq!(request(pi, "POST", "/api/call", "", &call).status, 401);
    // A page whose name was pointed at this machine.
    for host in ["evil.example", "evil.example:9480", "127.0.0.1.evil.example", "localhost.evil.example"] {
        for path in ["/healthz", "/api/mesh/status"] {
            let answer = request(pi, "GET", path, &format!("Host: {host}\r\n{}", token(pi)), "");
            assert_eq!((answer.status, answer.code().as_str()), (403, "bad_host"), "{path} {host}");
        }
    }
    assert_eq!(
        request(pi, "GET", "/api/mesh/status", &format!("Host: localhost:1\r\n{}", token(pi)), "").status,
        200
    );
    let port = pi.api.rsplit(':').next().unwrap();
    assert!(pi.token().len() >= 32, "a token that can be guessed");
    assert_ne!(port, "0");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(pi.home.join("api.token")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_the_command_line_can_do_a_program_can_do() {
    let mesh =
        Mesh::up(&["pi", "attic"], |machine| machine.write(&format!("{}.txt", machine.name), "some words\n"));
    let pi = &mesh["pi"];
    let ask = json!({"tool": "file_read", "arguments": {"path": "attic.txt"}});
    let place = post(pi, "/api/place", &ask);
    assert_eq!((place.status, &place.json()["chosen"]), (200, &json!("attic")), "{}", place.body);
    let call = post(pi, "/api/call", &ask);
    assert_eq!(call.status, 200);
    let call = call.json();
    assert_eq!((call["status"].as_str(), call["node"].as_str()), (Some("ok"), Some("attic")), "{call}");
    let why = get(pi, &format!("/api/decisions/{}", call["decision_id"].as_str().unwrap()));
    assert_eq!(why.json()["ran_on"], "attic", "{}", why.body);
    assert_eq!(get(pi, "/api/tools/echo").json()["card"]["name"], "echo");
    assert_eq!(get(pi, "/api/mesh/nodes").json()["nodes"].as_array().unwrap().len(), 2);

    let started = post(pi, "/api/runs", &json!({"question": "calculate 6*7"}));
    assert!(matches!(started.status, 200..=202), "{}", started.body);
    let id = started.json()["run_id"].as_str().unwrap().to_owned();
    let run = wait("the run ends", || {
        let run = get(pi, &format!("/api/runs/{id}")).json();
        if run["status"] == "completed" { Ok(run) } else { Err(run.to_string()) }
    });
    assert!(run["answer"].as_str().unwrap().contains("42"), "{run}");
    assert_eq!(get(pi, "/api/runs").json()["runs"][0]["run_id"], id.as_str());

    // Wrong in each way that HTTP has.
    for (method, path, body, status) in [
        ("POST", "/api/call", json!({"tool": "ecko"}).to_string(), 404),
        ("POST", "/api/call", json!({"tool": "echo", "argumentz": {}}).to_string(), 400),
        ("POST", "/api/call", "{".to_owned(), 400),
        ("POST", "/api/call", String::new(), 400),
        ("POST", "/api/call", "[".repeat(10_000), 400),
        (
            "POST",
            "/api/call",
            json!({"tool": "echo", "arguments": {"text": "a".repeat(10 << 20)}}).to_string(),
            413,
        ),
        ("POST", "/api/call", json!({"tool": "file_read", "arguments": {"path": "no.txt"}}).to_string(), 503),
        ("POST", "/api/runs", json!({"question": " "}).to_string(), 400),
        ("GET", "/api/call", String::new(), 405),
        ("GET", "/api/runs/run-0000000000000000", String::new(), 404),
        ("GET", "/api/runs/..%2F..%2Fetc", String::new(), 404),
        ("GET", "/api/decisions/dec-0000000000000000", String::new(), 404),
        ("GET", "/api/tools/ecko", String::new(), 404),
        ("GET", "/api/tools?al=true", String::new(), 400),
        ("DELETE", "/api/invites/nothing", String::new(), 404),
    ] {
        let answer = request(pi, method, path, &token(pi), &body);
        let shown = &body[..body.len().min(80)];
        assert_eq!(answer.status, status, "{method} {path} {shown}: {}", answer.body);
        assert!(!answer.code().is_empty());
        assert_eq!(answer.head.contains("retry-after:"), status == 503, "{}", answer.head);
    }
    pi.json(&["call", "echo", "text=still here"]);
}

/// Every line of the exposition format, as `(name, labels, value)`.
fn samples(text: &str) -> Vec<(String, String, f64)> {
    let mut typed = std::collections::BTreeMap::new();
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            assert!(matches!(words[0], "HELP" | "TYPE") && words.len() == 3, "{line}");
            if words[0] == "TYPE" {
                assert!(matches!(words[2], "counter" | "gauge" | "histogram"), "{line}");
                assert!(typed.insert(words[1].to_owned(), words[2].to_owned()).is_none(), "twice: {line}");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?}"));
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"))),
            None => (series, ""),
        };
        assert!(name.starts_with("octomesh_"), "{line}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{line}");
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|family| typed.contains_key(*family)))
            .unwrap_or(name);
        assert!(typed.contains_key(family), "no TYPE before {line}");
        if !labels.is_empty() {
            for label in labels.split("\",") {
                let (key, text) = label.split_once("=\"").unwrap_or_else(|| panic!("{line:?}"));
                assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
                assert!(!text.contains('\n'), "{line}");
            }
        }
        samples.push((name.to_owned(), labels.to_owned(), value));
    }
    samples
}

fn metric(machine: &Machine, name: &str, label: &str) -> f64 {
    let answer = get(machine, "/metrics");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    samples(&answer.body)
        .iter()
        .filter(|(n, l, _)| n == name && l.contains(label))
        .map(|(.., value)| value)
        .sum()
}

#[test]
fn metrics_are_well_formed_and_move() {
    let mesh = Mesh::up(&["pi", "attic"], |_| {});
    let pi = &mesh["pi"];
    let counted = [
        ("octomesh_steps_total", "tool=\"echo\""),
        ("octomesh_route_decisions_total", "result=\"remote\""),
        ("octomesh_route_decisions_total", "result=\"local\""),
        ("octomesh_route_filtered_total", "reason=\"pinned\""),
        ("octomesh_route_decision_seconds_count", ""),
    ];
    let before = counted.map(|(name, label)| metric(pi, name, label));
    for node in ["pi", "attic"] {
        pi.json(&["call", "echo", "text=hello", "--node", node]);
    }
    for ((name, label), before) in counted.into_iter().zip(before) {
        let after = metric(pi, name, label);
        assert!(after > before, "{name}{{{label}}} stayed at {before}");
    }
    assert!(metric(&mesh["attic"], "octomesh_steps_total", "outcome=\"ok\"") >= 1.0);
    assert!(metric(pi, "octomesh_handshakes_total", "result=\"ok\"") >= 1.0);
    assert!(metric(pi, "octomesh_gossip_bytes_total", "") > 0.0);
    assert!(metric(pi, "octomesh_sessions", &format!("suite=\"{SUITE}\"")) >= 1.0);
    assert_eq!(metric(pi, "octomesh_build_info", "version="), 1.0);
    let over = pi.json(&["call", "shell", "command=while :; do :; done", "timeout_s=1", "--node", "pi"]);
    assert_eq!(over["output"]["limit"], "timeout", "{over}");
    // Gauges are read once a second.
    let status = pi.json(&["status"]);
    let slots = status["slots"].as_f64().unwrap();
    let levels = ["none", "rlimits", "landlock+seccomp", "userns+landlock+seccomp", "bwrap+landlock+seccomp"];
    let level = levels.iter().zip(0u8..).find(|(name, _)| status["sandbox"] == **name).unwrap().1;
    for (name, label, expected) in [
        ("octomesh_peers", "state=\"alive\"", 1.0),
        ("octomesh_slots", "", slots),
        ("octomesh_sandbox_level", "", f64::from(level)),
        ("octomesh_sandbox_kills_total", "reason=\"timeout\"", 1.0),
        ("octomesh_sandbox_kills_total", "reason=\"memory\"", 0.0),
        ("octomesh_steps_running", "", 0.0),
        ("octomesh_leases_active", "", 0.0),
    ] {
        wait(&format!("{name} is {expected}"), || {
            let value = metric(pi, name, label);
            when(value == expected, value)
        });
    }
}

/// Streams that reach a node in the same moment must not get lost: each call runs there, at its first try.
#[test]
fn many_calls_at_once_all_arrive() {
    let mesh = Mesh::up(&["pi", "attic"], |machine| machine.configure("slots = 32\n"));
    let pi = &mesh["pi"];
    for _ in 0..3 {
        let done: Vec<Value> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..24)
                .map(|n| {
                    let ask =
                        json!({"tool": "echo", "arguments": {"text": format!("call {n}")}, "node": "attic"});
                    scope.spawn(move || post(pi, "/api/call", &ask).json())
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        for (n, call) in done.iter().enumerate() {
            assert_eq!(call["output"]["text"], format!("call {n}").as_str(), "{call}");
            assert_eq!(
                (call["node"].as_str(), call["attempts"].as_u64()),
                (Some("attic"), Some(1)),
                "{call}"
            );
            let why = get(pi, &format!("/api/decisions/{}", call["decision_id"].as_str().unwrap())).json();
            assert_eq!(why["refusals"], json!([]), "{why}");
        }
    }
}
