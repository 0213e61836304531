//! Commands against a served backend, as a user's terminal would see them.
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::api::mock::{Served, TOKEN};

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

struct Terminal {
    home: tempfile::TempDir,
    api: String,
    token: Option<String>,
}

struct Ended {
    code: u8,
    out: String,
    err: String,
}

impl Ended {
    /// The one object on stdout.
    fn object(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

impl Terminal {
    fn new(api: String) -> Self {
        Self { home: tempfile::tempdir().unwrap(), api, token: Some(TOKEN.to_owned()) }
    }

    fn context(&self, line: &[&str], interrupt: CancellationToken) -> (Cli, Context, Buffer, Buffer) {
        let cli = Cli::try_parse_from(["octomesh"].iter().chain(line)).unwrap();
        let (out, err) = (Buffer::default(), Buffer::default());
        let (o, e) = (Box::new(out.clone()), Box::new(err.clone()));
        let token = self.token.iter().map(|t| ("OCTOMESH_API_TOKEN".to_owned(), t.clone()));
        let context = Context {
            home: self.home.path().to_owned(),
            api: Some(self.api.clone()),
            yes: cli.globals.yes,
            verbose: 0,
            environment: token.collect(),
            parallelism: 2,
            screen: Screen::to(cli.globals.json, cli.globals.quiet, o, e),
            interrupt,
        };
        (cli, context, out, err)
    }

    async fn run(&self, line: &[&str]) -> Ended {
        self.run_until(line, CancellationToken::new()).await
    }

    async fn run_until(&self, line: &[&str], interrupt: CancellationToken) -> Ended {
        let (cli, context, out, err) = self.context(line, interrupt);
        let code = run(&cli.command, &context).await.code();
        Ended { code, out: out.text(), err: err.text() }
    }
}

async fn served() -> (Served, Terminal) {
    let served = Served::start().await;
    let terminal = Terminal::new(served.address.to_string());
    (served, terminal)
}

/// A port where nobody answers, held so that no other test gets it.
fn silent_port() -> (tokio::net::TcpSocket, std::net::SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[cfg(not(feature = "bench-sessions"))]
#[tokio::test]
async fn bench_sessions_says_which_build_has_it() {
    let terminal = Terminal::new("127.0.0.1:9".to_owned());
    let ended = terminal.run(&["--json", "bench", "sessions"]).await;
    assert_eq!(ended.code, 2, "{}", ended.err);
    let object = ended.object();
    assert_eq!(object.pointer("/error/code").and_then(Value::as_str), Some("usage"));
    let hint = object.pointer("/error/hint").and_then(Value::as_str).unwrap();
    assert!(hint.contains("--features bench-sessions"), "{hint}");
}

#[cfg(feature = "bench-sessions")]
#[tokio::test(flavor = "multi_thread")]
async fn bench_sessions_measures_every_variant_in_one_run() {
    let terminal = Terminal::new("127.0.0.1:9".to_owned());
    let ended = terminal.run(&["--json", "bench", "sessions", "--rounds", "1"]).await;
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    let report = ended.object();
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["variant"].as_str().unwrap()).collect();
    let all = ["octomesh", "octomesh_first", "octomesh_ed25519", "noise", "tls", "plaintext"];
    assert_eq!(names, all);
    for row in rows {
        assert!(row["handshake_median_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["handshakes_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["handshake_cpu_us"].as_f64().unwrap() > 0.0, "{row}");
        let carries = !["octomesh_first", "octomesh_ed25519"].contains(&row["variant"].as_str().unwrap());
        for key in ["bulk_mb_per_s", "bulk_cpu_s_per_gib", "roundtrip_p50_us"] {
            assert_eq!(row[key].as_f64().is_some_and(|value| value > 0.0), carries, "{key} of {row}");
        }
    }
    assert_eq!(report["rounds"], 1);
    // It is what libp2p's TLS is compared as.
    assert!(report["tls_suite"].as_str().unwrap().starts_with("X25519MLKEM768 "), "{report}");
}

#[tokio::test]
async fn call_sends_what_the_card_wants() {
    let (served, terminal) = served().await;
    let line =
        ["call", "echo", "text=12", "n=12", "any=[1]", "list=null", "--node", "attic", "--timeout", "7"];
    let ended = terminal.run(&line).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    let call = served.mock.calls.lock().unwrap().pop().unwrap();
    assert_eq!(Value::Object(call.arguments), json!({ "text": "12", "n": 12, "any": [1], "list": null }));
    assert_eq!((call.node.as_deref(), call.timeout_s), (Some("attic"), Some(7)));
    assert!(ended.err.contains("echo on attic: ok in 2 ms"), "{}", ended.err);
    assert!(ended.out.contains("\"text\": \"12\""), "{}", ended.out);

    let ended = terminal.run(&["--json", "call", "echo", r#"{"text": 5}"#]).await;
    let reply = ended.object();
    let keys: Vec<_> = reply.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        ["attempts", "decision_id", "elapsed_ms", "node", "output", "sandbox", "status", "tool"]
    );
    assert_eq!(reply["output"], json!({ "text": 5 }));
}

#[tokio::test]
async fn exit_codes_of_calls_are_the_same_with_and_without_json() {
    let (served, terminal) = served().await;
    for (line, code, error) in [
        (&["call", "echo"][..], 0, None),
        (&["call", "fails"], 1, None),
        (&["call", "maybe"], 5, None),
        (&["call", "full"], 4, Some("no_capacity")),
        (&["call", "echo", "{"], 2, Some("malformed")),
        (&["call", "echo", "word"], 2, Some("usage")),
        (&["call", "no such tool", "a=1"], 1, Some("unknown_tool")),
        (&["runs", "show", "nothing"], 1, Some("unknown_run")),
        (&["place", "echo"], 4, None),
        (&["place", "echo", "--node", "pi"], 0, None),
    ] {
        let plain = terminal.run(line).await;
        let with_json = terminal.run(&[&["--json"], line].concat()).await;
        assert_eq!((plain.code, with_json.code), (code, code), "{line:?}: {}{}", plain.out, plain.err);
        let object = with_json.object();
        assert_eq!(object.pointer("/error/code").and_then(Value::as_str), error, "{line:?}");
        if error.is_some() {
            let keys: Vec<_> = object["error"].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(keys, ["code", "hint", "message"]);
            assert!(plain.err.starts_with("error: ") && plain.out.is_empty(), "{}", plain.err);
        }
    }
    // Nothing wrong was sent.
    assert_eq!(served.mock.calls.lock().unwrap().len(), 8);
}

#[tokio::test]
async fn arguments_that_are_too_much_are_never_sent() {
    let (served, terminal) = served().await;
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(9 << 20));
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
    for (text, code) in [(large, "too_large"), (deep, "too_deep")] {
        let ended = terminal.run(&["--json", "call", "echo", &text]).await;
        assert_eq!((ended.code, ended.object()["error"]["code"].as_str()), (2, Some(code)));
    }
    assert!(served.mock.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_node_is_69_and_says_what_to_do() {
    let (_held, free) = silent_port();
    let terminal = Terminal::new(free.to_string());
    for line in [&["status"][..], &["call", "echo"], &["call", "echo", "a=1"], &["solve", "q"], &["runs"]] {
        let ended = terminal.run(line).await;
        assert_eq!(ended.code, 69, "{line:?}");
        assert!(ended.err.contains(&format!("no node answers at http://{free}")), "{}", ended.err);
        assert!(ended.err.contains("octomesh up"), "{}", ended.err);
    }
}

#[tokio::test]
async fn the_token_is_taken_from_the_home() {
    let (_served, mut terminal) = served().await;
    terminal.token = None;
    let without = terminal.run(&["--json", "status"]).await;
    assert_eq!((without.code, without.object()["error"]["code"].as_str()), (1, Some("unauthorized")));
    std::fs::write(terminal.home.path().join(crate::config::TOKEN_FILE), format!("{TOKEN}\n")).unwrap();
    assert_eq!(terminal.run(&["status"]).await.code, 0);
}

#[tokio::test]
async fn every_reading_command_has_text_and_json() {
    let (_served, terminal) = served().await;
    for (line, word) in [
        (&["status"][..], "pi (12D3KooWmock)"),
        (&["nodes"], "NAME"),
        (&["sessions"], "No open sessions."),
        (&["tools"], "own"),
        (&["tools", "list", "--all"], "all"),
        (&["tools", "--all"], "all"),
        (&["tools", "search", "two", "words", "--max", "3"], "two words"),
        (&["tools", "show", "echo"], "Says it back"),
        (&["why", "call-0000000000000001/s001"], "No node"),
        (&["runs"], "No runs."),
        (&["runs", "show", "completed"], "attic is the cheapest"),
        (&["runs", "cancel", "cancelled"], "is cancelled"),
        (&["invite", "--ttl", "2h", "--uses", "2", "--role", "client"], "octomesh join octo1x"),
        (&["invite", "--list"], "t1"),
        (&["invite", "--withdraw", "t1"], "t1"),
        (&["drain"], "12D3KooWmock takes no new steps"),
        (&["undrain", "attic"], "attic takes steps again"),
        (&["--yes", "revoke", "attic", "--rotate-secret"], "secret number 1"),
        (&["config", "show"], "OCTOMESH_API_TOKEN"),
        (&["config", "check"], "fine"),
        (&["config", "path"], "octomesh.toml"),
        (&["completions", "bash"], "octomesh"),
    ] {
        let plain = terminal.run(line).await;
        assert_eq!(plain.code, 0, "{line:?}: {}", plain.err);
        assert!(plain.out.contains(word), "{line:?}: {}", plain.out);
        assert!(terminal.run(&[&["--json"], line].concat()).await.object().is_object(), "{line:?}");
    }
    let decision = terminal.run(&["--json", "why", "call-0000000000000001/s001"]).await.object();
    assert_eq!(decision["id"], "call-0000000000000001/s001");
}

#[tokio::test]
async fn solve_shows_progress_answer_and_placements() {
    let (_served, terminal) = served().await;
    let ended = terminal.run(&["solve", "completed"]).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    for part in
        ["plan by rules:", "b001: say it", "s001 echo: ok on attic in 4 ms", "why: attic is the cheapest"]
    {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    for part in ["hi [code-1]", "[code-1] echo on attic", "s001  b001   echo  attic  ok"] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
    let quiet = terminal.run(&["-q", "--json", "solve", "completed"]).await;
    assert_eq!((quiet.object()["status"].as_str(), quiet.err.as_str()), (Some("completed"), ""));
}

#[tokio::test]
async fn exit_codes_of_runs() {
    let (_served, terminal) = served().await;
    for (question, code) in
        [("completed", 0), ("failed", 1), ("refused", 3), ("uncertain", 5), ("cancelled", 130)]
    {
        assert_eq!(terminal.run(&["solve", question]).await.code, code, "{question}");
        assert_eq!(terminal.run(&["--json", "solve", question]).await.code, code, "{question}");
    }
    let refused = terminal.run(&["solve", "refused"]).await;
    for guess in ["1. calc expression=1", "2. calc expression=2", "3. calc expression=3"] {
        assert!(refused.out.contains(guess), "{}", refused.out);
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_run_and_exits_130() {
    let (served, terminal) = served().await;
    let interrupt = CancellationToken::new();
    let mut at = JoinSet::new();
    let (token, mock) = (interrupt.clone(), Arc::clone(&served.mock));
    at.spawn(async move {
        // Ctrl-C comes when the run is being watched.
        while mock.watchers.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        token.cancel();
    });
    let ended = terminal.run_until(&["--json", "solve", "endless"], interrupt).await;
    assert_eq!((ended.code, ended.object()["status"].as_str()), (130, Some("cancelled")));
    assert!(served.mock.stopped.load(std::sync::atomic::Ordering::SeqCst));
}

#[tokio::test]
async fn out_copies_the_files_of_the_run() {
    let (_served, terminal) = served().await;
    let out = terminal.home.path().join("out");
    let line = ["solve", "completed", "--out", out.to_str().unwrap()];
    // The run's id of this backend is no id, so no path is made of it.
    let ended = terminal.run(&line).await;
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("is not a run id"), "{}", ended.err);
    assert!(!out.exists());
}

#[tokio::test]
async fn a_plan_that_is_no_file_is_a_usage_error() {
    let (_served, terminal) = served().await;
    let ended = terminal.run(&["solve", "--plan", "/nonexistent/plan.yaml"]).await;
    assert_eq!(ended.code, 2);
    assert!(Cli::try_parse_from(["octomesh", "solve"]).is_err());
}

#[tokio::test]
async fn a_wrong_configuration_is_64_with_all_errors() {
    let terminal = Terminal::new("127.0.0.1:1".to_owned());
    std::fs::write(crate::config::path(terminal.home.path()), "sots = 1\nslots = 0\n").unwrap();
    for line in [&["config", "check"][..], &["config", "show"], &["up"]] {
        let ended = terminal.run(line).await;
        assert_eq!(ended.code, 64, "{line:?}");
        assert!(ended.err.contains("octomesh.toml:1: unknown key `sots`"), "{}", ended.err);
        assert!(ended.err.contains("octomesh.toml:2: slots: 0"), "{}", ended.err);
    }
    let object = terminal.run(&["--json", "config", "check"]).await.object();
    assert_eq!(object["error"]["errors"][1]["origin"]["line"], 2);
    assert_eq!(object["error"]["errors"][1]["key"], "slots");
    // A command that only speaks to a node does not mind.
    assert_eq!(terminal.run(&["status"]).await.code, 69);
}

fn status_of(report: &Value, name: &str) -> String {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("{name} in {report}"));
    assert!(check["status"] == "ok" || check["fix"].is_string(), "{check}");
    check["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn doctor_works_with_the_node_stopped_and_running() {
    let (_held, free) = silent_port();
    let stopped = Terminal::new(free.to_string());
    let report = stopped.run(&["--json", "doctor"]).await.object();
    assert_eq!((status_of(&report, "home"), status_of(&report, "api")), ("ok".into(), "warn".into()));
    assert_eq!(status_of(&report, "config"), "ok");
    assert_eq!(status_of(&report, "clock"), "ok");

    let (_served, running) = served().await;
    let report = running.run(&["--json", "doctor"]).await.object();
    for (name, status) in [("api", "ok"), ("ports", "ok"), ("members", "ok"), ("sandbox", "warn")] {
        assert_eq!(status_of(&report, name), status, "{name}");
    }
    let text = running.run(&["doctor"]).await;
    assert!(text.out.contains("What to do:"), "{}", text.out);
}

#[tokio::test]
async fn a_call_that_is_interrupted_is_dropped_on_the_node() {
    let (served, terminal) = served().await;
    let (cli, context, _out, _err) = terminal.context(&["call", "slow"], CancellationToken::new());
    {
        let work = dispatch(&cli.command, &context);
        tokio::pin!(work);
        tokio::select! {
            _ = &mut work => panic!("it never ends"),
            () = served.mock.began.notified() => {}
        }
    }
    drop(context);
    tokio::time::timeout(Duration::from_secs(5), served.mock.dropped.notified()).await.unwrap();
}

#[tokio::test]
async fn changes_of_a_membership() {
    let (_served, terminal) = served().await;
    assert_eq!(terminal.run(&["--json", "wake", "attic"]).await.object()["networks"], 2);
    assert_eq!(terminal.run(&["--json", "rename", "loft"]).await.object()["name"], "loft");
    let forgotten = terminal.run(&["nodes", "forget", "attic"]).await;
    assert!(forgotten.out.contains("attic is forgotten"), "{}", forgotten.out);
    assert_eq!(terminal.run(&["--json", "root", "lock"]).await.object()["place"], "locked");
    let long = Cli::try_parse_from(["octomesh", "root", "unlock", "--for", "2d"]).unwrap_err();
    assert!(long.to_string().contains("at most 1d"), "{long}");
    for bad in [&["invite", "--min-sandbox", "strong"][..], &["invite", "--tools", "no tool"]] {
        assert!(Cli::try_parse_from([&["octomesh"], bad].concat()).is_err());
    }
}

#[tokio::test]
async fn nobody_is_revoked_without_a_yes() {
    let (_served, terminal) = served().await;
    for line in [&["revoke", "attic"][..], &["--json", "revoke", "attic"]] {
        let ended = terminal.run(line).await;
        assert_eq!(ended.code, 3, "{line:?}: {} {}", ended.out, ended.err);
        assert!(
            format!("{}{}", ended.out, ended.err).contains("can't be taken back"),
            "{} {}",
            ended.out,
            ended.err
        );
    }
}
