use std::time::Duration;

use octomesh_protocol::card::SandboxLevel;
use octomesh_tools::{registry::EntryState, watch};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::{Node, eventually, name, sandbox_at, write_executable};

#[tokio::test]
async fn drop_replace_remove_within_a_second() {
    let node = Node::new();
    let cancel = CancellationToken::new();
    let sandbox = sandbox_at(SandboxLevel::Rlimits, |_| {}).await;
    let watching = watch::watch(node.registry.clone(), node.tools(), sandbox, cancel.clone());
    let story = async {
        let mut changes = node.registry.subscribe();
        let before = changes.borrow_and_update().tool_set();
        let soon = Duration::from_millis(1500);
        node.script("greet", "echo hello", "");
        tokio::time::timeout(soon, changes.wait_for(|s| s.get(&name("greet")).is_some()))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(node.ok("greet", json!({})).await["text"], "hello\n");
        let first = node.registry.snapshot().tool_set();
        assert_ne!(first, before);

        node.script("greet", "echo hello", "version = \"2.0.0\"");
        let newer = |s: &std::sync::Arc<octomesh_tools::registry::Snapshot>| {
            s.get(&name("greet")).is_some_and(|e| e.card.version == "2.0.0")
        };
        tokio::time::timeout(soon, changes.wait_for(newer)).await.unwrap().unwrap();
        assert_ne!(node.registry.snapshot().tool_set(), first);

        std::fs::remove_dir_all(node.tools().join("greet")).unwrap();
        tokio::time::timeout(soon, changes.wait_for(|s| s.get(&name("greet")).is_none()))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(node.registry.snapshot().tool_set(), before);
        assert_eq!(node.err("greet", json!({})).await.0, "no_tool");
        cancel.cancel();
    };
    tokio::join!(watching, story);
}

#[tokio::test]
async fn a_broken_manifest_says_why_and_harms_nobody() {
    let node = Node::new();
    node.script("good", "echo fine", "");
    node.script("typo", "true", "comand = []");
    node.script("un named", "true", "");
    node.scan().await;
    let snapshot = node.registry.snapshot();
    let typo = snapshot.get(&name("typo")).unwrap();
    let EntryState::Quarantined { reason } = &typo.state else { panic!("{typo:?}") };
    assert!(
        reason.contains("tool.toml") && reason.contains("line 5") && reason.contains("comand"),
        "{reason}"
    );
    assert!(
        snapshot
            .problems
            .iter()
            .any(|(path, why)| path.ends_with("un named/tool.toml") && why.contains("name"))
    );
    assert!(!snapshot.manifest().entries().iter().any(|e| e.name == name("typo")));
    assert_eq!(node.ok("good", json!({})).await["text"], "fine\n");
    // Repaired, it works.
    node.script("typo", "echo repaired", "");
    node.scan().await;
    assert_eq!(node.ok("typo", json!({})).await["text"], "repaired\n");
}

#[tokio::test]
async fn a_taken_name_is_refused() {
    let node = Node::new();
    node.script("echo", "echo usurped", "");
    node.script("twin_a", "echo a", "");
    node.script("twin_b", "echo b", "");
    let manifest = node.tools().join("twin_b/tool.toml");
    let text = std::fs::read_to_string(&manifest).unwrap().replace("\"twin_b\"", "\"twin_a\"");
    std::fs::write(&manifest, text).unwrap();
    node.scan().await;
    assert_eq!(node.ok("echo", json!({"text": "mine"})).await["text"], "mine");
    assert_eq!(node.ok("twin_a", json!({})).await["text"], "a\n");
    let snapshot = node.registry.snapshot();
    let reasons: Vec<&str> = snapshot.problems.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons.iter().all(|r| r.starts_with("name_taken")), "{reasons:?}");
}

#[tokio::test]
async fn an_unchanged_folder_publishes_nothing_and_keeps_tools_loaded() {
    let node = Node::new();
    node.script("greet", "echo hello", "");
    node.script("broken", "true", "x = 1");
    node.scan().await;
    node.ok("greet", json!({})).await;
    let mut changes = node.registry.subscribe();
    changes.borrow_and_update();
    node.scan().await;
    assert!(!changes.has_changed().unwrap());
    assert!(node.registry.snapshot().get(&name("greet")).unwrap().loaded);
    // A tool found broken by a check stays so until its manifest changes.
    node.registry.set_unavailable(&name("greet"), "check failed");
    node.scan().await;
    assert!(!node.registry.snapshot().get(&name("greet")).unwrap().state.is_available());
    node.script("greet", "echo hello", "version = \"1.0.1\"");
    node.scan().await;
    assert!(node.registry.snapshot().get(&name("greet")).unwrap().state.is_available());
}

#[tokio::test]
async fn a_program_that_comes_later_makes_the_tool_available() {
    let node = Node::new();
    node.script("late", "true", "");
    std::fs::remove_file(node.tools().join("late/run.sh")).unwrap();
    node.scan().await;
    assert!(!node.registry.snapshot().get(&name("late")).unwrap().state.is_available());
    write_executable(&node.tools().join("late/run.sh"), "#!/bin/sh\necho here\n");
    node.scan().await;
    assert_eq!(node.ok("late", json!({})).await["text"], "here\n");
}

#[tokio::test]
async fn strange_folders() {
    let node = Node::new();
    std::fs::remove_dir(node.tools()).unwrap();
    node.scan().await;
    assert_eq!(node.registry.snapshot().entries.len(), 11);
    node.script(".hidden", "true", "");
    std::fs::create_dir_all(node.tools().join("empty")).unwrap();
    std::fs::create_dir_all(node.tools().join("folder/tool.toml")).unwrap();
    std::fs::create_dir_all(node.tools().join("large")).unwrap();
    std::fs::write(node.tools().join("large/tool.toml"), "#".repeat(1 << 20)).unwrap();
    std::fs::create_dir_all(node.tools().join("pipe")).unwrap();
    let made =
        std::process::Command::new("mkfifo").arg(node.tools().join("pipe/tool.toml")).status().unwrap();
    assert!(made.success());
    let mut changes = node.registry.subscribe();
    tokio::time::timeout(Duration::from_secs(5), node.scan()).await.unwrap();
    let snapshot = changes.borrow_and_update().clone();
    let quarantined: Vec<&str> =
        snapshot.entries.values().filter(|e| !e.state.is_available()).map(|e| e.card.name.as_str()).collect();
    assert_eq!(quarantined, ["folder", "large", "pipe"]);
    eventually("the good ones are still there", || snapshot.available().count() == 11).await;
}
