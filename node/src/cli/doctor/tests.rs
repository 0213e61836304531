use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::{api::types::NodesReply, config};

#[test]
fn homes() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(local::home(home.path()).status, CheckStatus::Ok);
    assert_eq!(local::home(&home.path().join("none")).status, CheckStatus::Warn);
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(local::home(&file).status, CheckStatus::Fail);
}

#[test]
fn an_open_key_is_found_and_the_fix_named() {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("identity/node.key");
    fs::create_dir(home.path().join("identity")).unwrap();
    fs::write(&key, "secret").unwrap();
    let chmod = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
    chmod(0o600);
    assert_eq!(local::permissions(home.path()).status, CheckStatus::Ok);
    chmod(0o644);
    let check = local::permissions(home.path());
    assert_eq!(check.status, CheckStatus::Fail);
    assert_eq!(check.fix.unwrap(), format!("chmod 600 {}", key.display()));
}

#[test]
fn a_port_in_use_is_found_unless_it_is_ours() {
    let home = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let flags = vec![
        ("api".to_owned(), taken.local_addr().unwrap().to_string()),
        ("listen".to_owned(), "127.0.0.1:0".to_owned()),
    ];
    let sources = config::Sources { home: home.path(), environment: vec![], flags, parallelism: 1 };
    let config = config::load(&sources).unwrap().config;
    assert_eq!(local::ports(Some(&config), false).unwrap().status, CheckStatus::Fail);
    assert_eq!(local::ports(Some(&config), true).unwrap().status, CheckStatus::Ok);
    let free = config::NodeConfig { api: "127.0.0.1:0".parse().unwrap(), ..config };
    assert_eq!(local::ports(Some(&free), false).unwrap().status, CheckStatus::Ok);
    assert_eq!(local::ports(None, false), None);
}

#[test]
fn clocks() {
    let nodes = |incarnation: u64| -> NodesReply {
        let node = serde_json::json!({
            "node_id": "x", "name": "attic", "state": "alive", "addr": null, "region": "", "tags": [], "load_ratio": 0.0,
            "slots": 1, "running": 0, "queued": 0, "rtt_ms": null, "last_seen": null, "incarnation": incarnation,
            "is_self": false, "draining": false, "sandbox": null, "gpus": [], "models": [], "tools": 0, "suite": null,
            "version": "", "problem": null
        });
        serde_json::from_value(serde_json::json!({ "nodes": [node] })).unwrap()
    };
    let now = 1_800_000_000;
    assert_eq!(local::clock(0, None).status, CheckStatus::Fail);
    assert_eq!(local::clock(now, None).status, CheckStatus::Ok);
    assert_eq!(local::clock(now, Some(&nodes(now + 60))).status, CheckStatus::Ok);
    let check = local::clock(now, Some(&nodes(now + 3600)));
    assert_eq!((check.status, check.detail.contains("attic")), (CheckStatus::Warn, true));
}
