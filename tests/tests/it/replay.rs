//! PROTOCOL 5.7: what was recorded once is said again, to a node that remembers it and to one that was started anew.
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use octomesh_protocol::session::handshake::MESSAGE_1_BYTES;
use octomesh_tests::{
    Machine, Mesh, api,
    attacker::{negotiation, target},
    machine::free_port,
    proxy::{Heard, Proxy},
    wait::{PATIENCE, wait, when},
};

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn sessions(machine: &Machine) -> usize {
    machine.json(&["sessions"])["sessions"].as_array().unwrap().len()
}

/// `octomesh_handshakes_total` of `direction`: those that went well, and all others.
fn handshakes(machine: &Machine, direction: &str) -> (u64, u64) {
    let text = api::request(machine, "GET", "/metrics", "").unwrap();
    let of = text
        .lines()
        .filter(|l| l.contains("handshakes_total{") && l.contains(&format!("direction=\"{direction}\"")));
    of.fold((0, 0), |(ok, failed), line| {
        let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        if line.contains("result=\"ok\"") { (ok + count, failed) } else { (ok, failed + count) }
    })
}

/// Says everything that a dialler said; gives what came back.
fn say_again(heard: &Heard, target: SocketAddr, in_parts: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(target).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let part = if in_parts { 997 } else { heard.dialler.len() };
    for part in heard.dialler.chunks(part) {
        // It may be hung up on in the middle.
        if stream.write_all(part).is_err() {
            break;
        }
    }
    let (mut back, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return back,
            Ok(read) => back.extend_from_slice(&buffer[..read]),
            Err(error) => {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "not hung up on within 20 s");
                return back;
            }
        }
    }
}

/// A mesh in which attic reaches pi only through the returned wire, and pi never reaches attic by itself.
fn overheard() -> (Mesh, Proxy, u16) {
    let (wire, nowhere) = (free_port(), free_port());
    let mut mesh = Mesh::furnished(&["pi", "attic"], |machine| {
        let port = if machine.name == "pi" { wire } else { nowhere };
        machine.configure(&format!("advertise = [\"127.0.0.1:{port}\"]"));
    });
    let proxy = Proxy::start(wire, target(&mesh["pi"].listen));
    mesh.start();
    for (from, to) in [("pi", "attic"), ("attic", "pi")] {
        let call = mesh[from].json(&["call", "echo", "text=hello", "--node", to]);
        assert_eq!(call["node"], to);
    }
    (mesh, proxy, wire)
}

/// Whole sessions: more than a handshake was said by both.
fn whole(proxy: &Proxy) -> Vec<Heard> {
    let all = proxy.connections();
    let sessions: Vec<Heard> = all
        .into_iter()
        .filter(|h| h.dialler.starts_with(&negotiation()) && h.dialler.len().min(h.listener.len()) > 20_000)
        .collect();
    assert!(!sessions.is_empty(), "no session went over the wire");
    sessions
}

#[test]
fn old_captures_replayed_to_a_restarted_node() {
    let (mut mesh, proxy, _) = overheard();
    let pi = target(&mesh["pi"].listen);
    mesh["attic"].stop().with_code(0);
    wait("the session is over", || when(sessions(&mesh["pi"]) == 0, sessions(&mesh["pi"])));
    let recorded = whole(&proxy);
    let short = negotiation().len() + MESSAGE_1_BYTES / 2;

    // The node that heard it: no second message, so no public-key work.
    let before = handshakes(&mesh["pi"], "in");
    for heard in &recorded {
        assert!(say_again(heard, pi, false).len() < short);
    }
    // Started anew it can't know the first message; its second one is under a fresh key, and the recorded third does not fit.
    mesh["pi"].kill();
    mesh["pi"].up();
    for (round, in_parts) in [(0, false), (1, true)] {
        for heard in &recorded {
            let back = say_again(heard, pi, in_parts);
            assert_eq!(back.len() > short, round == 0, "round {round}: {} bytes came back", back.len());
            assert!(
                !heard.listener.starts_with(&back[..back.len().min(short)]) || round == 1,
                "the same answer"
            );
        }
    }
    wait("pi counts them", || {
        let counted = handshakes(&mesh["pi"], "in");
        when(counted == (0, 2 * recorded.len() as u64), (before, counted))
    });
    assert_eq!(sessions(&mesh["pi"]), 0);
    let told = mesh["pi"].node().err();
    assert!(told.contains("somebody replays what was recorded"), "{told}");
    // Whoever is really there gets in.
    mesh["attic"].up();
    mesh.settled();
}

/// The other direction: who dials finds somebody who says what the node there once said.
#[test]
fn old_answers_replayed_to_a_restarted_dialler() {
    let (mut mesh, proxy, wire) = overheard();
    let recorded = whole(&proxy);
    for name in ["attic", "pi"] {
        mesh[name].stop().with_code(0);
    }
    drop(proxy);
    let listener = wait("the wire is free", || TcpListener::bind(at(wire)).map_err(|e| e.to_string()));
    mesh["attic"].up();
    // Whoever dials gets the whole record at once; attic dials again and again.
    for heard in recorded.iter().cycle().take(3) {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&heard.listener);
        let mut scrap = Vec::new();
        let ended = stream.read_to_end(&mut scrap);
        assert!(!matches!(&ended, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
        let fixed = negotiation().len() + 2 + MESSAGE_1_BYTES;
        assert!(scrap.len() <= fixed, "it went on after the recorded second message: {} bytes", scrap.len());
    }
    wait("attic counts them", || {
        let (ok, failed) = handshakes(&mesh["attic"], "out");
        when(ok == 0 && failed >= 3, (ok, failed))
    });
    assert_eq!(sessions(&mesh["attic"]), 0);
    drop(listener);
    let _again = Proxy::start(wire, target(&mesh["pi"].listen));
    mesh["pi"].up();
    mesh.settled();
}

/// PROTOCOL 5.7: both come up at the same moment and dial each other, again and again: the mesh comes together each time.
#[test]
fn simultaneous_dials_of_nodes_that_start_together() {
    let mut mesh = Mesh::up(&["pi", "attic"], |_| {});
    for _ in 0..3 {
        for name in ["pi", "attic"] {
            mesh[name].kill();
        }
        std::thread::scope(|scope| {
            let folder = mesh.machines_mut();
            for machine in folder {
                scope.spawn(|| machine.up());
            }
        });
        mesh.settled();
        for (from, to) in [("pi", "attic"), ("attic", "pi")] {
            api::timed_echo(&mesh[from], to).unwrap();
            let open = sessions(&mesh[from]);
            assert!((1..=2).contains(&open), "{open} sessions of {from}");
        }
    }
}
