//! PROTOCOL 5.10: after a node has joined, called and solved with its log at its loudest, none of its secrets is to be found in
//! anything that leaves it or that it keeps besides the files made for them.
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use octomesh_tests::{
    Machine, Mesh, api,
    machine::free_port,
    member::hex_file,
    wait::{wait, when},
};

/// One secret in one form in which it could be written.
struct Form {
    what: String,
    bytes: Vec<u8>,
}

/// Groups of `bits` bits, most significant first, in letters; without the last one, which depends on what follows.
fn letters(bytes: &[u8], bits: usize, alphabet: &[u8]) -> Vec<u8> {
    let bit = |at: usize| usize::from(bytes[at / 8] >> (7 - at % 8) & 1);
    (0..bytes.len() * 8 / bits)
        .map(|group| alphabet[(0..bits).fold(0, |value, n| value << 1 | bit(group * bits + n))])
        .collect()
}

const BASE32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_URL: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Raw, in hexadecimal, base32, base64, and as `[1, 2, …]`, the `Debug` of bytes. The texts can begin at any byte of a group, so the first
/// bytes are left out in turn.
fn forms(what: &str, secret: &[u8]) -> Vec<Form> {
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let listed = secret.iter().map(u8::to_string).collect::<Vec<_>>();
    let mut forms = vec![
        ("raw", secret.to_vec()),
        ("hexadecimal", hex.to_uppercase().into_bytes()),
        ("hexadecimal", hex.into_bytes()),
        ("a list", listed.join(", ").into_bytes()),
        ("a list", listed.join(",").into_bytes()),
    ];
    for skip in 0..5 {
        let base32 = letters(&secret[skip..], 5, BASE32);
        forms.extend([("base32", base32.to_ascii_lowercase()), ("base32", base32)]);
    }
    for skip in 0..3 {
        for alphabet in [BASE64, BASE64_URL] {
            forms.push(("base64", letters(&secret[skip..], 6, alphabet)));
        }
    }
    forms.into_iter().map(|(form, bytes)| Form { what: format!("{what} as {form}"), bytes }).collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Every secret that lies in a home.
fn secrets_of(machine: &Machine) -> Vec<Form> {
    let mut all = Vec::new();
    for (file, seeds) in [("node.key", 2), ("root.key", 2), ("mesh.secret", 1)] {
        let path = machine.home.join("identity").join(file);
        if !path.exists() {
            continue;
        }
        let bytes = hex_file(&path);
        assert_eq!(bytes.len(), 32 * seeds, "{file}");
        for (n, seed) in bytes.chunks(32).enumerate() {
            all.extend(forms(&format!("{file} {n} of {}", machine.name), seed));
        }
    }
    let token = machine.token();
    assert!(token.len() >= 32, "{token}");
    all.push(Form { what: format!("the API token of {}", machine.name), bytes: token.into_bytes() });
    all
}

/// The one-time secrets of a home's tickets.
fn ticket_secrets(machine: &Machine) -> Vec<Form> {
    let text = fs::read_to_string(machine.home.join("identity/tickets.json")).unwrap();
    let mut found = Vec::new();
    let mut rest = text.as_str();
    // Whatever the file's form: the only runs of 64 hexadecimal digits in it.
    while let Some(at) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let run = rest[at..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len() - at);
        if run == 64 {
            let digits = rest.as_bytes()[at..at + run].chunks(2);
            let secret: Vec<u8> =
                digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect();
            found.extend(forms("a ticket's secret", &secret));
        }
        rest = &rest[at + run..];
    }
    assert!(!found.is_empty(), "no ticket: {text}");
    found
}

fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() { files(&path, all) } else { all.push(path) }
    }
}

/// Whether a file is there to hold secrets.
fn may_hold(home: &Path, path: &Path) -> bool {
    let inside = path.strip_prefix(home).unwrap();
    inside == Path::new("api.token")
        || ["node.key", "root.key", "mesh.secret", "tickets.json"]
            .iter()
            .any(|name| inside == Path::new("identity").join(name))
}

/// Everything that was said to anybody, by its place.
fn said(mesh: &mut Mesh) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for name in ["pi", "attic"] {
        let machine = &mut mesh[name];
        all.push((format!("stdout of {name}"), machine.node().out().into_bytes()));
        all.push((format!("stderr of {name}"), machine.node().err().into_bytes()));
        for path in [
            "/metrics",
            "/api/mesh/status",
            "/api/mesh/nodes",
            "/api/mesh/sessions",
            "/api/tools",
            "/api/runs",
            "/api/tools/shell",
            "/nothing",
        ] {
            all.push((
                format!("{path} of {name}"),
                api::request(machine, "GET", path, "").unwrap().into_bytes(),
            ));
        }
        for args in [
            &["status"][..],
            &["nodes"],
            &["sessions"],
            &["tools", "--all"],
            &["config"],
            &["doctor"],
            &["runs"],
        ] {
            let done = machine.run(args);
            all.push((format!("`{}` of {name}", args.join(" ")), (done.out + &done.err).into_bytes()));
        }
        let mut kept = Vec::new();
        files(&machine.home, &mut kept);
        for path in kept.iter().filter(|p| !may_hold(&machine.home, p)) {
            all.push((path.display().to_string(), fs::read(path).unwrap_or_default()));
        }
    }
    all
}

#[test]
fn secrets_in_logs_debug_environment_and_core_dumps() {
    let folder = tempfile::Builder::new().prefix("octomesh-test-").tempdir().unwrap();
    // A token that came by the environment, and a shell that would like a core dump.
    let given = "c0ffee-0123456789-0123456789-0123456789-given";
    let prefix = ["sh", "-c", "ulimit -c unlimited; export OCTOMESH_API_TOKEN=\"$0\"; exec \"$@\"", given];
    let prefix = prefix.map(str::to_owned);
    let machines = vec![
        Machine::new(folder.path(), "pi"),
        Machine::at(folder.path(), "attic", "127.0.0.1", free_port(), &prefix),
    ];
    for machine in &machines {
        machine.configure("log = \"trace\"");
    }
    machines[1].tool(
        "environment",
        "effect = \"pure\"",
        "tr '\\0' ' ' </proc/self/environ; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '",
    );
    fs::write(machines[1].home.join("api.token"), given).unwrap();
    let mut mesh = Mesh::of(folder, machines);
    mesh.start();
    mesh["pi"].wait_for_tool("environment", "attic");

    let mut children = Vec::new();
    for from in ["pi", "attic"] {
        let call = mesh[from].json(&["call", "environment", "{}", "--node", "attic"]);
        assert!(call.to_string().contains("PATH="), "it shows its environment: {call}");
        children.push((format!("environment of a tool, asked by {from}"), call.to_string().into_bytes()));
        let cat = "command=cat /proc/self/environ /proc/1/environ; env; cat /proc/self/limits";
        let call = mesh[from].json(&["call", "shell", cat, "--node", "attic"]);
        children.push((format!("environment of a shell, asked by {from}"), call.to_string().into_bytes()));
        let solved = mesh[from].run(&["--json", "solve", "calculate 6*7"]);
        children.push((format!("answer to {from}"), (solved.out + &solved.err).into_bytes()));
    }
    // An open ticket, one that was used, and a join that fails.
    let ticket = mesh["pi"].invite();
    let mut hidden = ticket_secrets(&mesh["pi"]);
    // The shell word of a ticket is said once, to who asked for it.
    hidden.push(Form { what: "an open ticket".to_owned(), bytes: ticket.into_bytes() });
    for name in ["pi", "attic"] {
        hidden.extend(secrets_of(&mesh[name]));
    }
    assert!(hidden.iter().any(|f| f.what.starts_with("root.key")), "pi has the root");
    assert!(hidden.iter().any(|f| f.bytes == given.as_bytes()), "the given token is one of them");

    let mut said = said(&mut mesh);
    said.extend(children);
    let loud = said.iter().filter(|(what, text)| what.starts_with("stderr") && contains(text, b"TRACE"));
    assert_eq!(loud.count(), 2, "both logs are at their loudest");
    for name in ["pi", "attic"] {
        let journal = mesh[name].home.join("journal.db").display().to_string();
        assert!(
            said.iter().any(|(what, text)| *what == journal && !text.is_empty()),
            "{journal} was looked at"
        );
    }
    let bytes: usize = said.iter().map(|(_, text)| text.len()).sum();
    println!("{} forms of secrets in {} places, {bytes} bytes", hidden.len(), said.len());
    for form in &hidden {
        for (place, text) in &said {
            assert!(!contains(text, &form.bytes), "{place} holds {}", form.what);
        }
    }
    // What is looked for would be found: each file of a secret holds it.
    for file in ["node.key", "mesh.secret"] {
        let text = fs::read(mesh["attic"].home.join("identity").join(file)).unwrap();
        assert!(hidden.iter().any(|f| f.what.contains("attic") && contains(&text, &f.bytes)), "{file}");
    }
    no_core_dump(&mut mesh["attic"]);
}

/// The kernel writes no image of its memory, wherever that would go, and other programs of the same user can't look into it.
fn no_core_dump(machine: &mut Machine) {
    let process = PathBuf::from(format!("/proc/{}", machine.node().pid()));
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap().to_owned();
    let words: Vec<&str> = core.split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{core}");
    // The files of a process that can't be dumped are root's; root's own are that anyway.
    if !rustix::process::geteuid().is_root() {
        assert_eq!(fs::metadata(process.join("environ")).unwrap().uid(), 0, "another program can read it");
    }
    let before = fs::read_dir(machine.workspace()).unwrap().count();
    machine.node().signal(rustix::process::Signal::ABORT);
    let done = machine.node().wait(octomesh_tests::wait::PATIENCE);
    assert_eq!(done.code, -6, "{done:?}");
    wait("no core file appears", || {
        let now = fs::read_dir(machine.workspace()).unwrap().count();
        when(now == before && !Path::new("core").exists(), now)
    });
}
