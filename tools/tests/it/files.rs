use std::os::unix::fs::{PermissionsExt, symlink};

use octomesh_tools::tool::CallContext;
use serde_json::{Value, json};

use crate::support::{Node, error};

const SHA_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn remote(node: &Node) -> CallContext {
    let mut context = node.context();
    context.caller.local = false;
    context
}

/// Every way to reach outside, for every tool that takes a path.
#[tokio::test]
async fn nothing_outside_of_the_workspace_is_reached() {
    let node = Node::new();
    std::fs::write(node.outside("secret"), "secret word").unwrap();
    symlink(node.outside("secret"), node.inside("link")).unwrap();
    symlink("../secret", node.inside("relative")).unwrap();
    symlink("/etc", node.inside("etc")).unwrap();
    let absolute = node.outside("secret").display().to_string();
    for path in ["../secret", "a/../../secret", "/etc/passwd", &absolute, "link", "relative", "etc/passwd"] {
        for tool in ["file_read", "file_search", "text_stats", "hash", "file_list", "file_write"] {
            let mut arguments = json!({"path": path});
            match tool {
                "file_search" => arguments["query"] = json!("secret"),
                "file_write" => arguments["content"] = json!("overwritten"),
                _ => {}
            }
            let (code, message) = node.err(tool, arguments).await;
            assert!(
                ["forbidden", "invalid_arguments", "not_found"].contains(&code.as_str()),
                "{tool} {path}: {code} {message}"
            );
            assert!(!message.contains("secret word"));
        }
    }
    assert_eq!(std::fs::read_to_string(node.outside("secret")).unwrap(), "secret word");
    // A search over everything does not follow links either.
    let found = node.ok("file_search", json!({"query": "secret word"})).await;
    assert_eq!((&found["count"], &found["files_skipped"]), (&json!(0), &json!(3)));
}

#[tokio::test]
async fn links_inside_work() {
    let node = Node::new();
    node.put("a/b.txt", "abc");
    symlink("a/b.txt", node.inside("short")).unwrap();
    assert_eq!(node.ok("hash", json!({"path": "short"})).await["hash"], SHA_ABC);
    assert_eq!(node.ok("hash", json!({"path": "a/../a/b.txt"})).await["hash"], SHA_ABC);
}

#[tokio::test]
async fn hard_links_are_for_local_callers_only() {
    let node = Node::new();
    std::fs::write(node.outside("secret"), "abc").unwrap();
    std::fs::hard_link(node.outside("secret"), node.inside("twin")).unwrap();
    for tool in ["file_read", "hash", "text_stats"] {
        let report = node.call_with(tool, json!({"path": "twin"}), &remote(&node)).await;
        assert_eq!(error(&report).0, "forbidden", "{tool}");
    }
    let found = node.call_with("file_search", json!({"query": "abc"}), &remote(&node)).await;
    assert_eq!(serde_json::from_slice::<Value>(&found.output).unwrap()["count"], 0);
    assert_eq!(node.ok("file_read", json!({"path": "twin"})).await["content"], "abc");
    // Writing gives this name a file of its own.
    node.ok("file_write", json!({"path": "twin", "content": "new"})).await;
    assert_eq!(std::fs::read_to_string(node.outside("secret")).unwrap(), "abc");
}

#[tokio::test]
async fn a_fifo_is_refused_at_once() {
    let node = Node::new();
    let made = std::process::Command::new("mkfifo").arg(node.inside("pipe")).status().unwrap();
    assert!(made.success());
    for tool in ["file_read", "hash", "text_stats"] {
        let (code, message) = node.err(tool, json!({"path": "pipe"})).await;
        assert!(code == "forbidden" && message.contains("not a regular file"), "{tool}: {message}");
    }
    assert_eq!(node.err("file_write", json!({"path": "pipe", "content": "x"})).await.0, "forbidden");
    assert_eq!(node.ok("file_search", json!({"query": "x"})).await["files_skipped"], 1);
    assert_eq!(node.ok("file_list", json!({})).await["entries"][0]["type"], "other");
}

#[tokio::test]
async fn reading_lines() {
    let node = Node::new();
    node.put("n.txt", "one\ntwo\nthree\nfour");
    let all = node.ok("file_read", json!({"path": "n.txt"})).await;
    assert_eq!(all["content"], "one\ntwo\nthree\nfour");
    assert_eq!(
        (&all["lines"], &all["total_bytes"], &all["truncated"]),
        (&json!(4), &json!(18), &json!(false))
    );
    assert!(all.get("next_offset").is_none());
    let part = node.ok("file_read", json!({"path": "n.txt", "offset": 1, "limit": 2})).await;
    assert_eq!((&part["content"], &part["next_offset"]), (&json!("two\nthree\n"), &json!(3)));
    assert_eq!((&part["lines"], &part["sha256"]), (&json!(4), &all["sha256"]));
    let past = node.ok("file_read", json!({"path": "n.txt", "offset": 9})).await;
    assert_eq!((&past["content"], &past["returned_lines"]), (&json!(""), &json!(0)));
    node.put("empty", "");
    assert_eq!(node.ok("file_read", json!({"path": "empty"})).await["lines"], 0);
    assert_eq!(node.err("file_read", json!({"path": "none"})).await.0, "not_found");
    assert!(node.err("file_read", json!({"path": "."})).await.1.contains("is a folder"));
    assert_eq!(node.err("file_read", json!({"path": "a\u{0}b"})).await.0, "invalid_arguments");
}

#[tokio::test]
async fn large_and_binary_files() {
    let node = Node::new();
    node.put("large", "0123456789abcde\n".repeat(500_000));
    let (code, message) = node.err("file_read", json!({"path": "large"})).await;
    assert!(code == "too_large" && message.contains("`limit`"), "{message}");
    let part = node.ok("file_read", json!({"path": "large", "limit": 490_000})).await;
    assert_eq!((&part["truncated"], &part["lines"]), (&json!(true), &json!(500_000)));
    let next = part["next_offset"].as_u64().unwrap();
    assert_eq!(next as usize, part["content"].as_str().unwrap().lines().count());
    node.put("binary", b"ok \xff\xfe bytes");
    let binary = node.ok("file_read", json!({"path": "binary"})).await;
    assert_eq!(
        (&binary["invalid_utf8"], &binary["content"]),
        (&json!(true), &json!("ok \u{fffd}\u{fffd} bytes"))
    );
    // Each of these bytes is six in JSON.
    node.put("control", "\u{1}".repeat(4_000_000));
    assert_eq!(node.ok("file_read", json!({"path": "control", "limit": 1})).await["truncated"], true);
    // Cut in the middle of a character: no false alarm.
    node.put("umlauts", "x".to_owned() + &"ä".repeat(4_000_000));
    let cut = node.ok("file_read", json!({"path": "umlauts", "limit": 1})).await;
    assert!(cut.get("invalid_utf8").is_none() && cut["truncated"] == true);
}

#[tokio::test]
async fn writing() {
    let node = Node::new();
    let made = node.ok("file_write", json!({"path": "a/b/c.txt", "content": "abc"})).await;
    assert_eq!(
        (&made["created"], &made["sha256"], &made["total_bytes"]),
        (&json!(true), &json!(SHA_ABC), &json!(3))
    );
    let mode = |path: &str| std::fs::metadata(node.inside(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("a/b/c.txt"), 0o644);
    std::fs::set_permissions(node.inside("a/b/c.txt"), std::fs::Permissions::from_mode(0o4750)).unwrap();
    let more = node.ok("file_write", json!({"path": "a/b/c.txt", "content": "d", "append": true})).await;
    assert_eq!((&more["created"], &more["total_bytes"]), (&json!(false), &json!(4)));
    assert_eq!(std::fs::read_to_string(node.inside("a/b/c.txt")).unwrap(), "abcd");
    assert_eq!(mode("a/b/c.txt"), 0o750, "the mode is kept, set-user-id is not");
    assert_eq!(std::fs::read_dir(node.inside("a/b")).unwrap().count(), 1, "no temporary file is left");
    for bad in ["", "a/b/", ".", "a/b"] {
        node.err("file_write", json!({"path": bad, "content": "x"})).await;
    }
    assert_eq!(std::fs::read_to_string(node.inside("a/b/c.txt")).unwrap(), "abcd");
}

#[tokio::test]
async fn if_match_lets_one_of_two_writers_win() {
    let node = Node::new();
    node.put("f", "abc");
    let write = |content: &'static str| {
        node.call("file_write", json!({"path": "f", "content": content, "if_match": SHA_ABC}))
    };
    let reports = futures::future::join_all((0..8).map(|_| write("new"))).await;
    let won = reports.iter().filter(|r| r.error_code().is_none()).count();
    assert_eq!(won, 1);
    assert!(reports.iter().filter_map(|r| r.error_code()).all(|c| c == "conflict"));
    let gone = node.err("file_write", json!({"path": "g", "content": "x", "if_match": SHA_ABC})).await;
    assert_eq!(gone.0, "conflict");
    assert!(!node.inside("g").exists());
}

#[tokio::test]
async fn listing() {
    let node = Node::new();
    node.put("b/c/d/e.txt", "12345");
    node.put("a.txt", "1");
    let flat = node.ok("file_list", json!({})).await;
    assert_eq!(
        flat["entries"],
        json!([{"path": "a.txt", "type": "file", "bytes": 1}, {"path": "b", "type": "folder", "bytes": 0}])
    );
    let deep = node.ok("file_list", json!({"depth": 3})).await;
    assert_eq!(deep["entries"].as_array().unwrap().last().unwrap()["path"], "b/c/d");
    assert_eq!(node.ok("file_list", json!({"path": "b/c/d"})).await["entries"][0]["bytes"], 5);
    assert_eq!(node.err("file_list", json!({"depth": 4})).await.0, "invalid_arguments");
    assert_eq!(node.err("file_list", json!({"path": "nope"})).await.0, "not_found");
    for i in 0..600 {
        node.put(&format!("many/{i:04}"), "");
    }
    let many = node.ok("file_list", json!({"path": "many"})).await;
    assert_eq!((&many["count"], &many["truncated"]), (&json!(500), &json!(true)));
}

#[tokio::test]
async fn searching() {
    let node = Node::new();
    node.put("a.md", "Roses\nred roses\nviolets\n");
    node.put("sub/b.md", "no flowers\r\nROSES here");
    node.put("binary", b"roses\0roses");
    let found = node.ok("file_search", json!({"query": "roses"})).await;
    assert_eq!(
        (&found["count"], &found["files_searched"], &found["files_skipped"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert_eq!(found["matches"][2], json!({"path": "sub/b.md", "line": 2, "text": "ROSES here"}));
    let exact =
        node.ok("file_search", json!({"query": "roses", "case_insensitive": false, "path": "a.md"})).await;
    assert_eq!(exact["matches"], json!([{"path": "a.md", "line": 2, "text": "red roses"}]));
    let few = node.ok("file_search", json!({"query": "roses", "max_results": 1})).await;
    assert_eq!((&few["count"], &few["truncated"]), (&json!(3), &json!(true)));
    assert_eq!(few["matches"].as_array().unwrap().len(), 1);
    assert_eq!(node.ok("file_search", json!({"query": "roses", "path": "sub"})).await["count"], 1);
    assert_eq!(node.err("file_search", json!({"query": "x", "path": "nope"})).await.0, "not_found");
    assert_eq!(node.err("file_search", json!({"query": ""})).await.0, "invalid_arguments");
}

#[tokio::test]
async fn statistics_and_hashes() {
    let node = Node::new();
    node.put("t.txt", "abc");
    let stats = node.ok("text_stats", json!({"path": "t.txt"})).await;
    assert_eq!((&stats["words"], &stats["bytes"], &stats["path"]), (&json!(1), &json!(3), &json!("t.txt")));
    assert_eq!(node.ok("hash", json!({"path": "t.txt"})).await["hash"], SHA_ABC);
    assert_eq!(node.ok("hash", json!({"text": "abc"})).await["hash"], SHA_ABC);
    let long = node.ok("hash", json!({"text": "abc", "algorithm": "sha512"})).await;
    assert!(long["hash"].as_str().unwrap().starts_with("ddaf35a193617aba"));
    for tool in ["hash", "text_stats"] {
        for bad in [json!({}), json!({"path": "t.txt", "text": "x"})] {
            assert_eq!(node.err(tool, bad).await.0, "invalid_arguments");
        }
    }
    assert_eq!(node.err("hash", json!({"text": "x", "algorithm": "md5"})).await.0, "invalid_arguments");
}

#[tokio::test]
async fn a_cancel_stops_a_write_before_it_begins() {
    let node = Node::new();
    let context = node.context();
    context.cancel.cancel();
    let report = node.call_with("file_write", json!({"path": "x", "content": "y"}), &context).await;
    assert_eq!(error(&report).0, "cancelled");
    assert!(!node.inside("x").exists());
}
