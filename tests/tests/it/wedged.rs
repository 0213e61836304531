//! A node whose executor stands still is not ready, whatever its heartbeat says; the others go around it, and come back to it.
use std::{net::SocketAddr, time::Duration};

use octomesh::testing::{self, TestNode};
use octomesh_tests::machine::free_port;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(30);
/// Two self-calls that fail, and what a loaded machine takes for it.
const NOTICED: Duration = Duration::from_secs(40);

async fn until(what: &str, mut done: impl AsyncFnMut() -> Result<(), String>) {
    let begin = Instant::now();
    loop {
        match done().await {
            Ok(()) => return,
            Err(seen) if begin.elapsed() > NOTICED => panic!("{what}: {seen}"),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Why the router leaves `name` out; null when it does not.
async fn left_out(asked: &TestNode, name: &str) -> Value {
    let place = asked.place("echo", json!({"text": "x"})).await.unwrap();
    let filtered = place["filtered"].as_array().unwrap();
    filtered.iter().find(|f| f["node"] == name).map_or(Value::Null, |f| f["reason"].clone())
}

fn entry(nodes: &Value, name: &str) -> Value {
    nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).cloned().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wedged_executor_is_not_ready_and_others_go_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let (home_a, home_b) = (folder.path().join("a"), folder.path().join("b"));
    let at = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    testing::init(&home_a, "a").unwrap();
    let a = TestNode::start(&home_a, at(), false).await.unwrap();
    testing::join(&home_b, "b", &a.invite().await.unwrap()).await.unwrap();
    let b = TestNode::start(&home_b, at(), false).await.unwrap();
    for node in [&a, &b] {
        node.wait_for_members(2, PATIENCE).await.unwrap();
        node.ready().await.expect("proved before its start was over");
        assert_eq!(left_out(node, "a").await, Value::Null);
        assert_eq!(left_out(node, "b").await, Value::Null);
    }

    let fault = b.wedge().await;
    until("a leaves b out", async || match left_out(&a, "b").await {
        reason if reason == "not_ready" => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    // Its heartbeat lives, and so it is not down; but nobody is told that it is well.
    let seen = entry(&a.nodes().await.unwrap(), "b");
    assert_eq!((&seen["state"], &seen["ready"]), (&json!("alive"), &json!(false)), "{seen}");
    assert!(seen["problem"].as_str().unwrap().starts_with("not_ready"), "{seen}");
    let why = b.ready().await.unwrap_err();
    assert!(why.contains("self-call"), "{why}");
    let status = b.status().await.unwrap();
    assert_eq!((&status["state"], &status["not_ready"]), (&json!("not_ready"), &json!(why)), "{status}");
    let refused = a.call("echo", json!({"text": "x"}), Some("b")).await.unwrap_err();
    assert!(refused.contains("not ready"), "{refused}");
    // Also by itself.
    for node in [&a, &b] {
        let call = node.call("echo", json!({"text": "around"}), None).await.unwrap();
        assert_eq!((&call["status"], &call["node"]), (&json!("ok"), &json!("a")), "{call}");
    }

    drop(fault);
    until("b is ready again", async || b.ready().await).await;
    until("a sends steps to b again", async || match left_out(&a, "b").await {
        Value::Null => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    let call = a.call("echo", json!({"text": "back"}), Some("b")).await.unwrap();
    assert_eq!((&call["status"], &call["node"]), (&json!("ok"), &json!("b")), "{call}");
    assert_eq!(entry(&a.nodes().await.unwrap(), "b")["problem"], Value::Null);
    assert!(b.stop().await && a.stop().await);
}
