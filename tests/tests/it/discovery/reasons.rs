//! Why a member is not reached: said within ten seconds, with the step that failed.
use std::io::{BufRead, BufReader, Read, Write};

use octomesh_protocol::id::NodeId;
use octomesh_tests::{machine::free_port, wait::when};

use super::*;

fn pair() -> (TempDir, Machine, Machine) {
    let folder = folder();
    let (pi, tower) = (Machine::new(folder.path(), "pi"), Machine::new(folder.path(), "tower"));
    (folder, pi, tower)
}

fn expect(machine: &Machine, name: &str, step: &str, problem: &str) {
    wait_within(FOUND, &format!("{} says of {name}: {step}, {problem}", machine.name), || {
        let node = node(machine, name);
        let said = node["problem"].as_str().unwrap_or_default();
        when(node["step"] == step && said.contains(problem), &node)
    });
    let check = check(machine, "members");
    assert!(check["detail"].as_str().unwrap().contains(problem), "{check}");
}

#[test]
fn each_step_that_fails_is_named() {
    let (_folder, mut pi, mut tower) = pair();
    pi.init();
    pi.up();
    tower.join(&pi.invite());
    pi.stop();

    // Known from its ticket; nobody is there.
    tower.up();
    expect(&tower, "pi", "dialled", "refused");
    let said = node(&tower, "pi");
    assert_eq!(said["heard_from"], json!(["address_book"]), "{said}");
    assert!(said["problem"].as_str().unwrap().contains(&pi.listen), "{said}");
    let status = tower.json(&["status"]);
    assert_eq!(
        (&status["membership"]["alive"], &status["membership"]["dead"]),
        (&json!(1), &json!(1)),
        "{status}"
    );

    // Connected, then lost.
    pi.up();
    see_each_other(&[&pi, &tower]);
    assert_eq!((&node(&tower, "pi")["step"], &node(&tower, "pi")["problem"]), (&Value::Null, &Value::Null));
    pi.kill();
    expect(&tower, "pi", "lost", "connected, then lost");
    expect(&tower, "pi", "lost", "dialled again");

    // Somebody of another mesh has its address now.
    let other = Machine::at(_folder.path(), "other", "127.0.0.1", port_of(&pi), &[]);
    other.init();
    let mut other = other;
    other.up();
    expect(&tower, "pi", "lost", "mesh");
}

/// The two steps before a dial: nobody tells where a member is, and its address is known and not dialled yet.
#[test]
fn who_was_not_heard_and_who_was_not_dialled_yet_are_told_apart() {
    let Some(network) = Network::new(&["pi"], &["lan"], &[]) else { return };
    network.plug("pi", "eth0", "lan", &["10.99.1.1/24"]);
    let folder = folder();
    let mut pi = machine(&folder, &network, "pi", "0.0.0.0");
    pi.init();
    // An address book of an earlier run; nobody is at those addresses, and nobody says so: the first dial takes six seconds.
    let id = |byte: u8| NodeId::from_bytes([byte; 32]).to_string();
    let book = json!({"members": [
        {"node_id": id(7), "name": "cellar", "addresses": []},
        {"node_id": id(8), "name": "attic", "addresses": ["10.99.1.9:9400", "10.99.1.8:9400", "10.99.1.7:9400"]},
    ]});
    fs::write(pi.home.join("peers.json"), book.to_string()).unwrap();
    pi.up();
    expect(&pi, "attic", "not_dialled", "not dialled yet");
    expect(&pi, "cellar", "not_heard", "nobody told where it is");
    expect(&pi, "attic", "dialled", "no answer");
    let status = pi.json(&["status"]);
    assert_eq!(status["membership"]["dead"], 2, "{status}");
}

fn port_of(machine: &Machine) -> u16 {
    machine.listen.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Speaks multistream-select like a node of the next version, and no more.
fn newer_node() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || drop(answer(socket)));
        }
    });
    port
}

fn answer(mut socket: std::net::TcpStream) -> std::io::Result<()> {
    socket.write_all(b"\x13/multistream/1.0.0\n")?;
    loop {
        let mut length = [0];
        socket.read_exact(&mut length)?;
        let mut message = vec![0; usize::from(length[0])];
        socket.read_exact(&mut message)?;
        match message.as_slice() {
            b"/multistream/1.0.0\n" => {}
            b"ls\n" => socket.write_all(b"\x11\x0f/octomesh/pq/2\n\n")?,
            _ => socket.write_all(b"\x03na\n")?,
        }
    }
}

#[test]
fn a_peer_of_another_version_is_named() {
    let (_folder, mut pi, _) = pair();
    let newer = format!("127.0.0.1:{}", newer_node());
    let nobody = format!("127.0.0.1:{}", free_port());
    pi.configure(&format!("peers = [\"{newer}\", \"{nobody}\"]"));
    pi.init();
    pi.up();
    let status = wait_within(FOUND, "both are explained", || {
        let status = pi.json(&["status"]);
        let reasons = status["unreached"].as_array().unwrap();
        let of = |addr: &str| {
            let entry = reasons.iter().find(|u| u["addr"] == addr);
            entry.and_then(|u| u["reason"].as_str()).unwrap_or_default()
        };
        let both = of(&newer).contains("another version of the protocol") && of(&nobody).contains("refused");
        when(both, &status).map(|()| status.clone())
    });
    assert!(status.to_string().contains("/octomesh/pq/2"));
    assert!(status["warnings"].to_string().contains("another version of the protocol"), "{status}");
    let check = check(&pi, "peers");
    assert_eq!(check["status"], "warn");
    assert!(check["detail"].as_str().unwrap().contains("another version of the protocol"), "{check}");
}

#[test]
fn what_happens_is_streamed() {
    let (_folder, mut pi, mut tower) = pair();
    pi.init();
    pi.up();
    let mut socket = std::net::TcpStream::connect(&pi.api).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /api/mesh/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        pi.api,
        pi.token()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(socket).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("200"));
    tower.join(&pi.invite());
    tower.up();
    let mut seen: Vec<Value> = Vec::new();
    let has = |seen: &[Value], kind: &str, key: &str, value: &str| {
        seen.iter().any(|e| e["type"] == kind && e[key] == value)
    };
    let mut until = |what: &str, wanted: &dyn Fn(&[Value]) -> bool| {
        while !wanted(&seen) {
            let line = lines.next().unwrap_or_else(|| panic!("{what}: the stream ended: {seen:?}"));
            if let Some(data) = line.strip_prefix("data: ") {
                seen.push(serde_json::from_str(data).unwrap());
            }
        }
    };
    until("tower comes", &|seen| {
        has(seen, "joined", "node", "tower")
            && has(seen, "member", "state", "alive")
            && has(seen, "advert", "node", "tower")
    });
    tower.kill();
    until("tower goes", &|seen| has(seen, "member", "state", "down"));
    let numbers: Vec<u64> = seen.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "nothing was lost: {numbers:?}");
    assert!(!pi.node().out().contains("\"advert\""), "too much for a terminal");
}
