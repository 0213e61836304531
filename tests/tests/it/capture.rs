//! What somebody sees who listens to the wire between two nodes.
use std::{net::SocketAddr, path::Path, time::Duration};

use octomesh::testing::{self, TestNode};
use octomesh_tests::{machine::free_port, proxy::Proxy};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(30);

/// Random, long, and of characters that every encoding of JSON leaves alone.
fn marker() -> String {
    let mut bytes = [0; 24];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut bytes).unwrap();
    hex(&bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Base64 of `text`, without the ends that depend on what stands beside it; for each of the three alignments.
fn base64(text: &str) -> Vec<String> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    (0..3)
        .map(|skip| {
            let whole = &text.as_bytes()[skip..];
            whole
                .chunks_exact(3)
                .flat_map(|c| {
                    let bits = u32::from(c[0]) << 16 | u32::from(c[1]) << 8 | u32::from(c[2]);
                    [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift & 63) as usize]))
                })
                .collect()
        })
        .collect()
}

fn contains(capture: &[u8], text: &str) -> bool {
    capture.windows(text.len()).any(|window| window == text.as_bytes())
}

/// What the members of a mesh say to each other about a call, recorded between them. `b` knows `a` only by the proxy's address.
async fn capture(plaintext: bool, marker: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (home_a, home_b) = (folder.path().join("a"), folder.path().join("b"));
    let (port_a, port_b, port_proxy) = (free_port(), free_port(), free_port());
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let proxy = Proxy::start(port_proxy, at(port_a));
    testing::init(&home_a, "a").unwrap();
    for (home, port) in [(&home_a, port_proxy), (&home_b, port_b)] {
        std::fs::create_dir_all(home).unwrap();
        std::fs::write(home.join("octomesh.toml"), format!("advertise = [\"127.0.0.1:{port}\"]\n")).unwrap();
    }
    // Joining is a session's business; only then the transport under test.
    let a = TestNode::start(&home_a, at(port_a), false).await.unwrap();
    let ticket = a.invite().await.unwrap();
    testing::join(&home_b, "b", &ticket).await.unwrap();
    assert!(a.stop().await);
    check_peers(&home_b, port_proxy);
    let before = proxy.heard().len();

    let a = TestNode::start(&home_a, at(port_a), plaintext).await.unwrap();
    let b = TestNode::start(&home_b, at(port_b), plaintext).await.unwrap();
    for node in [&a, &b] {
        node.wait_for_members(2, PATIENCE).await.unwrap();
    }
    // Both ways, long enough that a capture beside the wire would be noticed by its size.
    let text = format!("{marker} {}", "calm sea and a light breeze ".repeat(700));
    for (from, to) in [(&a, "b"), (&b, "a")] {
        let call = from.call("echo", json!({ "text": text }), Some(to)).await.unwrap();
        assert_eq!(call["status"], "ok", "{call}");
        assert_eq!(call["node"], to);
        assert_eq!(call["output"]["text"], text.as_str());
    }
    assert!(b.stop().await && a.stop().await);
    let heard = proxy.heard()[before..].to_vec();
    // Two calls, each there and back.
    assert!(heard.len() > 4 * text.len(), "only {} bytes went through the proxy", heard.len());
    heard
}

fn check_peers(home: &Path, port: u16) {
    let peers = std::fs::read_to_string(home.join("peers.json")).unwrap();
    assert!(peers.contains(&format!("127.0.0.1:{port}")), "{peers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_shows_nothing_of_a_call_and_the_plaintext_transport_all() {
    let marker = marker();
    let clear = capture(true, &marker).await;
    assert!(
        contains(&clear, &marker),
        "the plaintext capture must contain the marker, or this test shows nothing"
    );
    assert!(contains(&clear, "calm sea and a light breeze"));
    assert!(contains(&clear, "file_write"), "cards are in the clear too");

    let secure = capture(false, &marker).await;
    let hidden = [
        marker.clone(),
        hex(marker.as_bytes()),
        "calm sea".to_owned(),
        "file_write".to_owned(),
        "echo".to_owned(),
    ];
    for text in hidden.iter().chain(&base64(&marker)) {
        // Four letters come about by chance once in four thousand million bytes.
        assert!(!contains(&secure, text), "the capture of a session contains {text:?}");
    }
    // What is in the open is that it is a session.
    assert!(contains(&secure, "/octomesh/pq/1"));
    assert!(!contains(&secure, "/yamux"), "the multiplexer is negotiated inside");
    // Ciphertext looks like noise: each byte value about equally often.
    let mut counts = [0usize; 256];
    secure.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let mean = secure.len() as f64 / 256.0;
    let (least, most) = (*counts.iter().min().unwrap() as f64, *counts.iter().max().unwrap() as f64);
    assert!(least > mean * 0.5 && most < mean * 2.0, "not like noise: {least} to {most}, mean {mean}");
}
