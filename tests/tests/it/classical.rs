//! Programs without ML-KEM: stock libp2p with its Noise. They get no session, soon, and the node says why.
use std::time::Duration;

use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm, SwarmBuilder, noise,
    swarm::{SwarmEvent, dummy},
    tcp, yamux,
};
use octomesh_tests::{
    Machine, Mesh,
    machine::free_port,
    wait::{wait, when},
};

const BOUND: Duration = Duration::from_secs(10);

fn stock_peer() -> Swarm<dummy::Behaviour> {
    SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|_| dummy::Behaviour)
        .unwrap()
        .build()
}

fn multiaddr(address: &str) -> Multiaddr {
    let (ip, port) = address.rsplit_once(':').unwrap();
    format!("/ip4/{ip}/tcp/{port}").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_classical_only_peer_gets_no_session_and_the_node_says_why() {
    let mut mesh = Mesh::up(&["pi"], |_| {});
    let address = multiaddr(&mesh["pi"].listen);
    let mut stranger = stock_peer();
    stranger.dial(address).unwrap();
    let outcome = tokio::time::timeout(BOUND, async {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => panic!("a classical peer has a session"),
                SwarmEvent::OutgoingConnectionError { error, .. } => return error,
                _ => {}
            }
        }
    });
    outcome.await.expect("it is refused within 10 s");

    let events = wait("pi says why", || {
        let events = mesh["pi"].node().out();
        when(events.contains("\"event\":\"refused\""), &events).map(|()| events)
    });
    let refused = events.lines().find(|line| line.contains("\"event\":\"refused\"")).unwrap();
    let refused: serde_json::Value = serde_json::from_str(refused).unwrap();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("it offered /noise") && message.contains("post-quantum"), "{refused}");
    assert!(refused["addr"].as_str().unwrap().starts_with("127.0.0.1:"), "{refused}");
    // The node goes on, and counts it.
    mesh["pi"].json(&["call", "echo", "text=still here"]);
    assert!(mesh["pi"].json(&["sessions"])["sessions"].as_array().unwrap().is_empty());
    assert!(mesh["pi"].node().err().contains("it offered /noise"), "the log says it");
    let told = doctor_on_refusals(&mesh["pi"]);
    assert!(told.contains("it offered /noise") && told.contains("octomesh invite"), "{told}");
}

fn doctor_on_refusals(machine: &Machine) -> String {
    let report = machine.run(&["--json", "doctor"]).json();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().filter(|c| c["name"] == "refusals").map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_not_fall_back_when_it_dials_one() {
    let mut stranger = stock_peer();
    let port = free_port();
    stranger.listen_on(format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()).unwrap();
    let mut mesh = Mesh::furnished(&["pi"], |_| {});
    mesh["pi"].init();
    let watching = tokio::spawn(async move {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => panic!("a classical peer has a session"),
                SwarmEvent::IncomingConnectionError { .. } => return,
                _ => {}
            }
        }
    });
    let machine = tokio::task::spawn_blocking(move || {
        mesh["pi"].up_with(&["--peer", &format!("127.0.0.1:{port}")]);
        mesh
    });
    let mut mesh = machine.await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), watching).await.expect("it is dialled").unwrap();
    wait("pi says why", || {
        let log = mesh["pi"].node().err() + &mesh["pi"].node().out();
        when(log.contains("/octomesh/pq/1"), log)
    });
    let told = doctor_on_refusals(&mesh["pi"]);
    assert!(told.contains("post-quantum") && told.contains("another program"), "{told}");
    mesh["pi"].json(&["call", "echo", "text=still here"]);
}

/// Strangers that say nothing, or nonsense, cost a place for seconds only.
#[test]
fn silence_and_noise_are_hung_up_on() {
    use std::io::{Read, Write};
    let mesh = Mesh::up(&["pi"], |_| {});
    for words in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096], b"\x13/multistream/1.0.0\n"] {
        let mut stream = std::net::TcpStream::connect(&mesh["pi"].listen).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(words).unwrap();
        let mut scrap = Vec::new();
        // The end or a reset, not a timeout of ours.
        let ended = stream.read_to_end(&mut scrap);
        assert!(!matches!(&ended, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
        assert!(scrap.len() < 100, "{scrap:?}");
    }
    mesh["pi"].json(&["call", "echo", "text=still here"]);
}
