//! Input that nobody should give, but somebody will: each gets an exit code and a sentence, and the node goes on.
use std::{fs, net::TcpListener, time::Duration};

use octomesh_tests::{
    Machine, Mesh,
    process::processes_with,
    wait::{PATIENCE, wait_within, when},
};
use serde_json::Value;

fn still_works(machine: &Machine) {
    let call = machine.json(&["call", "echo", "text=still here"]);
    assert_eq!(call["output"]["text"], "still here");
}

#[test]
fn arguments_that_are_wrong() {
    let mesh = Mesh::up(&["pi"], |_| {});
    let pi = &mesh["pi"];

    let unknown = pi.run(&["--json", "call", "ecko", "text=hello"]).with_code(1);
    assert_eq!(unknown.json()["error"]["code"], "unknown_tool");
    assert!(unknown.json()["error"]["hint"].as_str().unwrap().contains("echo"), "{}", unknown.out);
    let unknown = pi.run(&["--json", "call", "ecko", "{}"]).with_code(1);
    assert_eq!(
        unknown.json()["error"]["code"],
        "unknown_tool",
        "without a look at the card: {}",
        unknown.out
    );
    let people = pi.run(&["call", "ecko", "text=hello"]).with_code(1);
    assert!(people.err.contains("ecko") && people.err.contains("did you mean echo"), "{people:?}");

    for (what, arguments, words) in [
        ("a wrong type", r#"{"text": 7}"#, ["text", "string"]),
        ("a missing argument", "{}", ["text", "missing"]),
        ("an argument too many", r#"{"text": "a", "txt": "b"}"#, ["txt", ""]),
    ] {
        let done = pi.run(&["--json", "call", "echo", arguments]);
        assert!(matches!(done.code, 1 | 2), "{what}: {done:?}");
        let message = done.json();
        let message = message
            .pointer("/error/message")
            .or(message.pointer("/output/error/message"))
            .unwrap()
            .to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{what}: {message}");
    }
    for arguments in ["[1, 2]", "{\"text\": ", "{\"text\": \"a\"} x"] {
        let done = pi.run(&["--json", "call", "echo", arguments]).with_code(2);
        assert!(!done.error().is_empty());
    }
    for pairs in [&["text=a", "text=b"][..], &["=a"], &["text"]] {
        let done = pi.run(&[&["--json", "call", "echo"], pairs].concat()).with_code(2);
        assert_eq!(done.json()["error"]["code"], "usage");
    }

    let ten = 10 << 20;
    let large = format!("{{\"text\": \"{}\"}}", "a".repeat(ten));
    let done = pi.run_with(&["--json", "call", "echo", "-"], Some(large.as_bytes())).with_code(2);
    assert_eq!(done.json()["error"]["code"], "too_large");
    assert!(done.json()["error"]["hint"].as_str().unwrap().contains("file"), "{}", done.out);
    // As large as it may be.
    let fits = format!("{{\"text\": \"{}\"}}", "a".repeat(200 << 10));
    let done = pi.run_with(&["--json", "call", "echo", "-"], Some(fits.as_bytes())).with_code(0);
    assert_eq!(done.json()["output"]["text"].as_str().unwrap().len(), 200 << 10);

    let deep = format!("{{\"text\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let done = pi.run_with(&["--json", "call", "echo", "-"], Some(deep.as_bytes())).with_code(2);
    assert_eq!(done.json()["error"]["code"], "too_deep");
    let done = pi.run(&["--json", "call", "json", "op=parse", &format!("data={}", "[".repeat(10_000))]);
    assert!(matches!(done.code, 1 | 2), "{done:?}");
    done.json();

    for question in ["", " ", "\u{0}"] {
        if question != "\u{0}" {
            let done = pi.run(&["--json", "solve", question]).with_code(2);
            assert!(!done.error().is_empty());
        }
    }
    let plan = mesh.folder().join("plan.yaml");
    for (text, word) in [
        ("blocks: []", "blocks"),
        ("blocks:\n- id: a\n  steps:\n  - {tool: no_such_tool}\n", "no_such_tool"),
        ("blocks:\n- id: a\n  depends_on: [b]\n  steps: [{tool: echo, args: {text: x}}]\n", "b"),
        ("blocks:\n- id: a\n  depends_on: [a]\n  steps: [{tool: echo, args: {text: x}}]\n", "a"),
        ("blocks:\n- id: a\n  stepz: []\n", "stepz"),
        ("{\"blocks\": [", "line"),
    ] {
        fs::write(&plan, text).unwrap();
        let done = pi.run(&["--json", "solve", "--plan", plan.to_str().unwrap()]).with_code(2);
        assert!(done.error().contains(word), "{text}: {}", done.out);
    }
    still_works(pi);
}

/// `nasty` tools on attic, called from pi: their output crosses the wire.
#[test]
fn programs_that_do_not_behave() {
    let mesh = Mesh::up(&["pi", "attic"], |machine| {
        if machine.name == "attic" {
            machine.tool("not_text", "effect = \"pure\"", r"printf 'caf\351 \377\376\n'");
            machine.tool(
                "chatty",
                "effect = \"pure\"\ntimeout_s = 30",
                "head -c 52428800 /dev/zero | tr '\\0' 'x'",
            );
            machine.tool(
                "loud",
                "effect = \"pure\"",
                "head -c 52428800 /dev/zero | tr '\\0' 'x' >&2; echo '{\"done\": true}'",
            );
            machine.tool("endless", "effect = \"pure\"\ntimeout_s = 1", "while true; do sleep 301; done");
            machine.tool(
                "forks",
                "effect = \"pure\"",
                "for i in 1 2 3; do setsid sleep 302 & sleep 302 & done\necho '{\"left\": 6}'",
            );
            machine.tool("fails", "effect = \"pure\"", "echo 'no paper in the printer' >&2; exit 3");
            machine.tool("dies", "effect = \"pure\"", "kill -SEGV $$");
        }
    });
    let pi = &mesh["pi"];
    pi.wait_for_tool("dies", "attic");
    let call = |tool: &str, code: i32| -> Value {
        let call = pi.run(&["--json", "call", tool]).with_code(code).json();
        assert_eq!(call["node"], "attic", "{call}");
        call
    };

    let call_of = call("not_text", 0);
    assert_eq!(call_of["output"]["invalid_utf8"], true, "{call_of}");
    assert!(call_of["output"]["text"].as_str().unwrap().starts_with("caf\u{fffd} "), "{call_of}");

    let call_of = call("chatty", 0);
    assert_eq!(call_of["output"]["truncated"], true);
    assert_eq!(call_of["output"]["total_bytes"], 50 << 20);
    assert!(call_of["output"].to_string().len() <= 256 << 10);

    let call_of = call("loud", 0);
    assert_eq!(call_of["output"], serde_json::json!({"done": true}));

    let call_of = call("endless", 1);
    assert_eq!(call_of["status"], "timeout", "{call_of}");
    assert!(call_of["elapsed_ms"].as_u64().unwrap() < 8_000, "{call_of}");
    nothing_runs(&mesh);

    let call_of = call("forks", 0);
    assert_eq!(call_of["output"]["left"], 6);
    nothing_runs(&mesh);

    let call_of = call("fails", 1);
    assert_eq!(call_of["status"], "error");
    let message = call_of["output"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("no paper in the printer") && message.contains('3'), "{message}");
    let call_of = call("dies", 1);
    let message = call_of["output"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("SIGSEGV"), "{message}");

    // A deadline of the caller's is kept too.
    let late = pi.run(&["--json", "call", "endless", "--timeout", "1"]).with_code(1).json();
    assert_eq!(late["status"], "timeout", "{late}");
    nothing_runs(&mesh);
    mesh["pi"].json(&["call", "echo", "text=next", "--node", "attic"]);
}

/// The call's answer comes after the end of all that it started.
fn nothing_runs(mesh: &Mesh) {
    wait_within(Duration::from_secs(1), "nothing of the tool runs", || {
        let left = processes_with(mesh["attic"].workspace().to_str().unwrap());
        when(left.is_empty(), left)
    });
}

#[test]
fn tickets_that_let_nobody_in() {
    let mut mesh = Mesh::furnished(&["pi", "attic", "tower", "shed"], |_| {});
    mesh["pi"].init();
    mesh["pi"].up();
    let ticket = mesh["pi"].invite();
    let join = |name: &str, ticket: &str| mesh[name].run(&["--json", "join", ticket, "--name", name]);

    // One letter is wrong: seen at once, before anything is sent.
    let mut letters: Vec<char> = ticket.chars().collect();
    let at = letters.len() / 2;
    letters[at] = if letters[at] == 'x' { 'y' } else { 'x' };
    let typo: String = letters.iter().collect();
    for wrong in [typo.as_str(), &ticket[..ticket.len() - 1], "octo1", "hello", ""] {
        let done = join("attic", wrong).with_code(2);
        assert_eq!(done.json()["error"]["code"], "invalid_ticket", "{wrong}: {}", done.out);
    }

    // The right one works, once.
    mesh["attic"].join(&ticket);
    let used = join("tower", &ticket).with_code(1);
    assert_eq!(used.json()["error"]["code"], "join_refused");
    assert!(used.error().contains("used"), "{}", used.out);

    // A name that somebody has.
    let second = mesh["pi"].invite();
    let taken = mesh["tower"].run(&["--json", "join", &second, "--name", "attic"]).with_code(1);
    assert_eq!(taken.json()["error"]["code"], "join_refused");
    assert!(taken.error().contains("attic"), "{}", taken.out);
    let odd = mesh["tower"].run(&["--json", "join", &second, "--name", "no such name!"]).with_code(2);
    assert_eq!(odd.json()["error"]["code"], "invalid_name");
    // The refusals cost nothing: the ticket is still good.
    mesh["tower"].join(&second);
    let again = join("tower", &second).with_code(1);
    assert_eq!(again.json()["error"]["code"], "exists");

    // Withdrawn.
    let third = mesh["pi"].json(&["invite"]);
    mesh["pi"].json(&["invite", "--withdraw", third["id"].as_str().unwrap()]);
    let gone = join("shed", third["ticket"].as_str().unwrap()).with_code(1);
    assert!(!gone.error().is_empty());

    // The issuer is down.
    let fourth = mesh["pi"].invite();
    let address = mesh["pi"].listen.clone();
    mesh["pi"].stop().with_code(0);
    let done = mesh["shed"].run(&["--json", "join", &fourth, "--name", "shed"]).with_code(1);
    assert_eq!(done.json()["error"]["code"], "unreachable");
    assert!(done.error().contains(&address), "{}", done.out);
    assert!(!mesh["shed"].home.join("identity").exists());
    // And up again: a join that failed can be repeated as it was.
    mesh["pi"].up();
    mesh["shed"].join(&fourth);
    mesh["shed"].up();
    mesh["shed"].wait_for(PATIENCE, &["pi", "shed"]);
}

#[test]
fn surroundings_that_do_not_fit() {
    let mut mesh = Mesh::furnished(&["pi", "attic"], |_| {});
    for name in ["pi", "attic"] {
        mesh[name].init();
    }
    // Ports in use, by another program and by another node.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    for flag in ["--listen", "--api"] {
        let done = mesh["pi"].run(&["--json", "up", flag, &taken]).with_code(1);
        assert_eq!(done.json()["error"]["code"], "port_in_use", "{flag}");
        assert!(done.error().contains(&taken), "{flag}: {}", done.out);
        assert!(done.json()["error"]["hint"].as_str().unwrap().contains(flag), "{}", done.out);
    }
    mesh["pi"].up();
    let listen = mesh["pi"].listen.clone();
    let done = mesh["attic"].run(&["--json", "up", "--listen", &listen]).with_code(1);
    assert!(done.error().contains(&listen), "{}", done.out);

    // Two nodes in one home.
    let (api, listen) = (&mesh["attic"].api, &mesh["attic"].listen);
    let done = mesh["pi"].run(&["--json", "up", "--api", api, "--listen", listen]).with_code(1);
    assert_eq!(done.json()["error"]["code"], "busy");
    assert!(done.error().contains(mesh["pi"].home.to_str().unwrap()), "{}", done.out);
    still_works(&mesh["pi"]);

    // A key that nobody knows: file, line, key, and the key that was meant.
    mesh["attic"].configure("\nsots = 3\n");
    let done = mesh["attic"].run(&["--json", "up"]).with_code(64);
    let message = done.error();
    for word in ["octomesh.toml", "4", "`sots`", "`slots`"] {
        assert!(message.contains(word), "no {word} in {message}");
    }
    assert_eq!(mesh["attic"].run(&["config", "check"]).code, 64);
    mesh["attic"].configure("slots = \"many\"\n");
    let done = mesh["attic"].run(&["--json", "up"]).with_code(64);
    assert!(done.error().contains("slots"), "{}", done.out);
    mesh["attic"].configure("");
    assert_eq!(mesh["attic"].run(&["config", "check"]).code, 0);
}

#[test]
fn a_home_that_is_not_writable() {
    let mesh = Mesh::furnished(&["pi"], |_| {});
    let pi = &mesh["pi"];
    // Below a file no folder can be made, whoever asks.
    let file = mesh.folder().join("a-file");
    fs::write(&file, "").unwrap();
    let below = file.join("home");
    for args in [&["init", "--name", "pi"][..], &["up"]] {
        let mut command = octomesh_tests::program::command(&[]);
        command.arg("--json").arg("--home").arg(&below).args(args);
        let done = octomesh_tests::Done::of(command, mesh.folder(), "below", None);
        assert_ne!(done.code, 0);
        assert!(done.error().contains(file.to_str().unwrap()), "{args:?}: {}", done.out);
    }
    // An identity and a database that are not what they should be: named, not overwritten.
    pi.init();
    let key = pi.home.join("identity/node.key");
    let good = fs::read(&key).unwrap();
    fs::write(&key, "not a key").unwrap();
    let done = pi.run(&["--json", "up"]).with_code(1);
    assert!(done.error().contains("node.key"), "{}", done.out);
    assert_eq!(fs::read(&key).unwrap(), b"not a key");
    fs::write(&key, good).unwrap();
    fs::write(
        pi.home.join("journal.db"),
        "this is no database, but it is long enough to be taken for one".repeat(100),
    )
    .unwrap();
    let done = pi.run(&["--json", "up"]).with_code(1);
    assert!(done.error().contains("journal.db"), "{}", done.out);
}

/// Root may write everywhere, so another user is asked to.
#[test]
fn a_home_of_somebody_else() {
    use std::os::unix::process::CommandExt;
    let mesh = Mesh::furnished(&["pi"], |_| {});
    let pi = &mesh["pi"];
    pi.init();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can ask as another user");
        return;
    }
    // Readable for all on the way to it, writable for nobody.
    for folder in [mesh.folder(), &pi.home] {
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(folder, mode).unwrap();
    }
    let program = mesh.folder().join("octomesh");
    // By another process: a descriptor of ours that is open for writing would be inherited by what other tests start just then,
    // and a program that somebody writes to can't be started.
    let copied = std::process::Command::new("cp").arg(octomesh_tests::program::path()).arg(&program).status();
    assert!(copied.unwrap().success());
    for args in [&["up"][..], &["init", "--name", "x"]] {
        let mut command = std::process::Command::new(&program);
        command.env_clear().arg("--json").arg("--home").arg(&pi.home).args(args).uid(65_534).gid(65_534);
        let done = octomesh_tests::Done::of(command, mesh.folder(), "nobody", None);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.error().contains(pi.home.to_str().unwrap()), "{args:?}: {}", done.out);
    }
}
